"""The disk under several writers: measured for real, bounded, removed, and every verdict."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent import ending, processes
from eagle3_agent.preflight.check import Ask, known
from eagle3_agent.preflight.data.data_facts import PROBE as DATA
from eagle3_agent.preflight.data.data_facts import DataFacts
from eagle3_agent.preflight.deep import disk_throughput, disk_writers
from eagle3_agent.preflight.deep.disk_throughput import CHECK, PROBE, DiskFacts
from eagle3_agent.preflight.deep.disk_writers import Asked, Wrote
from eagle3_agent.preflight.model.model_facts import PROBE as MODEL
from eagle3_agent.preflight.model.model_facts import ModelFacts
from eagle3_agent.protocol import dumps
from eagle3_agent.protocol.values import Verdict
from support.preflight import profile, until
from support.vllm_env import AGENT


def judged(facts: DiskFacts, tokens: int | None = None) -> Verdict:
    pairs: list[tuple[Any, Any]] = [(PROBE, facts)]
    if tokens is not None:
        pairs.append((DATA, DataFacts("/d", rows=100, tokens=tokens, tokens_exact=True)))
        pairs.append((MODEL, ModelFacts("/m", hidden=1000, dtype="bfloat16")))
    return CHECK.decide(known(*pairs), profile(capture_layers=(1, 2, 3, 4)))


def measured(rate: float, **changes: Any) -> DiskFacts:
    wrote = Wrote(2_000_000_000, 125, 2e9 / rate, 0.2)
    made = DiskFacts("", "/out", 8, 16_000_000, "the size of its mean sample", wrote)
    return replace(made, **changes)


def test_a_fast_disk_passes_with_its_figures_and_hours() -> None:
    found = judged(measured(1e9), tokens=100_000_000)  # 802 GB
    assert found.status == "pass"
    assert "1000 MB/s durable: 125 files of 15.3 MiB (the size of its mean sample)" in found.saw
    assert "by 8 writers in 2.0 s, the slowest 0.20 s" in found.saw
    assert "take 13 min at that" in found.saw


def test_hours_of_writing_warn() -> None:
    found = judged(measured(50e6), tokens=100_000_000)
    assert found.status == "warn"
    assert "take 4.5 h at that" in found.saw
    assert judged(measured(50e6), tokens=1_000_000).status == "pass"


def test_without_a_prediction_only_a_very_slow_disk_warns() -> None:
    assert judged(measured(60e6)).status == "pass"
    assert judged(measured(20e6)).status == "warn"


def test_a_disk_that_refuses_blocks_and_one_that_hangs_warns() -> None:
    full = judged(measured(1e9, wrote=Wrote(1000, 1, 1.0, 1.0, "No space left\x07 on device")))
    assert full.status == "block"
    assert "No space left\\x07 on device" in full.saw
    hung = judged(measured(1e9, wrote=Wrote(), ended="did not come to its end within 45 s"))
    assert hung.status == "warn"
    assert CHECK.decide(known(), profile()).status == "warn"


def test_no_room_or_no_folder_is_a_skip() -> None:
    assert judged(DiskFacts("/out cannot be looked at")).status == "skip"
    assert judged(measured(1e9, wrote=Wrote())).status == "skip"


# ------------------------------------------------------------------ for real


def test_the_probe_measures_this_disk_and_removes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process but for the keeper: 64 MiB of it are enough for a test."""
    monkeypatch.setattr(disk_throughput, "TOTAL", 80 << 20)
    kept = _Kept(tmp_path)
    (tmp_path / "there").write_text("the user's")
    asked = profile(output_dir=str(tmp_path / "not" / "made"), output_writer_threads=3)
    found = disk_throughput.perform(kept, Ask(asked, deep=True))  # type: ignore[arg-type]
    assert (found.refused, found.ended, found.wrote.problem) == ("", "", "")
    assert found.place == str(tmp_path)
    assert found.wrote.bytes == found.wrote.files * found.file >= 64 << 20
    assert found.wrote.seconds > 0
    (folder,) = kept.folders
    assert folder.parent == tmp_path
    assert list(folder.iterdir()) == []
    folder.rmdir()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scratch", "there"]


