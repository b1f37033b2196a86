"""Model x vLLM x engine: what is measured, and how far from float32 it may be.

Imports nothing of torch: tests read it, and so do the scripts that run under a vLLM environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from eagle3_agent.protocol import values

from . import vllm_env

LENGTH = 250
"""Tokens that a sample may have: one is as long."""

BUDGET = 96
"""Tokens of a step: most samples are split over steps."""

FLOAT32 = 1e-5
BFLOAT16 = 4e-2

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Stack:
    """An engine on an environment."""

    title: str
    engine: values.EngineName
    version: vllm_env.Version
    speculators: vllm_env.Library | None = None


STACKS = {
    "vllm-0.16": Stack("`vllm` on vLLM 0.16.0", "vllm", "0.16"),
    "vllm-0.32": Stack("`vllm` on vLLM 0.32.0", "vllm", "0.32"),
    "speculators-0.3": Stack("`speculators` 0.3.0 on vLLM 0.16.0", "speculators", "0.16"),
    "speculators-0.4": Stack("`speculators` 0.4.0.1 on vLLM 0.16.0", "speculators", "0.16", "0.4"),
    "transformers-4": Stack("`transformers` 4.57.6", "transformers", "0.16"),
    "transformers-5": Stack("`transformers` 5.19.0", "transformers", "0.32"),
}

_ALL = tuple(STACKS)
_NO_MLA = (("VLLM_MLA_DISABLE", "1"),)


@dataclass(frozen=True)
class Model:
    """A row of the table."""

    title: str
    kind: str
    """Of ``vllm_tiny`` or ``vllm_special``, ``-bf16`` for its weights in bfloat16; or smollm2."""
    dtype: Dtype = "float32"
    tolerance: float = FLOAT32
    why: str = ""
    """Why the tolerance is not that of float32."""
    stacks: tuple[str, ...] = _ALL
    mends: tuple[str, ...] = ()
    """Of ``vllm_mends``, on both releases: faults of vLLM's CPU build alone."""
    on_0_16: tuple[str, ...] = ()
    """More of them, on 0.16."""
    variables: tuple[tuple[str, str], ...] = ()


_ROUNDS = "bfloat16 rounds, transformers' own as much"

MODELS = {
    "llama": Model("Llama", "llama"),
    "llama-bf16": Model("Llama", "llama-bf16", "bfloat16", BFLOAT16, _ROUNDS, on_0_16=("no-amx",)),
    "qwen3": Model("Qwen3", "qwen3"),
    "qwen3-moe": Model("Qwen3-MoE", "qwen3-moe"),
    "mistral": Model("Mistral, sliding window", "mistral"),
    "gemma3": Model("Gemma 3, sliding and full attention", "gemma3"),
    "deepseek": Model(
        "DeepSeek-V3 (MoE), MLA off", "deepseek", mends=("native-rotary",), variables=_NO_MLA
    ),
    "deepseek-mla": Model(
        "DeepSeek-V3 (MoE), MLA on",
        "deepseek",
        stacks=("vllm-0.32",),
        mends=("native-rotary", "no-amx"),
    ),
    "deepseek-amx": Model(
        "DeepSeek-V3 (dense), MLA on with AMX",
        "deepseek-dense-bf16",
        "bfloat16",
        BFLOAT16,
        _ROUNDS,
        stacks=("vllm-0.32",),
        mends=("native-rotary",),
    ),
    "kimi": Model(
        "Kimi-K2.5 wrapper, text, MLA off",
        "kimi",
        mends=("native-rotary", "numba-scan"),
        variables=_NO_MLA,
    ),
    "kimi-mla": Model(
        "Kimi-K2.5 wrapper, text, MLA on",
        "kimi",
        stacks=("vllm-0.32",),
        mends=("native-rotary", "numba-scan", "no-amx"),
    ),
    "gpt-oss": Model(
        "gpt-oss (sinks, MoE, sliding window)",
        "gpt-oss",
    ),
    "gpt-oss-bf16": Model(
        "gpt-oss (sinks, all experts, sliding window)",
        "gpt-oss-all-bf16",
        "bfloat16",
        BFLOAT16,
        f"{_ROUNDS}; a router's choice would flip, so every expert is chosen",
        on_0_16=("no-amx",),
    ),
    "gptq": Model(
        "Llama, GPTQ four bits",
        "gptq",
        "bfloat16",
        BFLOAT16,
        _ROUNDS,
    ),
    "w8a8": Model(
        "Llama, W8A8 int8",
        "w8a8",
        "bfloat16",
        6e-2,
        "activations are rounded to eight bits as it runs",
    ),
    "smollm2": Model(
        "SmolLM2-135M-Instruct, 30 layers, real text",
        "smollm2",
        tolerance=1e-4,
        why="rounding adds up over 30 trained layers",
    ),
}

_OLD = ("vllm-0.16", "speculators-0.3", "speculators-0.4")

