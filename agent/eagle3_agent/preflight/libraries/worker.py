"""One call of the worker in the profile's interpreter, for a report in a file."""

from __future__ import annotations

import os
import signal
import tempfile
from dataclasses import dataclass

from eagle3_agent import archive
from eagle3_agent.preflight import bounded
from eagle3_agent.preflight.files import open_regular
from eagle3_agent.protocol import dumps
from eagle3_agent.protocol.values import Profile

from . import interpreter_facts

#: Bytes of a report.
_LIMIT = 4 * 1024 * 1024


@dataclass(frozen=True)
class Heard:
    """What came back."""

    report: bytes | None = None
    problem: str = ""
    """Why there is no report, in words."""
    end: str = ""
    """How the process ended, where it did not end well: ``status 3``, ``SIGSEGV``, ``time``."""
    words: str = ""
    """What it said last on stderr."""


def call(profile: Profile, command: str, timeout: float) -> Heard:
    """Run ``worker COMMAND --report FILE`` with the profile on stdin; seconds for ``timeout``.

    Raises OSError when the interpreter cannot be started.
    """
    env = interpreter_facts.worker_env(profile)
    old = env.get("PYTHONPATH")
    env["PYTHONPATH"] = f"{archive.ROOT}{os.pathsep}{old}" if old else str(archive.ROOT)
    with tempfile.TemporaryDirectory(prefix="eagle3-worker-") as folder:
        path = os.path.join(folder, "report.json")
        argv = [profile.host.python, "-m", "eagle3_agent.worker", command, "--report", path]
        answer = bounded.run(
            argv,
            timeout=timeout,
            stdin=dumps({"profile": profile}).encode("ascii"),
            env=env,
            cwd=folder,
            own_session=False,
        )
        end, words = _end(answer), last_words(answer)
        try:
            return Heard(_read(path), end=end, words=words)
        except ValueError as error:
            return Heard(problem=f"wrote a report that cannot be read: {error}", end=end)
        except OSError as error:
            problem = words or f"left no report: {error.strerror or error}"
            return Heard(problem=problem, end=end, words=words)


def _read(path: str) -> bytes:
    file, size = open_regular(path)
    with file:
        if size > _LIMIT:
            raise ValueError(f"a report of {size} bytes")
        return file.read(_LIMIT)


def _end(answer: bounded.Answer) -> str:
    if answer.status is None:
        return answer.cut
    if answer.status >= 0:
        return f"status {answer.status}" if answer.status else ""
    try:
        return signal.Signals(-answer.status).name
    except ValueError:
        return f"signal {-answer.status}"


def last_words(answer: bounded.Answer) -> str:
    """The last line of stderr; of a crash that Python saw, what it was and where."""
    lines = [line.strip() for line in answer.stderr.decode("utf-8", "replace").splitlines()]
    fatal = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    if fatal is None:
        return answer.last_words()
    place = next((line for line in lines[fatal + 1 :] if line.startswith("File ")), "")
    return f"{lines[fatal]}{f', {place}' if place else ''}"
