"""A JSON object from a file of the model folder: bounded, and with words for what is wrong."""

from __future__ import annotations

import json
import os
from typing import Any

from eagle3_agent.preflight.files import LFS_POINTER, open_regular


def read(path: str, limit: int) -> tuple[dict[str, Any], str]:
    """(the object, "") or ({}, what is wrong with the file, beginning with its name)."""
    name = os.path.basename(path)
    try:
        file, _ = open_regular(path)
        with file:
            data = file.read(limit + 1)
    except FileNotFoundError as error:
        return {}, f"{name} is {error.strerror if os.path.islink(path) else 'not there'}"
    except OSError as error:
        return {}, f"{name} cannot be read: {error.strerror}"
    if data.startswith(LFS_POINTER):
        return {}, f"{name} is a Git LFS pointer: run git lfs pull in its folder"
    if len(data) > limit:
        return {}, f"{name} is longer than {limit} bytes"
    return parse(name, data)


def parse(name: str, data: bytes) -> tuple[dict[str, Any], str]:
    """The same from its bytes; pure."""
    try:
        body = json.loads(data)
    except ValueError as error:  # also UTF-8 that is none, or a number of thousands of digits
        return {}, f"{name} is not JSON: {str(error)[:200]}"
    except RecursionError:
        return {}, f"{name} is not JSON of sensible depth"
    return (body, "") if isinstance(body, dict) else ({}, f"{name} is not a JSON object")
