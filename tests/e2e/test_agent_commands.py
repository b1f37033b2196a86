"""agent status, stop, upgrade over ssh: looking at an agent must not start one."""

from __future__ import annotations

import pytest

from eagle3_console.errors import ExitCode
from support.sshd import eventually
from support.workstation import ALIAS, Workstation

pytestmark = pytest.mark.ssh


def test_status_and_stop_start_none(desk: Workstation) -> None:
    for _ in range(2):  # with the agent's files still to be sent, and with them there
        shown = desk.run("agent", "status", ALIAS)
        assert shown.code == ExitCode.DONE
        assert shown.out == f"no agent is running on {ALIAS}; a command that needs it starts it\n"
        assert desk.daemon() is None
    stopped = desk.run("agent", "stop", ALIAS, "--json")
    assert stopped.code == ExitCode.DONE
    assert stopped.object == {"target": ALIAS, "stopped": False}
    assert desk.daemon() is None
    told = desk.run("agent", "status", ALIAS, "--json").object
    assert told["running_agent"] is False
    assert told["pid"] is None


def test_status_shows_what_runs_and_stop_ends_it(desk: Workstation) -> None:
    assert desk.run("runs", ALIAS).code == ExitCode.DONE
    pid = desk.daemon()
    assert pid is not None
    told = desk.run("agent", "status", ALIAS, "--json").object
    assert (told["running_agent"], told["pid"], told["outdated"]) == (True, pid, False)

    upgraded = desk.run("agent", "upgrade", ALIAS, "--json").object
    assert upgraded["pid"] == desk.daemon() != pid

    assert desk.run("agent", "stop", ALIAS, "--json").object["stopped"] is True
    eventually(lambda: desk.daemon() is None, "the agent has left")
    assert desk.run("agent", "stop", ALIAS).out == (
        f"no agent is running on {ALIAS}: there is none to stop\n"
    )


def test_upgrade_starts_one_where_none_runs(desk: Workstation) -> None:
    told = desk.run("agent", "upgrade", ALIAS, "--json")
    assert told.code == ExitCode.DONE
    assert told.object["pid"] == desk.daemon() is not None
