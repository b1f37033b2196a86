"""capture.py REPORT FOLDER RANKS: engine vllm over a tiny Llama; errors by source and case."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3_agent.worker.capture import source
from eagle3_agent.worker.engines.base import Sample
from support import vllm_engine as running
from support import vllm_inside as inside
from support import vllm_tiny as tiny
from support.vllm_library import told

LENGTH = 512

#: Source -> layers as asked; 7 is the last one, which the interface is never asked for.
INTERFACE = (5, 1, 3)
MIXED = (2, 2, 7, 5)
HOOKS = (5, 1, 3, 7, 3)


class Cases:
    def __init__(self, folder: Path, ranks: int) -> None:
        self.folder = folder
        self.model = tiny.make("llama", folder / "model")
        self.truth = tiny.Truth(self.model)
        self.ranks = ranks

    def run(self) -> dict[str, Any]:
        asked = running.profile(self.model, INTERFACE, ranks=self.ranks, length=LENGTH)
        with running.running(asked) as (engine, loaded, events):
            self.engine, self.loaded = engine, loaded
            found: dict[str, Any] = {
                "interface": self.errors("interface", INTERFACE, loaded.source),
                "patches": sorted({e.finding.patch for e in events if hasattr(e, "finding")}),
                "loaded": [loaded.dtype, loaded.hidden, loaded.layers, loaded.vocab],
            }
            found["neighbour"] = self.neighbour()
            found["mixed"] = self.errors("mixed", MIXED, self.attach(MIXED, "LSH"))
            if self.ranks == 1:
                # a model that does not offer the interface
                source._interface = lambda model, layers: False
                found["hooks"] = self.errors("hooks", HOOKS, self.attach(HOOKS, "LSH"))
                found["layout"] = self.layout()
            found["ranks that wrote"] = self.everywhere(inside.pools)
            if self.ranks == 1:  # several ranks answer an error, and vLLM reads the first answer
                found["refused"] = told(lambda: self.attach((1, 2), "LSH", prefix_caching=True))
            found["failing step"] = self.failing()
        found["closed twice"] = told(engine.close)
        return found

    def attach(self, layers: Sequence[int], kind: str, prefix_caching: bool = False) -> str:
        self.everywhere(inside.claim_prefix_caching, prefix_caching)
        words: str = self.engine._rpc("eagle3_attach", list(layers), kind)
        return words

    def everywhere(self, function: Any, *arguments: Any) -> list[Any]:
        replies: list[Any] = self.engine._llm.collective_rpc(function, args=arguments)
        return replies

    def errors(self, name: str, layers: Sequence[int], words: str) -> dict[str, Any]:
        rows = tiny.sequences
        same = rows([120])[0]
        found: dict[str, Any] = {"source": words}
        cases: dict[str, list[list[int]]] = {
            "over the budget": rows([100, 200, 300, 50], seed=2),
            "full length": rows([LENGTH, LENGTH, LENGTH - 1, 1, LENGTH], seed=3),
            "shared prefixes": [same, same, same[:89], [*same[:64], 3, 4, 5]],
            "many short ones": rows([9, 17, 1, 30] * 25, seed=4),
        }
        by_value = running.samples(rows([16, 40, 300], seed=5))
        found["by value"] = running.by_value(self.engine, by_value, layers, self.truth)
        for case, sequences in cases.items():
            found[case] = self.extract(f"{name} {case}", layers, running.samples(sequences))
        found["by value again"] = running.by_value(self.engine, by_value, layers, self.truth)
        return found

    def extract(self, name: str, layers: Sequence[int], wanted: list[Sample]) -> float:
        self.last = self.extraction(name, layers).run(wanted)
        return self.last.worst(wanted, self.truth)

    def extraction(self, name: str, layers: Sequence[int], **changes: Any) -> running.Extraction:
        folder = self.folder / name.replace(" ", "-")
        return running.Extraction(self.engine, self.loaded, folder, layers, **changes)

    def failing(self) -> str:
        """The model ends in a bare assert while samples are extracted; the engine is lost."""
        wanted = running.samples(tiny.sequences([200] * 40, seed=8))
        run = self.extraction("failing", INTERFACE)
        self.everywhere(inside.fail_once)
        return told(lambda: run.run(wanted))

    def neighbour(self) -> float:
        """The least error against the layer before: what an off-by-one would show as."""
        wanted = running.samples(tiny.sequences([100, 30], seed=6))
        run = self.extraction("neighbour", INTERFACE).run(wanted)
        run.layers = [layer - 1 for layer in INTERFACE]
        return min(min(run.errors(sample, self.truth)) for sample in wanted)

    def layout(self) -> dict[str, Any]:
        """The other file format, and an arena that holds barely one sample, with its figures."""
        self.attach(HOOKS, "SLH")
        wanted = running.samples(tiny.sequences([LENGTH, 300, 200, 90] * 6, seed=7))
        one = len(HOOKS) * tiny.HIDDEN * 4 * LENGTH
        run = self.extraction("one-sample", HOOKS, kind="safetensors", buffer_bytes=one)
        run.run(wanted)
        return {
            "error": run.worst(wanted, self.truth),
            "peak": run.measured.buffer_peak / one,
            "tokens": run.measured.tokens - sum(len(s.input_ids) for s in wanted),
            "fill": run.measured.fill,
            "padding": run.measured.padding,
            "prefill": run.measured.prefill > 0,
            "write": run.measured.write > 0,
        }


def main(report: str, folder: str, ranks: str) -> None:
    Path(report).write_text(json.dumps(Cases(Path(folder), int(ranks)).run()))


if __name__ == "__main__":
    main(*sys.argv[1:])
