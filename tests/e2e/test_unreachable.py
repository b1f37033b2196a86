"""Hosts that cannot be reached, through the command line: one message each, exit code 3."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3_console.errors import ExitCode
from support.bare_host import script, tools, without_python
from support.sshd import Sshd, free_port, make_key
from support.workstation import ALIAS, Workstation

pytestmark = pytest.mark.ssh

COMMANDS = (("runs",), ("gpus",), ("agent", "status"))


def refused(desk: Workstation, target: str = ALIAS, command: tuple[str, ...] = ("runs",)) -> str:
    """What the command says; the same must be in its ``--json``, and the code must be 3."""
    ran = desk.run(*command, target)
    assert ran.code == ExitCode.CONNECT
    assert ran.out == ""
    assert ran.err.count("▸") == 1, ran.err
    told = desk.run(*command, target, "--json")
    assert told.code == ExitCode.CONNECT
    assert told.object["problem"]["code"] == "connect"
    assert told.object["problem"]["title"] in ran.err
    return ran.err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_unknown_key_and_nobody_to_ask(stranger: Workstation, command: tuple[str, ...]) -> None:
    said = refused(stranger, command=command)
    assert "SHA256:" in said
    assert not stranger.known_hosts.exists()
    assert stranger.server.execs() == 0


def test_a_changed_key(desk: Workstation) -> None:
    other = make_key(desk.folder / "other_key")
    kind, key = Path(f"{other}.pub").read_text().split()[:2]
    desk.known_hosts.write_text(f"[127.0.0.1]:{desk.server.port} {kind} {key}\n")
    said = refused(desk)
    assert f"{desk.known_hosts}:1" in said
    assert desk.server.execs() == 0


def test_a_name_that_does_not_exist(desk: Workstation) -> None:
    assert "no-such-host.invalid" in refused(desk, "root@no-such-host.invalid")


def test_a_port_that_nobody_listens_on(desk: Workstation) -> None:
    port = free_port()
    assert str(port) in refused(desk, f"root@127.0.0.1:{port}")


def test_a_key_that_the_host_does_not_take(desk: Workstation) -> None:
    (desk.server.folder / "authorized_keys").write_text("")
    said = refused(desk)
    assert "id_ed25519" in said


def profile(desk: Workstation, python: str) -> str:
    return desk.profile(
        host__python=json.dumps(python),
        model__path='"/models/none"',
        capture__layers="[1]",
        data__path='"/data/none.jsonl"',
        output__dir='"/data/out"',
        engine__name='"transformers"',
    )


@pytest.fixture
def bare(make: Callable[..., Sshd], tmp_path: Path) -> Workstation:
    """Before a host without any Python; ``tmp_path/bin`` is its PATH."""
    server = make("bare")
    server.options = (without_python(server, tools(tmp_path / "bin")),)
    desk = Workstation(tmp_path, server.start())
    desk.know_host()
    return desk


def test_no_python_there(bare: Workstation) -> None:
    said = refused(bare)
    assert "There is no Python on gpu" in said
    assert "profile's host.python" in said


def test_the_profiles_python_is_the_way_out(bare: Workstation, tmp_path: Path) -> None:
    script(tmp_path / "bin" / "python3", "echo EAGLE3 3.8.10\n")
    assert "too old" in refused(bare)

    missing = bare.run("preflight", ALIAS, "-p", profile(bare, "/nowhere/bin/python"))
    assert missing.code == ExitCode.CONNECT
    assert "too old" in missing.err

    named = tmp_path / "venv of mine" / "python"
    named.parent.mkdir()
    named.symlink_to(Path(sys.executable).resolve())
    asked = profile(bare, str(named))
    checked = bare.run("preflight", ALIAS, "-p", asked, "--json")
    assert checked.code == ExitCode.FAILED  # reached: it is the checks that block now
    assert "model" in checked.object["blocking"]
    # a command that knows no profile finds the Python that the agent was put there with
    assert bare.run("runs", ALIAS).code == ExitCode.DONE
    assert bare.run("compat", ALIAS, "-p", asked).code == ExitCode.DONE
    refusal = bare.run("start", ALIAS, "-p", asked)
    assert refusal.code == ExitCode.FAILED
    assert "the start" in refusal.err
