"""Check ``script``: the file that engine ``script`` runs is there, and is Python."""

from __future__ import annotations

import json
from dataclasses import dataclass

from eagle3_agent.preflight import bounded
from eagle3_agent.preflight.check import Ask, Check, Facts, Probe
from eagle3_agent.preflight.files import open_regular
from eagle3_agent.preflight.text import show, size
from eagle3_agent.protocol.values import Profile, Verdict

from . import interpreter_facts

#: Bytes; a script by hand is a few hundred lines.
_LIMIT = 4 * 1024 * 1024

#: Seconds for an interpreter on a cold network disk.
_TIMEOUT = 8.0

_MARK = "EAGLE3-SYNTAX "

# The interpreter that will run the file reads it: an older Python knows less of the language.
_COMPILE = """
import json, sys
out = {"line": 0, "text": "", "words": ""}
try:
    compile(sys.stdin.buffer.read(), sys.argv[1], "exec", dont_inherit=True)
except SyntaxError as error:
    out = {"line": error.lineno or 0, "text": error.text or "", "words": error.msg or ""}
except Exception as error:
    out["words"] = str(error) or type(error).__name__
sys.stdout.write("\\nEAGLE3-SYNTAX " + json.dumps(out) + "\\n")
"""


@dataclass(frozen=True)
class Syntax:
    """What the interpreter says of the file's syntax; no ``words`` when it is sound."""

    line: int = 0
    text: str = ""
    words: str = ""


@dataclass(frozen=True)
class ScriptFacts:
    path: str
    problem: str = ""
    """Why it cannot be read, in words; the rest is empty then."""
    bytes: int = 0
    syntax: Syntax | None = None
    """None when the interpreter gave no answer: its own check says why."""


def _collect(ask: Ask) -> ScriptFacts:
    path = ask.profile.engine.script or ""
    if not path:
        return ScriptFacts(path, "engine.script names no file")
    try:
        file, count = open_regular(path)
        with file:
            source = file.read(_LIMIT + 1)
    except FileNotFoundError as error:
        gone = "is " + str(error.strerror) if "symlink" in str(error.strerror) else "does not exist"
        return ScriptFacts(path, gone)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return ScriptFacts(path, f"cannot be read: {reason}")
    if len(source) > _LIMIT:
        return ScriptFacts(path, f"is {size(count)}, which is no script")
    return ScriptFacts(path, "", count, _syntax(ask.profile, path, source))


def _syntax(profile: Profile, path: str, source: bytes) -> Syntax | None:
    env = interpreter_facts.worker_env(profile)
    argv = [profile.host.python, "-c", _COMPILE, path]
    try:
        answer = bounded.run(argv, timeout=_TIMEOUT, stdin=source, env=env, own_session=False)
        lines = answer.stdout.decode("utf-8", "replace").splitlines()
        said = json.loads([line[len(_MARK) :] for line in lines if line.startswith(_MARK)][-1])
        return Syntax(int(said["line"]), str(said["text"]), str(said["words"]))
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return None


PROBE = Probe("script", ScriptFacts, _collect, timeout=_TIMEOUT + 2)

_WHY = "Engine script runs this file; without it nothing is extracted."


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    path = show(seen.path, 300)
    if seen.problem:
        return CHECK.verdict(
            "block",
            f"{path} {show(seen.problem, 300)}".strip(),
            _WHY,
            "Set engine.script to the whole path of the script on the host.",
        )
    if seen.syntax is None:
        return CHECK.verdict(
            "warn",
            f"{path}: whether it is Python is not known: the interpreter gave no answer",
            _WHY,
            "Mend the check on the interpreter first.",
        )
    if seen.syntax.words:
        place = f"{path}:{seen.syntax.line}" if seen.syntax.line else path
        text = show(seen.syntax.text.strip(), 120)
        return CHECK.verdict(
            "block",
            f"{place}: {show(seen.syntax.words, 200)}" + (f"\n{text}" if text else ""),
            "The interpreter of the run cannot compile it.",
            "Mend that line, or point host.python at the Python that the script is written for.",
        )
    return CHECK.verdict("pass", f"{path}, {size(seen.bytes)}, compiles")


CHECK = Check(
    id="script",
    title="Script compiles",
    needs=(PROBE,),
    judge=judge,
    silence="block",
    silence_why=_WHY,
    silence_todo="Look at the mount that holds the script.",
    applies=lambda ask: ask.profile.engine.name == "script",
)
