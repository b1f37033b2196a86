"""Probes of speculators' own loops and worker class: what they do to a batch, by generation."""

from __future__ import annotations

import ast

from .patch import Verdict
from .sources import (
    GENERATOR,
    GENERATOR_CLASS,
    Sources,
    UnreadableError,
    parameters,
    passed,
    shown,
    takes_anything,
)

_EXECUTOR = "vllm.v1.executor.multiproc_executor"
_EXTENSION = "speculators.data_generation.custom_worker"
_EXTENSION_CLASS = "HiddenStatesWorkerExtension"
_GENERATE = f"{GENERATOR_CLASS}.generate"


def probe_reply_shape(sources: Sources) -> Verdict:
    generate = sources.function(GENERATOR, _GENERATE)
    calls = sources.calls(GENERATOR, _GENERATE, "collective_rpc")
    unique = [c for c in calls if passed(c, "unique_reply_rank") is not None]
    if not unique:
        return "not-needed", "generate() asks for no single worker's reply"
    asked = shown(unique[0], 120)
    takes_first = _takes_first(generate, unique[0])
    rpc = sources.function(_EXECUTOR, "MultiprocExecutor.collective_rpc")
    single = [
        n for n in ast.walk(rpc) if isinstance(n, ast.IfExp) and ast.unparse(n.body).endswith("[0]")
    ]
    seen = f"generate() takes {'[0] of ' if takes_first else ''}{asked}; collective_rpc returns "
    seen += f"`{shown(single[0])}`" if single else "a list"
    return ("needed" if takes_first == bool(single) else "not-needed"), seen


def _takes_first(function: ast.AST, call: ast.Call) -> bool:
    """Whether ``[0]`` is taken of the call, or of the name that it is assigned to."""
    named = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and node.value is call
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return any(
        isinstance(node, ast.Subscript)
        and ast.unparse(node.slice) == "0"
        and (node.value is call or (isinstance(node.value, ast.Name) and node.value.id in named))
        for node in ast.walk(function)
    )


def probe_two_phases(sources: Sources) -> Verdict:
    called = bool(sources.calls(GENERATOR, _GENERATE, "sample_tokens"))
    says = f"generate() calls {'it' if called else 'execute_model alone'}"
    if not sources.has("vllm.v1.executor.abstract", "Executor.sample_tokens"):
        return ("needed" if called else "not-needed"), f"Executor has no sample_tokens; {says}"
    method = sources.function("vllm.v1.executor.abstract", "Executor.sample_tokens")
    return ("not-needed" if called else "needed"), f"Executor has {shown(method)}; {says}"


def probe_whole_prompts(sources: Sources) -> Verdict:
    ends = [c for c in _loop_calls(sources) if _named(c, "finish_requests")]
    if not ends:
        return "not-needed", "generate() does not end requests in its scheduling loop"
    return "needed", f"after each step generate() calls {shown(ends[0])} for what was scheduled"


def probe_held(sources: Sources) -> Verdict:
    inside = [c for c in _loop_calls(sources) if _named(c, "finish_requests")]
    after = sources.calls(GENERATOR, _GENERATE, "finish_requests")
    if inside or not after:
        return "not-needed", "generate() holds no request until its loop is over"
    return "needed", f"generate() calls {shown(after[0])} once its loop is over, and not before"


def probe_sample_order(sources: Sources) -> Verdict:
    for found in sources.calls(GENERATOR, _GENERATE, "sorted"):
        if "req" in ast.unparse(found):
            return "needed", f"generate() returns the samples in the order of {shown(found)}"
    return "not-needed", "generate() returns the samples in the order of the call"


def _loop_calls(sources: Sources) -> list[ast.Call]:
    """Calls within generate()'s scheduling loop; raises UnreadableError when it has none."""
    loops = [
        n for n in ast.walk(sources.function(GENERATOR, _GENERATE)) if isinstance(n, ast.While)
    ]
    if not loops:
        raise UnreadableError("generate() has no scheduling loop")
    return [c for n in loops for c in ast.walk(n) if isinstance(c, ast.Call)]


def _named(call: ast.Call, name: str) -> bool:
    return ast.unparse(call.func).endswith(name)


def probe_layer_order(sources: Sources) -> Verdict:
    setup = f"{_EXTENSION_CLASS}._setup_hidden_states_capture"
    found = sources.calls(_EXTENSION, setup, "frozenset")
    if not found:
        return "not-needed", f"{setup} keeps the layers as they are"
    return "needed", f"{setup} keeps {shown(found[0])}"


def probe_replaced_forward(sources: Sources) -> Verdict:
    function = sources.function(_EXTENSION, "_patched_forward")
    uses = [
        call
        for name in ("get_input_embeddings", "embed_input_ids")
        for call in sources.calls(_EXTENSION, "_patched_forward", name)
    ]
    text = f", which calls {shown(uses[0])}" if uses else ""
    return "needed", f"speculators replaces the model's forward by {shown(function)}{text}"


def probe_refusals(sources: Sources) -> Verdict:
    generate = sources.function(GENERATOR, _GENERATE)
    cuts = [n for n in ast.walk(generate) if isinstance(n, ast.Slice) and n.upper is not None]
    if "vocab" in ast.unparse(generate):
        raise UnreadableError("generate() speaks of the vocabulary in a way this probe cannot read")
    text = f"cuts `[{shown(cuts[0])}]`, " if cuts else ""
    return "needed", f"generate() {text}checks neither empty rows nor ids against the vocabulary"


def probe_finished(sources: Sources) -> Verdict:
    _loop_calls(sources)
    generate = sources.function(GENERATOR, _GENERATE)
    loop = next(n for n in ast.walk(generate) if isinstance(n, ast.While))
    return "needed", f"the loop `while {shown(loop.test, 120)}` drops the last, empty output"


def probe_request(sources: Sources) -> Verdict:
    call = sources.generator_call("Request")
    init = sources.function("vllm.v1.request", "Request.__init__")
    known = parameters(init)
    unknown = [k.arg for k in call.keywords if k.arg not in known]
    seen = f"vLLM has Request.{shown(init)}"
    if unknown and not takes_anything(init):
        return "needed", f"{seen}; the generator passes {', '.join(map(str, unknown))}"
    return "not-needed", f"{seen}; every argument that the generator passes is known"
