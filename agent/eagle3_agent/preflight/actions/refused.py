"""Why an action is not taken: nothing was changed when this is raised."""

from __future__ import annotations

from eagle3_agent.protocol.values import Problem


class NotTaken(Exception):
    """Carries what a person is told."""

    def __init__(self, title: str, happened: str, todo: str) -> None:
        super().__init__(f"{title}: {happened}")
        self.problem = Problem(title, happened, todo, "refused")


def look_again(title: str, happened: str) -> NotTaken:
    return NotTaken(title, happened, "Nothing was changed. Run the preflight again and look.")
