"""Checks ``gpu-health``, ``gpu-modes`` and ``gpu-links``: verdicts from facts, and from the double.

How the facts are read is ``test_gpu_reading``'s.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.nvml_facts import Clocks, Errors, Health, Links, Modes, Pair, Pcie, Slice
from eagle3_agent.preflight.check import Check, Facts, known
from eagle3_agent.preflight.gpus import health, links, modes
from eagle3_agent.preflight.gpus.gpu_facts import PROBE, GpuFacts
from eagle3_agent.protocol.values import Gpu, GpuProcess, HostSample, Profile, Verdict
from support import nvml_double
from support.preflight import gather, profile

GIB = 1024**3
GPU = Gpu(0, "GPU-0", "NVIDIA H200", 0, 140 * GIB, 0, 40, 80.0, 700.0)
WELL = Health(
    0,
    "0000:10:00",
    Modes("default", True, None, None, True, True),
    (),
    Errors(0, 0, False, False, False, "none"),
    Clocks(("idle",), 90, 700.0),
    Pcie(5, 5, 16, 16),
    Links(18, (), {"switch": 18}, "completed", 0, False),
)
CHECKS = (health.CHECK, modes.CHECK, links.CHECK)


def changed(base: Health, **parts: Any) -> Health:
    """``errors={"uncorrected": 2}`` changes one figure of a part of it."""
    made = {
        name: replace(getattr(base, name), **part) if isinstance(part, dict) else part
        for name, part in parts.items()
    }
    return replace(base, **made)


def facts(
    *healths: Health, pairs: tuple[Pair, ...] = (), visible: str | None = None, **gpu: Any
) -> Facts:
    """One GPU for each health, all with these figures."""
    sample = HostSample(
        t=0.0,
        gpus=tuple(replace(GPU, index=i, uuid=f"GPU-{i}", **gpu) for i in range(len(healths))),
    )
    numbered = tuple(replace(h, index=i) for i, h in enumerate(healths))
    return known((PROBE, GpuFacts(sample, visible, numbered, pairs)))


def wanting(ranks: int) -> Profile:
    return profile(model_tensor_parallel_size=ranks, engine_name="vllm")


def judged(check: Check, *healths: Health, **more: Any) -> Verdict:
    return check.decide(facts(*healths, **more), wanting(len(healths)))


@pytest.mark.parametrize("check", CHECKS)
def test_a_well_gpu_passes(check: Check) -> None:
    found = judged(check, WELL)
    assert (found.status, found.why, found.todo) == ("pass", "", "")


@pytest.mark.parametrize("check", CHECKS)
def test_no_gpu_and_no_answer_are_skipped_and_a_silent_probe_warns(check: Check) -> None:
    assert check.decide(facts(), wanting(1)).status == "skip"
    sample = HostSample(t=0.0, gpus=(GPU,))
    nothing = check.decide(known((PROBE, GpuFacts(sample))), wanting(1))
    assert nothing.status == "skip"
    assert "gpu-count" in nothing.saw
    assert check.decide(Facts(silent={"gpu": "did not answer"}), wanting(1)).status == "warn"


@pytest.mark.parametrize("check", CHECKS)
def test_what_nothing_tells_is_never_called_well(check: Check) -> None:
    found = judged(check, Health(0), temperature=None)
    assert found.status == "pass"
    assert "no uncorrectable" not in found.saw
    assert "default" not in found.saw
    if check is not links.CHECK:
        assert "NVML does not say" in found.saw


@pytest.mark.parametrize("check", CHECKS)
def test_gpus_outside_the_run_are_not_judged(check: Check) -> None:
    bad = changed(
        WELL,
        errors={"remap_failed": True},
        modes={"compute": "prohibited"},
        links={"fabric": "not-started"},
    )
    assert check.decide(facts(WELL, bad), wanting(1)).status == "pass"
    assert check.decide(facts(WELL, bad, visible="1"), wanting(1)).status != "pass"


# ------------------------------------------------------------------ gpu-health


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ({"remap_failed": True}, "a row remap failed"),
        ({"recovery": "gpu-reset"}, "asks for a reset of this GPU"),
        ({"recovery": "drain-and-reset"}, "drain and reset"),
        ({"recovery": "node-reboot"}, "asks for a reboot"),
    ],
)
def test_what_stops_a_run_blocks(errors: dict[str, Any], words: str) -> None:
    found = judged(health.CHECK, WELL, changed(WELL, errors=errors))
    assert found.status == "block"
    assert words in found.saw
    assert found.saw.startswith("GPU 1: ")
    assert ("Reboot" if "reboot" in words else "--gpu-reset -i 1 ") in found.todo


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"errors": {"uncorrected": 3}}, "3 uncorrectable ECC errors since"),
        ({"errors": {"uncorrected": 1}}, "1 uncorrectable ECC error since"),
        ({"errors": {"remap_pending": True}}, "a row remap waits for a reset"),
        ({"errors": {"retired_pending": True}}, "a page retirement waits"),
        ({"errors": {"recovery": "drain-p2p"}}, "asks for drain-p2p"),
        ({"clocks": {"reasons": ("hw-slowdown", "hw-thermal")}}, "hardware slows it down for heat"),
        ({"clocks": {"reasons": ("sw-thermal",)}}, "driver slows it down for heat"),
        ({"clocks": {"reasons": ("hw-slowdown", "power-brake")}}, "power supply's brake"),
        ({"clocks": {"reasons": ("hw-slowdown",)}}, "the hardware slows it down"),
        ({"clocks": {"slowdown": 40}}, "40 °C; it slows down from 40 °C on"),
        ({"clocks": {"power_default": 1000.0}}, "limited to 700 W, the part is made for 1000 W"),
        ({"odd": ("power 1e+09",)}, "NVML answers what cannot be: power 1e+09"),
    ],
)
def test_what_slows_or_threatens_a_run_warns(parts: dict[str, Any], words: str) -> None:
    found = judged(health.CHECK, WELL, changed(WELL, **parts))
    assert found.status == "warn"
    assert found.saw.startswith("GPU 1: ")
    assert words in found.saw
    assert found.saw.count("\n") == 0
    assert found.why
    assert found.todo


@pytest.mark.parametrize("reason", ["idle", "clock-setting", "sync-boost", "display-clock"])
def test_clocks_that_are_low_for_no_fault_pass(reason: str) -> None:
    found = judged(health.CHECK, changed(WELL, clocks={"reasons": (reason,)}))
    assert found.status == "pass"
    assert "clocks not held back" in found.saw


def test_a_gpu_at_its_power_cap_is_at_work() -> None:
    found = judged(health.CHECK, changed(WELL, clocks={"reasons": ("power-cap",)}))
    assert found.status == "pass"
    assert "1 at their power cap" in found.saw


def test_rows_that_were_remapped_are_told() -> None:
    found = judged(health.CHECK, changed(WELL, errors={"remapped": 2}))
    assert (found.status, "2 rows remapped earlier" in found.saw) == ("pass", True)


def test_sixteen_alike_are_one_line() -> None:
    hot = changed(WELL, clocks={"reasons": ("hw-thermal",)})
    found = judged(health.CHECK, *[hot] * 16)
    assert found.saw == "GPU 0-15: the hardware slows it down for heat"
    found = judged(health.CHECK, *[hot] * 7, changed(hot, errors={"uncorrected": 2}))
    assert found.saw.splitlines()[0] == "GPU 0-7: the hardware slows it down for heat"
    assert found.saw.splitlines()[1].startswith("GPU 7: 2 uncorrectable")


# ------------------------------------------------------------------ gpu-modes

HOLDER = GpuProcess(7, "root", "python", GIB)


def test_prohibited_blocks() -> None:
    found = judged(modes.CHECK, WELL, changed(WELL, modes={"compute": "prohibited"}))
    assert (found.status, found.saw) == ("block", "GPU 1: compute mode PROHIBITED")
    assert "nvidia-smi -i 1 -c DEFAULT" in found.todo


def test_exclusive_blocks_once_somebody_is_there() -> None:
    alone = changed(WELL, modes={"compute": "exclusive-process"})
    free = judged(modes.CHECK, alone)
    assert (free.status, free.saw) == ("warn", "GPU 0: compute mode EXCLUSIVE_PROCESS")
    taken = judged(modes.CHECK, alone, processes=(HOLDER,))
    assert taken.status == "block"
    assert "held by pid 7" in taken.saw


SLICE = Slice("MIG-1", "NVIDIA H200 MIG 1g.18gb", 0, 16 * GIB)


def test_mig_without_slices_blocks_and_with_them_says_their_names() -> None:
    on = changed(WELL, modes={"mig": True, "mig_pending": True})
    assert judged(modes.CHECK, on).status == "block"
    found = judged(modes.CHECK, replace(on, slices=(SLICE, replace(SLICE, uuid="MIG-2"))))
    assert found.status == "warn"
    assert "2 slices: MIG-1 (1g.18gb, 16.0 GiB), MIG-2" in found.saw
    assert 'CUDA_VISIBLE_DEVICES = "MIG-1"' in found.todo
    unnamed = judged(modes.CHECK, replace(on, slices=(Slice("MIG-1"),)))
    assert "MIG-1 (unnamed, memory not said)" in unnamed.saw


def test_a_run_on_slices() -> None:
    on = changed(WELL, modes={"mig": True, "mig_pending": True})
    on = replace(on, slices=(SLICE, replace(SLICE, uuid="MIG-2")))
    one = modes.CHECK.decide(facts(on, visible="MIG-1"), wanting(1))
    assert (one.status, "MIG on" in one.saw) == ("pass", True)
    two = modes.CHECK.decide(facts(on, visible="MIG-1,MIG-2"), wanting(2))
    assert two.status == "warn"
    assert two.saw == "GPU 0: 2 ranks are to run on MIG slices"


def test_a_mode_that_changes_at_the_next_reset_warns() -> None:
    found = judged(modes.CHECK, changed(WELL, modes={"ecc_pending": False}))
    assert found.status == "warn"
    assert "ECC is on and will be off after the next reset" in found.saw


def test_persistence_off_is_told_and_no_fault() -> None:
    found = judged(modes.CHECK, WELL, changed(WELL, modes={"persistence": False}))
    assert found.status == "pass"
    assert "persistence on and off" in found.saw
    assert "initialises the driver anew" in found.saw


# ------------------------------------------------------------------ gpu-links


@pytest.mark.parametrize("state", ["not-started", "in-progress"])
def test_a_fabric_that_is_not_ready_blocks_where_a_switch_is_seen(state: str) -> None:
    bad = changed(WELL, links={"fabric": state})
    found = judged(links.CHECK, bad, bad)
    assert found.status == "block"
    assert found.saw.startswith(f"GPU 0-1: its NVSwitch fabric is {state.replace('-', ' ')}")
    assert "nvidia-fabricmanager" in found.todo
    assert judged(links.CHECK, bad).status == "warn"  # one rank
    unseen = changed(bad, links={"peers": {}, "up": 0, "down": tuple(range(18))})
    assert judged(links.CHECK, unseen, unseen).status == "warn"


def test_a_part_without_a_fabric_state_is_not_guessed_at() -> None:
    found = judged(links.CHECK, changed(WELL, links={"fabric": ""}))
    assert found.status == "pass"
    assert "NVML does not say whether the fabric is ready" in found.saw
    none = judged(links.CHECK, changed(WELL, links={"fabric": "not-supported", "peers": {}}))
    assert "fabric" not in none.saw


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"fabric_status": 3}, "ended with NVML status 3"),
        ({"fabric_degraded": True}, "degraded bandwidth"),
        ({"down": (4, 5), "up": 16}, "NVLink 4-5 down, 16 up; others of its kind have 18 up"),
    ],
)
def test_links_that_are_not_whole_warn(part: dict[str, Any], words: str) -> None:
    found = judged(links.CHECK, WELL, changed(WELL, links=part))
    assert found.status == "warn"
    assert f"GPU 1: {'its fabric' if 'fabric' in str(part) else ''}" in found.saw
    assert words in found.saw
    assert found.todo


def test_links_that_no_board_wires_are_not_broken() -> None:
    bridged = changed(WELL, links={"up": 12, "down": tuple(range(12, 18)), "peers": {"gpu": 12}})
    assert judged(links.CHECK, bridged, bridged).status == "pass"
    alone = changed(bridged, links={"up": 0, "down": tuple(range(18)), "peers": {}})
    found = judged(links.CHECK, alone)
    assert (found.status, "no NVLink in use" in found.saw) == ("pass", True)


def test_a_narrow_pcie_link_warns_and_an_idle_one_does_not() -> None:
    narrow = judged(links.CHECK, changed(WELL, pcie={"width": 8}))
    assert narrow.status == "warn"
    assert "PCIe x8, the slot and the part can x16" in narrow.saw
    idle = judged(links.CHECK, changed(WELL, pcie={"generation": 1}))
    assert idle.status == "pass"
    assert "PCIe 1 of 5, as idle GPUs do, x16" in idle.saw


def test_how_gpus_reach_each_other() -> None:
    three = (WELL, WELL, WELL)
    linked = (Pair(0, 1, "NODE", True), Pair(0, 2, "SYS", False), Pair(1, 2, "PHB", False))
    found = judged(links.CHECK, *three, pairs=linked)
    assert "between them: 1 of 3 pairs over NVLink; 2 pairs over PCIe, the farthest SYS (1)" in (
        found.saw
    )
    part = judged(links.CHECK, *three, pairs=linked[:1])
    assert "1 of 3 pairs over NVLink; 2 not read for want of time" in part.saw
    unknown = judged(links.CHECK, *three, pairs=(Pair(0, 1), Pair(0, 2), Pair(1, 2)))
    assert "3 pairs by a way that NVML does not say" in unknown.saw
    assert "NVML does not say" in judged(links.CHECK, *three).saw


# ------------------------------------------------------------------ through the real pynvml


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_double.build(tmp_path_factory.mktemp("nvml"))


@pytest.mark.parametrize(
    ("check", "status", "says", "words"),
    [
        (health.CHECK, "warn", ["value=3:ecc_uncorrected:2"], "GPU 3: 2 uncorrectable"),
        (health.CHECK, "warn", ["value=3:remap_pending:1"], "GPU 3: a row remap waits"),
        (health.CHECK, "block", ["value=3:remap_failed:1"], "GPU 3: a row remap failed"),
        (health.CHECK, "warn", ["value=3:retired_pending:1"], "GPU 3: a page retirement"),
        (health.CHECK, "block", ["value=3:recovery:2"], "GPU 3: the driver asks for a reboot"),
        (health.CHECK, "warn", ["value=3:throttle:72"], "GPU 3: the hardware slows it down for"),
        (health.CHECK, "warn", ["value=3:throttle:136"], "GPU 3: the power supply's brake"),
        (health.CHECK, "warn", ["value=3:temperature:93"], "GPU 3: 93 °C; it slows down from 90"),
        (health.CHECK, "warn", ["value=3:power_limit:300000"], "limited to 300 W"),
        (health.CHECK, "warn", ["value=3:recovery:77"], "recovery action 77"),
        (modes.CHECK, "block", ["value=3:compute_mode:2"], "GPU 3: compute mode PROHIBITED"),
        (modes.CHECK, "warn", ["value=3:compute_mode:3"], "GPU 3: compute mode EXCLUSIVE_PROCESS"),
        (modes.CHECK, "block", ["value=3:mig:1"], "GPU 3: MIG is on and there is no slice"),
        (modes.CHECK, "warn", ["value=3:mig:0", "value=3:mig_pending:1"], "MIG is off and will be"),
        (modes.CHECK, "warn", ["value=3:ecc_pending:0"], "ECC is on and will be off"),
        (modes.CHECK, "pass", ["value=*:persistence:0"], "persistence off"),
        (links.CHECK, "block", ["value=*:links:18", "value=*:fabric:1"], "GPU 0-3: its NVSwitch"),
        (links.CHECK, "warn", ["value=*:links:18", "value=2:fabric:3", "value=2:fabric_mask:1"],
         "GPU 2: its fabric runs with degraded"),
        (links.CHECK, "warn", ["value=*:fabric:3", "value=1:fabric_status:999"], "status 999"),
        (links.CHECK, "pass", ["value=*:links:18", "value=*:fabric:3"], "18 NVLinks up"),
        (links.CHECK, "pass", ["value=*:links:4", "value=*:link_peer:0"], "(4 to a gpu)"),
        (links.CHECK, "warn", ["value=*:links:18", "value=1:links_down:3"], "NVLink 0-2 down"),
        (links.CHECK, "warn", ["value=3:pcie_width:4"], "GPU 3: PCIe x4"),
        (links.CHECK, "pass", ["value=*:level:50"], "6 pairs over PCIe, the farthest SYS (6)"),
        (links.CHECK, "pass", ["error=*:nvmlDeviceGetGpuFabricInfoV:3"], "no NVLink"),
    ],
)  # fmt: skip
def test_the_double_says_and_the_check_sees(
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    check: Check,
    status: str,
    says: list[str],
    words: str,
) -> None:
    for name, value in nvml_double.environment(library, gpus=4, says=says).items():
        monkeypatch.setenv(name, value)
    found = check.decide(gather(PROBE, wanting(4)), wanting(4))
    assert (found.status, words in found.saw) == (status, True), found
