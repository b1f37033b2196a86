"""Check ``gpu-kernel-log``: Xids from lines of the kernel log, and what is said of them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.nvml_facts import Health
from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.gpus import kernel_log, kernel_log_facts, xids
from eagle3_agent.preflight.gpus.gpu_facts import PROBE as GPUS
from eagle3_agent.preflight.gpus.gpu_facts import GpuFacts
from eagle3_agent.preflight.gpus.kernel_log_facts import PROBE, KernelLogFacts, parse
from eagle3_agent.protocol.values import Gpu, HostSample, Verdict
from support.preflight import gather, profile

NOW = 1_800_000_000.0
BOOT = NOW - 12 * 86400
FELL = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
FAULT = (
    "NVRM: Xid (PCI:0000:3B:00): 31, pid=12, name=python3, Ch 00000008, intr 10000000. MMU Fault"
)
SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore"
REBOOT = (
    "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 "
    "(Node Reboot Required)"
)


def log(*texts: tuple[float, str] | str, **more: Any) -> KernelLogFacts:
    records = [t if isinstance(t, tuple) else (NOW - 7200, t) for t in texts]
    made = kernel_log_facts.facts(NOW, "/dev/kmsg", "", BOOT, [(BOOT + 1, "Linux"), *records])
    return KernelLogFacts(**{**vars(made), **more})


def judged(seen: KernelLogFacts, *pci: str, ranks: int = 1, gpus: bool = True) -> Verdict:
    places = pci or ("0000:3b:00",)
    sample = HostSample(t=NOW, gpus=tuple(Gpu(i) for i in range(len(places))) if gpus else ())
    health = tuple(Health(i, place) for i, place in enumerate(places)) if gpus else ()
    facts = known((PROBE, seen), (GPUS, GpuFacts(sample, health=health)))
    asked = profile(engine_name="vllm", model_tensor_parallel_size=ranks)
    return kernel_log.CHECK.decide(facts, asked)


# ------------------------------------------------------------------ lines


def test_a_line_of_a_gpu() -> None:
    seen = parse(NOW, FAULT)
    assert seen is not None
    assert (seen.code, seen.pci, seen.program, seen.switch) == (31, "0000:3b:00", "python3", False)
    assert seen.rest.startswith("pid=12")
    fell = parse(NOW, FELL)
    assert fell is not None
    assert (fell.code, fell.program) == (79, "")


@pytest.mark.parametrize(
    ("text", "code", "pci", "switch"),
    [
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, "0000:03:00", False),
        ("NVRM: Xid (PCI:0009:01:00): 48", 48, "0009:01:00", False),
        (
            "host kernel: NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Nonfatal",
            144,
            "0000:01:00",
            False,
        ),
        (SWITCH, 28006, "0000:c1:00", True),
    ],
)
def test_other_forms(text: str, code: int, pci: str, switch: bool) -> None:
    seen = parse(None, text)
    assert seen is not None
    assert (seen.code, seen.pci, seen.switch) == (code, pci, switch)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05",
        "NVRM: Xid (PCI:0000:3b:00): not-a-number",
        "audit: type=1400 Xid (PCI): 79",
        "NVRM: Xid " + "(" * 100_000,
    ],
)
def test_no_line_of_a_gpu(text: str) -> None:
    assert parse(NOW, text) is None


def test_a_record_of_the_ring_buffer() -> None:
    data = b"4,1234,5140900000,-;" + FELL.encode() + b"\n SUBSYSTEM=pci\n"
    assert kernel_log_facts.record(data, BOOT) == (BOOT + 5140.9, FELL)
    assert kernel_log_facts.record(b"garbage", BOOT) == (None, "")
    assert kernel_log_facts.record(b"4,1;\xff\xfe", BOOT) == (None, "\ufffd\ufffd")


def test_only_the_newest_are_kept() -> None:
    seen = log(*[FAULT] * (kernel_log_facts.MOST + 5))
    assert (len(seen.lines), seen.left_out) == (kernel_log_facts.MOST, 5)
    assert "5 older ones not looked at" in judged(seen).saw


def test_hostile_text_is_made_printable() -> None:
    seen = parse(NOW, "NVRM: Xid (PCI:0000:3b:00): 31, name=\x1b[2Jevil\u202e, x")
    assert seen is not None
    assert (seen.rest + seen.program).isprintable()


# ------------------------------------------------------------------ verdicts


def test_no_xid_passes_and_says_how_far_it_looked() -> None:
    found = judged(log())
    assert (found.status, found.saw) == ("pass", "no Xid in /dev/kmsg since boot 12 d ago")
    cut = judged(log(since=NOW - 3 * 3600))
    assert cut.saw == "no Xid in /dev/kmsg, which begins 3 h ago; the boot was 12 d ago"


def test_a_log_that_cannot_be_read_is_not_an_empty_one() -> None:
    seen = KernelLogFacts(NOW, problem="/dev/kmsg: Operation not permitted; dmesg: is not here")
    found = judged(seen)
    assert found.status == "skip"
    assert "Operation not permitted" in found.saw
    assert "dmesg" in found.todo


def test_a_fallen_gpu_is_named_with_its_age_and_its_way_out() -> None:
    found = judged(log(FELL))
    assert found.status == "warn"
    assert found.saw.startswith(
        "GPU 0: Xid 79, the GPU has fallen off the bus, 2 h ago\n(from /dev/kmsg since boot"
    )
    assert "without a reboot" in found.why
    assert "reboot the host" in found.todo


def test_what_programs_did_is_a_warning_that_leaves_the_gpu_in_peace() -> None:
    texts = [(NOW - 60, FAULT)] * 3
    found = judged(log(*texts))
    assert found.status == "warn"
    assert "Xid 31, memory page fault" in found.saw
    assert "of python3, 3 times, last 1 min ago" in found.saw
    assert "the GPU is well" in found.why
    assert "reset" not in found.todo


def test_the_gravest_of_the_runs_own_gpus_comes_first() -> None:
    other = FELL.replace("3b", "86")
    gone = FELL.replace("3b", "af")
    seen = log(FAULT, FAULT.replace("31", "48", 1), other, gone)
    lines = judged(seen, "0000:3b:00", "0000:86:00").saw.splitlines()
    assert lines[0].startswith("GPU 0: Xid 48")
    assert lines[1].startswith("GPU 0: Xid 31")
    assert lines[2].startswith("GPU 1 (not the run's): Xid 79")
    assert lines[3].startswith("GPU at 0000:af:00: Xid 79")


def test_the_recovery_action_is_read_from_the_line() -> None:
    found = judged(log(REBOOT))
    assert "Xid 154, the driver asks for: node reboot" in found.saw
    assert "reboot" in found.todo
    assert xids.meaning(154, "action changed from 0x1 (GPU Reset Required) to 0x0 (None)").then == (
        "watch"
    )


def test_a_switch_is_no_gpu() -> None:
    found = judged(log(SWITCH))
    assert "NVSwitch at 0000:c1:00: SXid 28006, NVSwitch error, non-fatal" in found.saw
    assert "error, fatal" in judged(log(SWITCH.replace("Non-fatal", "Fatal"))).saw


def test_an_xid_that_is_in_no_table_is_told_as_that() -> None:
    found = judged(log("NVRM: Xid (PCI:0000:3b:00): 999, what"))
    assert "Xid 999, not in this tool's table" in found.saw
    assert "docs.nvidia.com/deploy/xid-errors" in found.todo


def test_many_kinds_are_cut() -> None:
    found = judged(log(*[f"NVRM: Xid (PCI:0000:3b:00): {500 + i}, x" for i in range(20)]))
    assert "and 12 kinds more" in found.saw
    assert len(found.saw.splitlines()) == 10


def test_a_host_without_gpus() -> None:
    assert judged(log(), gpus=False).status == "skip"
    lost = judged(log(FELL), gpus=False)
    assert (lost.status, "GPU at 0000:3b:00" in lost.saw) == ("warn", True)


def test_without_nvml_the_address_stands_for_the_gpu() -> None:
    found = kernel_log.CHECK.decide(known((PROBE, log(FELL))), profile())
    assert found.saw.startswith("GPU at 0000:3b:00: Xid 79")


def test_a_silent_probe_warns() -> None:
    facts = Facts(silent={PROBE.name: "did not answer"})
    assert kernel_log.CHECK.decide(facts, profile()).status == "warn"


COMMON = (13, 31, 32, 38, 43, 45, 48, 61, 62, 63, 64, 68, 69, 74, 79, 92, 94, 95, 109, 119, 120,
          121, 122, 123, 136, 137, 140, 143, *range(144, 151), 154)  # fmt: skip


@pytest.mark.parametrize("code", COMMON)
def test_the_common_ones_have_words(code: int) -> None:
    known_ = xids.meaning(code)
    assert known_.then != "unknown"
    assert known_.text
    assert xids.why(known_.then)
    assert xids.todo(known_.then)


def test_what_kills_programs_only_is_never_a_reason_to_reset() -> None:
    assert {xids.meaning(code).then for code in (13, 31, 43, 45)} == {"program"}
    assert xids.ORDER.index("reset") < xids.ORDER.index("watch") < xids.ORDER.index("program")


# ------------------------------------------------------------------ sources, for real


def test_this_machines_log_as_it_is() -> None:
    seen = gather(PROBE, profile()).get(PROBE)
    if os.geteuid() == 0 and os.path.exists("/dev/kmsg"):
        assert seen.source == "/dev/kmsg"
    assert seen.source or seen.problem
    assert seen.boot is None or seen.boot < seen.now


def program(folder: Path, name: str, body: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, on a host without a ring buffer to read."""
    monkeypatch.setattr(kernel_log_facts, "_KMSG", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def collected() -> KernelLogFacts:
    from eagle3_agent.preflight.check import Ask

    return PROBE.collect(Ask(profile()))


def test_the_journal_is_asked_next(tools: Path) -> None:
    program(tools, "journalctl", f"echo '1799999000.5 host kernel: {FAULT}'")
    seen = collected()
    assert (seen.source, [x.code for x in seen.lines]) == ("journalctl", [31])
    assert seen.lines[0].at == 1799999000.5
    assert "No such file" in seen.problem


def test_a_journal_that_shows_nothing_is_not_a_clean_one(tools: Path) -> None:
    program(tools, "journalctl", "exit 0")
    program(tools, "dmesg", f"echo '[   12.500000] {FAULT}'")
    seen = collected()
    assert (seen.source, [x.code for x in seen.lines]) == ("dmesg", [31])
    assert seen.boot is not None
    at = seen.lines[0].at
    assert at is not None
    assert abs(at - seen.boot - 12.5) < 0.1
    assert "journalctl: shows no line to this user" in seen.problem


def test_nothing_may_be_read(tools: Path) -> None:
    program(
        tools,
        "dmesg",
        "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2\nexit 1",
    )
    seen = collected()
    assert seen.source == ""
    assert "dmesg: dmesg: read kernel buffer failed: Operation not permitted" in seen.problem
    assert "journalctl: is not here" in seen.problem


def test_a_source_that_hangs_is_left(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log_facts, "_TIMEOUT", 0.3)
    program(tools, "journalctl", "exec /bin/sleep 600")
    seen = collected()
    assert "journalctl: took too long" in seen.problem