#: What cannot be measured here, and why.
HINDERED = {
    ("kimi", "transformers-4"): "transformers 4 does not know the wrapper",
    **{
        ("gptq", stack): "transformers wants optimum for GPTQ"
        for stack in ("transformers-4", "transformers-5")
    },
    ("w8a8", "transformers-5"): "transformers 5 multiplies the packed weights as they lie",
    **{("gpt-oss", stack): "vLLM 0.16's CPU attention takes no float32 sinks" for stack in _OLD},
    **{
        (name, stack): "this build of vLLM 0.16 has no kernel for the packed weights"
        for name in ("gptq", "w8a8")
        for stack in _OLD
    },
}

#: What CI runs: every model, every stack.
CI = (
    ("llama", "speculators-0.4"),
    ("llama-bf16", "vllm-0.32"),
    ("qwen3", "vllm-0.16"),
    ("qwen3", "transformers-4"),
    ("qwen3-moe", "vllm-0.32"),
    ("mistral", "speculators-0.3"),
    ("gemma3", "vllm-0.16"),
    ("deepseek", "speculators-0.4"),
    ("deepseek", "transformers-5"),
    ("deepseek-mla", "vllm-0.32"),
    ("kimi", "vllm-0.16"),
    ("kimi", "speculators-0.3"),
    ("kimi-mla", "vllm-0.32"),
    ("gpt-oss", "vllm-0.32"),
    ("gpt-oss-bf16", "speculators-0.3"),
    ("gptq", "vllm-0.32"),
    ("w8a8", "vllm-0.32"),
    ("smollm2", "vllm-0.16"),
)


def kinds() -> list[str]:
    """The checkpoints to make."""
    return list(dict.fromkeys(model.kind for model in MODELS.values()))


def checkpoint_dtype(kind: str) -> Dtype:
    return "bfloat16" if kind.endswith("-bf16") else "float32"


def order(count: int) -> tuple[int, ...]:
    """Every layer, in an order that no library would choose, and one of them twice."""
    return (5, 1, 3, *(i for i in reversed(range(count)) if i not in (5, 1, 3)), 3)


def profile(
    model: str, engine: values.EngineName, dtype: Dtype, layers: tuple[int, ...]
) -> values.Profile:
    # the two formats in turn: either engine of vLLM writes both somewhere in the matrix
    kind: values.OutputFormat = "safetensors" if engine == "vllm" else "speculators-pt"
    return values.Profile(
        name="matrix",
        host=values.HostSection(sys.executable),
        model=values.ModelSection(model, max_model_len=LENGTH, dtype=dtype, trust_remote_code=True),
        capture=values.CaptureSection(layers),
        data=values.DataSection("rows.jsonl", seq_length=LENGTH),
        output=values.OutputSection("out", kind),
        engine=values.EngineSection(engine, max_num_batched_tokens=BUDGET, max_num_seqs=16),
    )


@dataclass(frozen=True)
class Found:
    """What one case gave."""

    errors: list[float] = field(default_factory=list)
    """The worst of each layer, layer 0 first."""
    failed: str = ""
    source: str = ""
    dtype: str = ""
    seconds: float = 0.0


Case = tuple[str, str]
"""Names of a model and a stack."""


def cases() -> Iterator[Case]:
    for name, model in MODELS.items():
        for stack in model.stacks:
            yield name, stack


def groups(wanted: Iterable[Case]) -> list[list[Case]]:
    """What can share a process: importing vLLM takes most of the time of a case."""
    found: dict[object, list[Case]] = {}
    for case in wanted:
        model = MODELS[case[0]]
        # what fails is not to harm another case
        alone = case if case in HINDERED else None
        found.setdefault((case[1], mends(*case), model.variables, alone), []).append(case)
    return list(found.values())


def mends(name: str, stack: str) -> tuple[str, ...]:
    model, on = MODELS[name], STACKS[stack]
    if on.engine == "transformers":
        return ()
    return model.mends + (model.on_0_16 if on.version == "0.16" else ())


def measure(group: Sequence[Case], models: Path, folder: Path) -> dict[Case, Found]:
    """Run one group in a process of its own; ``models`` is what ``make_models`` filled."""
    on, first = STACKS[group[0][1]], MODELS[group[0][0]]
    each = [(name, MODELS[name].kind, MODELS[name].dtype) for name, _ in group]
    found: dict[str, Any] = vllm_env.run_script(
        "matrix_case.py",
        folder,
        str(models),
        on.engine,
        json.dumps(mends(*group[0])),
        json.dumps(each),
        variables=dict(first.variables),
        version=on.version,
        speculators=on.speculators,
        timeout=200 + 100 * len(group),
    )
    return {case: Found(**found[case[0]]) for case in group}


def make_models(folder: Path, smollm2: Path) -> dict[str, float]:
    """Every checkpoint and its truth; kind -> the least error between neighbouring layers."""
    text = vllm_env.ROOT / "docs" / "architecture.md"
    return vllm_env.run_script("matrix_make.py", folder, str(smollm2), str(text))
