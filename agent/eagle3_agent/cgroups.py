"""Where a process lives, from /proc/PID/cgroup: its unit, container, batch job or login session.

A cgroup's name is given by whoever made it: nothing here is trusted further than its form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

#: /proc/PID/cgroup is a dozen lines; what is longer is not read.
_LIMIT = 64 * 1024

_ID = r"([0-9a-f]{64})"
_ENGINE = r"docker|libpod|cri-containerd|crio|containerd|nerdctl|buildkit"
#: ``docker-ID.scope`` and the like (systemd driver), ``libpod-payload-ID``,
#: ``kubepods-pod1.slice:cri-containerd:ID`` (a cgroupfs runtime given a systemd path).
_PREFIXED = re.compile(rf"(?:^|[:/])({_ENGINE})(?:-conmon|-payload)?[-:]{_ID}(?:\.scope)?$")
_BARE = re.compile(rf"^{_ID}$")
_LXC = re.compile(r"^lxc\.(?:payload|monitor)\.(.+)$")
_NSPAWN = re.compile(r"^(?:systemd-nspawn@(.+)\.service|machine-(.+)\.scope)$")
_JOB = re.compile(r"^job_(\d{1,20})$")
_MANAGER = re.compile(r"^user@(\d{1,10})\.service$")
_SESSION = re.compile(r"^session-[0-9A-Za-z]{1,20}\.scope$")

#: What systemd takes as a unit's name (systemd.unit(5)); a dash cannot begin one on a command line.
_UNIT = re.compile(r"^[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]{0,240}\.(?:service|scope)$")


@dataclass(frozen=True)
class Place:
    """Where a process lives; what is not known, or not so, is empty."""

    unit: str = ""
    """``vllm.service``; ``user@1000: vllm.service`` for one of that user's manager.  Empty inside a
    container or job, whose engine's unit runs much else, except for podman's, which a unit owns."""
    container: str = ""
    """Kind and name: ``docker 4f1c2ab90d21``, ``kubernetes …``, ``podman …``, ``lxc web``."""
    job: str = ""
    """``slurm 4711``."""
    session: str = ""
    """``session-3.scope``: a person's login, which is no unit to stop."""


def place(pid: int) -> Place:
    """Where this process lives now; an empty Place when it is gone or cannot be read."""
    try:
        with Path(f"/proc/{pid}/cgroup").open("rb") as file:
            return parse(file.read(_LIMIT).decode("utf-8", errors="replace"))
    except OSError:
        return Place()


def parse(text: str) -> Place:
    """The same from the text of /proc/PID/cgroup, of version 1, 2 or both; pure."""
    found = Place()
    for path, named in _paths(text):
        here = _of_path(path)
        found = Place(
            found.unit or (here.unit if named else ""),
            found.container or here.container,
            found.job or here.job,
            found.session or (here.session if named else ""),
        )
    if found.job or (found.container and not found.container.startswith("podman ")):
        return replace(found, unit="", session="")
    return found


def split_user(unit: str) -> tuple[int | None, str]:
    """``user@1000: vllm.service`` -> (1000, "vllm.service"); a system's unit -> (None, unit)."""
    found = re.fullmatch(r"user@(\d{1,10}): (.+)", unit)
    return (int(found[1]), found[2]) if found else (None, unit)


def is_unit(name: str) -> bool:
    """Whether this can be a service's or scope's name, without a user's prefix."""
    return _UNIT.match(name) is not None and not name.endswith("\n")


def _paths(text: str) -> list[tuple[str, bool]]:
    """(path, whether systemd named it), the hierarchy that systemd keeps first."""
    found = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")  # a path may hold colons itself
        if colon and number.isdecimal() and path.startswith("/"):
            named = controllers in ("", "name=systemd")
            found.append((path.removesuffix(" (deleted)"), named))
    return sorted(found, key=lambda pair: not pair[1])


def _of_path(path: str) -> Place:
    parts = [part for part in path.split("/") if part]
    if ".." in parts:  # seen from another cgroup namespace: its systemd is not the one here
        return replace(_inside(parts), unit="", session="")
    return _inside(parts)


def _inside(parts: list[str]) -> Place:
    """Down the path: the outermost unit, and the first container or job below it, end the search.

    What lies below a container are units of the container's own systemd.
    """
    unit, session = "", ""
    user = ""
    pods = False
    for before, part in zip(["", *parts], parts):
        pods = pods or part.startswith(("kubepods", "kubelet-kubepods"))
        container = _container(before, part, pods)
        if container:
            return Place(unit=unit, container=container, session=session)
        job = _JOB.match(part)
        if job:
            return Place(job=f"slurm {job[1]}")
        if unit or session or part.endswith(".slice"):
            continue
        name = _unescaped(part)
        manager = _MANAGER.match(name)
        if manager and not user:
            user = f"user@{manager[1]}: "
        elif _SESSION.match(name) and not user:
            session = name
        elif is_unit(name) and name != "init.scope" and not name.startswith("user@"):
            unit = user + name
    return Place(unit=unit, session=session)


def _container(before: str, part: str, pods: bool) -> str:
    found = _PREFIXED.search(part)
    bare = _BARE.match(part)
    if found or bare:
        engine = found[1] if found else before
        kind = "kubernetes" if pods else _KINDS.get(engine, "container")
        return f"{kind} {(found[2] if found else part)[:12]}"
    payload = _LXC.match(part)
    if payload:
        return f"lxc {_legible(payload[1])}"
    if before == "lxc":
        return f"lxc {_legible(part)}"
    machine = _NSPAWN.match(part)
    return f"nspawn {_legible(machine[1] or machine[2])}" if machine else ""


_KINDS = {
    "docker": "docker",
    "libpod": "podman",
    "libpod_parent": "podman",
    "cri-containerd": "containerd",
    "containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "cri-o",
    "buildkit": "buildkit",
}


def _unescaped(part: str) -> str:
    """systemd puts ``_`` before a name that the kernel would take for a file of its own."""
    return part[1:] if part.startswith("_") else part


def _legible(name: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name[:64])
