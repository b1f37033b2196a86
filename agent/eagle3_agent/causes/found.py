"""The exceptions of a log as values, and which of a chain came first; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Exceptions that code meets and handles all the time: raised first, they are seldom the cause.
_LOOKUPS = frozenset(
    ("KeyError", "AttributeError", "StopIteration", "IndexError", "LookupError")
) | {"queue.Empty", "_queue.Empty", "BlockingIOError"}
#: Raised while probing what is installed; a cause only when nothing was tried instead.
_PROBES = frozenset(("ImportError", "ModuleNotFoundError"))
#: Frames that pass a call on: the one below them says more.
_GLUE = re.compile(
    r"/torch/(?:_ops|nn/modules/module|utils/_contextlib|_dynamo/eval_frame|_compile)\.py$"
    r"|/pydantic/(?:_internal/)?\w+\.py$"
    r"|/transformers/utils/(?:generic|deprecation|output_capturing)\.py$"
    r"|/(?:contextlib|functools|threading)\.py$|/concurrent/futures/\w+\.py$"
    r"|^<frozen |/importlib/__init__\.py$"
)


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str = ""
    source: str = ""


@dataclass(frozen=True)
class Raised:
    """One exception as the log shows it."""

    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    handled: bool = False
    """Another one was raised while this was handled, and not from it."""

    @property
    def where(self) -> Frame | None:
        """The innermost frame that is not glue."""
        told = [f for f in self.frames if not _GLUE.search(f.file)]
        frames = told or self.frames
        return frames[-1] if frames else None

    @property
    def short_type(self) -> str:
        return self.type.rsplit(".", 1)[-1]


@dataclass(frozen=True)
class Found:
    """A chain of exceptions that one process wrote, and where in the log."""

    process: str
    level: str
    chain: tuple[Raised, ...]
    """In the order in which they were raised; never empty."""
    line: int
    """Number of the log's line with which it begins, from 0."""
    end: int
    before: tuple[str, ...] = ()
    """The lines of the same process before it, at most five."""
    ignored: bool = False
    """Printed and passed over: ``Exception ignored in``, or logged as less than an error."""

    @property
    def first(self) -> Raised:
        """The one that the others followed from, what failed in passing left out."""
        told = [r for r in self.chain if r.type not in _LOOKUPS and not _probe(r)]
        return (told or [self.chain[-1]])[0]


def _probe(raised: Raised) -> bool:
    return raised.handled and raised.type in _PROBES
