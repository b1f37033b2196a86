"""Draws docs/images/*.svg: the real TUI over real runs.  Run by ``make screenshots``.

The runs were recorded on a host with two H200s (tests/recorded/h200-tp2).  No
host is needed and the clock stands still, so the same code gives the same
pictures.  ``--check`` changes nothing and fails when a picture is out of
date.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from eagle3_agent.protocol.messages import Checked, RunPreflight  # noqa: E402
from support import verdicts  # noqa: E402
from support.fakelink import FakeLink  # noqa: E402
from support.recording import host_at, moment, recorded  # noqa: E402
from support.tui import Clock, make_app, reads, sees, until  # noqa: E402


@dataclass(frozen=True)
class Picture:
    name: str
    host: Callable[[], FakeLink]
    wait_for: Sequence[str]
    """Texts that stand on the screen when the picture is taken."""
    keys: Sequence[str] = ()
    size: tuple[int, int] = (120, 40)
    theme: str = "eagle-dark"


def blocked() -> FakeLink:
    """A preflight while run 2 held the GPUs, judged by the agent's own checks."""
    at = moment("0002", after_extract=6.5)
    link = host_at(at)
    link.answer(RunPreflight, lambda _: Checked(0, verdicts.blocked(at)))
    return link


def extracting() -> FakeLink:
    """Run 1, 20 s after it began to extract."""
    return host_at(moment("0001", after_extract=20.0))


def failed() -> FakeLink:
    """Run 2, whose rank 1 was killed, just after its end."""
    return host_at(recorded("0002").exit.ended + 1)


def loading() -> FakeLink:
    """Run 2 while its engine starts."""
    return host_at(moment("0002", after_extract=-25.0))


def everything() -> FakeLink:
    """The host after all four runs."""
    return host_at(recorded("0004").exit.ended + 30)


_EXTRACTING = ("309 / 500 samples", "vLLM 0.16.0", "▁▁▁▁▁▁▁")
PICTURES = (
    Picture("dashboard", extracting, _EXTRACTING),
    Picture("dashboard-light", extracting, _EXTRACTING, theme="eagle-light"),
    Picture("dashboard-wide", extracting, _EXTRACTING, size=(200, 50)),
    Picture("loading", loading, ("load took 1:04 in run 1",), size=(120, 24)),
    Picture("preflight-blocked", blocked, ("BLOCKED by 3", "26 pass"), ("p",), (120, 34)),
    Picture("preflight-action", blocked, ("Do it (y)",), ("p", "1"), (80, 24)),
    Picture("failed", failed, ("died unexpectedly", "Traceback"), ("e",), (120, 30)),
    Picture(
        "history", everything, ("HISTORY", "Executor failed"), ("h", "down", "down"), (120, 16)
    ),
)


async def draw(picture: Picture) -> str:
    """One picture as SVG."""
    link = picture.host()
    app = make_app(link, "root@h200", profile=verdicts.profile(), clock=Clock(link.welcome.now))
    app.theme = picture.theme
    async with app.run_test(size=picture.size) as pilot:
        await sees(pilot, "live", *(() if picture.keys else picture.wait_for))
        await pilot.pause()
        await pilot.press(*picture.keys)
        await sees(pilot, *picture.wait_for)
        await until(pilot, lambda: not reads(app))
        return plain(app.export_screenshot(title="eagle3-console"))


def plain(svg: str) -> str:
    """The same picture without a font from elsewhere and without a number drawn by lot."""
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "DejaVu Sans Mono, Menlo, Consolas, monospace")
    return re.sub(r"terminal-\d+-", "terminal-", svg)


async def main(check: bool) -> int:
    stale = []
    for picture in PICTURES:
        path = HERE / "images" / f"{picture.name}.svg"
        svg = await draw(picture)
        if path.exists() and path.read_text(encoding="utf-8") == svg:
            continue
        stale.append(path.name)
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(svg, encoding="utf-8")
    if check and stale:
        print(f"out of date: {', '.join(stale)}; make screenshots draws them", file=sys.stderr)
        return 1
    print(f"{len(PICTURES)} pictures, {len(stale)} of them new")
    return 0


if __name__ == "__main__":
    os.environ["TZ"] = "UTC"
    os.environ.pop("NO_COLOR", None)
    time.tzset()
    sys.exit(asyncio.run(main("--check" in sys.argv[1:])))