class _Kept:
    """A keeper that runs a command and waits for it; what it does else is tested elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.folders: list[Path] = []

    def run(self, commands: Any) -> list[Any]:
        from eagle3_agent.preflight.deep.keeper import Ended

        (command,) = commands
        done = subprocess.run(
            command.argv, input=command.stdin, env=command.env, timeout=60, check=False
        )
        return [Ended(command.name, done.returncode, 1.0)]


@pytest.mark.parametrize("how", ["group", "tree"])
def test_the_whole_probe_leaves_nothing_when_it_is_killed(tmp_path: Path, how: str) -> None:
    """While files are written: by its group as the runner does it, or with all below it."""
    temporary = tmp_path / "temporary"
    output = tmp_path / "output"
    temporary.mkdir()
    output.mkdir()
    request = dumps(Ask(profile(output_dir=str(output)), deep=True))
    code = (
        "import sys, json; from eagle3_agent.preflight.check import Ask; "
        "from eagle3_agent.protocol import from_json; "
        "from eagle3_agent.preflight.deep import disk_throughput as d; "
        "d.PROBE.collect(from_json(Ask, json.loads(sys.argv[1])))"
    )
    probe = subprocess.Popen(
        [sys.executable, "-c", code, request],
        env={**os.environ, "PYTHONPATH": str(AGENT), "TMPDIR": str(temporary)},
        start_new_session=True,
    )
    try:
        until(lambda: any(output.glob(".eagle3-exercise-*/*")), 30)
    finally:
        if how == "tree":
            ending.kill_tree(probe.pid)
        else:
            os.killpg(probe.pid, signal.SIGKILL)
        probe.wait()
    until(lambda: [*output.iterdir(), *temporary.iterdir()] == [], 20)


def test_writers_stop_in_time_and_at_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(str(tmp_path), 1 << 40, 1 << 16, 2, 0.2)
    found = disk_writers.measure(asked)
    assert found.files > 0
    assert found.seconds < 10
    count = iter(range(1000))
    real = os.fsync

    def full(fd: int) -> None:
        if next(count) >= 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    found = disk_writers.measure(replace(asked, threads=1, seconds=60.0))
    assert (found.files, found.problem) == (3, "No space left on device")
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() < 20


def test_a_folder_that_a_dead_exercise_left_is_removed_and_no_other(tmp_path: Path) -> None:
    host = os.uname().nodename
    me = processes.identity(os.getpid())
    assert me is not None
    names = {
        f".eagle3-exercise-{host}-{os.getpid()}-{me.start_time + 1}": False,  # a reused pid
        f".eagle3-exercise-{host}-{os.getpid()}-{me.start_time}": True,  # at work
        f".eagle3-exercise-other-{os.getpid()}-1": True,  # another host's, on a shared disk
        f".eagle3-exercise-{host}-x-1": True,
    }
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.part").write_text("x")
    target = tmp_path / "target"
    target.mkdir()
    link = tmp_path / f".eagle3-exercise-{host}-999999999-1"
    link.symlink_to(target)
    disk_throughput.remove_stale(str(tmp_path))
    assert {name: (tmp_path / name).exists() for name in names} == names
    assert link.is_symlink()
    assert target.exists()


def test_files_are_as_large_as_the_runs_mean_sample(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    config = {"num_hidden_layers": 8, "hidden_size": 512, "vocab_size": 99, "dtype": "bfloat16"}
    (model / "config.json").write_text(json.dumps(config))
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"input_ids": [1] * 300}) + "\n" for _ in range(10)))
    asked = profile(model_path=str(model), data_path=str(data), capture_layers=(1, 2))
    size, told = disk_throughput.sample_size(Ask(asked))
    assert (size, told) == (300 * (2 * 512 * 2 + 16), "the size of its mean sample")
    unknown = replace(asked, data=replace(asked.data, path="/nowhere.jsonl"))
    assert disk_throughput.sample_size(Ask(unknown))[0] == 16 << 20
