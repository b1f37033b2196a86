"""Inside vLLM's worker: keep the states after chosen decoder layers, cut by request.

Loaded by vLLM through ``ParallelConfig.worker_extension_cls``, in each worker's own
process.  The model's forward stays the model's: states come from vLLM's own interface
(``SupportsEagle3``) where it can name the layers, and from forward hooks elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eagle3_agent.protocol.values import ErrorInfo
from eagle3_agent.worker import failure

EXTENSION = f"{__name__}.CaptureExtension"

Rows = list[Any]
"""One numpy array [tokens, hidden] per distinct layer, ascending; 16-bit floats as int16 bits."""


@dataclass
class Reply:
    """What one worker answers to a step; errors travel as values, so no reply is left unread."""

    rows: dict[str, Rows] = field(default_factory=dict)
    """Request id -> the states of its whole prompt, for requests that this step completed."""
    dtype: str = ""
    error: ErrorInfo | None = None


class CaptureExtension:
    """Methods that the generator calls in every worker."""

    model_runner: Any
    rank: int

    def _setup_hidden_states_capture(self, layer_ids: list[int]) -> None:
        self._eagle3_capture = Capture(self.model_runner, layer_ids, keep=self.rank == 0)

    def _reset_capture(self) -> None:
        self._eagle3_capture.reset()

    def eagle3_step(self, scheduler_output: Any) -> Reply:
        """Run one scheduler step, both phases of it, and hand over what it completed."""
        worker: Any = self
        try:
            if worker.execute_model(scheduler_output) is None:
                worker.sample_tokens(None)
            return self._eagle3_capture.completed()
        except Exception as error:
            self._eagle3_capture.reset()
            return Reply(error=replace(failure.describe(error), rank=self.rank))


@dataclass
class _Request:
    """A prompt's rows so far."""

    length: int
    filled: int = 0
    layers: dict[int, Any] = field(default_factory=dict)


