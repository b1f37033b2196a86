"""What the installed vLLM and speculators look like, read from their source files.

Importing vLLM costs seconds and may fail on the very thing that a patch mends, so
signatures are read with ``ast``.  Nothing here decides anything.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]

GENERATOR = "speculators.data_generation.vllm_hidden_states_generator"
GENERATOR_CLASS = "VllmHiddenStatesGenerator"


class UnreadableError(Exception):
    """Something looked for is not there; the text names it."""


@dataclass
class Sources:
    """Parsed modules of the packages under ``roots``; parses each file once."""

    roots: dict[str, Path]
    """Package name -> its folder; a package that is not installed is left out."""
    _trees: dict[str, ast.Module] = field(default_factory=dict)

    @classmethod
    def installed(cls, *packages: str) -> Sources:
        """Where this interpreter would import the packages from; imports none of them."""
        roots = {}
        for name in packages or ("vllm", "speculators", "transformers"):
            spec = importlib.util.find_spec(name)
            # a folder that happens to have the name has no origin: it is no package
            if spec and spec.origin and spec.submodule_search_locations:
                roots[name] = Path(spec.submodule_search_locations[0])
        return cls(roots)

    def module(self, name: str) -> ast.Module:
        """The parsed module; raises UnreadableError."""
        if name not in self._trees:
            self._trees[name] = self._parse(name)
        return self._trees[name]

    def _parse(self, name: str) -> ast.Module:
        package, _, rest = name.partition(".")
        if package not in self.roots:
            raise UnreadableError(f"{package} is not installed")
        path = self.roots[package].joinpath(*rest.split(".")) if rest else self.roots[package]
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            try:
                return ast.parse(file.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, SyntaxError, ValueError) as error:
                raise UnreadableError(f"{name} cannot be read: {error}") from None
        raise UnreadableError(f"there is no module {name}")

    def find(self, module: str, path: str) -> ast.stmt:
        """A class or function by dotted path within a module; raises UnreadableError."""
        found: ast.stmt | ast.Module = self.module(module)
        for part in path.split("."):
            body = getattr(found, "body", [])
            kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            named = [n for n in body if isinstance(n, kinds) and n.name == part]
            if not named:
                raise UnreadableError(f"{module} has no {path}")
            # of overloads, the last one is the implementation
            found = named[-1]
        assert isinstance(found, ast.stmt)
        return found

    def function(self, module: str, path: str) -> Function:
        found = self.find(module, path)
        if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return found
        raise UnreadableError(f"{path} of {module} is not a function")

    def field(self, module: str, path: str, name: str) -> ast.AnnAssign | None:
        """A class's annotated field; None when the class has none of that name."""
        for node in getattr(self.find(module, path), "body", []):
            target = node.target if isinstance(node, ast.AnnAssign) else None
            if isinstance(target, ast.Name) and target.id == name:
                assert isinstance(node, ast.AnnAssign)
                return node
        return None

    def assigned(self, module: str, name: str) -> ast.AnnAssign | None:
        """A module's annotated variable, also below ``if TYPE_CHECKING``; None when it has none."""
        for node in ast.walk(self.module(module)):
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
                return node
        return None

    def has(self, module: str, path: str) -> bool:
        """Raises UnreadableError when there is no such module."""
        self.module(module)
        try:
            self.find(module, path)
        except UnreadableError:
            return False
        return True

    def imports(self, module: str, package: str) -> list[tuple[str, str]]:
        """(module, name) of each ``from PACKAGE... import name`` in it, in order."""
        found = (n for n in ast.walk(self.module(module)) if isinstance(n, ast.ImportFrom))
        return [
            (node.module, alias.name)
            for node in found
            if node.module and node.module.partition(".")[0] == package and not node.level
            for alias in node.names
        ]

    def names(self, module: str) -> set[str] | None:
        """What a module defines or imports at its top; None when it may hold any name.

        Raises UnreadableError when there is no such module.
        """
        found = set()
        for node in ast.walk(self.module(module)):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                found.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                found.update(alias.asname or alias.name for alias in node.names)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
        return None if found & {"*", "__getattr__"} else found

    def calls(self, module: str, path: str, name: str) -> list[ast.Call]:
        """Calls within a class or function whose callee ends in ``name``, in order."""
        return [c for c in _calls(self.find(module, path)) if _callee(c).endswith(name)]

    def generator_call(self, name: str) -> ast.Call:
        """The first call of ``name`` in speculators' generator; raises UnreadableError."""
        found = self.calls(GENERATOR, GENERATOR_CLASS, name)
        if not found:
            raise UnreadableError(f"{GENERATOR_CLASS} does not call {name}")
        return found[0]


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (n for n in ast.walk(node) if isinstance(n, ast.Call))


def _callee(call: ast.Call) -> str:
    return ast.unparse(call.func)


def passed(call: ast.Call, keyword: str) -> ast.expr | None:
    """The value given for a keyword; None when it is left out."""
    return next((k.value for k in call.keywords if k.arg == keyword), None)


def is_value(node: ast.expr | None, value: object) -> bool:
    """Whether the node is the constant ``value``: the same object, or the same text."""
    if not isinstance(node, ast.Constant):
        return False
    return node.value is value or (isinstance(value, str) and node.value == value)


def parameters(function: Function) -> dict[str, bool]:
    """Parameter -> whether it has a default; ``self`` left out."""
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    first_default = len(positional) - len(args.defaults)
    found = {a.arg: i >= first_default for i, a in enumerate(positional)}
    found.update({a.arg: d is not None for a, d in zip(args.kwonlyargs, args.kw_defaults)})
    found.pop("self", None)
    return found


def takes_anything(function: Function) -> bool:
    return function.args.kwarg is not None


def shown(node: ast.AST, limit: int = 220) -> str:
    """Source text of a node, on one line and cut; a function is shown as its signature."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        text = f"{node.name}({ast.unparse(node.args)})"
    else:
        text = ast.unparse(node)
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
