"""Draws docs/images/*.svg: the real TUI over recorded events.  Run by ``make screenshots``.

No host is needed and the clock stands still, so the same code gives the same
pictures.  ``--check`` changes nothing and fails when a picture is out of date.
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
from support import scenes  # noqa: E402
from support.fakelink import FakeLink  # noqa: E402
from support.tui import make_app, sees  # noqa: E402


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
    link = scenes.idle()
    link.answer(RunPreflight, lambda _: Checked(0, scenes.blocked_report()))
    return link


PICTURES = (
    Picture("dashboard", scenes.extracting, ("data_411.pt", "vLLM 0.16.0"), size=(120, 36)),
    Picture("dashboard-light", scenes.extracting, ("data_411.pt",), (), (120, 36), "eagle-light"),
    Picture("preflight-blocked", blocked, ("BLOCKED by 2", "7 more"), ("p",), (120, 24)),
    Picture("failed", scenes.failed, ("What happened first", "Traceback"), ("e",), (120, 24)),
    Picture("history", scenes.extracting, ("HISTORY", "smollm2-demo"), ("h", "down"), (120, 20)),
)


async def draw(picture: Picture) -> str:
    """One picture as SVG."""
    app = make_app(picture.host())
    app.theme = picture.theme
    async with app.run_test(size=picture.size) as pilot:
        await sees(pilot, "live", *(() if picture.keys else picture.wait_for))
        await pilot.pause()
        await pilot.press(*picture.keys)
        await sees(pilot, *picture.wait_for)
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
