"""Bring the agent to a host: find a Python there, ship the archive, start it, attach.

A host that already has this archive costs one exec; a new one costs two.  No
datum ever passes through the login shell's language: the one command is
``/bin/sh``, and a POSIX script follows on its standard input, so bash, zsh,
fish and tcsh accounts are all the same.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.resources
import json
import re
import secrets
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from eagle3_agent.protocol import MAGIC, ProtocolError, from_json
from eagle3_agent.protocol.values import Problem

from .archive import Archive
from .errors import ConsoleError
from .hosts import Channel, Host, NoAgent, connect_error, printable

MAX_NOISE = 64 * 1024
"""Bytes that a shell's start-up files may print before the script speaks."""
SHELL_TIMEOUT = 20.0
"""Seconds until the script must have spoken."""
STEP_TIMEOUT = 90.0
"""Seconds for any later step: a Python over a slow network file system takes its time."""
_MAX_LINE = 16 * 1024
_MAX_LINES = 5000
"""Bytes of one line, and lines, that the script's own part may have."""

Mode = Literal["attach", "install", "repair"]


@dataclass(frozen=True)
class Attached:
    """The agent is at the other end of ``channel``, and only wire lines follow."""

    channel: Channel
    rest: bytes
    """What was already read behind the greeting."""
    archive: str
    """The archive that the attached process runs from."""
    python: str
    """Version and path of the host's interpreter."""
    noise: bytes
    """What the shell's start-up files printed."""


@dataclass
class _Told:
    """What the script has said so far."""

    shell: bool = False
    noise: bytes = b""
    python: str = ""
    folder: str = ""
    old: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    ended: str = ""
    """``missing`` or ``no-python``: the script came to its end by itself."""


async def attach(
    host: Host, archive: Archive, on_step: Callable[[str], None], *, start: bool = True
) -> Attached:
    """Reach the agent on ``host``, installing it when it is not there.

    Without ``start`` the daemon is not started: :class:`NoAgent` is raised where none runs.
    Raises ConsoleError (code ``connect``), each cause with its own words.
    """
    on_step("Connecting")
    found = await _run(host, archive, "attach", on_step, start)
    if isinstance(found, _Told) and found.ended == "missing":
        on_step("Sending the agent")
        found = await _run(host, archive, "install", on_step, start)
    elif isinstance(found, _Silent):
        # a folder that lost files (a cleaner, a full disk) is replaced, once
        on_step("Repairing the agent")
        found = await _run(host, archive, "repair", on_step, start)
    if isinstance(found, _Silent):
        raise found.error
    if isinstance(found, _Told):
        raise _no_python(host, found)
    return found


@dataclass(frozen=True)
class _Silent:
    """The agent's process ended without its greeting."""

    error: ConsoleError


async def _run(
    host: Host, archive: Archive, mode: Mode, on_step: Callable[[str], None], start: bool
) -> Attached | _Told | _Silent:
    """One exec of the script; the channel is closed unless the agent is at its end."""
    nonce = secrets.token_hex(8)
    channel = await host.open("/bin/sh")
    script = _Script(host, channel, nonce, archive, on_step)
    kept = False
    try:
        result = await script.run(script_text(mode, nonce, archive, host.python, start))
        kept = isinstance(result, Attached)
        return result
    finally:
        if not kept:
            await channel.close()


def script_text(
    mode: Mode, nonce: str, archive: Archive, python: str | None, start: bool = True
) -> bytes:
    """The script with its words filled in; every value is quoted or has no sign to quote."""
    folder = importlib.resources.files("eagle3_console") / "remote"
    text = (folder / "bootstrap.sh").read_text("utf-8")
    values = {
        "NONCE": nonce,
        "ARCHIVE": archive.name,
        "MODE": mode,
        "SIZE": str(len(archive.packed)),
        "HOW": "" if start else "--running",
        "FIRST": shlex.quote(python or ""),
        "UNPACK": shlex.quote((folder / "unpack.py").read_text("utf-8")),
    }
    filled = re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], text)
    return filled.encode("utf-8", "surrogateescape")


