"""Patches of what speculators' generator does with a batch: which rows, in which order.

Replaces ``VllmHiddenStatesGenerator.generate`` and the worker class that captures.
The library's own loop aborts each request after one step and cuts rows by offsets;
here a request lives until its last prompt token is computed, and its rows carry its id.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from functools import wraps
from typing import Any

from .capture import EXTENSION, Reply
from .errors import RemoteError
from .patch import Patch, Settings, Verdict, generator_module, replace
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
_GENERATE = f"{GENERATOR_CLASS}.generate"
_PATCH = "speculators/generate"


class RefusedRowsError(ValueError):
    """Rows that cannot be run; nothing was queued, and the next call is not harmed."""

    def __init__(self, reasons: dict[int, str]) -> None:
        self.reasons = reasons
        """Place in the batch -> why."""
        shown_first = "; ".join(f"sequence {i} {why}" for i, why in list(reasons.items())[:5])
        more = f"; and {len(reasons) - 5} more" if len(reasons) > 5 else ""
        super().__init__(f"{shown_first}{more}")


def apply(settings: Settings) -> None:
    module = generator_module()

    def extended(parallel_config: Any) -> Any:
        @wraps(parallel_config, updated=())
        def make(*args: Any, **kwargs: Any) -> Any:
            return parallel_config(*args, **{**kwargs, "worker_extension_cls": EXTENSION})

        return make

    replace(module, "ParallelConfig", _PATCH, extended)
    replace(getattr(module, GENERATOR_CLASS), "generate", _PATCH, _replacing)


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
        self._generator = generator
        self._scheduler = generator.scheduler
        self._rows = rows
        _check(rows, generator.vllm_config.model_config)
        self._ids = [f"req_{generator._request_counter}_{i}" for i in range(len(rows))]
        generator._request_counter += 1

    def run(self) -> list[dict[str, Any]]:
        self._generator.executor.collective_rpc("_reset_capture")
        try:
            for name, row in zip(self._ids, self._rows):
                self._scheduler.add_request(_request(name, row, self._generator.tokenizer))
            return self._results(self._steps())
        except BaseException as error:
            self._finish([r for r in self._ids if r in self._scheduler.requests])
            # a worker that did not answer, or an interrupted call, leaves replies out of step
            if isinstance(error, Exception) and not isinstance(error, TimeoutError):
                self._tell_workers()
            raise

    def _steps(self) -> dict[str, list[Any]]:
        """Steps until nothing is scheduled; the states per request, distinct layers ascending."""
        states: dict[str, list[Any]] = {}
        while True:
            output = self._scheduler.schedule()
            reply = self._step(output)  # the empty one too: it tells workers who has finished
            if not output.total_num_scheduled_tokens:
                return states
            for request, rows in reply.rows.items():
                states[request] = [_as_tensor(r, reply.dtype) for r in rows]
            self._finish(
                [r for r in output.num_scheduled_tokens if _complete(self._scheduler.requests[r])]
            )

    def _step(self, output: Any) -> Reply:
        replies: list[Reply] = self._generator.executor.collective_rpc(
            "eagle3_step", args=(output,), timeout=_step_timeout()
        )
        for reply in replies:
            if reply.error is not None:
                raise RemoteError(reply.error)
        return replies[0]

    def _finish(self, requests: Sequence[str]) -> None:
        from vllm.v1.request import RequestStatus

        self._scheduler.finish_requests(list(requests), RequestStatus.FINISHED_ABORTED)

    def _tell_workers(self) -> None:
        """Have workers that still answer drop the requests that have just been ended."""
        try:
            self._step(self._scheduler.schedule())
        except Exception:
            pass  # the first error is the one to tell

    def _results(self, states: dict[str, list[Any]]) -> list[dict[str, Any]]:
        import torch

        results = []
        wanted = list(self._generator.layer_ids)
        places = {layer: i for i, layer in enumerate(sorted(set(wanted)))}
        for request, row in zip(self._ids, self._rows):
            found = states.pop(request, None)
            if found is None or any(len(s) != len(row) for s in found):
                got = "none" if found is None else str(len(found[0]))
                raise RuntimeError(f"{request}: {got} of {len(row)} rows were captured")
            layers = [found[places[layer]] for layer in wanted]
            # a layer asked for twice is two tensors, as far as a caller that writes into one sees
            layers = [
                s.clone() if wanted.index(w) < i else s
                for i, (w, s) in enumerate(zip(wanted, layers))
            ]
            results.append(
                {
                    "input_ids": torch.as_tensor(row, dtype=torch.long),
                    "hidden_states": layers,
                    "loss_mask": None,
                }
            )
        return results


def _check(rows: list[list[int]], model_config: Any) -> None:
    """Raises RefusedRowsError naming every row that cannot be run, before anything is queued."""
    longest = model_config.max_model_len - 1  # one token is sampled, and must have room
    vocab = model_config.get_vocab_size()
    reasons = {}
    for place, row in enumerate(rows):
        if not row:
            reasons[place] = "is empty"
        elif len(row) > longest:
            reasons[place] = f"has {len(row)} tokens, the limit is {longest}"
        elif not 0 <= min(row) <= max(row) < vocab:
            bad = next(t for t in row if not 0 <= t < vocab)
            reasons[place] = f"has the token id {bad}, the vocabulary has {vocab}"
    if reasons:
        raise RefusedRowsError(reasons)


def _request(name: str, row: list[int], tokenizer: Any) -> Any:
    """A request for one prefill; arguments that this vLLM's Request does not know are left out."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    arguments = {
        "request_id": name,
        "prompt_token_ids": row,
        "sampling_params": SamplingParams(max_tokens=1, temperature=0.0),
        "pooling_params": None,
        "eos_token_id": tokenizer.eos_token_id,
        "arrival_time": 0.0,
    }
    known = inspect.signature(Request.__init__).parameters
    return Request(**{k: v for k, v in arguments.items() if k in known})


