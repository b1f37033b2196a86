"""writers.py CASE FOLDER: a pool whose writers are processes, and what befalls it; prints JSON.

Needs numpy in the children alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eagle3_agent.worker import manifest
from eagle3_agent.worker.engines.base import Output
from eagle3_agent.worker.writing.item import Item, States
from eagle3_agent.worker.writing.ledger import Fault, Follower, Rejected, Written
from eagle3_agent.worker.writing.pool import Pool, PoolFailed
from eagle3_agent.worker.writing.shared import Shared

HIDDEN, LAYERS = 8, 2


class Bench:
    """A pool over shared memory; every state is 1.0 in bfloat16."""

    def __init__(
        self, root: Path, *, tokens: int = 16, count: int = 4, writers: int = 2, limit: int = 0
    ) -> None:
        self.folder, self.ledger = root / "out", root / "samples.jsonl"
        self.folder.mkdir(exist_ok=True)
        self.tokens, self.size = tokens, tokens * HIDDEN * LAYERS * 2
        self.memory = Shared(self.size * count)
        self.memory.map[:] = b"\x80\x3f" * (len(self.memory.map) // 2)
        if limit:  # of a file's size, from here on
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        self.released: list[int] = []
        output = Output(
            str(self.folder), "speculators-pt", (1, 3), "bfloat16", HIDDEN, {},
            str(self.ledger), writers, self.size * count,
        )  # fmt: skip
        self.pool = Pool(output, memory=self.memory)

    def item(self, index: int, place: int = 0) -> Item:
        offset = place * self.size
        data = memoryview(self.memory.map)[offset : offset + self.size]
        states = States(data, (LAYERS, self.tokens, HIDDEN), "bfloat16", offset)
        return self.of(index, states)

    def of(self, index: int, states: States) -> Item:
        ids = [3 * i for i in range(states.shape[1])]
        release: Callable[[], None] = lambda: self.released.append(index)  # noqa: E731
        return Item(index, ids, [i % 2 for i in ids], states, lambda: None, release)

    def told(self) -> dict[str, Any]:
        """What is there afterwards."""
        lines = Follower(self.ledger).read()
        return {
            "written": sorted(x.entry.index for x in lines if isinstance(x, Written)),
            "rejected": [asdict(x) for x in lines if isinstance(x, Rejected)],
            "faults": [asdict(x) for x in lines if isinstance(x, Fault)],
            "names": sorted(p.name for p in self.folder.iterdir()),
            "intact": [manifest.intact(self.folder, e) for e in self.entries().values()],
            "released": sorted(self.released),
            "children": children(),
        }

    def entries(self) -> dict[int, manifest.Entry]:
        return manifest.entries(self.folder)


def children() -> list[int]:
    """Processes that this one started and that are not over."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found |= {int(pid) for pid in path.read_text().split()}
    return sorted(found)


def failure(call: Callable[[], None]) -> str:
    try:
        call()
    except PoolFailed as error:
        return str(error)
    return ""


def until(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + 60
    while not (value := found()):
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.005)
    return value


# ------------------------------------------------------------------ cases


