"""The pool of writers, with bytes for tensors: complete or absent, bounded, stopped by an error."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3_agent.worker import manifest
from eagle3_agent.worker.engines.base import Captured, Sample
from eagle3_agent.worker.errors import OutputError
from eagle3_agent.worker.manifest import Entry
from eagle3_agent.worker.writer import Rejected, Save, Sink, Writer


class Shape:
    """Stands for a state: the pool asks for nothing but its shape."""

    shape = (3, 8)


def captured(index: int) -> Captured:
    return Captured(Sample(index, [1, 2, index], [0, 1, 1]), (Shape(), Shape()))


def plain(made: Captured, file: Sink) -> None:
    file.write(b"sample ")
    file.write(str(made.sample.index).encode())


class Pool:
    """Writers over a folder, with what they called back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: list[Entry] = []
        self.rejected: dict[int, str] = {}
        self._open: list[Writer] = []

    def writer(self, save: Save = plain, threads: int = 2) -> Writer:
        made = Writer(
            self.folder,
            "speculators-pt",
            "bfloat16",
            save=save,
            written=self.written.append,
            rejected=self.rejected.__setitem__,
            threads=threads,
        )
        self._open.append(made)
        return made

    def close(self) -> None:
        for writer in self._open:
            writer.abort()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    folder = tmp_path / "out"
    folder.mkdir()
    made = Pool(folder)
    yield made
    made.close()


def test_every_sample_is_on_the_disk_when_finish_returns(pool: Pool) -> None:
    writer = pool.writer()
    for index in range(50):
        writer.submit(captured(index))
    writer.finish()
    entries = manifest.entries(pool.folder)
    assert sorted(entries) == list(range(50))
    assert {e.index: e for e in pool.written} == entries
    for index, entry in entries.items():
        assert (pool.folder / entry.file).read_bytes() == f"sample {index}".encode()
        assert manifest.intact(pool.folder, entry) == ""
        assert (entry.tokens, entry.layers, entry.hidden) == (3, 2, 8)
    assert len(list(pool.folder.iterdir())) == 51


def test_a_rejected_sample_leaves_nothing(pool: Pool) -> None:
    def save(made: Captured, file: Sink) -> None:
        file.write(b"begun")
        if made.sample.index == 1:
            raise Rejected("not finite")

    writer = pool.writer(save)
    for index in range(3):
        writer.submit(captured(index))
    writer.finish()
    assert pool.rejected == {1: "not finite"}
    names = sorted(p.name for p in pool.folder.iterdir())
    assert names == ["data_0.pt", "data_2.pt", "manifest.jsonl"]


def test_a_slow_disk_holds_the_run_back(pool: Pool) -> None:
    gate, started = threading.Event(), threading.Semaphore(0)

    def save(made: Captured, file: Sink) -> None:
        started.release()
        assert gate.wait(30)
        plain(made, file)

    writer = pool.writer(save, threads=2)
    submitted = []

    def feed() -> None:
        for index in range(10):
            writer.submit(captured(index))
            submitted.append(index)

    feeder = threading.Thread(target=feed)
    feeder.start()
    for _ in range(2):
        assert started.acquire(timeout=30)
    feeder.join(0.5)
    # two being written, two waiting, and the feeder holds the fifth
    assert feeder.is_alive()
    assert len(submitted) == 4
    gate.set()
    feeder.join(30)
    writer.finish()
    assert sorted(manifest.entries(pool.folder)) == list(range(10))


def _submit_many(writer: Writer) -> None:
    """More than the queue holds: the error of an earlier one must come back."""
    for index in range(1000):
        writer.submit(captured(index))


def test_an_error_reaches_the_run_and_stops_the_others(pool: Pool) -> None:
    writer = pool.writer()
    writer.submit(captured(0))
    writer.finish()
    writer = pool.writer()
    shutil.rmtree(pool.folder)
    with pytest.raises(OutputError, match=f"{pool.folder} cannot be written"):
        _submit_many(writer)
    with pytest.raises(OutputError):
        writer.finish()
    assert not pool.folder.exists()


def test_an_error_while_bytes_are_written_leaves_no_file(pool: Pool) -> None:
    def save(made: Captured, file: Sink) -> None:
        file.write(b"x" * 100)
        raise MemoryError

    writer = pool.writer(save)
    writer.submit(captured(0))
    with pytest.raises(MemoryError):
        writer.finish()
    assert list(pool.folder.iterdir()) == []


def test_abort_removes_what_is_half_written(pool: Pool) -> None:
    written, gate = threading.Event(), threading.Event()

    def save(made: Captured, file: Sink) -> None:
        file.write(b"half")
        written.set()
        assert gate.wait(30)
        file.write(b"other half")

    writer = pool.writer(save)
    writer.submit(captured(0))
    assert written.wait(30)
    assert [p.name.endswith(".partial") for p in pool.folder.iterdir()] == [True]
    stopping = threading.Thread(target=writer.abort)
    stopping.start()
    gate.set()
    stopping.join(30)
    assert list(pool.folder.iterdir()) == []
    assert pool.written == []


def test_names_in_progress_do_not_end_in_pt() -> None:
    assert not manifest.partial_name("data_1.pt", 7).endswith("pt")
