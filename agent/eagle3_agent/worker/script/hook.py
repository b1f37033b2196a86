"""Do something when a module is imported for the first time, and not before.

What a script does not import is not imported for it: a patch of vLLM would cost every script
the import of vLLM.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[], None]


def install(*, on_import: dict[str, Action], after_import: dict[str, Action]) -> None:
    """``on_import``: the action imports the module itself, with whatever it needs around it.

    ``after_import``: called once the module's body has run.  An action whose import fails is
    tried again with the next import.  For what has been imported already the action comes now.
    """
    actions = {**on_import, **after_import}
    for name in [name for name in actions if name in sys.modules]:
        actions.pop(name)()
    sys.meta_path.insert(
        0,
        _Finder(
            {name: on_import[name] for name in on_import if name in actions},
            {name: after_import[name] for name in after_import if name in actions},
        ),
    )


class _Finder(MetaPathFinder):
    def __init__(self, on_import: dict[str, Action], after_import: dict[str, Action]) -> None:
        self._on, self._after = on_import, after_import
        self._busy: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._busy:
            return None  # the action's own import
        if fullname in self._on:
            return ModuleSpec(fullname, _Imported(lambda: self._import(fullname)))
        if fullname in self._after:
            return self._followed(fullname, path, target)
        return None

    def _import(self, name: str) -> ModuleType:
        self._busy.add(name)
        try:
            self._on[name]()
        finally:
            self._busy.discard(name)
        del self._on[name]
        return sys.modules[name]

    def _followed(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = (
                find(name, path, target) if find and finder is not self else None
            )
            if spec is not None:
                break
        else:
            return None
        if spec.loader is not None:
            spec.loader = _Followed(spec.loader, spec, lambda: self._after.pop(name, _nothing)())
        return spec


def _nothing() -> None:
    pass


class _Imported(Loader):
    """Has the module imported by somebody else; leaves its own spec on it."""

    def __init__(self, load: Callable[[], ModuleType]) -> None:
        self._load = load
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        # not while the finder is asked: importlib would then load the module a second time
        module = self._load()
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Followed(Loader):
    """The real loader, and the action after it; the module keeps the real one."""

    def __init__(self, loader: Any, spec: ModuleSpec, action: Action) -> None:
        self._loader, self._spec, self._action = loader, spec, action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._action()
