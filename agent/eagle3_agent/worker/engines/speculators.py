"""Engine ``speculators``: the library's own generator over the vLLM that is installed.

Probes the pair, applies the named patches that it needs in this process, and runs the
real ``VllmHiddenStatesGenerator``.  What the patches do is ``compat``'s.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eagle3_agent.protocol.events import Note, Patched
from eagle3_agent.protocol.values import PatchFinding, Profile
from eagle3_agent.worker import model_info
from eagle3_agent.worker.compat import registry
from eagle3_agent.worker.compat.patch import Settings

from .base import Captured, Emit, EngineError, Loaded, Sample


class SpeculatorsEngine:
    """See ``base.Engine``."""

    name = "speculators"
    batch_samples = 32  # the generator's own max_num_seqs

    def __init__(self) -> None:
        self.batch_tokens = 8192
        self._generator: Any = None

    def load(self, profile: Profile, emit: Emit) -> Loaded:
        found = registry.findings()
        _refuse_undecided(found)
        # a forked worker would inherit this process's threads and their locks
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        generator_class = _patched_class(profile, found)
        for finding in found:
            emit(Patched(time.time(), finding, applied=finding.status == "needed"))
        info = model_info.read(Path(profile.model.path))
        if profile.model.dtype == "auto":
            text = f"model.dtype auto: {info.dtype}, the checkpoint's own"
            emit(Note(time.time(), "info", text))
        model = profile.model
        self._generator = generator_class(
            model_path=model.path,
            layer_ids=list(profile.capture.layers),
            max_model_len=model.max_model_len,
            gpu_memory_utilization=model.gpu_memory_utilization,
            tensor_parallel_size=model.tensor_parallel_size,
        )
        return self._loaded(info)

    def _loaded(self, info: model_info.ModelInfo) -> Loaded:
        config = self._generator.vllm_config
        self.batch_tokens = int(config.scheduler_config.max_num_batched_tokens)
        text = config.model_config.hf_text_config
        return Loaded(
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            hidden=int(text.hidden_size),
            layers=int(text.num_hidden_layers),
            vocab=int(config.model_config.get_vocab_size()),
            device=_device(config.parallel_config.tensor_parallel_size),
        )

    def capture(self, samples: Sequence[Sample]) -> Iterator[Captured]:
        results = self._generator.generate([list(s.input_ids) for s in samples])
        for sample, result in zip(samples, results, strict=True):
            yield Captured(sample, tuple(result.pop("hidden_states")))

    def close(self) -> None:
        generator, self._generator = self._generator, None
        if generator is not None:
            generator.executor.shutdown()


def _refuse_undecided(found: Sequence[PatchFinding]) -> None:
    unsure = registry.undecided(found)
    if unsure:
        first = unsure[0]
        raise EngineError(
            f"cannot tell whether {len(unsure)} patches are needed for this vLLM and speculators, "
            f"so the data might be wrong (first: {first.patch}: {first.evidence}). Use the "
            "supported pair, vllm 0.16.0 with speculators 0.3.0, or the engine transformers"
        )


def _patched_class(profile: Profile, found: Sequence[PatchFinding]) -> Any:
    settings = Settings(profile.model.dtype, profile.model.trust_remote_code)
    try:
        registry.apply(found, settings)
        from speculators.data_generation.vllm_hidden_states_generator import (
            VllmHiddenStatesGenerator,
        )
    except ImportError as error:
        raise EngineError(
            f"speculators or vLLM cannot be imported by {profile.host.python}: {error}. "
            "Install what is missing there"
        ) from error
    return VllmHiddenStatesGenerator


def _device(count: int) -> str:
    from vllm.platforms import current_platform

    name = str(current_platform.get_device_name())
    return name if count == 1 else f"{count} x {name}"
