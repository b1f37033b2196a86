"""Check ``dtype``: in what precision the states will really be computed.

A profile's ``auto`` is the checkpoint's own dtype in the engines of the worker.  vLLM's own
``auto`` turns a float32 checkpoint into the GPU's first 16-bit dtype (``_resolve_auto_dtype`` in
``vllm/config/model.py``); a script that builds its engine itself gets that.  vLLM refuses float16
for the types in ``_FLOAT16_NOT_SUPPORTED_MODELS`` (same file) and bfloat16 below compute capability
8.0 (``supported_dtypes`` in ``vllm/platforms/cuda.py``).
"""

from __future__ import annotations

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.engine import resolve
from eagle3_agent.preflight.gpus.gpu_facts import PROBE as GPUS
from eagle3_agent.preflight.libraries.interpreter_facts import PROBE as INTERPRETER
from eagle3_agent.preflight.text import show, size
from eagle3_agent.protocol.values import Profile, Verdict

from . import quantised
from .capability import PROBE as CAPABILITY
from .capability import least
from .model_facts import PROBE as MODEL
from .model_facts import ModelFacts
from .safetensors import FLOATS

#: Of vLLM 0.16.0: refused in float16, since they overflow.
_NO_FLOAT16 = {"gemma2", "gemma3", "gemma3_text", "plamo2", "glm4"}

#: Types, and architectures as vLLM's registry names them, whose decoder layer divides its states by
#: ``routed_scaling_factor`` in float16: deepseek_v2.py, glm4_moe_lite.py, openpangu.py of 0.16.0.
_SCALED = {
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "kimi_k2",
    "glm_moe_dsa",
    "glm4_moe_lite",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "GlmMoeDsaForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "PanguUltraMoEForCausalLM",
}
_BF16_FROM = 80


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(MODEL)
    if seen.problem or not (seen.dtype or seen.shards):
        return CHECK.verdict("skip", "the checkpoint was not read, so its dtype is not known")
    asked = profile.model.dtype
    if asked == "auto" and not seen.dtype:
        return CHECK.verdict(
            "warn",
            "dtype auto, and neither config.json nor the tensors name a dtype",
            "What is computed is then the library's default, float32.",
            'Set model.dtype, such as "bfloat16".',
        )
    runs = seen.dtype if asked == "auto" else asked
    engine = resolve(facts, profile)
    if engine != "transformers":
        refused = _refused(seen, runs, facts, profile)
        if refused is not None:
            return refused
    return _computed(seen, runs, profile, engine)


def _refused(seen: ModelFacts, runs: str, facts: Facts, profile: Profile) -> Verdict | None:
    """What vLLM or the capture refuses after the load has begun."""
    types = {seen.model_type, seen.text_type}
    scaled = _SCALED & {*types, *seen.architecture.split(", ")}
    kind = show(seen.text_type or seen.model_type, 40)
    if runs == "float16" and seen.routed_scale not in (None, 1.0) and scaled:
        return CHECK.verdict(
            "block",
            f"{kind} in float16: vLLM's layers divide their states by routed_scaling_factor "
            f"{seen.routed_scale:g}",
            "The captured states would be scaled; the capture refuses them after the load.",
            'Set model.dtype = "bfloat16".',
        )
    if runs == "float16" and types & _NO_FLOAT16:
        return CHECK.verdict(
            "block",
            f"{kind} in float16, which vLLM refuses for this type: it overflows",
            "The engine ends with that error.",
            'Set model.dtype = "bfloat16" (or "float32").',
        )
    gpu = least(facts, profile)
    if runs == "bfloat16" and gpu is not None and gpu.capability < _BF16_FROM:
        return CHECK.verdict(
            "block",
            f"bfloat16 on {gpu.words()}, which computes it from 8.0 on",
            "vLLM refuses bfloat16 there.",
            'Use another GPU, or set model.dtype = "float32": float16 is another computation.',
        )
    return None


def _computed(seen: ModelFacts, runs: str, profile: Profile, engine: str) -> Verdict:
    asked, own = profile.model.dtype, seen.dtype
    saw = f"states in {runs}"
    saw += (
        " (auto: the checkpoint's own)" if asked == "auto" else f"; the checkpoint is {own or '?'}"
    )
    doubts = []
    method = seen.quantisation.method
    if method:
        saw += (
            f"; weights {show(method, 40)}, dequantised as they are used: verify recomputes from "
            "the same dequantised weights"
        )
        rule = quantised.rule(seen.quantisation)
        if engine != "transformers" and rule is not None and runs not in rule.dtypes:
            return _not_for_method(saw, method, rule.dtypes)
    else:
        doubts += _stored(seen)
    if asked == "auto" and own == "float32" and not method:
        doubts.append(_full(engine))
    if {asked, own} == {"float16", "bfloat16"}:
        doubts.append(
            (
                f"{own} weights are cast to {asked}",
                f'Set model.dtype = "{own}" (or "auto") to compute as the checkpoint was made.',
            )
        )
    if not doubts:
        return CHECK.verdict("pass", saw)
    return CHECK.verdict(
        "warn",
        "\n".join([saw, *(what for what, _ in doubts)]),
        "A draft model is trained on the states as they are computed here.",
        " ".join(todo for _, todo in doubts),
    )


def _not_for_method(saw: str, method: str, dtypes: tuple[str, ...]) -> Verdict:
    return CHECK.verdict(
        "block",
        f"{saw}\nvLLM 0.16 computes {show(method, 40)} in {' or '.join(dtypes)} alone",
        "The engine's config refuses another dtype.",
        f'Set model.dtype = "{dtypes[-1]}".',
    )


def _full(engine: str) -> tuple[str, str]:
    """A float32 checkpoint under auto: kept by the worker, cut by vLLM's own rule."""
    todo = 'Set model.dtype = "bfloat16" for files half as large, or "float32" to say it is meant.'
    if engine == "script":
        return (
            "a float32 checkpoint: where the script hands vLLM dtype auto itself, it computes in "
            "bfloat16 (float16 on old GPUs) without a word",
            todo,
        )
    return (
        "a float32 checkpoint is computed in float32: twice the files and memory of bfloat16, "
        "which vLLM's own auto would take",
        todo,
    )


def _stored(seen: ModelFacts) -> list[tuple[str, str]]:
    """Where the tensors have another dtype than config.json says."""
    floats = {FLOATS[d]: count for d, count in seen.dtypes.items() if d in FLOATS}
    if not floats or not seen.config_dtype:
        return []
    most = max(floats, key=lambda d: floats[d])
    if most == seen.config_dtype:
        return []
    return [
        (
            f"config.json says {seen.config_dtype}, the shards hold {size(floats[most])} in "
            f"{most}: cast while loading",
            f'Set model.dtype = "{most}" to compute with the weights as they are stored.',
        )
    ]


CHECK = Check(
    id="dtype",
    title="Precision as intended",
    needs=(MODEL,),
    wants=(CAPABILITY, GPUS, INTERPRETER),
    judge=judge,
    silence="warn",
    silence_why="The dtype stands in the model's config.json and shards, which were not read.",
    silence_todo="Mend the check on the model first.",
)
