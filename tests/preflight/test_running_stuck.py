"""What no signal ends: verdicts from facts, the dead of real parents, a real wait in the kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent import processes
from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.running import stuck, stuck_facts
from eagle3_agent.preflight.running.stuck_facts import PROBE, StuckFacts, Waiting, Zombie
from eagle3_agent.protocol.values import Verdict
from support.preflight import gather, profile, until
from support.real_processes import Start, starting

WORKER = Waiting(510, 80, 510, "root", "VLLM::Worker_TP", "nvidia_ioctl")
DEAD = Zombie(600, "python", 590, "bash")


def verdict(facts: StuckFacts) -> Verdict:
    return stuck.CHECK.decide(known((PROBE, facts)), profile())


def test_nothing_stuck_passes_and_says_how_long_was_looked() -> None:
    found = verdict(StuckFacts(over=0.52))
    assert (found.status, found.saw) == (
        "pass",
        "nothing stayed in one wait of the kernel over 0.5 s",
    )


@pytest.mark.parametrize(
    ("function", "what", "todo"),
    [
        ("nvidia_ioctl", "the NVIDIA driver", "Xid"),
        ("uvm_va_space_down_read", "the NVIDIA driver", "reboot"),
        ("rpc_wait_bit_killable", "an NFS server", "umount -l"),
        ("nfs_wait_bit_killable", "an NFS server", "umount -l"),
        ("request_wait_answer", "a FUSE file system's process", "/stack"),
        ("folio_wait_bit_common", "a disk", "iostat"),
        ("jbd2_log_wait_commit", "a file system's journal on its disk", "/stack"),
        ("msleep_of_a_stranger", "", "/stack"),
    ],
)
def test_a_wait_is_named_with_what_it_is_for(function: str, what: str, todo: str) -> None:
    found = verdict(StuckFacts((replace(WORKER, waits_in=function),)))
    assert found.status == "warn"
    assert f"pid 510 root VLLM::Worker_TP waits in the kernel (D) in {function}" in found.saw
    assert (f", for {what}" in found.saw) if what else ", for" not in found.saw
    assert todo in found.todo
    assert found.todo.startswith("Nothing can end them before the wait is over")
    assert found.actions == ()


def test_a_kernel_that_does_not_say_where_is_told() -> None:
    found = verdict(StuckFacts((replace(WORKER, waits_in="", thread=512),)))
    assert "pid 510 thread 512 root" in found.saw
    assert "the kernel does not say where" in found.saw


def test_the_kernels_own_threads_count_only_in_the_gpus_driver() -> None:
    own = replace(WORKER, pid=7, kernel=True, waits_in="io_schedule")
    assert verdict(StuckFacts((own,))).status == "pass"
    assert verdict(StuckFacts((replace(own, waits_in="nv_queue"),))).status == "warn"


def test_a_zombie_is_told_and_many_of_one_parent_warn() -> None:
    found = verdict(StuckFacts(zombies=(DEAD,)))
    assert found.status == "pass"
    assert found.saw.endswith("; 1 dead process not reaped yet by pid 590 (bash): harmless")
    two = verdict(StuckFacts(zombies=(DEAD, replace(DEAD, pid=601, parent=7))))
    assert "2 dead processes not reaped yet by pid 590 (bash) and others: harmless" in two.saw
    crowd = tuple(replace(DEAD, pid=i) for i in range(20))
    found = verdict(StuckFacts(zombies=crowd))
    assert found.status == "warn"
    assert "20 zombies whose parent does not reap them: pid 590 (bash)" in found.saw
    assert "restart the parent" in found.todo
    of_one = tuple(replace(z, parent=1, parent_name="python") for z in crowd)
    assert "docker run --init" in verdict(StuckFacts(zombies=of_one)).todo


def test_what_was_not_looked_at_is_no_pass() -> None:
    assert verdict(StuckFacts(cut=True)).status == "warn"


def test_hostile_names_come_out_printable_and_short() -> None:
    bad = "\x1b[2J\n" * 99
    facts = StuckFacts(tuple(replace(WORKER, pid=i, name=bad, waits_in=bad) for i in range(32)))
    found = verdict(facts)
    assert "\x1b" not in found.saw
    assert "and 26 more" in found.saw
    assert len(found.saw) < 1500


def test_a_probe_that_hangs_warns() -> None:
    silent = Facts(silent={"stuck": "did not answer within 6 s"})
    assert stuck.CHECK.decide(silent, profile()).status == "warn"


@pytest.mark.parametrize(
    ("stat", "state"),
    [(b"5 (a) D 1", "D"), (b"5 (x) S (y) D 1", "D"), (b"5 (a)) Z 1", "Z"), (b"", ""), (b"5 (", "")],
)
def test_the_state_stands_after_the_last_parenthesis(stat: bytes, state: str) -> None:
    assert stuck_facts.state(stat) == state


# ------------------------------------------------------------------ real processes


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as begin:
        yield begin


def test_the_dead_of_a_parent_that_does_not_reap_are_found(tmp_path: Path) -> None:
    code = (
        "import os, sys\npid = os.fork()\nif not pid: os._exit(0)\nprint(pid, flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        until(lambda: (p := processes.read(child)) is not None and p.state == "Z")
        seen = gather(PROBE, profile()).get(PROBE)
        parent.kill()
    (dead,) = (z for z in seen.zombies if z.pid == child)
    assert (dead.parent, dead.parent_name) == (parent.pid, processes.printable(b"python"))


def test_a_process_in_an_uninterruptible_wait_is_found_with_where_it_waits(start: Start) -> None:
    """The parent of a vfork sleeps uninterruptibly until its child calls exec or ends."""
    code = (
        "import ctypes\n"
        "libc = ctypes.PyDLL(None)\n"
        "pid = libc.vfork()\n"
        "if pid == 0:\n"
        "    libc.sleep(60)\n"
        "    libc._exit(0)\n"
    )
    parent = start([sys.executable, "-c", code])
    try:
        until(lambda: (p := processes.read(parent)) is not None and p.state == "D")
        seen = gather(PROBE, profile()).get(PROBE)
    finally:
        for child in processes.descendants(parent):
            os.kill(child.pid, signal.SIGKILL)
    (waiting,) = (w for w in seen.waiting if w.pid == parent)
    assert waiting.thread == parent
    assert waiting.user == processes.user(os.getpid())
    assert not waiting.kernel
