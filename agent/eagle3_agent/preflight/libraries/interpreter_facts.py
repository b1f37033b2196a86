"""What the profile's interpreter is and holds: asked of it in one short run, no torch import."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from dataclasses import dataclass, field

from eagle3_agent.distributions import DISTRIBUTIONS
from eagle3_agent.preflight import bounded
from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.protocol.values import Profile

#: Seconds; an interpreter on a cold network disk takes some of them.
TIMEOUT = 8.0

_MARK = "EAGLE3-VERSIONS "

# Also valid Python 2, so that an old interpreter can say its version instead of a SyntaxError.
# A RECORD is written anew by every installation, so its size and time stand for what it lists.
_SCRIPT = """
import sys, json, os, re
out = {"python": ".".join(map(str, sys.version_info[:3])), "prefix": sys.prefix, "dists": {},
       "executable": os.path.realpath(sys.executable or ""), "stamps": {}, "torch_cuda": None}
try:
    from importlib import metadata
    from importlib.util import find_spec
except ImportError:
    metadata = None
for name in sys.argv[1:] if metadata else ():
    try:
        dist = metadata.distribution(name)
        out["dists"][name] = str(dist.version)
        folder = str(dist._path)
        for file in ("RECORD", "METADATA", "PKG-INFO"):
            path = os.path.join(folder, file)
            if os.path.exists(path):
                seen = os.stat(path)
                text = "%s %d %d" % (path, seen.st_size, seen.st_mtime_ns)
                out["stamps"][name] = text
                break
    except Exception:
        pass
try:
    with open(os.path.join(os.path.dirname(find_spec("torch").origin), "version.py")) as file:
        found = re.search(r"^cuda *(?::[^=]*)?= *(?:'([^']*)'|None)", file.read(65536), re.M)
    out["torch_cuda"] = found and (found.group(1) or "")
except Exception:
    pass
sys.stdout.write("\\nEAGLE3-VERSIONS " + json.dumps(out) + "\\n")
"""


@dataclass(frozen=True)
class InterpreterFacts:
    path: str
    problem: str = ""
    """Why it could not be asked, in words; the rest is empty then."""
    python: str = ""
    """``3.11.7``"""
    prefix: str = ""
    dists: dict[str, str] = field(default_factory=dict)
    """Distribution -> version, of those in ``DISTRIBUTIONS`` that are installed."""
    executable: str = ""
    """The real path of the interpreter's own file, symlinks followed."""
    stamps: dict[str, str] = field(default_factory=dict)
    """Distribution -> path, bytes and mtime (ns) of its RECORD: another text is another install."""
    torch_cuda: str | None = None
    """CUDA release that torch was built for (``12.8``), from torch/version.py as text; empty for
    a build without CUDA; None where it is not told or there is no torch."""


def worker_env(profile: Profile) -> dict[str, str]:
    """The environment that the worker will have, but for PYTHONPATH."""
    return {**os.environ, **profile.host.env}


def ask(profile: Profile, timeout: float = TIMEOUT) -> InterpreterFacts:
    """Run the interpreter once; whatever goes wrong is told in ``problem``."""
    path = profile.host.python
    env = worker_env(profile)
    problem = _why_not_runnable(path, env.get("PATH", os.defpath))
    if problem:
        return InterpreterFacts(path, problem)
    began = time.monotonic()
    argv = [path, "-c", _SCRIPT, *DISTRIBUTIONS]
    try:
        answer = bounded.run(argv, timeout=timeout, env=env, own_session=False)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the profile's environment
        return InterpreterFacts(path, f"cannot be started: {error}")
    if answer.cut == "time":
        waited = time.monotonic() - began
        return InterpreterFacts(path, f"did not answer within {waited:.0f} s and was killed")
    return _read(path, answer)


def _why_not_runnable(path: str, search: str) -> str:
    if path.startswith("~"):
        return "is written with ~, which is not expanded on the host"
    if "/" not in path:
        return "" if shutil.which(path, path=search) else f"is not in PATH ({search})"
    try:
        info = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            return f"is a symlink to {os.readlink(path)}, which is not there"
        return "does not exist"
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if stat.S_ISDIR(info.st_mode):
        return "is a folder"
    if not stat.S_ISREG(info.st_mode):
        return "is not a regular file"
    return "" if os.access(path, os.X_OK) else "is not executable"


def _read(path: str, answer: bounded.Answer) -> InterpreterFacts:
    lines = answer.stdout.decode("utf-8", "replace").splitlines()
    marked = [line[len(_MARK) :] for line in lines if line.startswith(_MARK)]
    try:
        body = json.loads(marked[-1])
        cuda = body.get("torch_cuda")
        return InterpreterFacts(
            path,
            python=str(body["python"]),
            prefix=str(body["prefix"]),
            dists={str(k): str(v) for k, v in body["dists"].items()},
            executable=str(body.get("executable", "")),
            stamps={str(k): str(v) for k, v in body.get("stamps", {}).items()},
            torch_cuda=None if cuda is None else str(cuda),
        )
    except (IndexError, KeyError, AttributeError, TypeError, ValueError):
        words = answer.last_words()
        how = f"ended with status {answer.status}" if answer.status else "said nothing of use"
        return InterpreterFacts(path, f"{how}{f': {words}' if words else ''}")


def _collect(ask_: Ask) -> InterpreterFacts:
    return ask(ask_.profile)


PROBE = Probe("interpreter", InterpreterFacts, _collect, timeout=TIMEOUT + 2)