class Capture:
    """Collects states of one worker's model; ``keep=False`` runs the model and keeps nothing.

    Under tensor parallelism every rank computes the same states, so rank 0 speaks for all.
    """

    def __init__(self, runner: Any, layer_ids: Sequence[int], *, keep: bool) -> None:
        self._runner = runner
        self._layers = sorted(set(layer_ids))
        self._step: dict[int, Any] = {}
        self._requests: dict[str, _Request] = {}
        self._failure: Exception | None = None
        if keep:
            self._attach()
            self._execute = runner.execute_model
            runner.execute_model = self._execute_and_cut

    def reset(self) -> None:
        self._requests.clear()
        self._step.clear()
        self._failure = None

    def completed(self) -> Reply:
        """The requests whose last row came, taken out; raises what went wrong in cutting."""
        if self._failure is not None:
            raise self._failure
        done = [r for r, s in self._requests.items() if s.filled == s.length]
        rows: dict[str, Rows] = {}
        dtype = ""
        for request in done:
            state = self._requests.pop(request)
            tensors = [state.layers[layer] for layer in self._layers]
            dtype = str(tensors[0].dtype).removeprefix("torch.")
            rows[request] = [_as_numpy(t) for t in tensors]
        return Reply(rows, dtype)

    # -------------------------------------------------------------- where states come from

    def _attach(self) -> None:
        model = self._runner.model
        layers = decoder_layers(model, _layer_count(self._runner))
        self._refuse_scaled(layers)
        if _interface_names(model, self._layers, len(layers)):
            # vLLM's id i is the input of layer i: the state after layer i - 1
            model.set_aux_hidden_state_layers(tuple(i + 1 for i in self._layers))
            model.register_forward_hook(self._from_interface)
            return
        for index in self._layers:
            layers[index].register_forward_hook(self._from_layer(index))

    def _refuse_scaled(self, layers: Any) -> None:
        import torch

        scale = getattr(layers[self._layers[-1]], "routed_scaling_factor", None)
        if self._runner.model_config.dtype == torch.float16 and scale not in (None, 1.0):
            raise ValueError(
                f"{type(layers[0]).__name__} in float16 divides its states by {scale}: "
                "set model.dtype to bfloat16"
            )

    def _from_interface(self, module: Any, args: Any, output: Any) -> Any:
        hidden, states = output
        if len(states) != len(self._layers):
            raise RuntimeError(
                f"{type(module).__name__} returned {len(states)} states for layers {self._layers}"
            )
        self._step.update(zip(self._layers, states))
        return hidden

    def _from_layer(self, index: int) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            self._step[index] = _state(module, output)

        return hook

    # -------------------------------------------------------------- cutting

    def _execute_and_cut(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        self._step.clear()
        output = self._execute(scheduler_output, *args, **kwargs)
        try:
            if scheduler_output.total_num_scheduled_tokens:
                self._cut(scheduler_output.num_scheduled_tokens)
        except Exception as error:
            # raised after the second phase: a step left half done would poison the next one
            self._failure = error
        finally:
            self._step.clear()
        return output

    def _cut(self, scheduled: dict[str, int]) -> None:
        """Rows lie in the worker's own order of requests, which is not the scheduler's."""
        states = {layer: self._on_host(layer, sum(scheduled.values())) for layer in self._layers}
        batch = self._runner.input_batch
        start = 0
        for place, request in enumerate(batch.req_ids):
            count = scheduled.get(request, 0)
            if count:
                begin = int(batch.num_computed_tokens_cpu[place])
                self._store(request, begin, count, start, states)
                start += count

    def _on_host(self, layer: int, tokens: int) -> Any:
        state = self._step.get(layer)
        if state is None:
            raise RuntimeError(f"layer {layer} was not run as a module: nothing was captured")
        if state.shape[0] < tokens:
            raise RuntimeError(f"layer {layer} gave {state.shape[0]} rows for {tokens} tokens")
        return state[:tokens].cpu()

    def _store(
        self, request: str, begin: int, count: int, start: int, states: dict[int, Any]
    ) -> None:
        import torch

        state = self._requests.get(request)
        if state is None:
            length = len(self._runner.requests[request].prompt_token_ids)
            state = self._requests[request] = _Request(length)
        if begin > state.filled or begin + count > state.length:
            raise RuntimeError(
                f"request {request}: rows {begin} to {begin + count} came after row "
                f"{state.filled} of {state.length}"
            )
        for layer, rows in states.items():
            part = rows[start : start + count]
            if count == state.length:
                state.layers[layer] = part
                continue
            if layer not in state.layers:
                state.layers[layer] = torch.empty(state.length, rows.shape[1], dtype=rows.dtype)
            state.layers[layer][begin : begin + count] = part
        # a preempted request begins again at 0 and overwrites what it had
        state.filled = begin + count


def decoder_layers(model: Any, count: int) -> Any:
    """The language model's ModuleList of ``count`` decoder layers; raises ValueError."""
    language = getattr(model, "get_language_model", None)
    root = language() if callable(language) else model
    for module in root.modules():
        layers: Any = getattr(module, "layers", None)
        if hasattr(layers, "register_forward_hook") and len(layers) == count:
            return layers
    raise ValueError(f"{type(model).__name__} has no list of {count} decoder layers")


def _layer_count(runner: Any) -> int:
    count: int = runner.model_config.hf_text_config.num_hidden_layers
    return count


def _interface_names(model: Any, layers: Sequence[int], count: int) -> bool:
    from vllm.model_executor.models.interfaces import supports_eagle3

    # the state after the last layer has an id only in later releases
    return bool(supports_eagle3(model)) and layers[-1] + 1 < count


def _state(module: Any, output: Any) -> Any:
    """What the residual stream holds after a layer; layers return it whole or in two summands."""
    if hasattr(output, "shape"):
        return output.clone()
    if isinstance(output, tuple) and len(output) == 2 and hasattr(output[0], "shape"):
        hidden, residual = output
        return hidden.clone() if residual is None else hidden + residual
    raise RuntimeError(f"{type(module).__name__} returns neither a state nor (state, residual)")


def _as_numpy(tensor: Any) -> Any:
    """numpy knows no bfloat16, and pickles arrays without copying them."""
    import torch

    return (tensor.view(torch.int16) if tensor.element_size() == 2 else tensor).numpy()
