"""systemd units that could be stopped: what they are, and why some must not be.  Asks systemctl."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from eagle3_agent import cgroups
from eagle3_agent.preflight import bounded
from eagle3_agent.preflight.text import show

#: Seconds that systemd gets to answer.
_TIMEOUT = 3.0
#: Units asked about at once.
_MOST = 16

_FIELDS = (
    "Id", "LoadState", "ActiveState", "Restart", "UnitFileState", "TriggeredBy", "UpheldBy",
    "RefuseManualStop",
)  # fmt: skip

#: Units that carry the host itself, or other people's work: stopping them is nobody's way out.
_HOSTS_OWN = frozenset(
    (
        *("ssh", "sshd", "dbus", "dbus-broker", "polkit", "init", "cron", "crond", "chronyd"),
        *("docker", "containerd", "crio", "cri-o", "podman", "kubelet", "lxc", "lxd", "libvirtd"),
        *("k3s", "k3s-agent", "rke2-agent", "rke2-server", "slurmd", "slurmctld", "munge"),
        *("NetworkManager", "networking", "rpcbind", "autofs", "multipathd", "mmsdrserv"),
        *("nvidia-persistenced", "nvidia-fabricmanager", "nvidia-imex"),
    )
)


@dataclass(frozen=True)
class UnitFacts:
    """One unit, as ``Action.unit`` names it."""

    name: str
    restart: str = ""
    """``Restart=``: ``no``, ``always``, ``on-failure`` and so on."""
    at_boot: str = ""
    """``UnitFileState``: ``enabled``, ``disabled``, ``static``, ``transient`` and so on."""
    triggers: tuple[str, ...] = ()
    """Sockets, timers, paths and units that can start it again."""
    refusal: str = ""
    """Why this agent cannot or must not stop it; empty when it may be offered."""
    shared: bool = False
    """Much else lives in it, as every login does in ``ssh.service`` on a host without logind: what
    it holds says nothing of how to stop one of its processes."""


def look(names: Iterable[str]) -> tuple[UnitFacts, ...]:
    """What systemd says of each unit; bounded in time, and never raises for what it says."""
    wanted = sorted(set(names))
    own = cgroups.place(os.getpid()).unit
    found = []
    asked: dict[bool, list[str]] = {False: [], True: []}
    for name in wanted:
        refusal = must_not(name, own, os.geteuid())
        if refusal:
            found.append(UnitFacts(name, refusal=refusal, shared=is_shared(name, own)))
        elif len(asked[False]) + len(asked[True]) < _MOST:
            asked[cgroups.split_user(name)[0] is not None].append(name)
        else:
            found.append(UnitFacts(name, refusal=f"systemd was asked about {_MOST} others first"))
    for of_user, units in asked.items():
        if units:
            found += _ask(units, of_user)
    return tuple(sorted(found, key=lambda u: u.name))


def must_not(name: str, own: str, uid: int) -> str:
    """Why nobody may have this agent stop the unit, whatever systemd says; pure.

    ``own`` is the unit that the agent lives in, ``uid`` its effective user.
    """
    user, unit = cgroups.split_user(name)
    if not cgroups.is_unit(unit):
        return f"{show(unit, 60)} is no unit's name"
    if not unit.endswith(".service"):
        return f"{unit} is no service: somebody's own processes, gathered by systemd"
    if name == own:
        return "the agent itself runs in it"
    if is_shared(name, own):
        return "the host needs it, or it runs the work of others"
    if user is not None and user != uid:
        return f"it is of user {user}'s manager, and the agent runs as user {uid}"
    if user is None and uid != 0:
        return f"only root can stop it, and the agent runs as user {uid}"
    return ""


def is_shared(name: str, own: str) -> bool:
    """Whether the unit carries the host, the agent itself, or the work of many; pure."""
    stem = cgroups.split_user(name)[1].rpartition(".")[0]
    hosts = stem.partition("@")[0] in _HOSTS_OWN
    return name == own or hosts or stem.startswith(("systemd-", "user@", "getty@"))


def _ask(names: list[str], of_user: bool) -> list[UnitFacts]:
    if shutil.which("systemctl") is None:
        return [UnitFacts(n, refusal="there is no systemctl here") for n in names]
    manager = ["--user"] if of_user else []
    units = [cgroups.split_user(n)[1] for n in names]
    argv = ["systemctl", *manager, "--no-pager", "show", f"--property={','.join(_FIELDS)}", "--"]
    try:
        env = environment(of_user)
        answer = bounded.run([*argv, *units], timeout=_TIMEOUT, env=env, own_session=False)
    except OSError as error:
        return [UnitFacts(n, refusal=f"systemctl cannot be run: {error.strerror}") for n in names]
    if answer.cut:
        why = f"systemd did not answer within {_TIMEOUT:g} s"
        return [UnitFacts(n, refusal=why) for n in names]
    told = parse(answer.stdout.decode("utf-8", errors="replace"))
    words = show(answer.last_words(), 100)
    return [judge(n, told.get(cgroups.split_user(n)[1]), words) for n in names]


def environment(of_user: bool) -> dict[str, str]:
    """systemctl's: a user's manager is found by XDG_RUNTIME_DIR, which a daemon may lack."""
    env = dict(os.environ)
    if of_user:
        env.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
    return env


def parse(text: str) -> dict[str, dict[str, str]]:
    """``systemctl show`` of several units, by Id: blocks of ``Name=value``."""
    found: dict[str, dict[str, str]] = {}
    for block in text.split("\n\n"):
        fields = {}
        for line in block.splitlines():
            name, equals, value = line.partition("=")
            if equals and name in _FIELDS:
                fields[name] = value.strip()
        if "Id" in fields:
            found[fields["Id"]] = fields
    return found


def judge(name: str, told: dict[str, str] | None, words: str = "") -> UnitFacts:
    """Facts of one unit from what systemctl told of it; pure."""
    if told is None:
        return UnitFacts(name, refusal=f"systemctl does not tell of it{words and f': {words}'}")
    refusal = ""
    if told.get("LoadState") in ("not-found", "masked", "bad-setting", "error"):
        refusal = f"systemd has it as {told['LoadState']}"
    elif told.get("ActiveState") not in ("active", "activating", "reloading", "refreshing"):
        refusal = f"systemd has it as {show(told.get('ActiveState', ''), 20) or 'unknown'}"
    elif told.get("RefuseManualStop") == "yes":
        refusal = "its own settings refuse a stop (RefuseManualStop=yes)"
    triggers = f"{told.get('TriggeredBy', '')} {told.get('UpheldBy', '')}".split()
    return UnitFacts(
        name,
        restart=show(told.get("Restart", ""), 20),
        at_boot=show(told.get("UnitFileState", ""), 20),
        triggers=tuple(show(t, 80) for t in triggers[:8]),
        refusal=refusal,
    )
