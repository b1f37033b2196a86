"""The first screen: is it going well, and when is it done?"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from eagle3_console.widgets.banner import LinkBanner
from eagle3_console.widgets.charts import ChartsPanel
from eagle3_console.widgets.events import EventsPanel
from eagle3_console.widgets.gpus import GpuPanel, has_charts
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
    DashboardScreen #aside { display: none; width: 1fr; }
    DashboardScreen #body.-wide #aside { display: block; }
    DashboardScreen ChartsPanel { display: none; }
    DashboardScreen #body.-charts RecentPanel { height: 9; margin-bottom: 1; }
    DashboardScreen #body.-charts ChartsPanel { display: block; }
    """

    def body(self) -> ComposeResult:
        yield LinkBanner()
        yield GpuPanel()
        yield RunPanel()
        with Horizontal(id="news"):
            yield EventsPanel()
            with Vertical(id="aside"):
                yield RecentPanel()
                yield ChartsPanel()

    def on_resize(self) -> None:
        self.query_one("#body").set_class(self.size.height < 30, "-low")
        self.query_one("#body").set_class(self.size.width >= 150, "-wide")
        self.query_one("#body").set_class(has_charts(*self.size), "-charts")
        super().on_resize()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """There is nothing behind this screen to go back to."""
        return False if action == "back" else super().check_action(action, parameters)
