"""The measure of all: vLLM's own ``LLM.generate`` with one token, which keeps nothing."""

from __future__ import annotations

import time
from typing import Any

from .spec import Round, Spec, rows
from .versions import versions


def arguments(spec: Spec) -> dict[str, Any]:
    """What every side on vLLM is given alike: the limits that the product's engine takes too."""
    return {
        "model": spec.model,
        "dtype": spec.dtype,
        "gpu_memory_utilization": spec.memory,
        "max_model_len": spec.longest + 1,
        "max_num_batched_tokens": max(spec.tokens, spec.longest + 1),
        "max_num_seqs": spec.sequences,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "seed": 0,
    }


class Plain:
    """See ``spec.Side``."""

    def __init__(self, spec: Spec) -> None:
        from vllm import LLM, SamplingParams

        self._prompts: list[Any] = [{"prompt_token_ids": row} for row in rows(spec.data)]
        self._tokens = sum(len(p["prompt_token_ids"]) for p in self._prompts)
        self._llm: Any = LLM(**arguments(spec))
        self._sampling = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        self._llm.generate(self._prompts[:1], self._sampling, use_tqdm=False)
        self.about = versions()

    def round(self) -> Round:
        began = time.perf_counter()
        found = self._llm.generate(self._prompts, self._sampling, use_tqdm=False)
        seconds = time.perf_counter() - began
        if len(found) != len(self._prompts):
            raise RuntimeError(f"{len(found)} answers to {len(self._prompts)} prompts")
        return Round(self._tokens, seconds)

    def close(self) -> None:
        core = self._llm.llm_engine.engine_core
        core.shutdown()
