"""Engine ``vllm``: vLLM's own engine loop in this process; its workers capture and write.

Requests are topped up while others run, so no step waits for a batch to end.  What
differs between releases is looked up in signatures and configs, not in versions.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from eagle3_agent.protocol.events import Note, Patched
from eagle3_agent.protocol.values import Profile
from eagle3_agent.worker import model_info
from eagle3_agent.worker.capture.extension import EXTENSION
from eagle3_agent.worker.compat import errors
from eagle3_agent.worker.writing.pool import layout

from . import machine
from .base import Captured, Emit, EngineError, Loaded, Output, Sample, Watch
from .room import room_for_one
from .ticker import Ticker

#: Read by vLLM when it starts.  The engine core stays in this process: one that stands alone
#: outlives its parent and keeps its GPU.  Newer releases have a second model runner, whose
#: batch the capture core does not know.
_ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}

#: Prompts of one step at most.  A prompt lives for its prefill alone, so this many fill a step
#: of 8192 tokens down to 32 tokens a prompt; each costs a row of logits.
_SEQUENCES = 256
_TOKENS = 8192

#: Steps' worth of tokens, and samples at most, announced to the workers by one call: a call waits
#: for the step that runs.
_ANNOUNCED_STEPS = 32
_ANNOUNCED = 4096

#: Steps' worth of tokens and of prompts that wait or run: the scheduler plans one step while
#: another runs, and fills each from what waits.
_AHEAD = 4

#: Kinds of input that vLLM's multimodal models know beside text.
_MODALITIES = ("image", "video", "audio", "vision_chunk")

#: Seconds that workers get to stop writing when the engine is closed.
_CLOSING = 20.0


class VllmEngine:
    """See ``base.Engine``."""

    name = "vllm"

    def __init__(self) -> None:
        self._llm: Any = None
        self._sampling: Any = None
        self._count = 0
        self._budget = _TOKENS
        self._sequences = _SEQUENCES

    # ------------------------------------------------------------------ load

    def load(self, profile: Profile, emit: Emit) -> Loaded:
        os.environ.update(_ENVIRONMENT)
        # a forked worker would inherit this process's threads and their locks
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        info = model_info.read(Path(profile.model.path))
        _patch(profile, emit)
        arguments = self._arguments(profile, info)
        from vllm import LLM, SamplingParams

        self._llm = LLM(**arguments)
        self._sampling = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        kind = layout(profile.output.format)
        source = self._rpc("eagle3_attach", list(profile.capture.layers), kind)
        loaded = self._loaded(source)
        self._rpc("eagle3_reserve", machine.buffer_bytes(profile, loaded))
        return loaded

    def _arguments(self, profile: Profile, info: model_info.ModelInfo) -> dict[str, Any]:
        model, engine = profile.model, profile.engine
        longest = room_for_one(model, info)
        self._budget = engine.max_num_batched_tokens or max(_TOKENS, longest)
        self._sequences = min(engine.max_num_seqs or _SEQUENCES, self._budget)
        return {
            "model": model.path,
            "trust_remote_code": model.trust_remote_code,
            "tensor_parallel_size": model.tensor_parallel_size,
            "dtype": model_info.run_dtype(model.dtype, info),
            "gpu_memory_utilization": model.gpu_memory_utilization,
            "max_model_len": longest,
            "max_num_batched_tokens": self._budget,
            "max_num_seqs": self._sequences,
            "enable_chunked_prefill": True,
            "enable_prefix_caching": False,
            "enforce_eager": True,
            "worker_extension_cls": EXTENSION,
            "seed": 0,
            **_text_only(info),
        }

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


def _patch(profile: Profile, emit: Emit) -> None:
    """Apply what vLLM itself needs; what cannot be told is told, and nothing more here."""
    from eagle3_agent.worker.compat import registry
    from eagle3_agent.worker.compat.patch import Settings

    found = [f for f in registry.findings() if f.patch.startswith("vllm/")]
    registry.apply(found, Settings(profile.model.dtype, profile.model.trust_remote_code))
    for finding in found:
        emit(Patched(time.time(), finding, applied=finding.status == "needed"))
        if finding.status == "cannot-tell":
            emit(Note(time.time(), "warning", f"{finding.patch}: {finding.evidence}"))


def _text_only(info: model_info.ModelInfo) -> dict[str, Any]:
    """Token ids are all that is run: no tokenizer, or no pictures to make room for."""
    from vllm.engine.arg_utils import EngineArgs

    config = json.loads((info.path / "config.json").read_bytes())
    if not config.keys() & {"vision_config", "audio_config"}:
        return {"skip_tokenizer_init": True}
    # a multimodal model's processor is made in any case, and wants the tokenizer
    if "language_model_only" in EngineArgs.__dataclass_fields__:
        return {"language_model_only": True}
    return {"limit_mm_per_prompt": dict.fromkeys(_MODALITIES, 0)}


def _forget_device() -> None:
    """Give memory back that a collected model held, and vLLM's process groups."""
    import torch

    with suppress(Exception):
        from vllm.distributed import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
