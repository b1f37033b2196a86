"""Engine ``vllm``: vLLM's own engine loop in this process; its workers capture and write.

Requests are topped up while others run, so no step waits for a batch to end.  What
differs between releases is looked up in signatures and configs, not in versions.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from eagle3_agent.protocol.events import Note, Patched
from eagle3_agent.protocol.values import Profile
from eagle3_agent.worker.compat import errors
from eagle3_agent.worker.writing.pool import layout

from . import arguments, machine
from .base import Captured, Emit, EngineError, Loaded, Output, Sample, Watch
from .ticker import Ticker

#: Steps' worth of tokens, and samples at most, announced to the workers by one call: a call waits
#: for the step that runs.
_ANNOUNCED_STEPS = 32
_ANNOUNCED = 4096

#: Steps' worth of tokens and of prompts that wait or run: the scheduler plans one step while
#: another runs, and fills each from what waits.
_AHEAD = 4

#: Seconds that workers get to stop writing when the engine is closed.
_CLOSING = 20.0


class VllmEngine:
    """See ``base.Engine``."""

    name = "vllm"

    def __init__(self) -> None:
        self._llm: Any = None
        self._sampling: Any = None
        self._count = 0
        self._budget = arguments.TOKENS
        self._sequences = arguments.SEQUENCES

    # ------------------------------------------------------------------ load

    def load(self, profile: Profile, emit: Emit) -> Loaded:
        _prepare(profile, emit)
        given = arguments.make(profile)
        self._budget = given["max_num_batched_tokens"]
        self._sequences = given["max_num_seqs"]
        from vllm import LLM, SamplingParams

        self._llm = LLM(**given)
        self._sampling = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        kind = layout(profile.output.format)
        source = self._rpc("eagle3_attach", list(profile.capture.layers), kind)
        loaded = self._loaded(source)
        self._rpc("eagle3_reserve", machine.buffer_bytes(profile, loaded))
        return loaded

    def _loaded(self, source: str) -> Loaded:
        config = self._llm.llm_engine.vllm_config
        text = config.model_config.hf_text_config
        return Loaded(
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            hidden=int(text.hidden_size),
            layers=int(text.num_hidden_layers),
            vocab=int(config.model_config.get_vocab_size()),
            device=machine.devices(config.parallel_config.tensor_parallel_size),
            source=source,
        )

    # ------------------------------------------------------------------ run

    def capture(self, samples: Sequence[Sample]) -> Iterator[Captured]:
        names = {}
        for sample in samples:
            names[self._add(sample)] = sample
        while names:
            self._step()
            for name, rows in self._rpc("eagle3_take").items():
                # newer releases add a random part to a request's id
                known = name if name in names else name.rpartition("-")[0]
                states = tuple(rows.tensors())
                yield Captured(names.pop(known), states)
        self._drain()

    def extract(self, samples: Iterator[Sample], output: Output, watch: Watch) -> None:
        with Ticker(watch) as ticker:
            ticker.during(lambda: self._rpc("eagle3_open", output))
            self._run(samples, ticker)
            ticker.during(lambda: self._rpc("eagle3_finish"))

    def _run(self, samples: Iterator[Sample], ticker: Ticker) -> None:
        announced: deque[tuple[str, Sample]] = deque()
        lengths: dict[str, int] = {}
        tokens, exhausted = 0, False
        while True:
            while tokens < _AHEAD * self._budget and len(lengths) < _AHEAD * self._sequences:
                if not announced and not exhausted:
                    exhausted = not self._announce(samples, announced)
                if not announced:
                    break
                name, sample = announced.popleft()
                self._add(sample, name)
                lengths[name] = len(sample.input_ids)
                tokens += lengths[name]
            if not lengths:
                return
            for finished in ticker.during(self._step):
                if finished.finished:
                    tokens -= lengths.pop(finished.request_id)

    def _announce(self, samples: Iterator[Sample], announced: deque[tuple[str, Sample]]) -> bool:
        """Take the next samples and tell the workers whose they are; false when none is left."""
        block: list[tuple[str, Sample]] = []
        tokens = 0
        for sample in islice(samples, _ANNOUNCED):
            block.append((self._name(), sample))
            tokens += len(sample.input_ids)
            if tokens >= _ANNOUNCED_STEPS * self._budget:
                break
        if block:
            told = [(name, s.index, bytes(s.loss_mask)) for name, s in block]
            self._rpc("eagle3_expect", told)
            announced.extend(block)
        return bool(block)

    def _name(self) -> str:
        self._count += 1
        return f"s{self._count}"

    def _add(self, sample: Sample, name: str = "") -> str:
        name = name or self._name()
        prompt = {"prompt_token_ids": list(sample.input_ids)}
        self._llm.llm_engine.add_request(name, prompt, self._sampling)
        return name

    def _drain(self) -> None:
        """Steps until the engine has told of every request that it finished."""
        while self._llm.llm_engine.has_unfinished_requests():
            self._step()

    def _step(self) -> Any:
        """Outputs of one step of vLLM's loop; raises what a worker raised, as it was there."""
        try:
            return self._llm.llm_engine.step()
        except Exception as error:
            found = errors.explained(error)
            if found is error:
                raise
            raise found from error

    def _rpc(self, method: str, *arguments: Any) -> Any:
        """Call every worker; the first one's answer."""
        try:
            return self._llm.collective_rpc(method, args=arguments)[0]
        except EngineError as error:
            info = getattr(error, "info", None)
            if info is not None and info.type.endswith("CaptureRefused"):
                raise EngineError(info.message) from error
            raise

    # ------------------------------------------------------------------ close

    def close(self) -> None:
        llm, self._llm = self._llm, None
        if llm is None:
            return
        core = llm.llm_engine.engine_core
        with suppress(Exception):
            llm.collective_rpc("eagle3_reset", timeout=_CLOSING)
        with suppress(Exception):
            core.shutdown()
        del llm, core
        _forget_device()


def _prepare(profile: Profile, emit: Emit) -> None:
    """Apply what vLLM itself needs; what cannot be told is told, and nothing more here."""
    for finding in arguments.prepare(profile):
        emit(Patched(time.time(), finding, applied=finding.status == "needed"))
        if finding.status == "cannot-tell":
            emit(Note(time.time(), "warning", f"{finding.patch}: {finding.evidence}"))


def _forget_device() -> None:
    """Give memory back that a collected model held, and vLLM's process groups."""
    import torch

    with suppress(Exception):
        from vllm.distributed import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
