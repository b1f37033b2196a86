"""Progress bars read off a log, whatever else is in it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from eagle3_agent.worker.script.log import Bar, LogFollower, Pace

# as tqdm wrote them for tests/vllm/scripts/02_extract_hidden_states.py
RECORDED = (
    b"Generating hidden states:   0%|          | 0/3 [00:00<?, ?it/s]\r"
    b"Generating hidden states:  33%|\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x8e      | 1/3 "
    b"[00:00<00:00,  2.38it/s]\r"
    b"Generating hidden states: 100%|\xe2\x96\x88\xe2\x96\x88| 3/3 [00:01<00:00,  2.9it/s]\n"
    b"(Worker_TP0 pid=7) 50%|##   | 2/4 [00:01<00:01,  1.9it/s, loss=0.1]\n"
    b" 100%|##########| 7/7 [00:00<00:00, 9.1it/s]\nall is well\n"
)
NAME = "Generating hidden states"
BARS = [
    Bar(NAME, 0, 3),
    Bar(NAME, 1, 3),
    Bar(NAME, 3, 3),
    Bar("(Worker_TP0 pid=7)", 2, 4),
    Bar("", 7, 7),
]


def _follow(path: Path) -> LogFollower:
    return LogFollower(path, 0)


def test_bars_are_read_with_their_names(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"before the script\n" + RECORDED)
    follower = LogFollower(log, len(b"before the script\n"))
    assert follower.read() == BARS
    assert follower.last_line == "all is well"
    assert follower.read() == []


@pytest.mark.parametrize("size", [1, 7, 40, 64])
def test_bars_are_read_once_wherever_the_pieces_end(tmp_path: Path, size: int) -> None:
    follower = _follow(tmp_path / "none")
    found: list[Bar] = []
    for start in range(0, len(RECORDED), size):
        found += follower.feed(RECORDED[start : start + size])
    assert found == BARS


@pytest.mark.parametrize("filler", [b"x", b"1", b"%|", b"1%|", b"99%|" + b"#" * 399 + b"|", b"\r"])
def test_a_line_of_megabytes_is_passed_by(tmp_path: Path, filler: bytes) -> None:
    log = tmp_path / "output.log"
    with log.open("wb") as file:
        file.write(filler * (6 * (1 << 20) // len(filler)))
        file.write(b"\n 50%|## | 1/2 [00:01<00:01]\nend")
    follower = _follow(log)
    began = time.process_time()
    found: list[Bar] = []
    while follower.last_line != "end":
        found += follower.read()
    assert found == [Bar("", 1, 2)]
    assert time.process_time() - began < 5


def test_a_log_that_runs_away_is_followed_at_its_end(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    with log.open("wb") as file:
        file.write(b"a 10%|# | 1/10 [00:01<00:09]\n")
        file.truncate(40 << 20)
        file.seek(0, 2)
        file.write(b"\nb 20%|# | 2/10 [00:01<00:09]\n")
    assert _follow(log).read() == [Bar("b", 2, 10)]


def test_a_log_that_is_gone_has_no_bars(tmp_path: Path) -> None:
    assert _follow(tmp_path / "none").read() == []


def test_the_pace_is_the_moving_bars_own() -> None:
    pace = Pace()
    assert pace.eta(0.0) is None
    pace.see(Bar("Loading safetensors checkpoint shards", 1, 4), 0.0)
    assert pace.eta(1.0) is None
    pace.see(Bar("batches", 10, 110), 100.0)  # what was done before is no speed
    assert pace.eta(100.0) is None
    pace.see(Bar("batches", 30, 110), 120.0)
    assert pace.eta(120.0) == pytest.approx(80.0)
    pace.see(Bar("saving", 0, 5), 130.0)
    assert pace.eta(130.0) is None
    pace.see(Bar("saving", 5, 5), 131.0)
    assert pace.eta(131.0) is None
    pace.see(Bar("nonsense", 9, 5), 132.0)
    pace.see(Bar("empty", 0, 0), 132.0)
    assert pace.eta(133.0) is None
