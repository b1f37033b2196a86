"""cached.py REPORT FOLDER: prefix caching switched on behind the refusal's back."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vllm
from eagle3_agent.worker.capture import extension
from support import vllm_engine as running
from support import vllm_tiny as tiny
from support.vllm_library import told

LAYERS = (1, 7)


def main(report: str, folder: str) -> None:
    root = Path(folder)
    model = tiny.make("llama", root / "model")
    plain = vllm.LLM

    def caching(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **{**kwargs, "enable_prefix_caching": True})

    def quiet(*args: Any) -> None:
        pass

    vllm.LLM = caching
    refused = told(lambda: running.running(running.profile(model, LAYERS)).__enter__())
    extension.refuse = quiet  # type: ignore[attr-defined, assignment]
    row = tiny.sequences([300])[0]
    with running.running(running.profile(model, LAYERS)) as (engine, loaded, _):
        truth = tiny.Truth(model)

        def run(name: str, rows: Sequence[Sequence[int]]) -> Any:
            return running.Extraction(engine, loaded, root / name, LAYERS).run(
                running.samples(rows)
            )

        first = running.samples([row])
        found = {
            "refused": refused,
            "first": run("first", [row]).worst(first, truth),
            "same again": told(lambda: run("second", [row])),
        }
    Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
