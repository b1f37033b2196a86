"""Drives a generator's scheduler and executor: requests in, steps of the model, none left over.

A request lives until the last token of its prompt is scheduled, since nothing is decoded.
What a step computed is told by the workers, request by request.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from eagle3_agent.worker.capture.extension import Reply

from .errors import RemoteError


class Driver:
    """One generator's requests.  Adding and scheduling are one thread's; ``run`` may be another's,
    as long as the outputs are run in the order in which they were scheduled."""

    def __init__(self, generator: Any) -> None:
        self._scheduler = generator.scheduler
        self._executor = generator.executor
        self._eos = getattr(generator.tokenizer, "eos_token_id", None)

    def add(self, name: str, row: Sequence[int]) -> None:
        self._scheduler.add_request(make_request(name, row, self._eos))

    @property
    def waiting(self) -> int:
        """Requests that are not scheduled to their end."""
        return len(self._scheduler.requests)

    @property
    def uncomputed(self) -> int:
        """Tokens of theirs that are not scheduled."""
        return sum(
            r.num_prompt_tokens - r.num_computed_tokens for r in self._scheduler.requests.values()
        )

    def schedule(self) -> Any:
        """The next step.  A request whose prompt it completes ends here: its blocks are free for
        the step after it, which the workers run later."""
        output = self._scheduler.schedule()
        requests = self._scheduler.requests
        self.end([name for name in output.num_scheduled_tokens if _complete(requests[name])])
        return output

    def run(self, output: Any) -> Reply:
        """Have the workers run a step; raises RemoteError for what one of them raised."""
        replies: list[Reply] = self.call("eagle3_step", output, timeout=_step_timeout())
        return replies[0]

    def call(self, method: str, *args: Any, timeout: float | None = None) -> list[Any]:
        """Call a method of every worker; raises RemoteError for what one of them raised."""
        return call(self._executor, method, *args, timeout=timeout)

    def steps(self) -> Iterator[Reply]:
        """Run everything that was added; the last, empty step tells workers who has finished."""
        while True:
            output = self.schedule()
            yield self.run(output)
            if not output.total_num_scheduled_tokens:
                return

    def end(self, names: Sequence[str]) -> None:
        from vllm.v1.request import RequestStatus

        self._scheduler.finish_requests(list(names), RequestStatus.FINISHED_ABORTED)

    def drop(self, error: BaseException) -> None:
        """After ``error``: leave nothing queued here, nor in workers that still answer."""
        self.end(list(self._scheduler.requests))
        # a worker that did not answer, or an interrupted call, leaves replies out of step
        if not isinstance(error, Exception) or isinstance(error, TimeoutError):
            return
        try:
            self.run(self._scheduler.schedule())
        except Exception:
            pass  # the first error is the one to tell


def call(executor: Any, method: str, *args: Any, timeout: float | None = None) -> list[Any]:
    """Call a method of every worker of an executor; raises RemoteError for their error."""
    replies = list(executor.collective_rpc(method, args=args, timeout=timeout))
    for reply in replies:
        error = getattr(reply, "error", None)
        if error is not None:
            raise RemoteError(error)
    return replies


def _complete(request: Any) -> bool:
    return bool(request.num_computed_tokens >= request.num_prompt_tokens)


def make_request(name: str, row: Sequence[int], eos: int | None) -> Any:
    """A request for one prefill; arguments that this vLLM's Request does not know are left out."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    arguments = {
        "request_id": name,
        "prompt_token_ids": list(row),
        "sampling_params": SamplingParams(max_tokens=1, temperature=0.0),
        "pooling_params": None,
        "eos_token_id": eos,
        "arrival_time": 0.0,
    }
    known = inspect.signature(Request.__init__).parameters
    return Request(**{k: v for k, v in arguments.items() if k in known})


def _step_timeout() -> float:
    from vllm import envs

    return float(getattr(envs, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", 300))
