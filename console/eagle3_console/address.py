"""Targets as people write them: ``local``, an alias, or [user@]host[:port]; pure."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ConsoleError, error


@dataclass(frozen=True)
class Address:
    """A host as the user wrote it: an alias of the ssh configuration counts as a host."""

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return f"{user}{host}" + (f":{self.port}" if self.port else "")


def parse_address(text: str) -> Address:
    """Read ``[user@]host[:port]``; an IPv6 address with a port stands in brackets.

    Raises ConsoleError (code ``usage``).
    """
    user, at, rest = text.rpartition("@")
    if at and not user:
        raise _bad(text, "there is no user name before the @")
    host, port = _split_port(text, rest)
    # a leading dash would be an option to whatever command is handed this name
    if not host or host.startswith("-") or user.startswith("-"):
        raise _bad(text, "there is no host name in it")
    if any(c.isspace() or not c.isprintable() or c in "/\\'\"`$;&|<>(){}*?" for c in text):
        raise _bad(text, "a space or a sign that no host name has stands in it")
    return Address(host, user or None, port)


def _split_port(text: str, rest: str) -> tuple[str, int | None]:
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise _bad(text, "the bracket is not closed, or something else than :port follows it")
        return host, _port(text, tail[1:]) if tail else None
    if rest.count(":") > 1:
        return rest, None
    host, colon, port = rest.partition(":")
    return host, _port(text, port) if colon else None


def _port(text: str, digits: str) -> int:
    if not (digits.isascii() and digits.isdigit() and 0 < int(digits[:6]) < 65536):
        raise _bad(text, f"{digits!r:.20} is no port between 1 and 65535")
    return int(digits)


def _bad(text: str, why: str) -> ConsoleError:
    shown = "".join(c if c.isprintable() else "?" for c in text[:80])
    return error(
        f"{shown!r} is not a target",
        f"Read as [user@]host[:port], {why}.",
        "Give `local`, a host such as root@gpu7 or root@gpu7:2222 (an IPv6 address with a port "
        "in brackets: [::1]:2222), or an alias of your ssh configuration.",
        "usage",
    )
