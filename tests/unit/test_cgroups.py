"""Where a process lives, from the text of its cgroup: systemd, containers, jobs, both versions."""

from __future__ import annotations

import os

import pytest

from eagle3_agent import cgroups
from eagle3_agent.cgroups import Place

ID = "4f1c2ab90d21" + "e7" * 26
SHORT = "4f1c2ab90d21"
USER = "/user.slice/user-1000.slice"


def v1(path: str, *more: str) -> str:
    """The lines of a host of version 1: the named hierarchy amid the controllers."""
    lines = [f"12:pids:{path}", f"5:cpu,cpuacct:{path}", f"1:name=systemd:{path}", *more]
    return "\n".join(lines) + "\n"


UNITS = [
    ("/system.slice/vllm.service", Place("vllm.service")),
    ("/system.slice/vllm.service/payload", Place("vllm.service")),
    ("/system.slice/system-vllm.slice/vllm@gpu0.service", Place("vllm@gpu0.service")),
    ("/ml.slice/ml-serving.slice/vllm.service", Place("vllm.service")),
    ("/system.slice/_cpu.service", Place("cpu.service")),
    ("/system.slice/vllm.service (deleted)", Place("vllm.service")),
    (r"/system.slice/srv-a\x2db.service", Place(r"srv-a\x2db.service")),
    ("/system.slice/run-r0c1d.scope", Place("run-r0c1d.scope")),
    (f"{USER}/user@1000.service/app.slice/vllm.service", Place("user@1000: vllm.service")),
    (f"{USER}/user@1000.service/vllm.service", Place("user@1000: vllm.service")),
    (f"{USER}/user@1000.service/init.scope", Place()),
    (f"{USER}/user@1000.service/tmux-spawn-1.scope", Place("user@1000: tmux-spawn-1.scope")),
    (f"{USER}/session-3.scope", Place(session="session-3.scope")),
    (f"{USER}/session-c12.scope", Place(session="session-c12.scope")),
    ("/init.scope", Place()),
    ("/", Place()),
    ("/system.slice", Place()),
]

