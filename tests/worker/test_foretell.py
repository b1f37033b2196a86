"""What is said of a model's capture before the load is what is said once hooks are registered."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3_agent.worker.capture import source
from eagle3_agent.worker.capture.refusals import CaptureRefused, reasons

COUNT = 4


class Module:
    """As much of a torch module as finding and hooking takes."""

    def __init__(self, **children: Any) -> None:
        self.hooks = 0
        self.children = children
        for name, child in children.items():
            setattr(self, name, child)

    def register_forward_hook(self, hook: Any) -> Module:
        self.hooks += 1
        return self

    register_forward_pre_hook = register_forward_hook

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        yield "", self
        for name, child in self.children.items():
            if isinstance(child, Module):
                yield name, child


class Layers(Module):
    def __init__(self) -> None:
        super().__init__()
        self.entries = [Module() for _ in range(COUNT)]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Module:
        return self.entries[index]


class Offering(Module):
    """A model with vLLM's interface; ``around`` wraps one that has it not."""

    supports_eagle3 = True

    def __init__(self, *, around: bool = False, **children: Any) -> None:
        super().__init__(**children)
        self._around = around
        self.asked: list[tuple[int, ...]] = []

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        if self._around:
            raise AttributeError("the inner model has no aux_hidden_state_layers")
        self.asked.append(layers)


def decoder(*, norm: bool = True) -> Module:
    if not norm:
        return Module(layers=Layers())
    final = Module()
    final.weight = object()  # type: ignore[attr-defined]
    return Module(layers=Layers(), norm=final)


@pytest.mark.parametrize("layers", [(1,), (0, 2), (2, 0, 2), (3,), (1, 3), (3, 1, 0)])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("kind", ["offers", "around", "plain"])
def test_the_words_are_those_of_the_hooks(
    kind: str, norm: bool, layers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_norm_adds", lambda norm: True)
    inner = decoder(norm=norm)
    model = (
        Module(model=inner) if kind == "plain" else Offering(around=kind != "offers", model=inner)
    )
    told = source.foretell(model, layers, COUNT)
    hooked = [m.hooks for _, m in model.named_modules()] + [m.hooks for m in inner.layers.entries]  # type: ignore[attr-defined]
    assert not any(hooked)
    if isinstance(model, Offering) and model.asked:
        assert model.asked[-1] == ()  # it gives no states until it is asked for good
    attached = source.attach(model, layers, COUNT, lambda *_: None, lambda _: None)
    assert told == attached.words


def test_a_model_without_its_layers_is_refused_as_after_the_load() -> None:
    with pytest.raises(CaptureRefused, match="no list of 5 decoder layers"):
        source.foretell(Module(model=decoder()), (1,), 5)


def test_a_class_is_asked_for_both_names() -> None:
    assert source.offers(Offering)
    assert not source.offers(Module)


def test_before_the_load_every_reason_is_told_at_once() -> None:
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(pipeline_parallel_size=2),
        cache_config=SimpleNamespace(enable_prefix_caching=True),
        model_config=SimpleNamespace(enforce_eager=True),
    )
    found = reasons(config)
    assert [text.partition(":")[0] for text in found] == [
        "pipeline parallelism",
        "prefix caching is on",
    ]
    config.parallel_config.pipeline_parallel_size = 1
    config.cache_config.enable_prefix_caching = False
    assert reasons(config) == []
