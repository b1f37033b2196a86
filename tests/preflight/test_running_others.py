"""Who else uses vLLM or the GPUs: verdicts, ways out, and real processes by their maps."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.preflight.actions.units import UnitFacts
from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.gpus import gpu_facts
from eagle3_agent.preflight.running import others
from eagle3_agent.preflight.running.process_facts import PROBE, ProcessFacts, Seen, hides
from eagle3_agent.protocol.values import Gpu, GpuProcess, HostSample, Verdict
from support import needs, vllm_env
from support.preflight import gather, profile, until
from support.real_processes import Start, starting

GIB = 1024**3
SERVER = Seen(
    500, 77, "vllm", "S", "root", "python3.12 -m vllm.entrypoints", 1_700_000_000.0, root=500
)
WORKER = replace(SERVER, pid=510, start_time=80, command="VLLM::Worker_TP3")
NOTEBOOK = replace(SERVER, pid=900, kind="gpu", command="renamed", root=900)


def holding(pid: int, held: int | None = 60 * GIB, **more: Any) -> GpuProcess:
    return GpuProcess(pid, "eve", "python", held, **more)


def verdict(
    *found: Seen,
    gpus: tuple[Gpu, ...] | None = (),
    units: tuple[UnitFacts, ...] = (),
    more: int = 0,
) -> Verdict:
    facts = [(PROBE, ProcessFacts(found, more=more, units=units))]
    seen = [] if gpus is None else [(gpu_facts.PROBE, gpu_facts.GpuFacts(HostSample(0.0, gpus)))]
    return others.CHECK.decide(known(*facts, *seen), profile())


def test_nobody_else_passes() -> None:
    found = verdict()
    assert (found.status, found.saw) == ("pass", "nobody else runs vLLM or holds a GPU")


def test_runs_of_this_tool_are_another_checks() -> None:
    assert verdict(replace(SERVER, kind="run")).status == "pass"


def test_vllm_warns_with_its_gpus_and_a_whole_tree_ends_together() -> None:
    gpus = (Gpu(0, processes=(holding(510),)), Gpu(3, processes=(holding(510, 10 * GIB),)))
    found = verdict(SERVER, replace(WORKER, root=500), gpus=gpus)
    assert found.status == "warn"
    assert "pid 510 root VLLM::Worker_TP3" in found.saw
    assert "holds 70.0 GiB of GPU 0, 3" in found.saw
    assert found.todo == "If not needed: kill 510 500"
    (action,) = found.actions
    assert action.kind == "terminate"
    assert [(p.pid, p.start_time) for p in action.processes] == [(500, 77), (510, 80)]


def test_trees_are_ended_one_by_one() -> None:
    other = replace(WORKER, pid=700, root=700)
    assert [a.id for a in verdict(SERVER, other).actions] == ["terminate-500", "terminate-700"]


def test_a_service_is_named_and_stopped_as_one() -> None:
    unit = UnitFacts("vllm.service", restart="always", at_boot="enabled")
    inside = [replace(p, unit="vllm.service") for p in (SERVER, replace(WORKER, root=510))]
    found = verdict(*inside, units=(unit,))
    assert "in vllm.service" in found.saw
    assert found.todo == "If not needed: systemctl stop vllm.service"
    (action,) = found.actions
    assert (action.kind, action.unit) == ("stop-unit", "vllm.service")
    assert any("pid 510" in line for line in action.effect)


def test_a_service_that_the_agent_cannot_stop_is_told_as_a_command() -> None:
    unit = UnitFacts("user@1001: vllm.service", refusal="it is of user 1001's manager")
    found = verdict(replace(SERVER, unit=unit.name), units=(unit,))
    assert found.actions == ()
    assert "systemctl --user stop vllm.service (as user 1001)" in found.todo
    assert "not by this agent: it is of user 1001's manager" in found.todo


def test_a_unit_that_carries_every_login_is_no_way_out() -> None:
    unit = UnitFacts("ssh.service", refusal="the host needs it", shared=True)
    found = verdict(replace(SERVER, unit="ssh.service"), units=(unit,))
    assert found.todo == "If not needed: kill 500"
    assert [a.id for a in found.actions] == ["terminate-500"]


@pytest.mark.parametrize(
    ("container", "todo"),
    [
        ("docker 4f1c2ab90d21", "docker stop 4f1c2ab90d21"),
        ("podman 4f1c2ab90d21", "podman stop 4f1c2ab90d21"),
        ("lxc we;b", "lxc-stop -n 'we;b'"),
        ("kubernetes 4f1c2ab90d21", "scale down the owner of the pod"),
        ("container 4f1c2ab90d21", "stop container 4f1c2ab90d21"),
    ],
)
def test_a_container_is_stopped_by_hand(container: str, todo: str) -> None:
    found = verdict(replace(SERVER, container=container))
    assert todo in found.todo
    assert found.actions == ()


def test_a_batch_job_is_cancelled_by_hand() -> None:
    found = verdict(replace(SERVER, job="slurm 4711"))
    assert "scancel 4711" in found.todo
    assert found.actions == ()


def test_a_tree_with_one_that_must_not_be_ended_is_not_offered() -> None:
    found = verdict(SERVER, replace(WORKER, root=500, spared="it is of user eve"))
    assert found.actions == ()
    assert "not by this agent: it is of user eve" in found.todo


def test_a_renamed_process_counts_when_nvml_lists_it_and_only_then() -> None:
    gpus = (Gpu(0, processes=(holding(900),)),)
    assert verdict(NOTEBOOK, gpus=gpus).status == "warn"
    assert verdict(NOTEBOOK, gpus=(Gpu(0),)).status == "pass"
    small = (Gpu(0, processes=(holding(900, 40 << 20),)),)
    assert verdict(NOTEBOOK, gpus=small).status == "pass"
    unsaid = (Gpu(0, processes=(holding(900, None),)),)
    assert "holds an unknown amount of GPU 0" in verdict(NOTEBOOK, gpus=unsaid).saw


def test_a_holder_whose_memory_map_cannot_be_read_counts_too() -> None:
    of_eve = holding(4000, start_time=5, unit="jupyter.service")
    found = verdict(gpus=(Gpu(1, processes=(of_eve,)),))
    assert found.status == "warn"
    assert "pid 4000 eve python" in found.saw
    assert "systemctl stop jupyter.service" in found.todo
    assert found.actions == ()


def test_a_holder_of_another_pid_namespace_is_left_to_the_gpus_check() -> None:
    assert verdict(gpus=(Gpu(1, processes=(holding(4000),)),)).status == "pass"


def test_without_nvml_the_maps_decide_and_that_is_said() -> None:
    found = verdict(NOTEBOOK, gpus=None)
    assert found.status == "warn"
    assert "NVML did not answer" in found.saw
    assert "NVML did not answer" in verdict(gpus=None).saw


def test_what_was_not_looked_at_is_no_pass() -> None:
    assert verdict(more=3).status == "warn"


def test_where_other_users_are_hidden_nvml_alone_tells_of_them() -> None:
    facts = (PROBE, ProcessFacts(only_own=True))
    nvml = (gpu_facts.PROBE, gpu_facts.GpuFacts(HostSample(0.0)))
    found = others.CHECK.decide(known(facts, nvml), profile())
    assert found.status == "pass"
    assert "hidepid" in found.saw
    assert others.CHECK.decide(known(facts), profile()).status == "warn"


@pytest.mark.parametrize(
    ("options", "hidden"),
    [
        ("rw,nosuid", False),
        ("rw,hidepid=0", False),
        ("rw,hidepid=off", False),
        ("rw,hidepid=2,gid=5", True),
        ("rw,hidepid=invisible", True),
        ("rw,hidepid=ptraceable", True),
    ],
)
def test_what_hides_other_users(options: str, hidden: bool) -> None:
    assert hides(f"proc /proc proc {options} 0 0\nudev /dev devtmpfs rw 0 0\n\n") is hidden
    assert not hides(f"proc /other proc {options} 0 0\n")
    assert not hides("")


def test_many_and_hostile_ones_stay_short() -> None:
    bad = [replace(SERVER, pid=i, root=i, command="\x1b[2J\n" * 99) for i in range(64)]
    found = verdict(*bad)
    assert "\x1b" not in found.saw + found.todo
    assert "and 56 more" in found.saw
    assert len(found.saw) < 2500
    assert len(found.todo) < 300


def test_a_table_that_hangs_warns() -> None:
    silent = Facts(silent={"processes": "did not answer within 8 s"})
    assert others.CHECK.decide(silent, profile()).status == "warn"


# ------------------------------------------------------------------ real processes


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as begin:
        yield begin


_MAPS = (
    "import mmap, pathlib, signal, sys; f = open(sys.argv[1], 'rb'); "
    "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); "
    "pathlib.Path(sys.argv[2]).touch(); signal.pause()"
)


def test_vllm_is_found_by_its_title_and_by_its_library_under_any_name(
    start: Start, tmp_path: Path
) -> None:
    titled = start(["VLLM::Worker_TP3", "600"], executable="/bin/sleep")
    library = tmp_path / "vllm" / "_C.abi3.so"
    library.parent.mkdir()
    library.write_bytes(bytes(4096))
    ready = tmp_path / "ready"
    mapped = start(["nginx", "-c", _MAPS, str(library), str(ready)], executable=sys.executable)
    until(ready.exists)
    facts = gather(PROBE, profile())
    seen = {p.pid: p for p in facts.get(PROBE).found}
    assert seen[titled].kind == "vllm"
    assert seen[mapped].kind == "vllm"
    assert seen[mapped].spared == ""
    found = others.CHECK.decide(facts, profile())
    assert found.status == "warn"
    assert f"pid {mapped} " in found.saw
    assert {f"terminate-{titled}", f"terminate-{mapped}"} <= {a.id for a in found.actions}


@pytest.mark.parametrize("version", ["0.16", "0.32"])
def test_a_renamed_process_of_the_real_vllm_is_found(
    start: Start, tmp_path: Path, version: vllm_env.Version
) -> None:
    python = needs.vllm_python(version)
    (packages,) = (python.parent.parent / "lib").glob("python3.*/site-packages")
    ready = tmp_path / "ready"
    code = "import sys, signal, vllm._C; open(sys.argv[1], 'w').close(); signal.pause()"
    env = {**vllm_env.environment(version), "PYTHONPATH": str(packages)}
    # the name given is argv[0], by which an environment would be found: its packages are named
    pid = start(["nginx", "-c", code, str(ready)], executable=python.resolve(), env=env)
    until(ready.exists, 120)
    (seen,) = (p for p in gather(PROBE, profile()).get(PROBE).found if p.pid == pid)
    assert seen.kind == "vllm"
    assert seen.command.startswith("nginx -c")


def test_a_worker_below_its_server_is_of_one_tree(start: Start, tmp_path: Path) -> None:
    library = tmp_path / "vllm" / "_C.abi3.so"
    library.parent.mkdir()
    library.write_bytes(bytes(4096))
    ready = tmp_path / "ready"
    parent = (
        "import subprocess, sys; child = subprocess.Popen(['VLLM::EngineCore', '600'], "
        "executable='/bin/sleep'); open(sys.argv[3], 'w').write(str(child.pid));" + _MAPS
    )
    note = tmp_path / "child"
    server = start([sys.executable, "-c", parent, str(library), str(ready), str(note)])
    until(ready.exists)
    child = int(note.read_text())
    seen = {p.pid: p for p in gather(PROBE, profile()).get(PROBE).found}
    assert seen[child].root == seen[server].root == server
    os.kill(child, signal.SIGKILL)
