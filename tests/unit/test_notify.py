"""What a terminal is told when a run ends."""

from __future__ import annotations

import base64
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_console import notify
from eagle3_console.notify import Kind


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ({"TERM": "xterm-kitty"}, "osc99"),
        ({"TERM": "tmux-256color", "KITTY_WINDOW_ID": "1"}, "osc99"),
        ({"TERM_PROGRAM": "iTerm.app", "TERM": "xterm-256color"}, "osc9"),
        ({"LC_TERMINAL": "iTerm.app", "TERM": "screen"}, "osc9"),
        ({"WT_SESSION": "x"}, "osc9"),
        ({"TERM": "foot-extra"}, "osc777"),
        ({"TERM": "rxvt-unicode-256color"}, "osc777"),
        ({"TERM": "xterm-256color"}, "bell"),
        ({}, "bell"),
        ({"TERM": "xterm-kitty", "EAGLE3_NOTIFY": "osc9"}, "osc9"),
    ],
)
def test_what_a_terminal_understands(env: dict[str, str], kind: Kind) -> None:
    assert notify.kind(env) == kind


def test_the_sequences() -> None:
    def told(how: str, **env: str) -> str:
        return notify.sequence("run 4 failed", "rank 3; OOM", {"EAGLE3_NOTIFY": how, **env})

    assert told("osc9") == "\x1b]9;EAGLE-3 run 4 failed: rank 3, OOM\x1b\\\a"
    assert told("osc777") == "\x1b]777;notify;run 4 failed;rank 3, OOM\x1b\\\a"
    assert base64.b64encode(b"rank 3; OOM").decode() in told("osc99")
    assert told("bell") == "\a"
    assert told("off") == ""
    inside = told("osc9", TMUX="/tmp/tmux-0/default")
    assert inside == "\x1bPtmux;\x1b\x1b]9;EAGLE-3 run 4 failed: rank 3, OOM\x1b\x1b\\\x1b\\\a"


@given(st.text(max_size=400), st.text(max_size=900), st.sampled_from(["osc9", "osc99", "osc777"]))
def test_text_of_a_host_cannot_leave_its_sequence(title: str, body: str, how: str) -> None:
    told = notify.sequence(title, body, {"EAGLE3_NOTIFY": how})
    parts = told.removesuffix("\a").split("\x1b\\")
    assert parts.pop() == ""
    assert len(parts) == (2 if how == "osc99" else 1)
    for part in parts:
        assert part.startswith("\x1b]")
        assert not {unicodedata.category(c) for c in part[2:]} & {"Cc", "Cf", "Cs"}, part
        assert part.count(";") == {"osc9": 1, "osc777": 3, "osc99": 2}[how]
    assert len(told) < 2000
