"""What vLLM loads into each worker process, and the calls that drivers make of it.

Named to vLLM by ``worker_extension_cls``; reached by ``collective_rpc``.  All ranks run
every call; rank 0 captures, keeps and writes, since under tensor parallelism each rank
computes the same states.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from eagle3_agent.protocol.values import ErrorInfo
from eagle3_agent.worker import failure
from eagle3_agent.worker.engines.base import Output

from .core import Capture, Rows
from .orphan import end_with_parent
from .refusals import refuse
from .staging import Layout

EXTENSION = f"{__name__}.CaptureExtension"


@dataclass
class Reply:
    """What one worker answers to a step; errors travel as values, so no reply is left unread."""

    rows: dict[str, Rows] = field(default_factory=dict)
    """Request id -> the states of its whole prompt, for requests that this step completed;
    empty while a pool is open (``eagle3_open``), and from ranks other than 0."""
    error: ErrorInfo | None = None


class CaptureExtension:
    """Methods that become the vLLM worker's own."""

    model_runner: Any
    vllm_config: Any
    rank: int

    def eagle3_attach(self, layers: list[int], kind: str) -> str:
        """Capture the states after ``layers`` (0-based; order and repeats kept).

        ``kind``: "LSH" or "SLH", how the states of a request lie in memory (L layers, S tokens,
        H hidden).  Returns how the states are had, in words; raises CaptureRefused.
        """
        refuse(self.vllm_config, self.model_runner)
        earlier = getattr(self, "_eagle3", None)
        if earlier is not None:
            earlier.detach()
        end_with_parent()
        layout: Layout = "SLH" if kind == "SLH" else "LSH"
        self._eagle3 = Capture(self.model_runner, layers, layout, keep=self.rank == 0)
        return self._eagle3.source

    def eagle3_reserve(self, size: int) -> None:
        """Take and pin ``size`` bytes of host memory ahead of ``eagle3_open``; takes seconds."""
        self._eagle3.reserve(size)

    def eagle3_open(self, output: Output) -> None:
        """From now on states of finished requests are written as ``output`` says."""
        self._eagle3.open(output)

    def eagle3_expect(self, batch: list[tuple[str, int, bytes]]) -> None:
        """Name the samples of coming requests: (request id, index, loss mask: a byte a token)."""
        self._eagle3.expect(batch)

    def eagle3_take(self) -> dict[str, Rows]:
        """Finished requests by value, taken out; raises what went wrong in capturing."""
        return self._eagle3.take()

    def eagle3_reset(self) -> None:
        """Drop every request, and stop an open pool without finishing it."""
        self._eagle3.reset()

    def eagle3_finish(self) -> None:
        """Return once every finished request is on the disk; raises PoolFailed."""
        self._eagle3.finish()

    def eagle3_step(self, scheduler_output: Any) -> Reply:
        """Run one scheduler step, both phases of it, and hand over what it completed."""
        worker: Any = self
        try:
            if worker.execute_model(scheduler_output) is None:
                worker.sample_tokens(None)
            return Reply(self._eagle3.take())
        except Exception as error:
            self._eagle3.drop_requests()
            return Reply(error=replace(failure.describe(error), rank=self.rank))
