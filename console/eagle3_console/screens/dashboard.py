"""The first screen: is it going well, and when is it done?"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult

from eagle3_console.widgets.banner import LinkBanner
from eagle3_console.widgets.events import EventsPanel
from eagle3_console.widgets.gpus import GpuPanel
from eagle3_console.widgets.run import RunPanel

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
    DashboardScreen #body.-low RunPanel { margin: 1 0 0 0; }
    """

    def body(self) -> ComposeResult:
        yield LinkBanner()
        yield GpuPanel()
        yield RunPanel()
        yield EventsPanel()

    def on_resize(self) -> None:
        self.query_one("#body").set_class(self.size.height < 30, "-low")
        super().on_resize()

    def action_back(self) -> None:
        """There is nothing behind this screen."""
