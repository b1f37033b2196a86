"""Desktop notifications through the terminal: which sequence a terminal understands; pure.

OSC 9 is iTerm2's (and ConEmu's, WezTerm's, Ghostty's, Windows Terminal's), OSC 777 is rxvt's (and
foot's, VTE's where it is patched in), OSC 99 is kitty's.  A terminal that knows none of them would
show nothing, so that the bell is what remains.  Within tmux a sequence is passed on only where its
``allow-passthrough`` is on; tmux itself makes a bell visible in its status line.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Literal

from .hosttext import clean

Kind = Literal["osc9", "osc99", "osc777", "bell"]

_BELL = "\a"
#: Characters of a notification: more is cut by every desktop.
_TITLE, _BODY = 80, 240

#: ``TERM_PROGRAM`` or the beginning of ``TERM`` -> what that terminal understands.
_PROGRAMS: Mapping[str, Kind] = {
    "iTerm.app": "osc9",
    "WezTerm": "osc9",
    "ghostty": "osc9",
    "WarpTerminal": "osc9",
    "kitty": "osc99",
    "foot": "osc777",
}
_TERMS: tuple[tuple[str, Kind], ...] = (
    ("xterm-kitty", "osc99"),
    ("xterm-ghostty", "osc9"),
    ("wezterm", "osc9"),
    ("foot", "osc777"),
    ("rxvt-unicode", "osc777"),
)


def kind(env: Mapping[str, str]) -> Kind:
    """What the terminal of this environment understands."""
    asked = env.get("EAGLE3_NOTIFY", "").strip().lower()
    if asked in ("osc9", "osc99", "osc777", "bell"):
        return asked  # type: ignore[return-value]
    if "KITTY_WINDOW_ID" in env:
        return "osc99"
    if "WT_SESSION" in env or "ConEmuANSI" in env:
        return "osc9"
    program = _PROGRAMS.get(env.get("LC_TERMINAL", "")) or _PROGRAMS.get(
        env.get("TERM_PROGRAM", "")
    )
    if program is not None:
        return program
    term = env.get("TERM", "")
    return next((k for name, k in _TERMS if term.startswith(name)), "bell")


def sequence(title: str, body: str, env: Mapping[str, str]) -> str:
    """What to write to the terminal: a notification where it can, and always the bell.

    Text of a host cannot end the sequence or begin another: it is cleaned and cut, semicolons
    (which separate fields) are replaced, and kitty gets it in base64.
    """
    if env.get("EAGLE3_NOTIFY", "").strip().lower() in ("off", "none", "0"):
        return ""
    made = _made(kind(env), clean(title)[:_TITLE], clean(body)[:_BODY])
    return (_through_tmux(made) if made and "TMUX" in env else made) + _BELL


def _made(how: Kind, title: str, body: str) -> str:
    if how == "osc9":
        # never a digit first: `9;4;…` is a progress bar
        return f"\x1b]9;EAGLE-3 {_field(title)}: {_field(body)}\x1b\\"
    if how == "osc777":
        return f"\x1b]777;notify;{_field(title)};{_field(body)}\x1b\\"
    if how == "osc99":
        parts = (("i=eagle3:d=0:e=1:p=title", title), ("i=eagle3:d=1:e=1:p=body", body))
        return "".join(f"\x1b]99;{meta};{_base64(text)}\x1b\\" for meta, text in parts)
    return ""


def _field(text: str) -> str:
    """Fields are set apart by semicolons."""
    return text.replace(";", ",")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")


def _through_tmux(made: str) -> str:
    """tmux's envelope: escapes doubled."""
    return "\x1bPtmux;" + made.replace("\x1b", "\x1b\x1b") + "\x1b\\"
