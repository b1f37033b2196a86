"""Actions as they are offered, word for word, and units as systemd tells of them."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent import cgroups
from eagle3_agent.cgroups import Place
from eagle3_agent.preflight.actions import offers, stopping, units
from eagle3_agent.preflight.actions.offers import FileInfo, Target
from eagle3_agent.preflight.actions.refused import NotTaken
from eagle3_agent.preflight.actions.units import UnitFacts
from eagle3_agent.protocol.values import Action, GpuProcess, ProcessRef

#: 2026-11-30 15:45:00 in the zone that the tests' host has.
NOW = time.mktime((2026, 11, 30, 15, 45, 0, 0, 0, -1))


# ------------------------------------------------------------------ what is offered


def test_an_end_names_every_process_the_signals_and_the_same_by_hand() -> None:
    action = offers.terminate(
        [Target(510, 80, "root", "VLLM::Worker"), Target(500, 77, "eve", "python3.12 a.py")], "it"
    )
    assert action == Action(
        id="terminate-500-and-1",
        kind="terminate",
        title="End it: 2 processes",
        effect=(
            "pid 500 eve: python3.12 a.py",
            "pid 510 root: VLLM::Worker",
            "TERM, 10 s to leave, then KILL to who is left",
            "each is known by pid and start time; a pid that passed to another is left alone",
            "the same as: kill 500 510; sleep 10; kill -9 500 510",
        ),
        processes=(ProcessRef(500, 77), ProcessRef(510, 80)),
    )


def test_an_end_of_one_names_it_in_its_title() -> None:
    action = offers.terminate([Target(500, 77, "eve", "/opt/bin/python3.12 a.py")], "a stranger")
    assert action is not None
    assert (action.id, action.title) == ("terminate-500", "End pid 500 (python3.12), a stranger")


def test_more_than_anyone_can_agree_to_is_not_offered() -> None:
    crowd = [Target(i, 1) for i in range(1, offers.MOST + 2)]
    assert offers.terminate(crowd, "them") is None
    assert offers.terminate(crowd[:-1], "them") is not None
    assert offers.terminate([], "nobody") is None


def test_hostile_names_cannot_write_to_the_screen() -> None:
    bad = "\x1b]0;x\x07\n" + "n" * 999
    made = [
        offers.terminate([Target(5, 1, bad, bad)], bad),
        offers.move_aside(f"/out/{bad}", FileInfo(1, 2), NOW),
        offers.remove_lock(f"/out/{bad}", FileInfo(1, 2), bad),
    ]
    for action in made:
        assert action is not None
        for line in (action.title, *action.effect):
            assert line.isprintable()
            assert len(line) < 1000


def test_a_gpus_holder_that_nobody_could_name_is_no_target() -> None:
    assert offers.target(GpuProcess(5, "", "", 1)) is None
    assert offers.target(GpuProcess(5, "eve", "x", 1, start_time=9)) == Target(5, 9, "eve", "x")


def test_a_stop_says_what_brings_the_unit_back() -> None:
    unit = UnitFacts("vllm.service", "always", "enabled", ("vllm.socket",))
    action = offers.stop_unit(unit, [Target(500, 77, "vllm", "python")])
    assert action is not None
    assert (action.id, action.title) == ("stop-unit-vllm.service", "Stop vllm.service")
    assert action.effect == (
        "systemctl --no-ask-password stop -- vllm.service",
        "every process of the unit is ended, as its own settings say, among them:",
        "pid 500 vllm: python",
        "Restart=always: systemd starts it again after a crash or a kill, not after this stop",
        "but vllm.socket can start it again: stop that, too, if it does",
        "it is enabled: the next boot starts it again; stopping does not disable it "
        "(systemctl disable vllm.service would)",
        "back again with: systemctl start vllm.service",
    )
    own = offers.stop_unit(UnitFacts("user@1000: vllm.service", "no", "disabled"))
    assert own is not None
    assert own.effect[0] == "systemctl --user --no-ask-password stop -- vllm.service"
    assert "it does not start again by itself (Restart=no)" in own.effect
    assert "nothing is disabled; it is not enabled at boot (disabled)" in own.effect
    assert offers.stop_unit(replace(unit, refusal="the host needs it")) is None


def test_a_move_names_source_and_target_in_one_folder() -> None:
    action = offers.move_aside("/out/hidden states/", FileInfo(7, 8), NOW)
    aside = "/out/hidden states.aside-20261130-154500"
    assert (action.path, action.aside) == ("/out/hidden states", aside)
    assert (action.device, action.inode) == (7, 8)
    assert action.effect[:2] == ("from /out/hidden states", f"to   {aside}")
    assert action.effect[-1] == f"the same as: mv -n -T -- '/out/hidden states' '{aside}'"


def test_the_same_action_is_the_same_targets_and_a_name_of_the_offers_form() -> None:
    asked = offers.move_aside("/out/a", FileInfo(7, 8), NOW)
    later = offers.move_aside("/out/a", FileInfo(7, 8), NOW + 60)
    assert asked.aside != later.aside
    assert offers.same(asked, later)
    assert offers.same(replace(asked, title="x", effect=()), later)
    for changed in (
        replace(asked, inode=9),
        replace(asked, path="/etc"),
        replace(asked, aside="/etc/cron.d/x"),
        replace(asked, aside="/out/a.aside-20261130-154500/../../x"),
        replace(asked, aside=""),
        replace(asked, kind="remove-lock"),
        replace(asked, processes=(ProcessRef(1, 1),)),
    ):
        assert not offers.same(changed, later)
    ended = offers.terminate([Target(5, 1)], "x")
    assert ended is not None
    assert not offers.same(replace(ended, aside="/x"), ended)
    assert not offers.same(replace(ended, processes=(ProcessRef(5, 2),)), ended)


# ------------------------------------------------------------------ units


@pytest.mark.parametrize(
    ("name", "uid", "words"),
    [
        ("vllm.service", 0, ""),
        ("vllm.service", 1000, "only root"),
        ("user@1000: vllm.service", 1000, ""),
        ("user@1000: vllm.service", 1001, "user 1000's manager"),
        ("user@1000: vllm.service", 0, "user 1000's manager"),
        ("agent.service", 0, "the agent itself"),
        ("sshd.service", 0, "the host needs it"),
        ("docker.service", 0, "the host needs it"),
        ("ssh@7-10.0.0.1:22.service", 0, "the host needs it"),
        ("systemd-journald.service", 0, "the host needs it"),
        ("user@1000.service", 0, "the host needs it"),
        ("nvidia-fabricmanager.service", 0, "the host needs it"),
        ("run-1.scope", 0, "is no service"),
        ("x; reboot.service", 0, "no unit's name"),
        ("--force.service", 0, "no unit's name"),
        ("", 0, "no unit's name"),
    ],
)
def test_which_units_nobody_may_have_stopped(name: str, uid: int, words: str) -> None:
    found = units.must_not(name, "agent.service", uid)
    assert (words in found) if words else found == ""


SHOWN = """\
Restart=always
Id=vllm.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled
TriggeredBy=vllm.socket vllm.timer
RefuseManualStop=no

