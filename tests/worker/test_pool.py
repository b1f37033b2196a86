"""The pool of writers, with bytes for states: complete or absent, bounded, stopped by an error."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.worker import manifest
from eagle3_agent.worker.engines.base import Output
from eagle3_agent.worker.manifest import Marker
from eagle3_agent.worker.writing.formats import Misshapen, Sink, Unfit
from eagle3_agent.worker.writing.item import Item, States
from eagle3_agent.worker.writing.ledger import Fault, Follower, Line, Measured, Rejected, Written
from eagle3_agent.worker.writing.pool import Pool, PoolFailed
from eagle3_agent.worker.writing.sample import Save
from support import tiny

SIZE = 100
MEASURED = Measured(10, 2, 1.0, 0.5, 0.25, 0.125, 3.0, 0.0, 0.75, 400)


class Bench:
    """A folder with pools over it, and what they let go of."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "out"
        self.folder.mkdir()
        self.ledger = root / "samples.jsonl"
        self.released: list[int] = []
        self._open: list[Pool] = []

    def output(self, *, threads: int = 2, buffer_bytes: int = 10 * SIZE) -> Output:
        return Output(
            folder=str(self.folder),
            kind="speculators-pt",
            layers=(1, 2),
            dtype="bfloat16",
            hidden=8,
            metadata={},
            ledger=str(self.ledger),
            threads=threads,
            buffer_bytes=buffer_bytes,
        )

    def pool(self, save: Save, **bounds: int) -> Pool:
        made = Pool(self.output(**bounds), save)
        self._open.append(made)
        return made

    def item(self, index: int) -> Item:
        return Item(
            index,
            [1, 2, index],
            [0, 1, 1],
            States(memoryview(bytes(SIZE)), (2, SIZE // 4, 1), "bfloat16"),
            lambda: None,
            lambda: self.released.append(index),
        )

    def lines(self) -> list[Line]:
        return Follower(self.ledger).read()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def close(self) -> None:
        for pool in self._open:
            pool.abort()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def plain(item: Item, output: Output, file: Sink) -> None:
    file.write(b"sample ")
    file.write(str(item.index).encode())


def test_every_sample_is_on_the_disk_when_finish_returns(bench: Bench) -> None:
    pool = bench.pool(plain)
    for index in range(50):
        pool.submit(bench.item(index))
    pool.tell(MEASURED)
    pool.finish()
    entries = manifest.entries(bench.folder)
    assert sorted(entries) == list(range(50))
    lines = bench.lines()
    assert {x.entry.index: x.entry for x in lines if isinstance(x, Written)} == entries
    (told,) = (x for x in lines if isinstance(x, Measured))
    assert replace(told, disk_free=None, disk_total=None) == MEASURED
    for index, entry in entries.items():
        assert (bench.folder / entry.file).read_bytes() == f"sample {index}".encode()
        assert manifest.intact(bench.folder, entry) == ""
        assert (entry.tokens, entry.layers, entry.hidden) == (3, 2, 8)
    assert len(bench.names()) == 51
    assert sorted(bench.released) == list(range(50))
    assert pool.seconds > 0


def test_a_rejected_sample_leaves_nothing(bench: Bench) -> None:
    def save(item: Item, output: Output, file: Sink) -> None:
        file.write(b"begun")
        if item.index == 1:
            raise Unfit("not finite")

    pool = bench.pool(save)
    for index in range(3):
        pool.submit(bench.item(index))
    pool.finish()
    assert [x for x in bench.lines() if isinstance(x, Rejected)] == [Rejected(1, "not finite")]
    assert bench.names() == ["data_0.pt", "data_2.pt", "manifest.jsonl"]
    assert sorted(bench.released) == [0, 1, 2]


def test_a_slow_disk_holds_the_model_back_by_bytes(bench: Bench) -> None:
    gate, started = threading.Event(), threading.Semaphore(0)

    def save(item: Item, output: Output, file: Sink) -> None:
        started.release()
        assert gate.wait(30)
        plain(item, output, file)

    pool = bench.pool(save, buffer_bytes=4 * SIZE + SIZE // 2)
    submitted: list[int] = []
    full = threading.Event()

    def feed() -> None:
        for index in range(10):
            if index == 4:
                full.set()
            pool.submit(bench.item(index))
            submitted.append(index)

    feeder = threading.Thread(target=feed)
    feeder.start()
    for _ in range(2):
        assert started.acquire(timeout=30)
    assert full.wait(30)
    feeder.join(0.5)
    # two being written, two waiting, and the feeder holds the fifth
    assert feeder.is_alive()
    assert submitted == [0, 1, 2, 3]
    gate.set()
    feeder.join(30)
    pool.finish()
    assert pool.peak == 4 * SIZE
    assert sorted(manifest.entries(bench.folder)) == list(range(10))


def test_a_sample_larger_than_the_bound_passes_alone(bench: Bench) -> None:
    pool = bench.pool(plain, buffer_bytes=1)
    for index in range(5):
        pool.submit(bench.item(index))
    pool.finish()
    assert pool.peak == SIZE
    assert sorted(manifest.entries(bench.folder)) == list(range(5))


def _submit_many(bench: Bench, pool: Pool) -> None:
    """More than the pool holds: an error of an earlier one must come back."""
    for index in range(1000):
        pool.submit(bench.item(index))


def _submit_until_it_fails(bench: Bench, pool: Pool) -> None:
    with pytest.raises(PoolFailed):
        _submit_many(bench, pool)
    with pytest.raises(PoolFailed):
        pool.finish()
    with pytest.raises(PoolFailed):
        pool.tell(MEASURED)
    # the one that was refused too
    assert sorted(bench.released) == list(range(len(bench.released)))


def _fault(bench: Bench) -> Fault:
    (found,) = [line for line in bench.lines() if isinstance(line, Fault)]
    return found


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_once_and_stops_everything(bench: Bench, number: int) -> None:
    def save(item: Item, output: Output, file: Sink) -> None:
        file.write(b"x" * 100)
        raise OSError(number, os.strerror(number), str(bench.folder / ".data_0.pt.1.partial"))

    _submit_until_it_fails(bench, bench.pool(save))
    found = _fault(bench)
    assert (found.kind, found.title) == ("full", f"no space left on {bench.folder}")
    assert bench.names() == []


def test_a_folder_that_is_gone_is_told(bench: Bench) -> None:
    shutil.rmtree(bench.folder)
    _submit_until_it_fails(bench, bench.pool(plain))
    found = _fault(bench)
    assert (found.kind, found.title) == (
        "output",
        f"{bench.folder} cannot be written (No such file or directory)",
    )


def test_states_that_never_arrive_are_the_capture_s_fault(bench: Bench) -> None:
    pool = bench.pool(plain)

    def never() -> None:
        raise RuntimeError("the copy failed")

    item = bench.item(0)
    item.ready = never
    pool.submit(item)
    with pytest.raises(PoolFailed, match="the copy failed"):
        pool.finish()
    found = _fault(bench)
    assert (found.kind, found.title) == ("capture", "RuntimeError: the copy failed")
    assert "in never" in found.text
    assert bench.released == [0]


def test_other_shapes_than_promised_are_the_capture_s_fault(bench: Bench) -> None:
    def save(item: Item, output: Output, file: Sink) -> None:
        raise Misshapen("sample 0: of shape [1]")

    _submit_until_it_fails(bench, bench.pool(save))
    assert _fault(bench) == Fault("sample 0: of shape [1]", "a fault of the engine", "capture")


def test_a_sample_that_is_captured_while_it_is_written_is_the_capture_s_fault(
    bench: Bench,
) -> None:
    gate = threading.Event()

    def save(item: Item, output: Output, file: Sink) -> None:
        assert gate.wait(30)

    pool = bench.pool(save)
    pool.submit(bench.item(7))
    with pytest.raises(PoolFailed, match="sample 7 was captured twice"):
        pool.submit(bench.item(7))
    gate.set()
    pool.abort()
    assert _fault(bench).kind == "capture"
    assert bench.released == [7, 7]
    assert bench.names() == []


def test_a_ledger_that_cannot_be_written_stops_the_pool(bench: Bench) -> None:
    bench.ledger.mkdir()
    pool = bench.pool(plain)
    pool.submit(bench.item(0))
    with pytest.raises(PoolFailed, match=r"samples\.jsonl"):
        pool.finish()


def test_abort_removes_what_is_half_written_and_lets_go_of_everything(bench: Bench) -> None:
    written, gate = threading.Event(), threading.Event()

    def save(item: Item, output: Output, file: Sink) -> None:
        file.write(b"half")
        written.set()
        assert gate.wait(30)
        file.write(b"other half")

    pool = bench.pool(save, threads=1)
    for index in range(3):
        pool.submit(bench.item(index))
    assert written.wait(30)
    assert [name.endswith(".partial") for name in bench.names()] == [True]
    stopping = threading.Thread(target=pool.abort)
    stopping.start()
    gate.set()
    stopping.join(30)
    assert bench.names() == []
    assert bench.lines() == []
    assert sorted(bench.released) == [0, 1, 2]
    pool.abort()
    with pytest.raises(PoolFailed, match="the run was stopped"):
        pool.submit(bench.item(3))
    assert sorted(bench.released) == [0, 1, 2, 3]


def test_finish_looks_around_while_the_disk_is_slow(bench: Bench) -> None:
    gate = threading.Event()

    def save(item: Item, output: Output, file: Sink) -> None:
        assert gate.wait(30)
        plain(item, output, file)

    pool = bench.pool(save)
    pool.submit(bench.item(0))
    looks = 0

    def watch() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            gate.set()

    pool.finish(watch)
    assert looks >= 2
    assert bench.names() == ["data_0.pt", "manifest.jsonl"]


#: One pool in a process of its own: says when half a file is written, then stands.
_HALF = """
import sys, threading
from eagle3_agent.worker.engines.base import Output
from eagle3_agent.worker.writing.item import Item
from eagle3_agent.worker.writing.pool import Pool
class States: nbytes = 1
def save(item, output, file):
    file.write(b"half")
    if item.index == 1:
        print("half", flush=True)
        threading.Event().wait()
folder, ledger = sys.argv[1:]
pool = Pool(Output(folder, "speculators-pt", (1,), "bfloat16", 8, {}, ledger, 1, 1), save)
for index in range(2):
    pool.submit(Item(index, [1], [1], States(), lambda: None, lambda: None))
pool.finish()
"""


def test_a_killed_writer_leaves_whole_files_and_a_claim_clears_the_rest(bench: Bench) -> None:
    command = [sys.executable, "-c", _HALF, str(bench.folder), str(bench.ledger)]
    env = {**os.environ, "PYTHONPATH": str(tiny.AGENT)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    half = manifest.partial_name("data_1.pt", process.pid)
    assert bench.names() == sorted([half, "data_0.pt", "manifest.jsonl"])
    assert list(manifest.entries(bench.folder)) == [0]
    marker = Marker(1, "1", "m", "m", "d", "d", (1,), "c", "bfloat16", 8, "speculators-pt")
    os.close(manifest.claim(bench.folder, marker))
    assert bench.names() == ["data_0.pt", "eagle3.json", "manifest.jsonl"]


#: 3 GiB of samples over a disk that takes 100 samples a second; prints what memory they held.
_MANY = """
import sys, time
from eagle3_agent.worker.engines.base import Output
from eagle3_agent.worker.writing.item import Item
from eagle3_agent.worker.writing.pool import Pool
SIZE = 16 << 20
class States:
    nbytes = SIZE
    def __init__(self): self.body = bytearray(b"x") * SIZE
def save(item, output, file):
    time.sleep(0.01)
    file.write(item.states.body[:16])
def peak():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) * 1024
folder, ledger = sys.argv[1:]
pool = Pool(Output(folder, "speculators-pt", (1,), "bfloat16", 8, {}, ledger, 2, 6 * SIZE), save)
before = peak()
for index in range(200):
    pool.submit(Item(index, [1], [1], States(), lambda: None, lambda: None))
pool.finish()
print((peak() - before) / SIZE)
"""


def test_a_slow_disk_bounds_the_memory_of_the_process(bench: Bench) -> None:
    found = tiny.run_python(
        Path(sys.executable), _MANY, str(bench.folder), str(bench.ledger), path=tiny.AGENT
    )
    # six in the pool, one in the feeder's hands, one that a thread or the feeder has just let go
    assert 4 < float(found) < 9
    assert len(manifest.entries(bench.folder)) == 200


def test_figures_say_how_much_room_the_disk_has_once_a_file_is_written(bench: Bench) -> None:
    pool = bench.pool(plain)
    pool.tell(MEASURED)
    pool.submit(bench.item(1))
    pool.finish()
    pool.tell(MEASURED)
    first, last = (line for line in bench.lines() if isinstance(line, Measured))
    assert (first.disk_free, first.disk_total) == (None, None)
    told = os.statvfs(bench.folder)
    assert last.disk_total == told.f_blocks * told.f_frsize
    assert last.disk_free is not None
    assert abs(last.disk_free - told.f_bavail * told.f_frsize) < 2**30


def test_a_disk_that_does_not_say_its_room_fails_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(path: object) -> os.statvfs_result:
        raise OSError(errno.EIO, "no answer", str(path))

    monkeypatch.setattr(os, "statvfs", refuses)
    pool = bench.pool(plain)
    pool.submit(bench.item(1))
    pool.finish()
    pool.tell(MEASURED)
    assert [line.disk_free for line in bench.lines() if isinstance(line, Measured)] == [None]
