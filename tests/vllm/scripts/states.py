"""states.py REPORT FOLDER KIND DTYPE LAYERS RANKS: errors of every case for one engine start."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3_agent.worker.compat import registry
from eagle3_agent.worker.compat.patch import Settings
from support import vllm_inside as inside
from support import vllm_library as library
from support import vllm_tiny as tiny


class Cases:
    """One running generator and the truth to hold it against."""

    def __init__(
        self, folder: Path, kind: str, dtype: str, layers: Sequence[int], ranks: int
    ) -> None:
        self.layers = list(layers)
        model = tiny.make(kind, folder / "model", dtype)
        module = library.patched()
        first = module.VllmHiddenStatesGenerator.generate
        registry.apply(registry.findings(), Settings())
        self.idempotent = module.VllmHiddenStatesGenerator.generate is first
        began = time.monotonic()
        self.generator = library.start(module, model, layers, tensor_parallel_size=ranks)
        self.seconds = time.monotonic() - began
        if kind == "deepseek":
            self.everywhere(inside.native_rotary)
        self.truth = tiny.Truth(model)

    def everywhere(self, function: Any) -> Any:
        return self.generator.executor.collective_rpc(function)

    def check(self, rows: list[list[int]]) -> float:
        """The worst relative error of all rows and layers of one call."""
        return max(
            self.worst(*pair) for pair in zip(rows, self.generator.generate(rows), strict=True)
        )

    def worst(self, row: list[int], result: dict[str, Any]) -> float:
        """The worst relative error of one sample's layers; infinite for another's rows."""
        if result["input_ids"].tolist() != row:
            return float("inf")
        states = self.truth.states(row)
        pairs = zip(self.layers, result["hidden_states"], strict=True)
        return max(tiny.error(state, states[layer]) for layer, state in pairs)

    def empty(self, rows: list[list[int]], place: int) -> dict[str, Any]:
        """What an empty row in the middle comes back as, and the worst error of the others."""
        results = self.generator.generate([*rows[:place], [], *rows[place:]])
        found = results.pop(place)
        hidden = found["hidden_states"]
        return {
            "ids": [str(found["input_ids"].dtype), list(found["input_ids"].shape)],
            "states": sorted({f"{s.dtype} {list(s.shape)}" for s in hidden}),
            "layers": len(hidden),
            "others": max((self.worst(*p) for p in zip(rows, results, strict=True)), default=0.0),
        }

    def neighbour(self, rows: list[list[int]]) -> float:
        """The least error against the layer before: what an off-by-one would show as."""
        least = float("inf")
        for row, result in zip(rows, self.generator.generate(rows)):
            states = self.truth.states(row)
            for layer, state in zip(self.layers, result["hidden_states"]):
                least = min(least, tiny.error(state, states[layer - 1]))
        return least


def data(cases: Cases) -> dict[str, float]:
    rows = tiny.sequences
    same = rows([120])[0]
    return {
        "mixed lengths": cases.check(rows([100, 17, 1, 50, 2])),
        "second call": cases.check(rows([30, 31, 64], seed=1)),
        "over the budget": cases.check(rows([100, 200, 250, 50], seed=2)),
        "full length": cases.check(rows([256, 256, 255, 256], seed=3)),
        "shared prefixes": cases.check([same, same, same[:89], [*same[:64], 3, 4, 5]]),
        "shared prefixes, later call": cases.check([same, same[:100]]),
        "more rows than slots": cases.check(
            [[*row[:9], n] for n, row in enumerate(rows([9] * 40, seed=4))]
        ),
    }


def refusals(cases: Cases) -> dict[str, Any]:
    good = tiny.sequences([40, 60], seed=5)

    def refused(row: list[int]) -> str:
        return library.told(lambda: cases.generator.generate([good[0], row, good[1]]))

    found: dict[str, Any] = {
        "too long": refused([1] * 257),
        "id past the vocabulary": refused([5, tiny.VOCAB]),
        "negative id": refused([5, -1]),
        "no rows": library.told(lambda: cases.generator.generate([])),
    }
    found["after refusals"] = cases.check(good)
    found["empty row"] = cases.empty(good, 1)
    found["empty rows alone"] = cases.empty([], 0)
    cases.everywhere(inside.fail_once)
    found["failing call"] = library.told(lambda: cases.generator.generate(good))
    found["queued after it"] = len(cases.generator.scheduler.requests)
    found["good call after it"] = cases.check(good)
    found["requests that workers know"] = cases.everywhere(inside.known_requests)[0]
    # last: vLLM leaves the other ranks' replies to a failed call unread
    found["bare assert"] = library.told(lambda: cases.everywhere(inside.bare_assert))
    os.kill(cases.generator.executor.workers[0].proc.pid, signal.SIGKILL)
    found["killed"] = library.told(lambda: cases.generator.generate(good))
    return found


def tensors(cases: Cases) -> dict[str, Any]:
    """A caller may write into what it gets, and repeats are its own."""
    states = cases.generator.generate(tiny.sequences([20]))[0]["hidden_states"]
    before = [float(s.float().sum()) for s in states]
    states[0].add_(1)
    after = [float(s.float().sum()) for s in states]
    return {
        "changed": [b != a for b, a in zip(before, after)],
        "dtype": str(states[0].dtype),
        "own": [s.is_contiguous() for s in states],
    }


def main(report: str, folder: str, kind: str, dtype: str, layers: str, ranks: str) -> None:
    cases = Cases(Path(folder), kind, dtype, json.loads(layers), int(ranks))
    found = {
        "init": cases.seconds,
        "speculators": importlib.metadata.version("speculators"),
        "idempotent": cases.idempotent,
        "data": data(cases),
        "neighbour": cases.neighbour(tiny.sequences([100, 30])),
        "tensors": tensors(cases),
        "refusals": refusals(cases),
    }
    cases.generator.executor.shutdown()
    Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
