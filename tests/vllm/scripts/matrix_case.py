"""matrix_case.py REPORT FOLDER MODELS ENGINE MENDS CASES: one engine over some checkpoints.

CASES are [name, kind, dtype]. The report holds for each the error of every layer, or the reason
why there is none.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from support import vllm_matrix as matrix
from support import vllm_mends


def main(report: str, folder: str, models: str, engine: str, mends: str, cases: str) -> None:
    vllm_mends.use(json.loads(mends), Path(folder))
    if engine != "transformers":
        import vllm  # noqa: F401  # most of a case's time, and all cases inherit it
    found = {}
    for name, kind, dtype in json.loads(cases):
        own = Path(folder) / name
        own.mkdir()
        child = get_context("fork").Process(
            target=case, args=(Path(models) / kind, own, engine, dtype)
        )
        child.start()
        child.join()
        told = own / "told.json"
        found[name] = (
            json.loads(told.read_text())
            if told.exists()
            else {"failed": f"the process ended with {child.exitcode}"}
        )
        print(name, found[name], flush=True)
    Path(report).write_text(json.dumps(found))


def case(place: Path, folder: Path, engine: str, dtype: str) -> None:
    """One case, in a process of its own: nothing else gives all of an engine's memory back."""
    began = time.monotonic()
    try:
        found = measure(place, folder, engine, dtype)
    except Exception as error:
        traceback.print_exc()
        found = {"failed": f"{type(error).__name__}: {error}"}
    found["seconds"] = round(time.monotonic() - began, 1)
    (folder / "told.json").write_text(json.dumps(found))


def measure(place: Path, folder: Path, name: Any, dtype: Any) -> dict[str, Any]:
    from safetensors.torch import load_file

    from eagle3_agent.worker import engines
    from eagle3_agent.worker.engines.base import Output, Sample

    rows = json.loads((place / "rows.json").read_text())
    truth = load_file(place / "truth.safetensors")
    layers = matrix.order(len(truth["0"]))
    asked = matrix.profile(json.loads((place / "checkpoint.json").read_text()), name, dtype, layers)
    samples = [
        Sample(i, row, [(i + j) % 3 % 2 for j in range(len(row))]) for i, row in enumerate(rows)
    ]
    out = folder / "out"
    out.mkdir()
    engine = engines.create(name)
    try:
        loaded = engine.load(asked, lambda event: None)
        output = Output(
            folder=str(out),
            kind=asked.output.format,
            layers=layers,
            dtype=loaded.dtype,
            hidden=loaded.hidden,
            metadata={},
            ledger=str(folder / "samples.jsonl"),
            threads=2,
            buffer_bytes=8 << 20,
        )
        engine.extract(iter(samples), output, lambda: None)
    finally:
        engine.close()
    errors = compare(output, samples, truth)
    return {"source": loaded.source, "dtype": loaded.dtype, "errors": errors}


def compare(output: Any, samples: Sequence[Any], truth: Any) -> list[float]:
    """The worst error of each layer of the model; what the ledger tells of must be the files."""
    from eagle3_agent.worker import stored
    from eagle3_agent.worker.writing.ledger import Follower, Written
    from support import vllm_tiny as tiny

    lines = Follower(Path(output.ledger)).read()
    written = {line.entry.index: line.entry for line in lines if isinstance(line, Written)}
    assert sorted(written) == [s.index for s in samples], lines
    errors = [0.0] * len(truth["0"])
    for sample in samples:
        entry = written[sample.index]
        file = stored.load(Path(output.folder) / entry.file, output.kind)
        assert not stored.check(file, entry, sample), stored.check(file, entry, sample)
        for layer, state in zip(output.layers, file.states, strict=True):
            worst = tiny.token_error(state, truth[str(sample.index)][layer])
            errors[layer] = max(errors[layer], worst)
    return errors


if __name__ == "__main__":
    main(*sys.argv[1:])
