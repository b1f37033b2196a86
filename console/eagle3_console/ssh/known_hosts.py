"""known_hosts files (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"): look a host key up, remember one.

Keys are compared as text and never parsed here.  A line that cannot be read is
passed over, so that one broken line does not lock every host out.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DEFAULT_PORT = 22


@dataclass(frozen=True)
class Entry:
    """One readable line."""

    file: Path
    line: int
    marker: str
    """Empty, ``cert-authority`` or ``revoked``."""
    hosts: str
    key_type: str
    key: str
    """Base64, as it stands in the file."""

    @property
    def public(self) -> bytes:
        """``type base64``, OpenSSH's public key text."""
        return f"{self.key_type} {self.key}".encode("ascii", "replace")

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Finding:
    """What the files say about one key of one host."""

    verdict: Literal["known", "unknown", "changed", "revoked"]
    entry: Entry | None = None
    """The line that decides, where there is one."""


def spelled(host: str, port: int | None) -> str:
    """A host as known_hosts names it: bracketed off port 22."""
    return host if port in (None, DEFAULT_PORT) else f"[{host}]:{port}"


def fingerprint(key: str) -> str:
    """``SHA256:…`` of a base64 key, as ``ssh-keygen -l`` prints it."""
    digest = hashlib.sha256(base64.b64decode(key)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def entries(files: Iterable[Path]) -> Iterator[Entry]:
    """Every readable line, in order; a file that cannot be opened has none."""
    for file in files:
        try:
            lines = file.read_bytes().split(b"\n")
        except OSError:
            continue
        for number, raw in enumerate(lines, 1):
            entry = _entry(file, number, raw.decode("utf-8", "replace").split())
            if entry is not None:
                yield entry


def _entry(file: Path, number: int, words: list[str]) -> Entry | None:
    if not words or words[0].startswith("#"):
        return None
    marker = ""
    if words[0].startswith("@"):
        marker = words.pop(0)[1:]
    if len(words) < 3 or marker not in ("", "cert-authority", "revoked"):
        return None
    try:
        base64.b64decode(words[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    return Entry(file, number, marker, words[0], words[1], words[2])


def matching(files: Iterable[Path], host: str, port: int | None) -> list[Entry]:
    """The lines that speak of this host.

    A line without a port speaks of every port only while it agrees: see :func:`look_up`.
    """
    name = spelled(host, port)
    return [entry for entry in entries(files) if _names(entry.hosts, name)]


def look_up(files: Sequence[Path], host: str, port: int | None, key_type: str, key: str) -> Finding:
    """Judge a key that a host has shown.

    A key that the files hold for this host and port is known; any other key for it is changed,
    whatever its type, since a server that stopped offering the known type looks the same as an
    impostor.  A line for the bare name vouches for a key on another port, and never against one:
    another port is often another server.
    """
    exact = matching(files, host, port)
    bare = [] if port in (None, DEFAULT_PORT) else matching(files, host, None)
    for entry in (*exact, *bare):
        if entry.marker == "revoked" and entry.key == key:
            return Finding("revoked", entry)
    keys = [entry for entry in exact if not entry.marker]
    for entry in (*keys, *(entry for entry in bare if not entry.marker)):
        if entry.key == key:
            return Finding("known", entry)
    if not keys:
        return Finding("unknown")
    same_type = [entry for entry in keys if entry.key_type == key_type]
    return Finding("changed", (same_type or keys)[0])


def _names(patterns: str, name: str) -> bool:
    """Whether a line's first column speaks of ``name``."""
    if patterns.startswith("|"):
        return _hash_names(patterns, name)
    named = False
    for pattern in patterns.lower().split(","):
        plain = pattern.removeprefix("!")
        # only * and ? are wild here, and a host in brackets is no character class
        if fnmatch.fnmatchcase(name.lower(), plain.replace("[", "[[]")):
            if plain != pattern:
                return False
            named = True
    return named


def _hash_names(pattern: str, name: str) -> bool:
    try:
        _, magic, salt, wanted = pattern.split("|")
        if magic != "1":
            return False
        # HMAC-SHA1 is the file format's own choice: it hides names, it proves nothing
        found = hmac.new(base64.b64decode(salt), name.lower().encode(), hashlib.sha1).digest()
        return hmac.compare_digest(found, base64.b64decode(wanted))
    except (ValueError, binascii.Error):
        return False


def remember(file: Path, host: str, port: int | None, key_type: str, key: str) -> None:
    """Append one line, making the file (0600) and its folder (0700) when missing.

    Raises OSError.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        line = f"{spelled(host, port)} {key_type} {key}\n".encode()
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line
        os.write(fd, line)
        os.fsync(fd)
    finally:
        os.close(fd)
