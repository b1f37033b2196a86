"""Patches of what speculators' generator does with a batch: which rows, in which order.

Replaces ``VllmHiddenStatesGenerator.generate`` and the worker class that captures.  The
library's own loops (0.3: cut by offsets after one step each; 0.4: cut by names, given back
in the order of names) make way for ``driver`` and the capture core.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from eagle3_agent.worker.capture.extension import EXTENSION

from . import loops
from .driver import Driver, call
from .patch import Patch, Settings, generator_module, replace, wrap
from .sources import GENERATOR_CLASS

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
                    states[name] = found.tensors()
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
        loops.probe_replaced_forward,
    ),
    _patch(
        "reply-shape",
        "Take the one reply as it is",
        "Boolean value of Tensor with more than one value is ambiguous",
        "with unique_reply_rank, collective_rpc returns the reply and no longer a list of one",
        "every worker answers each step, and the first one's states are taken",
        "speculators drops the [0]",
        loops.probe_reply_shape,
    ),
    _patch(
        "two-phase-step",
        "Do both phases of a step",
        "second call: sample_tokens() must be called after execute_model() returns None",
        "vLLM split a step in two",
        "calls sample_tokens(None) where execute_model returns None",
        "speculators calls sample_tokens",
        loops.probe_two_phases,
    ),
    _patch(
        "whole-prompts",
        "Let a request live until its prompt is computed",
        "a batch over the token budget: rows missing, or of another sequence, silently",
        "every request is aborted after one step, though a long batch takes several; "
        "rows are cut by offsets in the order of the call, and the worker's order differs",
        "ends a request when its prompt is computed; rows carry the request's id and place",
        "speculators follows requests over steps (0.5)",
        loops.probe_whole_prompts,
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
        loops.probe_held,
    ),
    _patch(
        "sample-order",
        "Give the samples in the order asked for",
        "a call of 11 samples or more: each sample gets another one's loss_mask, silently",
        "0.4 returns the samples in the order of their names as text, where 10 precedes 2",
        "returns them in the order of the call",
        "speculators returns them in the order of the call",
        loops.probe_sample_order,
    ),
    _patch(
        "layer-order",
        "Give the layers in the order asked for",
        "[5, 1, 3] comes back as 1, 3, 5, and [2, 2, 5] as two tensors, silently",
        "layer ids are kept as a set, and states come in the order of the model",
        "puts the states in the order of layer_ids, repeats repeated",
        "speculators keeps the order",
        loops.probe_layer_order,
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
        loops.probe_refusals,
    ),
    _patch(
        "finished-requests",
        "Tell the workers who has finished",
        "the workers' table of requests grows with every call",
        "the scheduler's last, empty output carries the finished ids and is not sent",
        "sends it",
        "speculators sends it",
        loops.probe_finished,
    ),
    _patch(
        "request-arguments",
        "Pass Request what it knows",
        "Request.__init__() got an unexpected keyword argument 'eos_token_id'",
        "parameters of Request come and go between releases",
        "leaves out arguments that the installed Request does not take",
        "the arguments fit the signature",
        loops.probe_request,
    ),
)
