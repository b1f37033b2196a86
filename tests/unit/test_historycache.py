"""What a workstation keeps of a host: readable later, bounded, private, and without secrets."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from eagle3_agent.protocol import decode_event
from eagle3_agent.protocol.events import Note, Wrote
from eagle3_agent.protocol.messages import Detail, GetRun, RunChanged, StreamName
from eagle3_agent.protocol.values import Cause, Problem
from eagle3_console.errors import ConsoleError
from eagle3_console.historycache import HistoryCache
from eagle3_console.linkstate import Offline, Piece
from eagle3_console.remembering import GPU_SAMPLES, LOG_END, Remembering
from support import scenes
from support.fakelink import FakeLink

RUNS = scenes.history()
GONE = Problem("gpu-01 cannot be reached", "no route to host", "look at the network", "connect")


@pytest.fixture
def cache(tmp_path: Path) -> HistoryCache:
    return HistoryCache("root@gpu-01", tmp_path)


def written(cache: HistoryCache) -> str:
    return "".join(p.read_text() for p in cache.folder.iterdir())


def test_what_is_kept_is_read_back_by_a_later_console(cache: HistoryCache, tmp_path: Path) -> None:
    cache.keep_runs(RUNS, 100.0)
    cache.keep_run(scenes.detail(RUNS[2]), 101.0)
    later = HistoryCache("root@gpu-01", tmp_path)
    kept = later.kept()
    assert kept is not None
    assert (kept.at, kept.runs) == (100.0, RUNS)
    found = later.run("0003")
    assert found is not None
    assert found.seen == 101.0
    assert found.detail == scenes.detail(RUNS[2])
    assert later.run("0001") is None
    assert HistoryCache("root@gpu-02", tmp_path).kept() is None


def test_files_are_their_owners_alone_and_no_half_written_one_is_left(cache: HistoryCache) -> None:
    before = os.umask(0)
    try:
        cache.keep_runs(RUNS, 1.0)
        cache.keep_run(scenes.detail(RUNS[0]), 1.0)
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in cache.folder.iterdir()} == {0o600}
    assert {p.name for p in cache.folder.iterdir()} == {"runs.json", "0001.detail.json"}


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"\xff\x00", b'{"version": 1}', b'{"version": 99, "seen": 1, "runs": []}',
     b'{"version":1,"target":"root@gpu-01","seen":1,"runs":[{"run":7}]}', b"[" * 100_000],
)  # fmt: skip
def test_damaged_entries_are_as_good_as_none(cache: HistoryCache, damage: bytes) -> None:
    cache.keep_runs(RUNS, 1.0)
    cache.keep_run(scenes.detail(RUNS[0]), 1.0)
    for file in cache.folder.iterdir():
        file.write_bytes(damage)
    assert cache.kept() is None
    assert cache.run("0001") is None
    assert cache.stream("0001", "events") == b""
    cache.keep_runs(RUNS, 2.0)
    assert cache.kept() is not None


def test_secrets_are_masked_before_they_are_written(cache: HistoryCache) -> None:
    token = "hf_" + "a" * 30
    detail = scenes.detail(RUNS[0])
    host = replace(detail.resolved.host, env={"HF_TOKEN": "plain-word", "X": token})
    cache.keep_run(replace(detail, resolved=replace(detail.resolved, host=host)), 1.0)
    cache.keep_runs((replace(RUNS[0], cause=f"login failed with {token}"),), 1.0)
    cache.keep_stream("0001", "output", f"token={token}\npassword: hunter2\n", 1.0)
    said = written(cache)
    for secret in (token, "plain-word", "hunter2"):
        assert secret not in said
    assert "login failed with" in said


def test_the_oldest_go_first_when_it_is_too_much(tmp_path: Path) -> None:
    cache = HistoryCache("h", tmp_path, limit=200_000)
    cache.keep_runs(RUNS, 1.0)
    for number in range(10):
        cache.keep_stream(f"{number:04d}", "output", "x" * 50_000, 1.0)
        when = 1_000_000_000 + number
        os.utime(cache.folder / f"{number:04d}.output.json", (when, when))
    assert sum(p.stat().st_size for p in cache.folder.iterdir()) <= 200_000
    assert cache.stream("0009", "output")
    assert not cache.stream("0000", "output")
    assert cache.kept() is not None


@pytest.mark.parametrize("name", ["../../evil", "/etc/x", "a/b", "", "x" * 300, "a\x00b"])
def test_a_runs_name_is_never_a_path(cache: HistoryCache, tmp_path: Path, name: str) -> None:
    cache.keep_stream(name, "output", "text", 1.0)
    cache.keep_run(scenes.detail(replace(RUNS[0], run=name)), 1.0)
    assert cache.run(name) is None
    found = {p.name for p in tmp_path.rglob("*") if p.is_file()}
    assert found == set()
    assert not list(tmp_path.parent.glob("evil*"))


def test_a_disk_that_will_not_do_is_not_the_consoles_end(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file where the folder should be")
    cache = HistoryCache("h", tmp_path)
    cache.keep_runs(RUNS, 1.0)
    assert cache.kept() is None


def test_another_run_of_the_same_number_does_not_keep_the_old_ones_log(cache: HistoryCache) -> None:
    cache.keep_run(scenes.detail(RUNS[0]), 1.0)
    cache.keep_stream("0001", "output", "of the old one", 1.0)
    cache.keep_run(scenes.detail(replace(RUNS[0], created=RUNS[0].created + 5)), 2.0)
    assert cache.stream("0001", "output") == b""


def test_another_host_of_the_same_name_does_not_inherit_the_runs(
    cache: HistoryCache, tmp_path: Path
) -> None:
    cache.keep_runs(RUNS, 1.0)
    cache.keep_run(scenes.detail(RUNS[0]), 1.0)
    cache.keep_run(scenes.detail(RUNS[1]), 1.0)
    other = HistoryCache(cache.target, tmp_path)
    other.keep_runs((replace(RUNS[0], created=77.0), RUNS[1]), 2.0)
    assert other.run("0001") is None
    assert other.run("0002") is not None


def test_a_long_log_is_masked_everywhere(cache: HistoryCache) -> None:
    lines = [f"step {i} " + "x" * 90 for i in range(2000)]
    lines[7] = lines[1001] = lines[-1] = "api_key=hunter2 and on"
    cache.keep_stream("0001", "output", "\n".join(lines), 1.0)
    kept = cache.stream("0001", "output").decode()
    assert "hunter2" not in kept
    assert len(kept.splitlines()) == 2000
    key = "-----BEGIN PRIVATE KEY-----\n" + "QUFB\n" * 3000 + "-----END PRIVATE KEY-----\n"
    cache.keep_stream("0001", "output", "before\n" + key + "after\n", 1.0)
    assert b"QUFB" not in cache.stream("0001", "output")
    assert b"after" in cache.stream("0001", "output")


# ---------------------------------------------------------------------------- the link over it


async def read(link: Remembering, run: str, stream: StreamName) -> bytes:
    pieces: AsyncIterator[Piece] = link.stream(run, stream)
    return b"".join([piece.data async for piece in pieces])


async def test_what_passes_the_link_can_be_read_without_it(cache: HistoryCache) -> None:
    real = scenes.failed()
    noted = [Note(float(i), "info", f"note {i}") for i in range(3)]
    many = [Wrote(float(i), i, f"data_{i}.pt", 5, 10, (1,), 4, "bf16") for i in range(500)]
    real.happen("0001", *noted, *many, ended=True)
    cause = Cause("it broke", "RuntimeError", "", line=3000)
    real.details["0003"] = replace(real.details["0003"], cause=cause)
    lines = [b"line %d " % i + b"x" * 200 for i in range(9000)]
    real.write("0001", "output", b"short\n", ended=True)
    real._file("0003", "output").data = bytearray(b"\n".join(lines) + b"\n")
    link = Remembering(real, cache, now=lambda: 500.0)
    await link.connect()
    await link.watch()
    real.push(RunChanged(replace(RUNS[0], state="lost")))
    assert isinstance(await link.ask(GetRun(0, "0003")), Detail)
    assert len(await read(link, "0001", "events")) > 0
    assert await read(link, "0003", "output") == bytes(real._file("0003", "output").data)
    await link.close()

    offline = FakeLink()
    offline.refuse_connect = GONE
    link = Remembering(offline, HistoryCache(cache.target, cache.folder.parent.parent))
    with pytest.raises(ConsoleError, match="cannot be reached"):
        await link.connect()
    assert isinstance(link.state, Offline)
    assert link.kept is not None
    assert link.kept.at == 500.0
    assert (link.kept.runs[0].number, link.kept.runs[0].state) == (1, "lost")
    reply = await link.ask(GetRun(0, "0003"))
    assert isinstance(reply, Detail)
    assert reply.detail.cause is not None
    assert reply.detail.cause.sentence == cause.sentence
    at = reply.detail.cause.line
    events = [decode_event(line) for line in (await read(link, "0001", "events")).splitlines()]
    assert [e for e in events if isinstance(e, Note)] == noted
    assert [e for e in events if isinstance(e, Wrote)] == many[-60:]
    log = await read(link, "0003", "output")
    assert log.endswith(lines[-1] + b"\n")
    assert at is not None
    assert log.splitlines()[at] == lines[3000]
    assert lines[1000] not in log
    assert len(log) < LOG_END + 70_000
    with pytest.raises(ConsoleError, match="was not opened here"):
        await link.ask(GetRun(0, "0002"))


async def test_telemetry_is_spread_over_the_run_and_ends_with_its_last_sample(
    cache: HistoryCache,
) -> None:
    real = scenes.failed()
    samples = [scenes.sample(scenes.NOW + i, 1) for i in range(5000)]
    data = b"".join(json.dumps({"t": s.t, "gpus": []}).encode() + b"\n" for s in samples)
    real.write("0003", "gpu", data, ended=True)
    link = Remembering(real, cache)
    await link.connect()
    await read(link, "0003", "gpu")
    await link.close()
    kept = [json.loads(line)["t"] for line in cache.stream("0003", "gpu").splitlines()]
    assert 0.5 * GPU_SAMPLES < len(kept) <= GPU_SAMPLES
    assert kept[-1] == samples[-1].t
    steps = {round(b - a) for a, b in pairwise(kept)}
    assert len(steps) == 1


async def test_without_history_an_unreachable_host_is_an_error(cache: HistoryCache) -> None:
    real = FakeLink()
    real.refuse_connect = GONE
    link = Remembering(real, cache)
    with pytest.raises(ConsoleError):
        await link.connect()
    assert link.kept is None


async def test_a_log_that_nobody_read_to_its_end_leaves_no_task_behind(cache: HistoryCache) -> None:
    real = scenes.extracting()
    link = Remembering(real, cache)
    await link.connect()
    pieces = link.stream("0004", "events")
    first = await pieces.__anext__()
    await pieces.aclose()  # type: ignore[attr-defined]
    await link.close()
    kept = [decode_event(line) for line in cache.stream("0004", "events").splitlines()]
    assert kept[0] == decode_event(first.data.splitlines()[0])
