"""Where a model's states can be had, found by looking at the model: its interface, or hooks.

State i is the residual stream after decoder layer i.  Nothing of the model is replaced:
its own forward runs, and hooks see what its modules take and give.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .refusals import CaptureRefused

Put = Callable[[int, Any, Any], None]
"""Takes (layer, hidden, residual or None): the state after a layer, whole or in two summands."""
Fail = Callable[[str], None]
"""Takes what went wrong; the step ends with it."""

#: vLLM's ``SupportsEagle3``.
_NAME_LAYERS = "set_aux_hidden_state_layers"

#: What models call their list of decoder layers.
_LISTS = ("layers", "h", "blocks")

#: Parts of a multimodal model whose layers are not the decoder's.
_OTHER_TOWERS = re.compile(r"vision|visual|image|audio|speech|encoder|mtp|draft", re.IGNORECASE)


@dataclass
class Source:
    """Hooks that stand until ``remove``."""

    words: str = ""
    """How the states are had, for a person."""
    hooks: list[Any] = field(default_factory=list)
    withdraw: Callable[[], None] | None = None
    """Has the model stop giving states of its own."""

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()
        if self.withdraw is not None:
            self.withdraw()


def attach(model: Any, layers: Sequence[int], count: int, put: Put, fail: Fail) -> Source:
    """Register what calls ``put`` for each distinct layer in each forward.

    ``count``: decoder layers of the model.  Raises CaptureRefused.
    """
    decoder, modules = find_decoder(model, count)
    distinct = sorted(set(layers))
    inner = [i for i in distinct if i < count - 1]
    source = Source()
    if inner and _interface(model, inner):
        source.hooks.append(model.register_forward_hook(_from_interface(inner, put, fail)))
        source.withdraw = lambda: model.set_aux_hidden_state_layers(())
        source.words = _words(decoder, distinct, inner, count)
        if distinct[-1] == count - 1:
            source.hooks.append(_last(decoder, modules, put, fail))
        return source
    sums = _residual_is_summand(decoder)
    for index in distinct:
        hook = modules[index].register_forward_hook(_from_layer(index, sums, put, fail))
        source.hooks.append(hook)
    source.words = _words(decoder, distinct, [], count)
    return source


def foretell(model: Any, layers: Sequence[int], count: int) -> str:
    """The words that ``attach`` would leave, from a model that may have no weights.

    Registers nothing; raises CaptureRefused as ``attach`` does.
    """
    decoder, _ = find_decoder(model, count)
    distinct = sorted(set(layers))
    inner = [i for i in distinct if i < count - 1]
    if not (inner and _interface(model, inner)):
        return _words(decoder, distinct, [], count)
    model.set_aux_hidden_state_layers(())
    return _words(decoder, distinct, inner, count)


def offers(model_class: Any) -> bool:
    """Whether a model's class has vLLM's interface; one of its models may still not answer it."""
    return bool(getattr(model_class, "supports_eagle3", False)) and hasattr(
        model_class, _NAME_LAYERS
    )


def _words(decoder: Any, distinct: Sequence[int], inner: Sequence[int], count: int) -> str:
    """How ``distinct`` are had, where ``inner`` of them come from the model's interface."""
    if not inner:
        return f"forward hooks on {_layers(distinct)}"
    words = f"vLLM's SupportsEagle3 for {_layers(inner)}"
    if distinct[-1] != count - 1:
        return words
    last = _layers([count - 1])
    if final_norm(decoder) is None:
        return f"{words}, a forward hook on {last}"
    return f"{words}, the final norm's input for {last}"


def find_decoder(model: Any, count: int) -> tuple[Any, Any]:
    """The module that holds the list of ``count`` decoder layers, and that list.

    Found by structure, inside a multimodal wrapper too; raises CaptureRefused when there is
    none.
    """
    language = getattr(model, "get_language_model", None)
    root = language() if callable(language) else model
    for name, module in root.named_modules():
        if _OTHER_TOWERS.search(name):
            continue
        for layers in (getattr(module, name, None) for name in _LISTS):
            listed = hasattr(layers, "register_forward_hook") and hasattr(layers, "__len__")
            if listed and len(layers) == count:  # type: ignore[arg-type]
                return module, layers
    raise CaptureRefused(
        f"{type(model).__name__} has no list of {count} decoder layers: use engine transformers"
    )


