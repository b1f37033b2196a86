"""In which state a user's own script is when a run of it starts: what a diff of attempts compares.

It is told, never judged: whatever goes wrong here, the run starts.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Union

from eagle3_agent.protocol.values import Profile

from .children import Answer, ask

#: Seconds for all of it; a repository on a cold network disk takes some.
LIMIT = 4.0
#: Bytes; engine "script" takes no larger file.
_SCRIPT_MAX = 4 << 20

# Nothing of the repository's own configuration is run, no lock is taken, no network is asked.
_GIT = (
    "git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null",
    "-c", "core.quotePath=true",
)  # fmt: skip

State = dict[str, Union[str, int]]


async def of(profile: Profile) -> State:
    """Keys for ``run.json``'s environment; empty for an engine that runs no script.

    ``script_sha256`` of the file; of its folder, where git knows it, ``git_commit``,
    ``git_branch``, ``git_dirty`` (changed and untracked files below the folder) and
    ``git_changes``, a digest of what the tracked ones differ by; or ``git_problem``, in words.
    """
    script = profile.engine.script
    if profile.engine.name != "script" or not script:
        return {}
    try:
        return await asyncio.wait_for(_state(Path(script)), LIMIT)
    except asyncio.TimeoutError:
        return {"git_problem": f"git did not answer within {LIMIT:.0f} s"}
    except Exception as fault:  # no run fails for this
        return {"git_problem": f"{type(fault).__name__}: {fault}"[:200]}


async def _state(script: Path) -> State:
    found: State = {}
    digest = await asyncio.to_thread(_digest, script)
    if digest:
        found["script_sha256"] = digest
    folder = os.path.dirname(os.path.realpath(script))
    return {**found, **await _git(folder)}


def _digest(script: Path) -> str:
    try:
        with script.open("rb") as file:
            return hashlib.sha256(file.read(_SCRIPT_MAX)).hexdigest()
    except OSError:
        return ""  # the preflight says so


async def _git(folder: str) -> State:
    try:
        status = await _ask(folder, "status", "--porcelain=v2", "--branch", "--", ".")
    except FileNotFoundError:
        return {"git_problem": "git is not installed on this host"}
    if status.status is None:
        raise asyncio.TimeoutError
    if status.status != 0:
        words = status.last_words()
        known = "not a git repository" in words
        return {"git_problem": "not in a git repository" if known else words[:200]}
    found: State = {"git_dirty": 0}
    for line in status.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith("# branch.oid "):
            found["git_commit"] = line.split(" ", 2)[2]
        elif line.startswith("# branch.head "):
            found["git_branch"] = line.split(" ", 2)[2]
        elif not line.startswith("#"):
            found["git_dirty"] = int(found["git_dirty"]) + 1
    if found["git_dirty"] and found.get("git_commit") != "(initial)":
        changes = await _ask(folder, "diff", "--no-ext-diff", "--no-textconv", "HEAD", "--", ".")
        if changes.status == 0:
            found["git_changes"] = hashlib.sha256(changes.stdout).hexdigest()[:12]
    return found


async def _ask(folder: str, *arguments: str) -> Answer:
    env = {**os.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_CEILING_DIRECTORIES": ""}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        env.pop(name, None)  # of whoever started the agent
    return await ask([*_GIT, "-C", folder, *arguments], timeout=LIMIT, env=env)
