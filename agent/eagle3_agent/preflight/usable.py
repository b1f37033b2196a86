"""Whether a profile's texts can be paths, arguments and variables of this host at all; pure."""

from __future__ import annotations

import os
from typing import Any

from eagle3_agent.protocol import ProtocolError, to_json
from eagle3_agent.protocol.values import Profile


def demand(profile: Profile) -> None:
    """Raises ProtocolError that names the first text which no system call takes."""
    fault = _fault(to_json(profile), "profile")
    if fault:
        raise ProtocolError(fault)


def _fault(value: Any, where: str) -> str:
    if isinstance(value, str):
        return _of_text(value, where)
    if isinstance(value, dict):
        pairs = [(f"{where}.{key}", part) for key, part in value.items()]
        keys = next((f for key in value if (f := _of_text(key, f"a key of {where}"))), "")
        return keys or next((f for name, part in pairs if (f := _fault(part, name))), "")
    if isinstance(value, list):
        return next((f for part in value if (f := _fault(part, where))), "")
    return ""


def _of_text(text: str, where: str) -> str:
    if "\0" in text:
        return f"{where} holds a NUL character"
    try:
        os.fsencode(text)
    except UnicodeEncodeError:  # half of a surrogate pair, from \ud800 in JSON
        return f"{where} holds a character that no file name of this host can have"
    return ""
