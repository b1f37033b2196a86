"""A history that needs several replies: the command line and a link show all of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3_agent import runs
from eagle3_agent.protocol.messages import ListRuns, RunChanged, Runs, Telemetry
from eagle3_agent.runs import Exit
from eagle3_console.errors import ExitCode
from eagle3_console.link import Link
from eagle3_console.linkstate import Live
from eagle3_console.local import LocalHost
from support import tiny
from support.links import until
from support.local import Local

RUNS = 350
#: So long that a few hundred of them fill more than one reply.
OUTPUT = Path("/nowhere") / "/".join(["x" * 200] * 80)


@pytest.fixture
def local(_own_home: Path, tmp_path: Path) -> Iterator[Local]:
    """A home with ended runs, and one that waits."""
    here = OUTPUT.parents[79]
    profile = tiny.profile(here / "python", here / "model", here / "data", OUTPUT)
    for _ in range(RUNS):
        runs.create(profile, "transformers", attempt=1).write_exit(Exit("aborted", time.time()))
    made = Local(_own_home, tmp_path)
    yield made
    made.close()


def test_every_run_is_listed(local: Local) -> None:
    listed = local.run("runs", "local", "--json")
    assert listed.code == ExitCode.DONE
    assert [run["run"] for run in listed.object["runs"]] == [f"{n:04d}" for n in range(1, RUNS + 1)]
    assert len(local.run("runs", "local").out.splitlines()) >= RUNS


async def test_a_watch_has_every_run_and_tells_only_news_after_a_loss(local: Local) -> None:
    pushed: list[RunChanged | Telemetry] = []
    link = Link(LocalHost(local.env), on_push=pushed.append)
    welcome = await link.connect()
    try:
        page = await link.ask(ListRuns(0))
        assert isinstance(page, Runs)
        assert 0 < page.older < RUNS, "one reply holds them all: the test needs longer ones"
        watched = await link.watch(host_interval=0)
        assert [run.number for run in watched] == list(range(1, RUNS + 1))

        before = link.state
        os.kill(welcome.pid, signal.SIGKILL)
        record = runs.find("0001")
        assert record is not None
        new = runs.create(record.record().profile, "transformers", attempt=2)
        new.write_exit(Exit("aborted", time.time()))
        await until(lambda: link.state is not before and isinstance(link.state, Live), "it is back")
        await until(lambda: bool(pushed), "the new run is told")
        assert [p.summary.number for p in pushed if isinstance(p, RunChanged)] == [RUNS + 1]
    finally:
        await link.close()
