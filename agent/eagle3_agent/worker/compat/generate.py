"""Patches of what speculators' generator does with a batch: which rows, in which order.

Replaces ``VllmHiddenStatesGenerator.generate`` and the worker class that captures.  The
library's own loops (0.3: cut by offsets after one step each; 0.4: cut by names, given back
in the order of names) make way for ``driver`` and the capture core.
"""

from __future__ import annotations

import ast
from functools import wraps
from typing import Any

from eagle3_agent.worker.capture.extension import EXTENSION

from .driver import Driver, call
from .patch import Patch, Settings, Verdict, generator_module, replace, wrap
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
_PATCH = "speculators/generate"

#: The generator's attribute that says how the states are had.
SOURCE = "eagle3_source"


class RefusedRowsError(ValueError):
    """Rows that cannot be run; nothing was queued, and the next call is not harmed."""

    def __init__(self, reasons: dict[int, str]) -> None:
        self.reasons = reasons
        """Place in the batch -> why."""
        shown_first = "; ".join(f"sequence {i} {why}" for i, why in list(reasons.items())[:5])
        more = f"; and {len(reasons) - 5} more" if len(reasons) > 5 else ""
        super().__init__(f"{shown_first}{more}")


def apply(settings: Settings) -> None:
    def extended(parallel_config: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            return parallel_config(*args, **{**kwargs, "worker_extension_cls": EXTENSION})

        return make

    def attaching(original: Any) -> Any:
        @wraps(original)
        def setup(self: Any) -> None:
            replies = call(self.executor, "eagle3_attach", list(self.layer_ids), settings.layout)
            setattr(self, SOURCE, replies[0])

        return setup

    wrap("ParallelConfig", _PATCH, extended)
    generator_class = getattr(generator_module(), GENERATOR_CLASS)
    replace(generator_class, "_setup_capture", _PATCH, attaching)
    replace(generator_class, "generate", _PATCH, _replacing)


def _replacing(original: Any) -> Any:
    @wraps(original)
    def generate(self: Any, token_ids: Any) -> list[dict[str, Any]]:
        return _Call(self, _as_lists(token_ids)).run()

    return generate


def _as_lists(token_ids: Any) -> list[list[int]]:
    if hasattr(token_ids, "tolist"):
        token_ids = token_ids.tolist()
    rows = [row.tolist() if hasattr(row, "tolist") else list(row) for row in token_ids]
    if not rows:
        raise ValueError("token_ids cannot be empty")
    return rows


class _Call:
    """One call of ``generate``."""

    def __init__(self, generator: Any, rows: list[list[int]]) -> None:
        self._config = generator.vllm_config.model_config
        check(rows, self._config)
        self._driver = Driver(generator)
        self._layers = len(generator.layer_ids)
        self._rows = rows
        self._ids = [f"req_{generator._request_counter}_{i}" for i in range(len(rows))]
        generator._request_counter += 1

    def run(self) -> list[dict[str, Any]]:
        states: dict[str, list[Any]] = {}
        try:
            for name, row in zip(self._ids, self._rows):
                if row:
                    self._driver.add(name, row)
            for reply in self._driver.steps():
                for name, found in reply.rows.items():
                    states[name] = [_as_tensor(layer, found.dtype) for layer in found.layers]
        except BaseException as error:
            self._driver.drop(error)
            raise
        return [self._result(name, row, states) for name, row in zip(self._ids, self._rows)]

    def _result(self, name: str, row: list[int], states: dict[str, list[Any]]) -> dict[str, Any]:
        import torch

        # an empty row has no step to come from, and still a shape and a dtype
        found = states.pop(name, []) if row else self._no_rows()
        if [len(layer) for layer in found] != [len(row)] * self._layers:
            got = f"{len(found[0])} of {len(row)} rows" if found else "nothing"
            raise RuntimeError(f"{name}: {got} was captured for {self._layers} layers")
        return {
            "input_ids": torch.as_tensor(row, dtype=torch.long),
            "hidden_states": found,
            "loss_mask": None,
        }

    def _no_rows(self) -> list[Any]:
        import torch

        hidden = self._config.hf_text_config.hidden_size
        return [torch.empty(0, hidden, dtype=self._config.dtype) for _ in range(self._layers)]


def check(rows: list[list[int]], model_config: Any) -> None:
    """Raises RefusedRowsError naming every row that cannot be run, before anything is queued."""
    longest = model_config.max_model_len - 1  # one token is sampled, and must have room
    vocab = model_config.get_vocab_size()
    reasons = {}
    for place, row in enumerate(rows):
        if len(row) > longest:
            reasons[place] = f"has {len(row)} tokens, the limit is {longest}"
        elif row and not 0 <= min(row) <= max(row) < vocab:
            bad = next(t for t in row if not 0 <= t < vocab)
            reasons[place] = f"has the token id {bad}, the vocabulary has {vocab}"
    if reasons:
        raise RefusedRowsError(reasons)


def _as_tensor(array: Any, dtype: str) -> Any:
    import torch

    # what came through the queue is read-only memory: a caller may write into its tensors
    tensor = torch.from_numpy(array.copy())
    return tensor.view(getattr(torch, dtype)) if tensor.element_size() == 2 else tensor


# ------------------------------------------------------------------ probes


def _probe_reply_shape(sources: Sources) -> Verdict:
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


def _probe_two_phases(sources: Sources) -> Verdict:
    called = bool(sources.calls(GENERATOR, _GENERATE, "sample_tokens"))
    says = f"generate() calls {'it' if called else 'execute_model alone'}"
    if not sources.has("vllm.v1.executor.abstract", "Executor.sample_tokens"):
        return ("needed" if called else "not-needed"), f"Executor has no sample_tokens; {says}"
    method = sources.function("vllm.v1.executor.abstract", "Executor.sample_tokens")
    return ("not-needed" if called else "needed"), f"Executor has {shown(method)}; {says}"


def _probe_whole_prompts(sources: Sources) -> Verdict:
    ends = [c for c in _loop_calls(sources) if _named(c, "finish_requests")]
    if not ends:
        return "not-needed", "generate() does not end requests in its scheduling loop"
    return "needed", f"after each step generate() calls {shown(ends[0])} for what was scheduled"


def _probe_held(sources: Sources) -> Verdict:
    inside = [c for c in _loop_calls(sources) if _named(c, "finish_requests")]
    after = sources.calls(GENERATOR, _GENERATE, "finish_requests")
    if inside or not after:
        return "not-needed", "generate() holds no request until its loop is over"
    return "needed", f"generate() calls {shown(after[0])} once its loop is over, and not before"


def _probe_sample_order(sources: Sources) -> Verdict:
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


def _probe_layer_order(sources: Sources) -> Verdict:
    setup = f"{_EXTENSION_CLASS}._setup_hidden_states_capture"
    found = sources.calls(_EXTENSION, setup, "frozenset")
    if not found:
        return "not-needed", f"{setup} keeps the layers as they are"
    return "needed", f"{setup} keeps {shown(found[0])}"


def _probe_replaced_forward(sources: Sources) -> Verdict:
    function = sources.function(_EXTENSION, "_patched_forward")
    uses = [
        call
        for name in ("get_input_embeddings", "embed_input_ids")
        for call in sources.calls(_EXTENSION, "_patched_forward", name)
    ]
    text = f", which calls {shown(uses[0])}" if uses else ""
    return "needed", f"speculators replaces the model's forward by {shown(function)}{text}"


def _probe_refusals(sources: Sources) -> Verdict:
    generate = sources.function(GENERATOR, _GENERATE)
    cuts = [n for n in ast.walk(generate) if isinstance(n, ast.Slice) and n.upper is not None]
    if "vocab" in ast.unparse(generate):
        raise UnreadableError("generate() speaks of the vocabulary in a way this probe cannot read")
    text = f"cuts `[{shown(cuts[0])}]`, " if cuts else ""
    return "needed", f"generate() {text}checks neither empty rows nor ids against the vocabulary"


def _probe_finished(sources: Sources) -> Verdict:
    _loop_calls(sources)
    generate = sources.function(GENERATOR, _GENERATE)
    loop = next(n for n in ast.walk(generate) if isinstance(n, ast.While))
    return "needed", f"the loop `while {shown(loop.test, 120)}` drops the last, empty output"


def _probe_request(sources: Sources) -> Verdict:
    call = sources.generator_call("Request")
    init = sources.function("vllm.v1.request", "Request.__init__")
    known = parameters(init)
    unknown = [k.arg for k in call.keywords if k.arg not in known]
    seen = f"vLLM has Request.{shown(init)}"
    if unknown and not takes_anything(init):
        return "needed", f"{seen}; the generator passes {', '.join(map(str, unknown))}"
    return "not-needed", f"{seen}; every argument that the generator passes is known"


def _patch(
    name: str, title: str, symptom: str, cause: str, change: str, until: str, probe: Any
) -> Patch:
    return Patch(f"speculators/{name}", title, symptom, cause, change, until, probe, apply)


PATCHES = (
    _patch(
        "replaced-forward",
        "Capture without replacing the model's forward",
        "'LlamaModel' object has no attribute 'get_input_embeddings'; "
        "'DeepseekV3ForCausalLM does not support hidden state extraction'",
        "speculators replaces forward by one written for an older vLLM, "
        "and asks for an interface that DeepSeek has only from 0.18",
        "names an own worker extension: vLLM's SupportsEagle3 where it can name the layers, "
        "forward hooks on decoder layers elsewhere",
        "speculators captures through vLLM's own interface (0.5)",
        _probe_replaced_forward,
    ),
    _patch(
        "reply-shape",
        "Take the one reply as it is",
        "Boolean value of Tensor with more than one value is ambiguous",
        "with unique_reply_rank, collective_rpc returns the reply and no longer a list of one",
        "every worker answers each step, and the first one's states are taken",
        "speculators drops the [0]",
        _probe_reply_shape,
    ),
    _patch(
        "two-phase-step",
        "Do both phases of a step",
        "second call: sample_tokens() must be called after execute_model() returns None",
        "vLLM split a step in two",
        "calls sample_tokens(None) where execute_model returns None",
        "speculators calls sample_tokens",
        _probe_two_phases,
    ),
    _patch(
        "whole-prompts",
        "Let a request live until its prompt is computed",
        "a batch over the token budget: rows missing, or of another sequence, silently",
        "every request is aborted after one step, though a long batch takes several; "
        "rows are cut by offsets in the order of the call, and the worker's order differs",
        "ends a request when its prompt is computed; rows carry the request's id and place",
        "speculators follows requests over steps (0.5)",
        _probe_whole_prompts,
    ),
    _patch(
        "held-requests",
        "End a request when its prompt is computed",
        "more than max_num_seqs (32) sequences: 'Request ... not found in captured states'; "
        "rows of a preempted request are wrong, silently",
        "0.4 keeps every request of a call until the last is computed, so none makes room for "
        "another, and counts on when one is preempted and begins again",
        "ends a request when its prompt is computed; rows carry the request's id and place",
        "speculators ends requests one by one",
        _probe_held,
    ),
    _patch(
        "sample-order",
        "Give the samples in the order asked for",
        "a call of 11 samples or more: each sample gets another one's loss_mask, silently",
        "0.4 returns the samples in the order of their names as text, where 10 precedes 2",
        "returns them in the order of the call",
        "speculators returns them in the order of the call",
        _probe_sample_order,
    ),
    _patch(
        "layer-order",
        "Give the layers in the order asked for",
        "[5, 1, 3] comes back as 1, 3, 5, and [2, 2, 5] as two tensors, silently",
        "layer ids are kept as a set, and states come in the order of the model",
        "puts the states in the order of layer_ids, repeats repeated",
        "speculators keeps the order",
        _probe_layer_order,
    ),
    _patch(
        "refuse-rows",
        "Refuse a row that cannot be run, before it is queued",
        "empty row: a blank assertion, and every later call fails; too long: cut silently; "
        "an id past the vocabulary: finite nonsense under tensor parallelism",
        "generate() checks nothing, and a failed call leaves its requests queued",
        "an empty row comes back as [0, hidden]; the others are named in one error, before "
        "anything is queued; a failed call leaves nothing behind",
        "speculators checks its input",
        _probe_refusals,
    ),
    _patch(
        "finished-requests",
        "Tell the workers who has finished",
        "the workers' table of requests grows with every call",
        "the scheduler's last, empty output carries the finished ids and is not sent",
        "sends it",
        "speculators sends it",
        _probe_finished,
    ),
    _patch(
        "request-arguments",
        "Pass Request what it knows",
        "Request.__init__() got an unexpected keyword argument 'eos_token_id'",
        "parameters of Request come and go between releases",
        "leaves out arguments that the installed Request does not take",
        "the arguments fit the signature",
        _probe_request,
    ),
)
