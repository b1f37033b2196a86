"""A request that is understood and not done."""

from __future__ import annotations

from eagle3_agent.protocol.values import Problem, ProblemCode, Report


class Refusal(Exception):
    """Becomes a ``Refused``: a title, what happened, what to do."""

    def __init__(
        self,
        title: str,
        happened: str,
        todo: str,
        *,
        code: ProblemCode = "usage",
        report: Report | None = None,
    ) -> None:
        super().__init__(title)
        self.problem = Problem(title, happened, todo, code)
        self.report = report
