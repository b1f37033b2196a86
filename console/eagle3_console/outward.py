"""What the console says outside of its screen: the terminal's title, and that a run has ended.

Everything goes through Textual's driver, which writes whole pieces in their order: nothing lands
inside of a sequence that draws the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from . import formats, notify
from .hosttext import clean, crop
from .linkstate import Live
from .store import ENDED, State

#: Cells of the title.
_MOST = 80
#: Where a title's sequence would be shown as text, or nowhere.
_NO_TITLE = ("", "dumb", "unknown", "linux", "vt100", "vt102", "vt220", "vt320")

#: XTWINOPS 22 and 23 keep the title on a stack of the terminal; the empty title is for those
#: that have no such stack and would show ours for ever.  xterm's ctlseqs has both.
_KEEP = "\x1b[22;2t"
_GIVE_BACK = "\x1b]2;\x1b\\\x1b[23;2t"


class Outward:
    """``write`` reaches the terminal; ``bell`` rings it."""

    def __init__(
        self, write: Callable[[str], None], bell: Callable[[], None], env: Mapping[str, str]
    ) -> None:
        self._write, self._bell, self._env = write, bell, env
        self._titled = ""
        self._can = _title_wanted(env)

    def ended(self, title: str, body: str) -> None:
        """A desktop notification where the terminal knows one, and the bell; or neither."""
        made = notify.sequence(title, body, self._env)
        if not made:
            return
        rest = made.removesuffix("\a")
        if rest:
            self._write(rest)
        self._bell()

    def title(self, text: str) -> None:
        if not self._can or text == self._titled:
            return
        keep = "" if self._titled else _KEEP
        self._titled = text
        self._write(f"{keep}\x1b]2;{text}\x1b\\")

    def give_back(self) -> None:
        """The title that was there before, once."""
        if self._titled:
            self._titled = ""
            self._write(_GIVE_BACK)


def _title_wanted(env: Mapping[str, str]) -> bool:
    if env.get("EAGLE3_TITLE", "").strip().lower() in ("off", "none", "0"):
        return False
    return env.get("TERM", "") not in _NO_TITLE


def title_words(state: State) -> str:
    """``eagle3 gpu-01: extract 41 %``"""
    host = clean(state.target).rsplit("@", 1)[-1]
    said = _said(state)
    return crop(f"eagle3 {host}: {said}" if said else f"eagle3 {host}", _MOST)


def _said(state: State) -> str:
    run = state.run
    if not isinstance(state.link, Live) and state.shown_at is not None:
        return "no link"
    if run is None:
        return ""
    if run.state in ENDED or run.state == "queued":
        return f"run {run.number} {run.state}"
    standing = state.standing
    stage = standing.stage.name if standing.stage else clean(run.stage)
    if stage == "load" and standing.shards_total:
        return f"load {standing.shards_done or 0}/{standing.shards_total}"
    if stage not in ("preflight", "load", "") and standing.total:
        done = (standing.done + standing.skipped) / standing.total
        # never 100 before it is
        return f"{stage} {formats.percent(min(99, int(100 * done)) if done < 1 else 100)}"
    return stage or "starts"
