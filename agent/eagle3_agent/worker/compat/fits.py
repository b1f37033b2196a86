"""What the capture core asks of any vLLM, without speculators too: there, or not.

Nothing of these can be patched.  A finding says ``not-needed`` where vLLM has what is asked,
and ``cannot-tell`` where it has not, with what is missing as the evidence.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from eagle3_agent.protocol.values import PatchFinding

from .sources import Sources, UnreadableError, parameters, shown

_RUNNER = "vllm.v1.worker.gpu_model_runner"
_BATCH = "vllm.v1.worker.gpu_input_batch"


@dataclass(frozen=True)
class Fit:
    """Something that vLLM must have; ``probe`` says what it saw, or raises UnreadableError."""

    id: str
    title: str
    symptom: str
    probe: Callable[[Sources], str]

    def finding(self, sources: Sources) -> PatchFinding:
        status: Literal["not-needed", "cannot-tell"] = "not-needed"
        try:
            evidence = self.probe(sources)
        except UnreadableError as error:
            status, evidence = "cannot-tell", f"does not fit: {error}"
        return PatchFinding(
            patch=self.id,
            title=self.title,
            status=status,
            evidence=evidence,
            symptom=self.symptom,
            cause="the capture runs inside vLLM's worker and reads these names there",
            change="nothing: without them nothing is run",
        )


def findings(sources: Sources) -> list[PatchFinding]:
    return [fit.finding(sources) for fit in FITS]


def _extension(sources: Sources) -> str:
    field = sources.field("vllm.config.parallel", "ParallelConfig", "worker_extension_cls")
    if field is None:
        raise UnreadableError("ParallelConfig has no field worker_extension_cls")
    return f"ParallelConfig has `{shown(field)}`"


def _rows(sources: Sources) -> str:
    order = sources.function(_BATCH, "InputBatch.req_ids")
    init = ast.unparse(sources.function(_BATCH, "InputBatch.__init__"))
    _holds(init, "self.num_computed_tokens_cpu", "InputBatch")
    runner = ast.unparse(sources.find(_RUNNER, "GPUModelRunner"))
    for name in ("self.input_batch", "self.requests"):
        _holds(runner, name, "GPUModelRunner")
    step = sources.function(_RUNNER, "GPUModelRunner.execute_model")
    return f"InputBatch has {shown(order)} and num_computed_tokens_cpu; {shown(step)}"


def _holds(text: str, name: str, owner: str) -> None:
    if f"{name} = " not in text and f"{name}: " not in text:
        raise UnreadableError(f"{owner} has no {name.removeprefix('self.')}")


def _layers(sources: Sources) -> str:
    module = "vllm.model_executor.models.interfaces"
    ask = sources.function(module, "supports_eagle3")
    name = sources.function(module, "SupportsEagle3.set_aux_hidden_state_layers")
    return f"vLLM has {shown(ask)} and {shown(name)}"


def _engine(sources: Sources) -> str:
    for name in _ARGUMENTS:
        if sources.field("vllm.engine.arg_utils", "EngineArgs", name) is None:
            raise UnreadableError(f"EngineArgs has no {name}")
    module = "vllm.v1.engine.llm_engine"
    add = sources.function(module, "LLMEngine.add_request")
    unknown = {"request_id", "prompt", "params"} - set(parameters(add))
    if unknown:
        raise UnreadableError(f"{shown(add)} has no {', '.join(sorted(unknown))}")
    for name in ("step", "collective_rpc"):
        sources.function(module, f"LLMEngine.{name}")
    return f"LLMEngine has {shown(add, 160)}, step and collective_rpc"


#: What engine vllm sets.
_ARGUMENTS = (
    "worker_extension_cls",
    "enforce_eager",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "max_num_batched_tokens",
    "max_num_seqs",
)

FITS = (
    Fit(
        "vllm/worker-extension",
        "vLLM loads the capture into its workers",
        "nothing is captured",
        _extension,
    ),
    Fit(
        "vllm/row-order",
        "A worker says whose rows it computes",
        "rows cannot be told apart",
        _rows,
    ),
    Fit(
        "vllm/layer-interface",
        "Models can be asked for states of layers",
        "states come from hooks alone",
        _layers,
    ),
    Fit(
        "vllm/engine-arguments",
        "Engine vllm can be set and driven",
        "engine vllm does not load",
        _engine,
    ),
)
