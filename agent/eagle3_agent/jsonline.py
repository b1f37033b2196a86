"""One line of a JSON-lines file -> a value, or why it is none; pure.

The preflight counts with it and the worker reads with it, so that both judge a line alike.
"""

from __future__ import annotations

import json
from typing import Any


def parse(line: bytes) -> Any:
    """The value of a line; a ValueError, returned and not raised, says what is wrong with it."""
    try:
        # not left to json, which takes some broken UTF-8 for UTF-16; the first line may open with
        # a byte order mark
        return json.loads(line.rstrip(b"\r\n").removeprefix(b"\xef\xbb\xbf").decode("utf-8"))
    except RecursionError:
        return ValueError("nested too deep")
    except UnicodeDecodeError as error:
        return ValueError(f"not UTF-8 at byte {error.start + 1}")
    except json.JSONDecodeError as error:
        return ValueError(f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}")
    except ValueError as error:  # a number of thousands of digits
        return ValueError(f"not JSON: {error}")
