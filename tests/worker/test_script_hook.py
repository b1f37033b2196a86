"""The watch on imports: what a module needs is done once, around its first import."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.worker.script import hook


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """``watched_pkg``, whose __init__ takes a name from ``watched_pkg.inner``, as speculators'."""
    folder = tmp_path / "watched_pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("from watched_pkg.inner import Thing\n")
    (folder / "inner.py").write_text("class Thing:\n    made = 0\nThing.made += 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield folder
    sys.meta_path[:] = finders
    for name in [n for n in sys.modules if n.partition(".")[0] == "watched_pkg"]:
        del sys.modules[name]


def _inner() -> Any:
    return importlib.import_module("watched_pkg.inner").Thing


def test_the_action_imports_the_module_and_everybody_gets_that_one(package: Path) -> None:
    calls = []

    def action() -> None:
        calls.append("watched_pkg.inner" in sys.modules)
        _inner().patched = True

    hook.install(on_import={"watched_pkg.inner": action}, after_import={})
    assert calls == []
    importlib.import_module("watched_pkg")
    module = sys.modules["watched_pkg.inner"]
    assert calls == [False]
    assert sys.modules["watched_pkg"].Thing is module.Thing is _inner()
    assert module.Thing.patched
    assert module.Thing.made == 1  # its body ran once
    assert module.__spec__ is not None
    assert module.__spec__.origin == str(package / "inner.py")
    assert not hasattr(importlib.reload(module).Thing, "patched")
    assert calls == [False]


def test_an_action_that_fails_is_tried_again(package: Path) -> None:
    calls = []

    def action() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ImportError("not yet")
        _inner()

    hook.install(on_import={"watched_pkg.inner": action}, after_import={})
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module("watched_pkg.inner")
    importlib.import_module("watched_pkg.inner")
    assert len(calls) == 2


def test_what_follows_an_import_comes_after_its_body(package: Path) -> None:
    seen = []
    hook.install(
        on_import={},
        after_import={"watched_pkg": lambda: seen.append(sys.modules["watched_pkg"].Thing.made)},
    )
    module = importlib.import_module("watched_pkg")
    assert seen == [1]
    assert module.__spec__ is not None
    assert module.__loader__ is module.__spec__.loader
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    importlib.reload(module)
    assert seen == [1]


def test_a_module_that_is_not_there_stays_away(package: Path) -> None:
    def action() -> None:
        importlib.import_module("watched_pkg.none")

    hook.install(on_import={"watched_pkg.none": action}, after_import={"no_such_module_9": action})
    with pytest.raises(ModuleNotFoundError, match=r"watched_pkg\.none"):
        importlib.import_module("watched_pkg.none")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_9"):
        importlib.import_module("no_such_module_9")


def test_what_has_been_imported_already_is_not_missed(package: Path) -> None:
    importlib.import_module("watched_pkg")
    calls: list[str] = []
    hook.install(
        on_import={"watched_pkg.inner": lambda: calls.append("on")},
        after_import={"watched_pkg": lambda: calls.append("after")},
    )
    assert calls == ["on", "after"]
    importlib.import_module("watched_pkg.inner")
    assert calls == ["on", "after"]
