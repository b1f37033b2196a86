"""A line of a JSON-lines file: read in bounded memory, then a value, or why it is none.

The preflight counts with it and the worker reads with it, so that both judge a line alike.
"""

from __future__ import annotations

import json
from typing import IO, Any

#: Bytes; a longer line is a row that cannot be used.  A sample of a million tokens is 12 MB as
#: ids and mask, and its text beside them 5 MB: twice that.  More would let a broken file take
#: memory: its parsed value is up to 25 times as large.
MAX_LINE = 32 * 1024 * 1024

_PIECE = 1024 * 1024


def take(file: IO[bytes], most: int | None = None) -> tuple[bytes | None, int]:
    """The next line with its end, and its length; ``(b"", 0)`` at the end of the file.

    None for a line longer than ``MAX_LINE``, which is passed over, or ``most`` bytes more of it.
    Raises OSError.
    """
    line = file.readline(MAX_LINE)
    length = len(line)
    if length < MAX_LINE or line.endswith(b"\n"):
        return line, length
    end = None if most is None else length + most
    piece = line
    while piece and not piece.endswith(b"\n") and (end is None or length < end):
        piece = file.readline(_PIECE)
        length += len(piece)
    return None, length


def parse(line: bytes | None) -> Any:
    """The value of a line; a ValueError, returned and not raised, says what is wrong with it."""
    if line is None:
        return ValueError(f"longer than {MAX_LINE} bytes")
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
