"""What the writers tell the run: whole lines once, torn and foreign ones never."""

from __future__ import annotations

import threading
from pathlib import Path

from eagle3_agent.worker.manifest import Entry
from eagle3_agent.worker.writing.ledger import (
    Fault,
    Follower,
    Ledger,
    Line,
    Measured,
    Rejected,
    Written,
)

ENTRY = Entry(4, "data_4.pt", 100, 1000, "s" * 64, "bfloat16", 2, 8, "r" * 64, "m" * 64)
LINES: list[Line] = [
    Written(ENTRY),
    Rejected(5, "the state of token 3 after layer 1 is all zeros"),
    Measured(10, 2, 1.0, 0.5, 0.25, 0.125, 3.0, 0.0, 0.75, 400),
    Fault("no space left on /out", "free some", "full"),
]


def test_every_kind_comes_back_as_it_was_and_once(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    follower = Follower(path)
    assert follower.read() == []
    ledger = Ledger(path)
    for line in LINES[:2]:
        ledger.append(line)
    assert follower.read() == LINES[:2]
    assert follower.read() == []
    for line in LINES[2:]:
        ledger.append(line)
    assert follower.read() == LINES[2:]


def test_a_torn_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    Ledger(path).append(LINES[1])
    whole = path.read_bytes()
    follower = Follower(path)
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        assert follower.read() == []
    path.write_bytes(whole)
    assert follower.read() == [LINES[1]]


def test_lines_that_are_none_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(
        b'\xff\n[]\n{}\n{"type":"Other"}\n{"type":[]}\n{"type":"Rejected","index":"x"}\n\n'
        + b"[" * 100_000
        + b"\n"
    )
    Ledger(path).append(LINES[0])
    assert Follower(path).read() == [LINES[0]]


def test_lines_of_many_threads_do_not_mix(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "samples.jsonl")

    def tell(base: int) -> None:
        for index in range(200):
            ledger.append(Rejected(base + index, "x" * index))

    threads = [threading.Thread(target=tell, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Follower(tmp_path / "samples.jsonl").read()
    assert {x.index for x in found if isinstance(x, Rejected)} == {
        1000 * n + i for n in range(4) for i in range(200)
    }
    assert len(found) == 800
