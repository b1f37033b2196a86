"""Questions that are answered by other processes: preflight, compatibility, verification."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from eagle3_agent import archive
from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Outcome, Progress
from eagle3_agent.preflight.libraries.compat import relevant
from eagle3_agent.preflight.libraries.interpreter_facts import InterpreterFacts
from eagle3_agent.protocol import ProtocolError, dumps, from_json
from eagle3_agent.protocol.messages import Compat, Verify
from eagle3_agent.protocol.values import PatchFinding, Profile, VerifyReport
from eagle3_agent.runs import RunFolder
from eagle3_agent.supervisor import interpreter_environment

from .children import Answer, ask, read_report, scratch
from .errors import Refusal

T = TypeVar("T")

Tell = Callable[[Progress], Awaitable[None]]

#: Seconds that each may take: a deep preflight reads every shard, a verification loads the model.
_PREFLIGHT = 180.0
_DEEP_PREFLIGHT = 3600.0
_PROBE = 300.0
_VERIFY = 4 * 3600.0


@dataclass(frozen=True)
class _ProbeReport:
    """What ``worker probe`` writes."""

    versions: dict[str, str]
    findings: tuple[PatchFinding, ...] = ()
    problems: tuple[str, ...] = field(default=())


async def preflight(profile: Profile, deep: bool = False, tell: Tell | None = None) -> Outcome:
    """Check the host for ``profile`` in a process of its own; raises Refusal.

    ``tell`` hears of its progress.  Cancelled, it ends the process and all its probes.
    """
    request = dumps({"profile": profile, "deep": deep}).encode("ascii")
    limit = _DEEP_PREFLIGHT if deep else _PREFLIGHT
    answer = await ask(
        archive.command("preflight"),
        stdin=request,
        timeout=limit,
        on_line=None if tell is None else _progress_to(tell),
    )
    said = [line for line in answer.stdout.splitlines() if line and _progress(line) is None]
    if answer.status not in (0, 1) or not said:
        raise _no_answer("The preflight", answer, limit)
    return _parse(Outcome, said[-1], "The preflight")


def _progress_to(tell: Tell) -> Callable[[bytes], Awaitable[None]]:
    async def on_line(line: bytes) -> None:
        progress = _progress(line)
        if progress is not None:
            await tell(progress)

    return on_line


def _progress(line: bytes) -> Progress | None:
    """None for another line: the outcome itself, which is read at the end."""
    try:
        return from_json(Progress, json.loads(line))
    except (ValueError, RecursionError, ProtocolError):
        return None


async def compat(profile: Profile, number: int) -> Compat:
    """Which patches the engine needs in the profile's interpreter; raises Refusal."""
    began, what = time.monotonic(), "The compatibility check"
    request = dumps({"profile": profile}).encode("ascii")
    with scratch("probe") as folder:
        file = Path(folder) / "report.json"
        arguments = ["probe", "--report", str(file)]
        data = await _ask_worker(profile, arguments, file, request, what, _PROBE)
    report = _parse(_ProbeReport, data, what)
    seconds = time.monotonic() - began
    seen = InterpreterFacts(profile.host.python, dists=report.versions)
    chosen = engine.choose(profile.engine.name, seen)
    findings = relevant(report.findings, chosen)
    return Compat(number, findings, report.versions, seconds, report.problems, chosen)


async def verify(run: RunFolder, profile: Profile, asked: Verify) -> VerifyReport:
    """Recompute samples of a run in the profile's interpreter; raises Refusal."""
    with scratch("verify") as folder:
        file = Path(folder) / "report.json"
        arguments = ["verify", str(run.path), "--samples", str(asked.samples)]
        arguments += ["--dtype", asked.dtype, "--report", str(file)]
        if asked.seed is not None:
            arguments += ["--seed", str(asked.seed)]
        data = await _ask_worker(profile, arguments, file, b"", "The verification", _VERIFY)
    return _parse(VerifyReport, data, "The verification")


async def _ask_worker(
    profile: Profile, arguments: list[str], file: Path, stdin: bytes, what: str, limit: float
) -> bytes:
    argv = [profile.host.python, "-m", "eagle3_agent.worker", *arguments]
    try:
        env = interpreter_environment(profile)
        answer = await ask(argv, stdin=stdin, timeout=limit, env=env)
    except OSError as error:
        raise Refusal(
            f"{what} could not be started",
            f"the interpreter {profile.host.python}: {error.strerror or error}",
            "Name the interpreter that holds vLLM as host.python in the profile.",
            code="failed",
        ) from None
    try:
        return read_report(file)
    except OSError:
        raise _no_answer(what, answer, limit) from None


def _no_answer(what: str, answer: Answer, limit: float) -> Refusal:
    words = answer.last_words()
    if answer.status == 1 and words:  # its own sentence: what is wrong, not that it broke
        return Refusal(
            f"{what} could not be done", words, "Mend what it names, then ask again.", code="failed"
        )
    ended = (
        f"it did not end within {limit:.0f} s"
        if answer.status is None
        else (f"it ended with status {answer.status} and no report")
    )
    todo = "Run it again; if it ends so again, its last words say where to look."
    return Refusal(f"{what} gave no answer", f"{ended}: {words}", todo, code="failed")


def _parse(cls: type[T], data: bytes, what: str) -> T:
    try:
        return from_json(cls, json.loads(data))
    except (ValueError, RecursionError, ProtocolError) as error:
        raise Refusal(
            f"{what} gave an answer that cannot be read",
            str(error)[:300],
            "Console, agent and host.python's libraries may not fit: run `eagle3-console compat`.",
            code="failed",
        ) from None