Id=gone.service
LoadState=not-found
ActiveState=inactive
"""


def test_what_systemctl_shows_of_units() -> None:
    told = units.parse(SHOWN)
    found = units.judge("vllm.service", told["vllm.service"])
    assert found == UnitFacts("vllm.service", "always", "enabled", ("vllm.socket", "vllm.timer"))
    assert "not-found" in units.judge("gone.service", told["gone.service"]).refusal
    inactive = {**told["vllm.service"], "ActiveState": "inactive"}
    assert "inactive" in units.judge("vllm.service", inactive).refusal
    guarded = {**told["vllm.service"], "RefuseManualStop": "yes"}
    assert "RefuseManualStop" in units.judge("vllm.service", guarded).refusal
    assert "does not tell" in units.judge("vllm.service", None, "no bus").refusal
    assert units.parse("\x00garbage\n\n\n=x\nId") == {}


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for systemctl on PATH: tells of one unit, and notes each argv that it gets."""
    folder = tmp_path / "bin"
    folder.mkdir()
    notes = tmp_path / "argv"
    fake = folder / "systemctl"
    fake.write_text(
        f"#!/bin/sh\nprintf '%s\\n' \"$*\" >> {notes}\n"
        'case "$*" in *show*) cat <<END\n' + SHOWN + 'END\n;; *) eval "$FAKE_STOP";; esac\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return notes


def test_a_unit_is_stopped_by_one_command_without_a_shell(systemctl: Path) -> None:
    (line,) = stopping.stop("vllm.service")
    assert line.startswith("systemctl --no-ask-password stop -- vllm.service: done in ")
    *asked, stopped = systemctl.read_text().splitlines()
    assert stopped == "--no-ask-password stop -- vllm.service"
    assert asked
    assert all(" show " in argv for argv in asked)


def test_a_users_unit_is_stopped_by_the_users_manager(
    systemctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("FAKE_STOP", 'test "$XDG_RUNTIME_DIR" = /run/user/1000 || exit 1')
    (line,) = stopping.stop("user@1000: vllm.service")
    assert line.startswith("systemctl --user --no-ask-password stop -- vllm.service: done")
    assert systemctl.read_text().splitlines()[-1] == "--user --no-ask-password stop -- vllm.service"
    with pytest.raises(NotTaken, match="user 1001's manager"):
        stopping.stop("user@1001: vllm.service")


def test_a_stop_that_fails_says_what_systemctl_said(
    systemctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_STOP", "echo 'Access denied' >&2; exit 4")
    (line,) = stopping.stop("vllm.service")
    assert "failed after" in line
    assert "Access denied" in line


@pytest.mark.parametrize("name", ["gone.service", "sshd.service", "other.service", "a b.service"])
def test_a_unit_that_must_not_be_stopped_is_not(systemctl: Path, name: str) -> None:
    with pytest.raises(NotTaken):
        stopping.stop(name)
    asked = systemctl.read_text().splitlines() if systemctl.exists() else []
    assert not any(" stop " in argv for argv in asked)


def test_a_unit_in_which_the_agent_or_a_run_lives_is_not_stopped(
    systemctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = os.getpid()
    inside = Place("vllm.service")
    monkeypatch.setattr(cgroups, "place", lambda pid: inside if pid == mine else Place())
    monkeypatch.setattr(stopping, "look", lambda names: (UnitFacts(names[0]),))
    with pytest.raises(NotTaken, match="the agent itself"):
        stopping.stop("vllm.service")
    assert not systemctl.exists()


def test_a_unit_that_podman_serves_is_stopped_with_its_container(
    systemctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = Place("vllm.service", container="podman 4f1c2ab90d21")
    with subprocess.Popen(["sleep", "600"]) as served:
        monkeypatch.setattr(cgroups, "place", lambda pid: inside if pid == served.pid else Place())
        (line,) = stopping.stop("vllm.service")
        served.kill()
    assert "done in" in line


def test_systemd_as_it_is_here_is_asked_and_answers_or_says_why_not() -> None:
    (found,) = units.look(["no-such-unit-of-a-test.service"])
    assert found.refusal
