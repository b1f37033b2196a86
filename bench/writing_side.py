"""``python -m bench.writing_side JSON``: one side of benchmark ``writing``; prints JSON.

Run by an interpreter that has torch.  ``mode`` says what goes on for ``seconds``: ``main`` a
thread busy as a model's step is, ``plain`` threads that only write, sync and rename, ``pool``
that thread and, fed by it, the worker's own writers: of ``form`` threads or processes, whose
``work`` is real, or waits (``writing_waits``).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import writing_waits

LAYERS, HIDDEN = 4, 2048

#: Launches of a step: a decoder of 16 layers has some 200.
LAUNCHES = 200


class Main:
    """Python between small calls into torch, each of which lets the interpreter's lock go."""

    def __init__(self) -> None:
        self._a, self._b = torch.ones(64), torch.ones(64)
        self.steps = 0

    def step(self) -> None:
        for number in range(LAUNCHES):
            names = {f"layer.{number}.{i}": i for i in range(20)}
            torch.add(self._a, self._b, out=self._b)
            self._b.fill_(float(len(names)))
        self.steps += 1


def main_alone(asked: dict[str, Any]) -> dict[str, float]:
    main = Main()
    main.step()
    began, steps = time.perf_counter(), main.steps
    while time.perf_counter() - began < asked["seconds"]:
        main.step()
    return {"steps": (main.steps - steps) / (time.perf_counter() - began)}


def plain(asked: dict[str, Any]) -> dict[str, float]:
    """Bytes a second of threads that have nothing else to do."""
    folder = Path(asked["folder"])
    body = memoryview(os.urandom(1 << 20) * (_size(asked) >> 20))
    end = time.perf_counter() + asked["seconds"]
    written = []

    def work(number: int) -> None:
        path = folder / f"plain-{number}"
        while time.perf_counter() < end:
            with open(path.with_suffix(".part"), "wb", buffering=0) as file:
                left = body
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            os.rename(path.with_suffix(".part"), path)
            written.append(len(body))

    began = time.perf_counter()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(asked["writers"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"bytes": sum(written) / (time.perf_counter() - began)}


def pool(asked: dict[str, Any]) -> dict[str, float]:
    """Samples that are written again once they are on the disk, so that writers never wait."""
    from eagle3_agent.worker.capture import device
    from eagle3_agent.worker.capture.staging import Arena
    from eagle3_agent.worker.engines.base import Output
    from eagle3_agent.worker.writing.item import Item, States
    from eagle3_agent.worker.writing.pool import Pool

    if asked["work"] == "waits":
        _let_wait()
    size, slots = _size(asked), asked["writers"] + 2
    folder = Path(asked["folder"])
    arena = Arena(device.of(torch.device("cpu")), size * slots)
    output = Output(
        str(folder),
        "speculators-pt",
        (1, 2, 3, 4),
        "bfloat16",
        HIDDEN,
        {},
        str(folder.parent / "samples.jsonl"),
        asked["writers"],
        size * slots,
    )
    made = Pool(output, memory=arena.shared if asked["form"] == "processes" else None)
    free: deque[int] = deque(range(slots))
    written: list[int] = []
    ids = list(range(asked["tokens"]))
    states = []
    for _ in range(slots):
        region = arena.take(size)
        data = region.data.view(torch.bfloat16).view(LAYERS, asked["tokens"], HIDDEN).normal_()
        states.append(States.of(data, arena.offset(region)))

    def done(slot: int) -> None:
        written.append(size)
        free.append(slot)

    main = Main()

    def feed() -> None:
        while free:
            slot = free.popleft()
            made.submit(Item(slot, ids, ids, states[slot], _nothing, partial(done, slot)))

    def spend(seconds: float) -> float:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            feed()
            main.step()
        return time.perf_counter() - began

    while len(written) < 2 * asked["writers"]:  # each has begun
        spend(0.1)
    before, steps, busy = len(written), main.steps, made.seconds
    took = spend(asked["seconds"])
    found = {
        "bytes": (len(written) - before) * size / took,
        "steps": (main.steps - steps) / took,
        "busy": (made.seconds - busy) / took,
    }
    made.finish()
    return found


def _let_wait() -> None:
    """In this process, and in those that it starts."""
    from eagle3_agent.worker.writing import process

    writing_waits.install()
    install = "from bench import writing_waits; writing_waits.install(); "
    process._CODE = process._CODE.replace("from eagle3", f"{install}from eagle3", 1)


def _nothing() -> None:
    pass


def _size(asked: dict[str, Any]) -> int:
    return int(asked["tokens"]) * LAYERS * HIDDEN * 2


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    print(json.dumps({"main": main_alone, "plain": plain, "pool": pool}[request["mode"]](request)))
