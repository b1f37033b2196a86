"""The user's ssh files: where they are, and configurations that the library cannot read whole.

The ssh library gives up on the first line it does not know (``Match sessiontype``,
``Match command``, a comment behind a value), which would lock out every host of
the user.  Here such a file is copied without those lines, each named in a
notice.  What the options mean is the library's business.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

#: A file with more unreadable lines than this is not an ssh configuration.
_MAX_BAD = 200
_MAX_INCLUDES = 256
_PLACE = re.compile(r"^(?P<file>.+) line (?P<line>\d+): (?P<reason>.*)$", re.DOTALL)
_COMMENT = re.compile(r"\s#[^\"']*$")


_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")

#: Looks an option of the configuration up for one host.
Option = Callable[[str], object]


def _ssh_dir() -> Path:
    return Path("~/.ssh").expanduser()


@dataclass(frozen=True)
class SshFiles:
    """Where the user's ssh files are: OpenSSH's own places unless told otherwise."""

    folder: Path = field(default_factory=_ssh_dir)
    config: tuple[Path, ...] | None = None
    """First value wins; by default ``config`` in the folder, then the system's."""
    known_hosts: tuple[Path, ...] | None = None
    """In place of UserKnownHostsFile; the first one remembers."""
    global_known_hosts: tuple[Path, ...] | None = None
    agent: str | None = None
    """In place of SSH_AUTH_SOCK; an empty text means no agent."""

    def configs(self) -> tuple[Path, ...]:
        if self.config is not None:
            return self.config
        return (self.folder / "config", Path("/etc/ssh/ssh_config"))

    def identities(self, option: Option) -> list[Path]:
        """Private key files to try, present or not."""
        named = cast("list[str] | None", option("IdentityFile"))
        if named is not None:
            return [Path(name).expanduser() for name in named]
        return [self.folder / name for name in _DEFAULT_KEYS]

    def certificates(self, option: Option) -> list[Path]:
        """Certificates of user keys; as with OpenSSH, one that is not there is no error."""
        named = cast("list[str] | None", option("CertificateFile")) or []
        return [path for path in (Path(name).expanduser() for name in named) if path.exists()]

    def users_known_hosts(self, option: Option) -> tuple[Path, ...]:
        if self.known_hosts is not None:
            return self.known_hosts
        named = cast("list[str] | None", option("UserKnownHostsFile"))
        if named:
            home = str(Path.home())
            return tuple(Path(name.replace("%d", home)).expanduser() for name in named)
        return (self.folder / "known_hosts", self.folder / "known_hosts2")

    def systems_known_hosts(self, option: Option) -> tuple[Path, ...]:
        if self.global_known_hosts is not None:
            return self.global_known_hosts
        named = cast("list[str] | None", option("GlobalKnownHostsFile"))
        if named is not None:
            return tuple(Path(name).expanduser() for name in named)
        return (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))

    def agent_socket(self, named: object) -> str:
        """The agent's socket for IdentityAgent's value (None for ``none``, "" when not given)."""
        default = os.environ.get("SSH_AUTH_SOCK", "") if self.agent is None else self.agent
        if named is None:
            return ""
        name = str(named)
        if name in ("", "SSH_AUTH_SOCK"):
            return default
        return os.environ.get(name[1:], "") if name.startswith("$") else name


@dataclass
class Readable:
    """Files that the library reads to the end, and what was left out of them."""

    paths: tuple[Path, ...]
    notices: list[str] = field(default_factory=list)


def readable(
    paths: Sequence[Path], folder: Path, ssh_dir: Path, parse: Callable[[Sequence[Path]], None]
) -> Readable:
    """Give ``paths`` back if ``parse`` takes them, else copies in ``folder`` that it takes.

    ``parse`` raises ValueError in the library's words, ``FILE line N: why``; one without a
    place is raised on.  ``ssh_dir`` is what a relative Include starts from.
    """
    found = Readable(tuple(path for path in paths if os.access(path, os.R_OK)))
    problem = _problem(parse, found.paths)
    if problem is None:
        return found
    copier = _Copier(folder, ssh_dir)
    copies = tuple(copier.copy(path) for path in found.paths)
    for _ in range(_MAX_BAD):
        problem = _problem(parse, copies)
        if problem is None:
            return Readable(copies, copier.notices)
        copier.leave_out(Path(problem["file"]), int(problem["line"]), problem["reason"])
    raise ValueError(f"{found.paths[0]}: more than {_MAX_BAD} lines cannot be understood")


def _problem(
    parse: Callable[[Sequence[Path]], None], paths: Sequence[Path]
) -> re.Match[str] | None:
    try:
        parse(paths)
    except ValueError as error:
        match = _PLACE.match(str(error))
        if match is None:
            raise
        return match
    return None


class _Copier:
    def __init__(self, folder: Path, ssh_dir: Path) -> None:
        self.notices: list[str] = []
        self._folder = folder
        self._ssh_dir = ssh_dir
        self._origin: dict[Path, Path] = {}

    def copy(self, path: Path) -> Path:
        """Copy a file and all that it includes, line for line; returns the copy's path."""
        for copy, origin in self._origin.items():
            if origin == path:
                return copy
        if len(self._origin) >= _MAX_INCLUDES:
            raise ValueError(f"{path}: too many included files")
        copy = self._folder / f"config-{len(self._origin)}"
        self._origin[copy] = path
        text = path.read_text("utf-8", "replace")
        lines = [self._line(line) for line in text.splitlines()]
        copy.write_text("\n".join(lines) + "\n", "utf-8")
        return copy

    def _line(self, line: str) -> str:
        words = line.split()
        if not words or words[0].startswith("#"):
            return line
        if words[0].lower() == "include":
            return self._include(words[1:]) or "# empty Include"
        return _COMMENT.sub("", line)

    def _include(self, patterns: Sequence[str]) -> str:
        copies: list[Path] = []
        for pattern in patterns:
            path = Path(pattern.strip('"')).expanduser()
            for found in sorted(glob.glob(str(self._ssh_dir / path))):
                if Path(found).is_file() and os.access(found, os.R_OK):
                    copies.append(self.copy(Path(found)))
        return "Include " + " ".join(map(str, copies)) if copies else ""

    def leave_out(self, copy: Path, number: int, reason: str) -> None:
        """Disarm a line; a block behind a condition that is not understood never applies."""
        if copy not in self._origin:
            raise ValueError(f"{copy} line {number}: {reason}")
        lines = copy.read_text("utf-8").split("\n")
        line = lines[number - 1]
        condition = line.split(maxsplit=1)[:1] in (["Match"], ["match"], ["MATCH"])
        lines[number - 1] = "Match !all" if condition else "# left out"
        if lines[number - 1] == line:
            raise ValueError(f"{self._origin[copy]} line {number}: {reason}")
        copy.write_text("\n".join(lines), "utf-8")
        what = "this block is passed over" if condition else "this line is passed over"
        self.notices.append(f"{self._origin[copy]} line {number}: {reason}; {what}")