def good(root: Path) -> dict[str, Any]:
    """As many as two writers take, the same sample by a thread of the pool, and a broken one."""
    bench = Bench(root)
    last = bench.size * 3
    bench.memory.map[last + 4 : last + 6] = b"\xc0\x7f"
    started = len(children())
    for index in range(20):
        bench.pool.submit(bench.item(index, index % 3))
    bench.pool.submit(bench.item(20, 3))
    alone = States(memoryview(b"\x80\x3f" * (bench.size // 2)), (LAYERS, 16, HIDDEN), "bfloat16")
    bench.pool.submit(bench.of(21, alone))
    bench.pool.finish()
    bodies = {(bench.folder / f"data_{i}.pt").read_bytes() for i in (*range(20), 21)}
    entry = bench.entries()[0]
    row = manifest.digest([3 * i for i in range(16)])
    mask = manifest.digest([i % 2 for i in range(16)])
    return {
        **bench.told(), "started": started, "bodies": len(bodies), "peak": bench.pool.peak,
        "digests": [entry.row == row, entry.mask == mask], "seconds": bench.pool.seconds > 0,
    }  # fmt: skip


def torn(root: Path) -> dict[str, Any]:
    """A writer is killed with a sample in its hands."""
    bench = Bench(root, writers=1, tokens=1 << 20, count=1)
    bench.pool.submit(bench.item(0))
    until(lambda: list(bench.folder.iterdir()))
    (child,) = children()
    os.kill(child, signal.SIGKILL)
    began = time.monotonic()
    text = failure(bench.pool.finish)
    return {**bench.told(), "failure": text, "seconds": time.monotonic() - began}


def idle(root: Path) -> dict[str, Any]:
    """A writer that was killed while it had nothing to do is noticed with the next sample."""
    bench = Bench(root, writers=1)
    bench.pool.submit(bench.item(0))
    until(lambda: bench.released)
    os.kill(children()[0], signal.SIGKILL)
    bench.pool.submit(bench.item(1))
    return {"failure": failure(bench.pool.finish), **bench.told()}


def group(root: Path) -> dict[str, Any]:
    """Signals for the whole group of a run are the capturing process's to understand."""
    bench = Bench(root)
    for child in children():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(child, number)
    for index in range(4):
        bench.pool.submit(bench.item(index, index))
    bench.pool.finish()
    return bench.told()


def abort(root: Path) -> dict[str, Any]:
    bench = Bench(root, tokens=1 << 20, count=2)
    for index in range(2):
        bench.pool.submit(bench.item(index, index))
    until(lambda: list(bench.folder.iterdir()))
    began = time.monotonic()
    bench.pool.abort()
    took = time.monotonic() - began
    bench.pool.abort()
    text = failure(lambda: bench.pool.submit(bench.item(5)))
    return {**bench.told(), "took": took, "failure": text}


def stuck(root: Path) -> dict[str, Any]:
    """A writer that does not answer does not keep the run."""
    bench = Bench(root, writers=1)
    bench.pool.submit(bench.item(0))
    until(lambda: bench.released)
    os.kill(children()[0], signal.SIGSTOP)
    bench.pool.submit(bench.item(1))
    began = time.monotonic()
    bench.pool.abort()
    until(lambda: not children())
    return {**bench.told(), "took": time.monotonic() - began}


def limited(root: Path) -> dict[str, Any]:
    """An error of the system is told with its own words, and stops the other writer too."""
    return _until_it_fails(Bench(root, tokens=1 << 12, limit=1 << 16))


def full(root: Path) -> dict[str, Any]:
    """The folder lies on a small tmpfs."""
    return _until_it_fails(Bench(root, tokens=1 << 12))


def _until_it_fails(bench: Bench) -> dict[str, Any]:
    def submit() -> None:
        for index in range(100):
            bench.pool.submit(bench.item(index, index % 4))
        bench.pool.finish()

    text = failure(submit)
    bench.pool.abort()  # as an engine does after an error
    return {"failure": text, **bench.told()}


def unstarted(root: Path) -> dict[str, Any]:
    sys.executable = "/nonexistent/python"
    bench = Bench(root)
    return {"failure": failure(lambda: bench.pool.submit(bench.item(0))), **bench.told()}


def broken(root: Path) -> dict[str, Any]:
    """An interpreter that is no Python."""
    sys.executable = "/bin/false"
    bench = Bench(root)
    bench.pool.submit(bench.item(0))
    return {"failure": failure(bench.pool.finish), **bench.told()}


def orphans(root: Path) -> dict[str, Any]:
    """Says whose parent it is once a file is begun, and stands: a test kills it."""
    bench = Bench(root, tokens=1 << 20, count=2)
    for index in range(2):
        bench.pool.submit(bench.item(index, index))
    until(lambda: list(bench.folder.iterdir()))
    print(json.dumps(children()), flush=True)
    threading.Event().wait()
    return {}


def orphans_of_a_thread(root: Path) -> dict[str, Any]:
    """The same where the pool was made by a thread, which has ended."""
    made: list[Bench] = []
    thread = threading.Thread(target=lambda: made.append(Bench(root, tokens=1 << 20, count=2)))
    thread.start()
    thread.join()
    for index in range(2):
        made[0].pool.submit(made[0].item(index, index))
    until(lambda: list(made[0].folder.iterdir()))
    print(json.dumps(children()), flush=True)
    threading.Event().wait()
    return {}


CASES: Sequence[Callable[[Path], dict[str, Any]]] = (
    good, torn, idle, group, abort, stuck, limited, full, unstarted, broken, orphans,
    orphans_of_a_thread,
)  # fmt: skip


if __name__ == "__main__":
    case = {c.__name__: c for c in CASES}[sys.argv[1]]
    print(json.dumps(case(Path(sys.argv[2]))), flush=True)
