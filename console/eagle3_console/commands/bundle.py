"""bundle: one file about a run for a bug report, with secrets taken out."""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import re
import tarfile
import time
from collections import deque
from importlib import metadata
from pathlib import Path
from typing import Any

from eagle3_agent.causes import CauseFinder
from eagle3_agent.protocol import to_json
from eagle3_agent.protocol.messages import StreamName
from eagle3_agent.protocol.values import Problem, RunDetail
from eagle3_console import render_cause, scrub
from eagle3_console.errors import ConsoleError, ExitCode
from eagle3_console.linkstate import LinkPort

from . import arguments
from .linking import connected, run_detail
from .terminal import Terminal

#: Bytes of a stream that are kept: its beginning and its end.
_HEAD = 4 << 20
_TAIL = 12 << 20
_LINE = 64 * 1024

_DISTRIBUTIONS = ("eagle3-console", "textual", "asyncssh", "tomlkit", "platformdirs")

_README = """\
A run of EAGLE-3 hidden-state extraction, for a bug report.

  console.json   the console's versions and platform
  run.json       profile, preflight, patches, environment, outcome, stages
  cause.txt      what happened first, as the log tells it
  events.jsonl   the run's events
  output.log     what the worker wrote{cut}
  gpu.jsonl      GPU telemetry during the run

Values of variables that are named like secrets, and texts in the shape of known tokens, are
replaced by {mask}. Names of hosts, users, folders and the texts of the log stay: read it before
you send it.
"""


def add(commands: arguments.Commands) -> None:
    parser = arguments.command(
        commands,
        "bundle",
        "pack everything about a run for a bug report, secrets masked",
        bundle,
        "A .tar.gz that only you can read (0600): profile, preflight, patches, events, log,\n"
        "telemetry and the first cause. An existing file is not overwritten.\n\n"
        "With --json: file, bytes, run, members [names], cut [streams of which the middle is left\n"
        "out].",
        "  eagle3-console bundle root@gpu-01 last\n"
        "  eagle3-console bundle root@gpu-01 4 -o run4.tar.gz",
    )
    arguments.target(parser)
    arguments.run(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="where to (named by run and time)")
    arguments.as_json(parser)


async def bundle(args: argparse.Namespace, terminal: Terminal) -> int:
    async with connected(args.target, terminal, read_only=True) as link:
        detail = await run_detail(link, args.run)
        run = detail.summary.run
        path = Path(args.output or _name(args.target, run))
        terminal.say(f"packing run {run} …", "dim")
        kept = {name: await _read(link, run, name) for name in _STREAMS}
    members = _members(detail, kept)
    cut = [name for name, data in kept.items() if data.left_out]
    size = _write(path, members)
    terminal.object(
        {"file": str(path), "bytes": size, "run": run, "members": list(members), "cut": cut}
    )
    terminal.line(f"{path} ({size / 1e6:.1f} MB, readable by you alone)")
    terminal.line(
        "Secrets are masked; hosts, users and folders are not: read it before you send it."
    )
    return ExitCode.DONE


class _Kept:
    """A stream's beginning and end."""

    def __init__(self) -> None:
        self.head = bytearray()
        self.left_out = 0
        self._tail: deque[bytes] = deque()
        self._size = 0

    def add(self, data: bytes) -> None:
        room = max(0, _HEAD - len(self.head))
        self.head += data[:room]
        rest = data[room:]
        if rest:
            self._tail.append(rest)
            self._size += len(rest)
        while self._tail and self._size - len(self._tail[0]) >= _TAIL:
            gone = self._tail.popleft()
            self._size -= len(gone)
            self.left_out += len(gone)

    def lines(self) -> list[bytes]:
        if not self.left_out:
            return (bytes(self.head) + b"".join(self._tail)).split(b"\n")
        middle = b"... %d bytes left out here ..." % self.left_out
        head = bytes(self.head).split(b"\n")[:-1]
        return [*head, middle, *b"".join(self._tail).split(b"\n")[1:]]


_STREAMS: dict[StreamName, str] = {
    "events": "events.jsonl",
    "output": "output.log",
    "gpu": "gpu.jsonl",
}


async def _read(link: LinkPort, run: str, stream: StreamName) -> _Kept:
    kept = _Kept()
    async for piece in link.stream(run, stream, 0):
        kept.add(piece.data)
        if piece.ended or piece.caught_up:
            break
    return kept


def _members(detail: RunDetail, kept: dict[StreamName, _Kept]) -> dict[str, bytes]:
    cause = detail.cause
    if cause is None:  # an older agent does not look for it
        finder = CauseFinder()
        finder.add(b"\n".join(kept["output"].lines()))
        cause = finder.cause(detail.summary.error)
    told = "no error was found in the log"
    if cause is not None:
        told = "\n".join(text.strip() for text, _ in render_cause.lines(cause))
    cut = " (its middle is left out)" if kept["output"].left_out else ""
    return {
        "README.txt": _README.format(mask=scrub.MASK, cut=cut).encode(),
        "console.json": _json(_console()),
        "run.json": _json(scrub.value(to_json(detail))),
        "cause.txt": scrub.text(told).encode() + b"\n",
        "events.jsonl": b"\n".join(map(_event, kept["events"].lines())),
        "output.log": b"\n".join(map(_text, kept["output"].lines())),
        "gpu.jsonl": b"\n".join(map(_event, kept["gpu"].lines())),
    }


def _event(line: bytes) -> bytes:
    """A line of JSON masked by its keys; one that is none, as text."""
    try:
        return json.dumps(scrub.value(json.loads(line)), separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return _text(line)


def _text(line: bytes) -> bytes:
    """Line by line, so that 5 MB without an end are masked in pieces."""
    pieces = [line[i : i + _LINE] for i in range(0, len(line), _LINE)]
    return b"".join(
        scrub.text(p.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        for p in pieces
    )


def _console() -> dict[str, Any]:
    versions = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    terminal = {n: os.environ[n] for n in ("TERM", "COLORTERM", "LANG") if n in os.environ}
    return {
        "versions": versions,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "terminal": terminal,
        "at": time.time(),
    }


def _json(data: Any) -> bytes:
    return json.dumps(data, indent=1).encode() + b"\n"


def _name(target: str, run: str) -> str:
    """Made of plain letters, whatever the target is called."""
    host, run = (re.sub(r"[^\w.-]", "-", text)[:60].lstrip(".-") for text in (target, run))
    return f"eagle3-{host or 'host'}-run{run}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz"


def _write(path: Path, members: dict[str, bytes]) -> int:
    """A new file of mode 0600.  Raises ConsoleError; nothing is left of a failed one."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritten(path, error) from None
    try:
        with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            os.fchmod(fd, 0o600)
            folder = path.name.partition(".tar")[0] or "bundle"
            for name, data in members.items():
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
                archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _unwritten(path, error) from None
    return path.stat().st_size


def _unwritten(path: Path, error: OSError) -> ConsoleError:
    return ConsoleError(
        Problem(
            "The bundle could not be written",
            f"{path}: {error.strerror or error}",
            "Name another file with -o.",
            "usage",
        )
    )
