"""What was seen of a host, read again without it."""

from __future__ import annotations

from eagle3_agent.protocol.messages import Detail, GetRun, ListRuns, Runs
from eagle3_console.errors import ExitCode
from support.cli import Bench, detail, summary


def test_runs_show_and_diff_answer_without_the_host(host: Bench) -> None:
    host.answers[ListRuns] = Runs(1, (summary("failed", run="0003", number=3), summary()))
    host.answers[GetRun] = Detail(1, detail())
    online = host.run("runs", "local", "--json").object
    shown = host.run("show", "local", "4", "--json").object
    host.answers.clear()
    ran = host.run("runs", "local", "--offline", "--json")
    assert ran.object["runs"] == online["runs"]
    assert ran.object["seen"] > 0
    assert "local: offline, history of " in ran.err
    assert "just now" in ran.err
    for name in ("4", "0004", "last"):
        again = host.run("show", "local", name, "--offline", "--json").object
        assert {k: v for k, v in again.items() if k != "seen"} == shown
    told = host.run("diff", "local", "4", "last", "--offline")
    assert "nothing differs between the two" in told.out
    lines = host.run("runs", "local", "--offline").out.splitlines()
    assert len(lines) == 3


def test_what_is_not_kept_says_so(host: Bench) -> None:
    ran = host.run("runs", "local", "--offline")
    assert ran.code == ExitCode.FAILED
    assert "Nothing is kept of local" in ran.err
    host.answers[ListRuns] = Runs(1, (summary(),))
    host.run("runs", "local")
    ran = host.run("show", "local", "4", "--offline")
    assert ran.code == ExitCode.FAILED
    assert "Run 4 of local is not kept here" in ran.err
