"""Errors as values: a title, what happened, what to do; and the exit codes.

A foreign library's exception is translated once, where that library is
called; above that line there is only :class:`ConsoleError`.
"""

from __future__ import annotations

from enum import IntEnum

from eagle3_agent.protocol.values import Problem, ProblemCode, Report


class ExitCode(IntEnum):
    """What the command line returns to a shell."""

    DONE = 0
    """Done and complete."""
    FAILED = 1
    """The run or the check failed."""
    USAGE = 2
    """The command line or the profile is wrong."""
    CONNECT = 3
    """The host could not be reached or the agent not be started."""
    INCOMPLETE = 4
    """Finished, but samples were skipped."""
    INTERRUPTED = 130


class ConsoleError(Exception):
    """A :class:`Problem` on its way to a person."""

    def __init__(self, problem: Problem, report: Report | None = None) -> None:
        super().__init__(problem.title)
        self.problem = problem
        """What is shown."""
        self.report = report
        """The preflight that blocked a start, where that is the cause."""

    @property
    def exit_code(self) -> ExitCode:
        if self.problem.code == "usage":
            return ExitCode.USAGE
        if self.problem.code == "connect":
            return ExitCode.CONNECT
        return ExitCode.FAILED


def error(title: str, happened: str, todo: str, code: ProblemCode = "failed") -> ConsoleError:
    """A ConsoleError from its three sentences."""
    return ConsoleError(Problem(title, happened, todo, code))