def _complete(request: Any) -> bool:
    return bool(request.num_computed_tokens >= request.num_prompt_tokens)


def _as_tensor(array: Any, dtype: str) -> Any:
    import torch

    # what came through the queue is read-only memory: a caller may write into its tensors
    tensor = torch.from_numpy(array.copy())
    return tensor.view(getattr(torch, dtype)) if tensor.element_size() == 2 else tensor


def _step_timeout() -> float:
    from vllm import envs

    return float(getattr(envs, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", 300))


# ------------------------------------------------------------------ probes


def _probe_reply_shape(sources: Sources) -> Verdict:
    calls = sources.calls(GENERATOR, _GENERATE, "collective_rpc")
    unique = [c for c in calls if passed(c, "unique_reply_rank") is not None]
    if not unique:
        return "not-needed", "generate() asks for no single worker's reply"
    rpc = sources.function(_EXECUTOR, "MultiprocExecutor.collective_rpc")
    single = [
        n for n in ast.walk(rpc) if isinstance(n, ast.IfExp) and ast.unparse(n.body).endswith("[0]")
    ]
    seen = f"generate() takes [0] of {shown(unique[0], 120)}"
    if single:
        return "needed", f"{seen}; collective_rpc returns `{shown(single[0])}`"
    return "not-needed", f"{seen}; collective_rpc returns a list"


def _probe_two_phases(sources: Sources) -> Verdict:
    if not sources.has("vllm.v1.executor.abstract", "Executor.sample_tokens"):
        return "not-needed", "Executor has no sample_tokens"
    method = sources.function("vllm.v1.executor.abstract", "Executor.sample_tokens")
    seen = f"Executor has {shown(method)}"
    if sources.calls(GENERATOR, _GENERATE, "sample_tokens"):
        return "not-needed", f"{seen}; generate() calls it"
    return "needed", f"{seen}; generate() calls execute_model alone"


def _probe_whole_prompts(sources: Sources) -> Verdict:
    loop = [n for n in ast.walk(sources.function(GENERATOR, _GENERATE)) if isinstance(n, ast.While)]
    ends = [
        c
        for n in loop
        for c in ast.walk(n)
        if isinstance(c, ast.Call) and ast.unparse(c.func).endswith("finish_requests")
    ]
    if not ends:
        return "not-needed", "generate() does not end requests in its scheduling loop"
    return "needed", f"after each step generate() calls {shown(ends[0])} for what was scheduled"


def _probe_layer_order(sources: Sources) -> Verdict:
    setup = f"{_EXTENSION_CLASS}._setup_hidden_states_capture"
    found = sources.calls(_EXTENSION, setup, "frozenset")
    if not found:
        return "not-needed", f"{setup} keeps the layers as they are"
    return "needed", f"{setup} keeps {shown(found[0])}"


_EXTENSION_CLASS = "HiddenStatesWorkerExtension"


def _probe_replaced_forward(sources: Sources) -> Verdict:
    function = sources.function(_EXTENSION, "_patched_forward")
    uses = sources.calls(_EXTENSION, "_patched_forward", "get_input_embeddings")
    seen = f"speculators replaces the model's forward by {shown(function)}"
    if uses:
        seen += f", which calls {shown(uses[0])}"
        if sources.has("vllm.model_executor.models.llama", "LlamaModel.embed_input_ids"):
            seen += "; LlamaModel has embed_input_ids instead"
    return "needed", seen


def _probe_refusals(sources: Sources) -> Verdict:
    generate = sources.function(GENERATOR, _GENERATE)
    cuts = [n for n in ast.walk(generate) if isinstance(n, ast.Slice) and n.upper is not None]
    vocab = "vocab" in ast.unparse(generate)
    if vocab:
        raise UnreadableError("generate() speaks of the vocabulary in a way this probe cannot read")
    text = f"cuts `[{shown(cuts[0])}]`, " if cuts else ""
    return "needed", f"generate() {text}checks neither empty rows nor ids against the vocabulary"


def _probe_finished(sources: Sources) -> Verdict:
    loop = [n for n in ast.walk(sources.function(GENERATOR, _GENERATE)) if isinstance(n, ast.While)]
    if not loop:
        raise UnreadableError("generate() has no scheduling loop")
    return "needed", f"the loop `while {shown(loop[0].test, 120)}` drops the last, empty output"


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
        "raises one error that names every such row; a failed call leaves nothing behind",
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