class _Script:
    """The conversation with one running script."""

    def __init__(
        self,
        host: Host,
        channel: Channel,
        nonce: str,
        archive: Archive,
        on_step: Callable[[str], None],
    ) -> None:
        self._host = host
        self._channel = channel
        self._mark = f"EAGLE3-{nonce} ".encode()
        self._archive = archive
        self._on_step = on_step
        self._buffer = b""
        self._told = _Told()

    async def run(self, script: bytes) -> Attached | _Told | _Silent:
        try:
            await asyncio.wait_for(self._channel.write(script), SHELL_TIMEOUT)
        except (ConsoleError, asyncio.TimeoutError):
            pass  # a shell that left at once has said why: that is what must be read
        await self._find_shell()
        for _ in range(_MAX_LINES):
            line = await self._line()
            if line is None:
                if self._told.ended:
                    return self._told
                return await self._silent()
            if line.startswith(MAGIC + b" "):
                return self._greeting(line[len(MAGIC) + 1 :])
            if line.startswith(self._mark):
                await self._said(line[len(self._mark) :].decode("utf-8", "surrogateescape"))
            else:
                self._told.noise += line + b"\n"
                self._check_noise()
        raise self._no_shell(endless=True)

    async def _find_shell(self) -> None:
        """Read past everything that was printed before the script spoke."""
        first = self._mark + b"shell\n"
        deadline = asyncio.get_running_loop().time() + SHELL_TIMEOUT
        while first not in self._buffer:
            left = deadline - asyncio.get_running_loop().time()
            try:
                data = await asyncio.wait_for(self._channel.read(), max(left, 0))
            except asyncio.TimeoutError:
                raise self._no_shell(endless=False) from None
            if not data:
                raise await self._left_early()
            self._buffer += data
            if len(self._buffer) > MAX_NOISE and first not in self._buffer:
                raise self._no_shell(endless=True)
        noise, _, self._buffer = self._buffer.partition(first)
        self._told.noise = noise
        self._told.shell = True
        self._check_noise()

    def _check_noise(self) -> None:
        if len(self._told.noise) > MAX_NOISE:
            raise self._no_shell(endless=True)

    async def _line(self) -> bytes | None:
        while b"\n" not in self._buffer:
            if len(self._buffer) > _MAX_LINE:
                raise self._no_shell(endless=True)
            try:
                data = await asyncio.wait_for(self._channel.read(), STEP_TIMEOUT)
            except asyncio.TimeoutError:
                raise self._slow() from None
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    async def _said(self, text: str) -> None:
        key, _, value = text.partition("=")
        if text == "send":
            await self._send()
        elif text in ("missing", "no-python"):
            self._told.ended = text
        elif key == "python":
            self._told.python = value
            self._on_step("Looking for the agent")
        elif key == "folder":
            self._told.folder = value
        elif key == "old":
            self._told.old.append(value)
        elif key == "broken":
            self._told.broken.append(value)
        elif text == "foreign":
            raise self._foreign()
        elif key == "error":
            raise self._not_installed(value)

    async def _send(self) -> None:
        try:
            await asyncio.wait_for(self._channel.write(self._archive.packed), STEP_TIMEOUT)
        except asyncio.TimeoutError:
            raise self._slow() from None
        self._on_step("Starting the agent")

    def _greeting(self, rest: bytes) -> Attached:
        word, _, value = rest.partition(b" ")
        if word == b"ready":
            archive = printable(value, 64)
            told = self._told
            return Attached(self._channel, self._buffer, archive, told.python, told.noise)
        if word == b"absent":
            raise NoAgent(
                Problem(
                    f"No agent is running on {self._host.name}",
                    "Nobody serves its socket there.",
                    "Any command that needs it starts it.",
                    "connect",
                )
            )
        try:
            problem = from_json(Problem, json.loads(value))
        except (ProtocolError, ValueError, RecursionError):
            problem = Problem("The agent did not start", printable(rest), "See the agent's log.")
        raise connect_error(
            f"{self._host.name}: {printable(problem.title)}",
            printable(problem.happened, 2000),
            printable(problem.todo, 1000),
        )

    # ------------------------------------------------------------------ failures

    async def _status(self) -> str:
        try:
            status = await asyncio.wait_for(self._channel.exit_status(), 5)
        except asyncio.TimeoutError:
            return ""
        return "" if status is None else f" and left with status {status}"

    async def _left_early(self) -> ConsoleError:
        status = await self._status()
        text = printable(self._buffer + b"\n" + self._channel.stderr_tail(), 600)
        return connect_error(
            f"The login on {self._host.name} runs no commands",
            (f"It printed “{text}”" if text else "It printed nothing") + f"{status}, where "
            "/bin/sh was asked for.",
            "The account needs a shell that runs commands (`chsh`), and its key must not be bound "
            "to another command (ForceCommand in sshd_config, command= in authorized_keys).",
        )

    def _no_shell(self, endless: bool) -> ConsoleError:
        text = printable(self._told.noise + self._buffer, 300)
        if endless:
            return connect_error(
                f"The shell of {self._host.name} prints too much before it runs a command",
                f"More than {MAX_NOISE // 1024} KiB came before the first answer; it begins "
                f"“{text}”.",
                "Let its start-up files (.bashrc, .zshenv, config.fish, .cshrc) print only when "
                "the shell is interactive.",
            )
        said = f"It printed “{text}”." if text else "It printed nothing."
        return connect_error(
            f"The shell of {self._host.name} does not run what it is sent",
            f"Nothing answered within {SHELL_TIMEOUT:.0f} s. {said}",
            "A start-up file (.bashrc, .zshenv, config.fish, .cshrc) that waits, reads standard "
            "input or starts another program must do so only when the shell is interactive.",
        )

    def _slow(self) -> ConsoleError:
        return connect_error(
            f"The agent does not answer on {self._host.name}",
            f"{self._told.python or 'Python'} was started, and nothing followed within "
            f"{STEP_TIMEOUT:.0f} s.",
            f"Look whether the host is overloaded or {printable(self._told.folder) or 'its home'} "
            "lies on a file system that hangs.",
        )

    async def _silent(self) -> _Silent:
        status = await self._status()
        lines = self._channel.stderr_tail().decode("utf-8", "replace").strip().splitlines()
        said = printable(lines[-1]) if lines else "nothing"
        return _Silent(
            connect_error(
                f"The agent does not start on {self._host.name}",
                f"{printable(self._told.python)} ran {printable(self._told.folder)}{status}; "
                f"the last that it said: {said}",
                "Check that this Python works on the host, and the free space there.",
            )
        )

    def _foreign(self) -> ConsoleError:
        return connect_error(
            f"The agent's folder on {self._host.name} is not yours",
            f"{printable(self._told.folder)} belongs to another user; nothing of it was run.",
            "Remove it, or set EAGLE3_HOME on the host to a folder of your own.",
        )

    def _not_installed(self, value: str) -> ConsoleError:
        try:
            fault = json.loads(value)
            code, text, path = fault["errno"], str(fault["text"]), str(fault["path"])
        except (ValueError, KeyError, TypeError, RecursionError):
            code, text, path = None, value, self._told.folder
        path, text = printable(path), printable(text)
        if code in (errno.ENOSPC, errno.EDQUOT):
            return connect_error(
                f"The disk is full on {self._host.name}",
                f"{path}: {text}.",
                "Free some MiB there, or set EAGLE3_HOME on the host to a folder on another disk.",
            )
        return connect_error(
            f"The agent cannot be put on {self._host.name}",
            f"{path}: {text}.",
            "Make that folder writable, or set EAGLE3_HOME on the host (in the environment of ssh "
            "logins, such as ~/.ssh/environment or SetEnv) to a folder that is.",
        )


def _no_python(host: Host, told: _Told) -> ConsoleError:
    where = "in PATH as ssh sets it, /usr/bin, /usr/local/bin, ~/.local/bin and conda's folders"
    if told.old:
        found = ", ".join(printable(text.replace(" ", " is ", 1)) for text in told.old[:5])
        return connect_error(
            f"Python on {host.name} is too old",
            f"Found {found}; the agent needs 3.10 or newer.",
            "Install a newer python3 beside it (packages, uv or conda need no root), or name one "
            "in the profile's host.python.",
        )
    if told.broken:
        found = ", ".join(printable(text) for text in told.broken[:5])
        return connect_error(
            f"Python on {host.name} does not work",
            f"Found {found}, without a standard library that loads.",
            "Install a complete python3 (Debian: python3, not only python3-minimal).",
        )
    return connect_error(
        f"There is no Python on {host.name}",
        f"No python3 {where}.",
        "Install Python 3.10 or newer there, or name one in the profile's host.python.",
    )
