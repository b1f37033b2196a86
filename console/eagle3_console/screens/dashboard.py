"""The first screen: is it going well, and when is it done?"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal

from eagle3_console.widgets.banner import LinkBanner
from eagle3_console.widgets.events import EventsPanel
from eagle3_console.widgets.gpus import GpuPanel
from eagle3_console.widgets.run import RunPanel
from eagle3_console.widgets.runlist import RecentPanel

from .base import ConsoleScreen


class DashboardScreen(ConsoleScreen):
    KEYS: ClassVar[tuple[str, ...]] = (
        "start",
        "abort",
        "preflight",
        "errors",
        "history",
        "log",
        "profile",
        "help",
        "quit",
    )
    DEFAULT_CSS = """
    DashboardScreen #body.-low { padding: 0; }
    DashboardScreen RunPanel { margin: 1 0; }
    DashboardScreen #news { height: 1fr; }
    DashboardScreen RecentPanel { display: none; }
    DashboardScreen #body.-wide RecentPanel { display: block; }
    """

    def body(self) -> ComposeResult:
        yield LinkBanner()
        yield GpuPanel()
        yield RunPanel()
        with Horizontal(id="news"):
            yield EventsPanel()
            yield RecentPanel()

    def on_resize(self) -> None:
        self.query_one("#body").set_class(self.size.height < 30, "-low")
        self.query_one("#body").set_class(self.size.width >= 150, "-wide")
        super().on_resize()

    def action_back(self) -> None:
        """There is nothing behind this screen."""
