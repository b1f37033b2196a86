"""orphan.py REPORT FOLDER: two ranks that extract without an end, to be killed; tells pids."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

from eagle3_agent.worker.engines.base import Sample
from support import vllm_engine as running
from support import vllm_inside as inside
from support import vllm_tiny as tiny

LAYERS = (1, 7)


def main(report: str, folder: str) -> None:
    root = Path(folder)
    model = tiny.make("llama", root / "model")
    with running.running(running.profile(model, LAYERS, ranks=2)) as (engine, loaded, _):
        pids = engine._llm.collective_rpc(inside.pid)
        endless = (
            Sample(i, row, [1] * len(row))
            for i, row in zip(itertools.count(), itertools.repeat(tiny.sequences([200])[0]))
        )
        extraction = running.Extraction(engine, loaded, root / "run", LAYERS)
        told = False

        def watch() -> None:
            nonlocal told
            if not told and Path(extraction.output.ledger).exists():
                told = True
                Path(report).write_text(json.dumps([os.getpid(), *pids]))

        engine.extract(endless, extraction.output, watch)


if __name__ == "__main__":
    main(*sys.argv[1:])
