"""Xid lines of the kernel log since boot: /dev/kmsg, else the journal, else dmesg."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass

from eagle3_agent.preflight import bounded
from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.preflight.text import show

_KMSG = "/dev/kmsg"

#: Lines kept, the newest; a GPU in trouble writes thousands.
MOST = 400

#: Seconds for each source, and bytes of it: a ring buffer holds a few MiB at most.
_TIMEOUT = 2.0
_LIMIT = 32 * 1024 * 1024
_RECORD = 8192

#: ``NVRM: Xid (PCI:0000:3b:00): 79, pid=...``, without ``PCI:`` in older drivers; an NVSwitch's
#: are ``nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, ...``.
_XID = re.compile(
    r"(?:NVRM: (?P<gpu>Xid)|nvidia-nvswitch\d*: SXid) "
    r"\((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]{7,20})\): (?P<code>\d{1,6})(?:,\s*(?P<rest>.*))?"
)
_NAME = re.compile(r"\bname=([^,]{1,64})")


@dataclass(frozen=True)
class XidLine:
    code: int
    pci: str
    """``0000:3b:00``: domain, bus and device in lower case."""
    at: float | None
    """Epoch seconds."""
    rest: str = ""
    """What follows the number, printable and cut."""
    program: str = ""
    switch: bool = False
    """An NVSwitch's SXid, whose numbers are others."""


@dataclass(frozen=True)
class KernelLogFacts:
    now: float
    source: str = ""
    """Where it was read; empty where nothing could be."""
    problem: str = ""
    """Why each source that failed did."""
    boot: float | None = None
    """Epoch seconds."""
    since: float | None = None
    """Epoch seconds of the first line that is still there."""
    lines: tuple[XidLine, ...] = ()
    left_out: int = 0
    """Older lines that were too many to keep."""


def _collect(ask: Ask) -> KernelLogFacts:
    now = time.time()
    boot = _boot(now)
    problems = []
    for source, read in ((_KMSG, _kmsg), ("journalctl", _journal), ("dmesg", _dmesg)):
        try:
            records = read(boot)
        except OSError as error:
            problems.append(f"{source}: {error.strerror or error}")
            continue
        if records:
            return facts(now, source, "; ".join(problems), boot, records)
        problems.append(f"{source}: shows no line to this user")
    return KernelLogFacts(now, problem=show("; ".join(problems), 300), boot=boot)


def facts(
    now: float,
    source: str,
    problem: str,
    boot: float | None,
    records: Iterable[tuple[float | None, str]],
) -> KernelLogFacts:
    """Facts from records of (epoch seconds, text), oldest first; pure."""
    found = []
    since: float | None = None
    for at, text in records:
        since = at if since is None else since
        line = parse(at, text)
        if line is not None:
            found.append(line)
    left_out = max(0, len(found) - MOST)
    return KernelLogFacts(now, source, problem, boot, since, tuple(found[left_out:]), left_out)


def parse(at: float | None, text: str) -> XidLine | None:
    """An Xid or SXid of a line's text; None for any other line."""
    found = _XID.search(text[:2000])
    if found is None:
        return None
    rest = show(found["rest"] or "", 200)
    name = _NAME.search(rest)
    program = name[1] if name and not name[1].startswith("<") else ""
    pci = found["pci"].lower().partition(".")[0]
    return XidLine(int(found["code"]), pci, at, rest, program, switch=found["gpu"] is None)


def _boot(now: float) -> float | None:
    try:
        return now - time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):
        return None


def _kmsg(boot: float | None) -> list[tuple[float | None, str]]:
    """The ring buffer, a record a read; raises OSError where this user may not."""
    found: list[tuple[float | None, str]] = []
    descriptor = os.open(_KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        until, size = time.monotonic() + _TIMEOUT, 0
        while size < _LIMIT and time.monotonic() < until:
            try:
                data = os.read(descriptor, _RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # overwritten while it was read: the next read goes on after the gap
            if not data:
                break
            size += len(data)
            found.append(record(data, boot))
    finally:
        os.close(descriptor)
    return found


def record(data: bytes, boot: float | None) -> tuple[float | None, str]:
    """(epoch seconds, text) of ``6,339,5140900,-;NVRM: loading`` (dev-kmsg in the kernel's ABI)."""
    head, _, text = data.partition(b";")
    fields = head.split(b",")
    at = None
    if boot is not None and len(fields) > 2 and fields[2].isdigit():
        at = boot + int(fields[2][:18]) / 1e6
    return at, text.partition(b"\n")[0].decode("utf-8", "replace")


def _journal(boot: float | None) -> list[tuple[float | None, str]]:
    options = ("-k", "-b", "-q", "--no-pager", "-o", "short-unix", "-n", "50000")
    found: list[tuple[float | None, str]] = []
    for line in _run(["journalctl", *options]):
        stamp, _, text = line.partition(" ")
        found.append((_number(stamp), text))
    return found


def _dmesg(boot: float | None) -> list[tuple[float | None, str]]:
    found: list[tuple[float | None, str]] = []
    for line in _run(["dmesg"]):
        stamp, bracket, text = line.lstrip("[").partition("]")
        seconds = _number(stamp) if bracket else None
        at = boot + seconds if boot is not None and seconds is not None else None
        found.append((at, text if bracket else line))
    return found


def _run(argv: list[str]) -> list[str]:
    """Its lines; raises OSError with its own words where it fails."""
    if shutil.which(argv[0]) is None:
        raise FileNotFoundError(2, "is not here")
    env = {**os.environ, "LC_ALL": "C"}
    answer = bounded.run(argv, timeout=_TIMEOUT, env=env, own_session=False, limit=_LIMIT)
    if answer.cut:
        raise OSError(5, "took too long" if answer.cut == "time" else "told too much")
    if answer.status != 0:
        raise OSError(1, show(answer.last_words(), 100) or f"ended with status {answer.status}")
    return answer.stdout.decode("utf-8", "replace").splitlines()


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e11 else None


PROBE = Probe("gpu-kernel-log", KernelLogFacts, _collect, timeout=8.0)