CONTAINERS = [
    (f"/system.slice/docker-{ID}.scope", f"docker {SHORT}"),
    (f"/docker/{ID}", f"docker {SHORT}"),
    (f"/docker/{ID}/system.slice/vllm.service", f"docker {SHORT}"),
    (f"/system.slice/docker-{ID}.scope/system.slice/vllm.service", f"docker {SHORT}"),
    (f"/machine.slice/libpod-{ID}.scope", f"podman {SHORT}"),
    (f"/machine.slice/libpod-{ID}.scope/container", f"podman {SHORT}"),
    (f"/libpod_parent/libpod-{ID}", f"podman {SHORT}"),
    (f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", f"kubernetes {SHORT}"),
    (f"/kubepods.slice/kubepods-besteffort.slice/p.slice/crio-{ID}.scope", f"kubernetes {SHORT}"),
    (f"/kubepods/burstable/pod7c0e/{ID}", f"kubernetes {SHORT}"),
    (
        f"/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}",
        f"kubernetes {SHORT}",
    ),
    (f"/kubepods.slice/kubepods-pod1.slice/docker-{ID}.scope", f"kubernetes {SHORT}"),
    (f"/system.slice/nerdctl-{ID}.scope", f"containerd {SHORT}"),
    (f"/ecs/0a1b/{ID}", f"container {SHORT}"),
    (f"/../../docker/{ID}", f"docker {SHORT}"),
    ("/lxc/101/ns", "lxc 101"),
    ("/lxc.payload.web/system.slice/vllm.service", "lxc web"),
    ("/machine.slice/systemd-nspawn@deb.service/payload/system.slice/x.service", "nspawn deb"),
    ("/machine.slice/machine-deb.scope/payload", "nspawn deb"),
]


@pytest.mark.parametrize(("path", "expected"), UNITS)
def test_a_unit_is_named_as_systemctl_takes_it(path: str, expected: Place) -> None:
    assert cgroups.parse(f"0::{path}\n") == expected
    assert cgroups.parse(v1(path)) == expected
    assert cgroups.parse(v1(path, "0::/")) == expected


@pytest.mark.parametrize(("path", "container"), CONTAINERS)
def test_a_container_is_named_and_no_unit_of_its_engine(path: str, container: str) -> None:
    assert cgroups.parse(f"0::{path}\n") == Place(container=container)
    assert cgroups.parse(v1(path)) == Place(container=container)


def test_a_service_that_podman_runs_is_the_unit_of_its_container() -> None:
    path = f"0::/system.slice/vllm.service/libpod-payload-{ID}\n"
    assert cgroups.parse(path) == Place("vllm.service", f"podman {SHORT}")
    path = f"0::{USER}/user@1000.service/app.slice/vllm.service/libpod-payload-{ID}\n"
    assert cgroups.parse(path) == Place("user@1000: vllm.service", f"podman {SHORT}")


@pytest.mark.parametrize(
    "path",
    [
        "/system.slice/slurmstepd.scope/job_123/step_0/user/task_0",
        "/system.slice/gpu-01_slurmstepd.scope/job_123/step_batch",
        "/slurm/uid_1000/job_123/step_0",
        "/slurm_gpu-01/uid_1000/job_123/step_batch/task_0",
    ],
)
def test_a_batch_job_is_named_and_not_the_unit_of_all_jobs(path: str) -> None:
    assert cgroups.parse(f"0::{path}\n") == Place(job="slurm 123")
    assert cgroups.parse(v1("/system.slice/slurmd.service", f"7:memory:{path}")) == Place(
        job="slurm 123"
    )


def test_the_controllers_of_version_1_tell_a_container_that_systemd_does_not() -> None:
    text = f"12:pids:/docker/{ID}\n1:name=systemd:/system.slice/docker.service\n0::/\n"
    assert cgroups.parse(text) == Place(container=f"docker {SHORT}")


def test_a_unit_is_taken_from_the_hierarchy_that_systemd_keeps() -> None:
    assert cgroups.parse("12:pids:/system.slice/a.service\n1:name=systemd:/\n") == Place()


def test_units_of_another_cgroup_namespace_are_not_named() -> None:
    assert cgroups.parse("0::/../system.slice/vllm.service\n") == Place()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "0::",
        "garbage",
        "0:relative/path.service",
        "0::/system.slice/--now.service",
        "0::/system.slice/a b.service",
        "0::/system.slice/x;reboot.service",
        "0::/system.slice/\x1b[2J.service",
        "0::/system.slice/" + "a" * 300 + ".service",
        "0::/system.slice/.service",
        "0::/job_" + "9" * 50,
        "0::/user@x.service/y",
        f"0::/docker/{ID[:-1]}",
        f"0::/docker/{ID}0",
    ],
)
def test_what_has_no_known_form_names_nothing(text: str) -> None:
    assert cgroups.parse(text) == Place()


def test_names_come_out_printable_and_short() -> None:
    found = cgroups.parse("0::/lxc/\x1b]0;x\x07" + "n" * 500)
    assert found.container.isprintable()
    assert len(found.container) < 80


def test_a_unit_of_a_user_is_told_from_the_systems() -> None:
    assert cgroups.split_user("user@1000: vllm.service") == (1000, "vllm.service")
    assert cgroups.split_user("vllm.service") == (None, "vllm.service")
    assert cgroups.split_user("user@x: vllm.service") == (None, "user@x: vllm.service")
    assert not cgroups.is_unit("user@x: vllm.service")
    assert not cgroups.is_unit("vllm.service\n")


def test_this_process_has_a_place_and_one_that_is_gone_has_none() -> None:
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        assert cgroups.place(os.getpid()) == cgroups.parse(file.read())
    assert cgroups.place(2**22) == Place()
