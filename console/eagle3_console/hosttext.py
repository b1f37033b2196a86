"""Text that came from a host, made fit to stand in a cell grid; pure.

A log line, a file name or an error message may hold anything: terminal
escapes, control characters, direction marks that reorder what is read, lone
surrogates that no terminal can encode.  What leaves here is one line of
visible characters.  Widgets never parse it as markup.
"""

from __future__ import annotations

import re
import unicodedata

from rich.cells import cell_len, chop_cells

#: CSI, OSC/DCS/APC/PM/SOS strings (closed, or open to the line's end), and two-byte escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)"
    r"|\x1b[ -/]*[0-Z\\^-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_PLAIN = re.compile(r"[ -~]*\Z")
_TAB = 8


def clean(text: str) -> str:
    """``text`` without escapes; other controls visible, invisible marks dropped, one line."""
    if _PLAIN.match(text):
        return text
    text = _ESCAPES.sub("", text)
    if "\t" in text:
        text = text.expandtabs(_TAB)
    return "".join(map(_visible, text))


def _visible(char: str) -> str:
    if " " <= char <= "~":
        return char
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)  # the control pictures: ␀ ␊ ␍ ␛
    if code == 0x7F:
        return "\u2421"
    category = unicodedata.category(char)
    if category == "Cf":
        return ""  # direction marks, zero-width joiners, byte order marks
    if category in ("Cc", "Cs"):
        return "\ufffd"
    if category in ("Zl", "Zp"):
        return "\u240a"
    return char


def clean_lines(text: str, limit: int = 5000) -> list[str]:
    """A block of text as clean lines; past ``limit`` one line says how many were left out."""
    lines = text.replace("\r\n", "\n").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    kept = [clean(line) for line in lines[:limit]]
    if len(lines) > limit:
        kept.append(f"… {len(lines) - limit} more lines")
    return kept


def first_line(text: str) -> str:
    """The first line that says something, clean; empty when none does."""
    return clean(next((line.strip() for line in text.splitlines() if line.strip()), ""))


def folded(line: str, width: int, limit: int = 8000) -> list[str]:
    """A clean line as rows of ``width`` cells, cut hard; past ``limit`` characters cropped."""
    if len(line) > limit:
        line = line[:limit] + "…"
    return chop_cells(line, max(8, width)) or [""]


def crop(text: str, width: int) -> str:
    """At most ``width`` cells; what did not fit is told by an ellipsis."""
    if width <= 0:
        return ""
    if len(text) > width * 4:
        text = text[: width * 4]  # a cell grid is never served by megabytes
    if cell_len(text) <= width:
        return text
    return (chop_cells(text, width - 1)[0] if width > 1 else "") + "…"


def crop_left(text: str, width: int) -> str:
    """As ``crop``, but the end is kept: for paths, whose last part says most."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    kept = text[-(width - 1) :] if width > 1 else ""
    while cell_len(kept) > width - 1:
        kept = kept[1:]
    return "…" + kept


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Exactly ``width`` cells: cropped, or padded on one side."""
    text = crop(text, width)
    pad = " " * max(0, width - cell_len(text))
    return pad + text if right else text + pad