def _interface(model: Any, layers: Sequence[int]) -> bool:
    """Have the model give the states after ``layers``, if it offers to.

    vLLM's id i is the input of layer i: the state after layer i - 1.  The state after the last
    layer has an id in some releases and models only, and is silently left out by the others,
    so it is never asked for.
    """
    if not offers(model):
        return False
    try:
        model.set_aux_hidden_state_layers(tuple(i + 1 for i in layers))
    except (AssertionError, AttributeError, NotImplementedError):
        return False  # a wrapper that offers it around a model that does not
    return True


def _from_interface(layers: Sequence[int], put: Put, fail: Fail) -> Any:
    def caught(module: Any, args: Any, output: Any) -> Any:
        if not isinstance(output, tuple) or len(output) != 2:
            fail(f"{type(module).__name__} returned no auxiliary states")
            return None
        hidden, states = output
        if len(states) != len(layers):
            fail(f"{type(module).__name__} returned {len(states)} states for {_layers(layers)}")
        else:
            for layer, state in zip(layers, states):
                put(layer, state, None)
        return hidden  # what vLLM's runner expects of a model without a draft

    return caught


def _last(decoder: Any, modules: Any, put: Put, fail: Fail) -> Any:
    """Hook the state after the last layer: what the final norm takes, else what the layer gives."""
    index = len(modules) - 1
    norm = final_norm(decoder)
    if norm is None:
        return modules[index].register_forward_hook(_from_layer(index, True, put, fail))
    uses_residual = _norm_adds(norm)

    def caught(module: Any, args: Any) -> None:
        residual = args[1] if len(args) > 1 and uses_residual else None
        put(index, args[0], residual)

    return norm.register_forward_pre_hook(caught)


def final_norm(decoder: Any) -> Any:
    """The norm after the last layer: the decoder's own child of that name; None if not found."""
    for name in ("norm", "final_layernorm", "ln_f", "final_norm"):
        norm = getattr(decoder, name, None)
        if hasattr(norm, "register_forward_pre_hook") and hasattr(norm, "weight"):
            return norm
    return None


def _from_layer(index: int, sums: bool, put: Put, fail: Fail) -> Any:
    def caught(module: Any, args: Any, output: Any) -> None:
        if hasattr(output, "shape"):
            put(index, output, None)
        elif isinstance(output, tuple) and len(output) == 2 and hasattr(output[0], "shape"):
            put(index, output[0], output[1] if sums else None)
        else:
            fail(f"{type(module).__name__} returns neither a state nor (state, residual)")

    return caught


def _residual_is_summand(decoder: Any) -> bool:
    """Whether a layer's second output belongs to its state.

    In most models it does; in Cohere's the first one is whole and the second is left over,
    which shows at the final norm: it takes both and adds nothing.
    """
    norm = final_norm(decoder)
    return norm is None or _norm_adds(norm)


def _norm_adds(norm: Any) -> bool:
    """Try the norm: does the residual change what it returns?  True where it takes none."""
    import torch

    weight = norm.weight
    rows = torch.linspace(-1, 1, 2 * weight.shape[-1], device=weight.device, dtype=weight.dtype)
    rows = rows.view(2, -1)
    try:
        with torch.inference_mode():
            one, _ = norm(rows.clone(), rows.flip(1).clone())
            other, _ = norm(rows.clone(), (rows * rows).clone())
    except (TypeError, ValueError):
        return True
    # weights that are all zero show nothing
    return not (bool(one.any()) and torch.equal(one, other))


def _layers(indices: Sequence[int]) -> str:
    """``layer 3``, ``layers 1, 3, 5``."""
    name = "layer" if len(indices) == 1 else "layers"
    return f"{name} {', '.join(map(str, indices))}"
