"""symptoms.py REPORT FOLDER: what happens when a patch is left out, patch by patch.

The library's own loop and worker class are brought to run by the least fixes (a renamed
method, a list around a reply), so that what they do to the data can be seen.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from eagle3_agent.worker.compat import generate
from support import vllm_inside as inside
from support import vllm_library as library
from support import vllm_tiny as tiny

LOOP = tuple(patch.id for patch in generate.PATCHES)
LIBRARY_EXTENSION = "support.vllm_inside.RenamedExtension"


def without(model: Path, *patches: str) -> str:
    """What starting the generator raises with these patches left out."""
    module = library.patched(patches)
    return library.told(lambda: library.start(module, model, [1, 3]).executor.shutdown())


def configured(model: Path, *patches: str) -> Any:
    """vLLM's config as the generator makes it, without starting anything."""
    module = library.patched(patches)
    generator = object.__new__(module.VllmHiddenStatesGenerator)
    return generator._create_vllm_config(
        model_path=str(model),
        max_model_len=256,
        gpu_memory_utilization=0.8,
        tensor_parallel_size=1,
    )


def configurations(model: Path) -> dict[str, Any]:
    def dtype(*patches: str) -> str:
        return str(configured(model, *patches).model_config.dtype)

    def caching(*patches: str) -> bool:
        return bool(configured(model, *patches).cache_config.enable_prefix_caching)

    def length(*patches: str) -> int:
        return int(configured(model, *patches).model_config.max_model_len)

    def trusted(*patches: str) -> bool:
        return bool(configured(model, *patches).model_config.trust_remote_code)

    def overlapping(*patches: str) -> bool:
        return bool(configured(model, *patches).scheduler_config.async_scheduling)

    def field() -> Any:
        return configured(model, "speculators/encoder-decoder-field")

    return {
        "speculators/encoder-decoder-field": library.told(field),
        "speculators/own-dtype": [dtype("speculators/own-dtype"), dtype()],
        "speculators/prefix-caching": [caching("speculators/prefix-caching"), caching()],
        "speculators/full-length": [length("speculators/full-length"), length()],
        "speculators/remote-code": [trusted("speculators/remote-code"), trusted()],
        "speculators/async-scheduling": [
            overlapping("speculators/async-scheduling"),
            overlapping(),
        ],
    }


def library_loop(model: Path) -> dict[str, Any]:
    """The library's own generate() and worker class, mended one symptom at a time."""
    found: dict[str, Any] = {}
    module = library.patched((*LOOP, "vllm/worker-errors"))
    original = module.ParallelConfig

    def renamed(**kwargs: Any) -> Any:
        return original(**{**kwargs, "worker_extension_cls": LIBRARY_EXTENSION})

    module.ParallelConfig = renamed
    layers = [5, 1, 3]
    generator = library.start(module, model, layers)
    executor = generator.executor
    truth = tiny.Truth(model)
    good = tiny.sequences([30, 20])
    found["vllm/worker-errors"] = library.told(lambda: executor.collective_rpc(inside.bare_assert))
    found["speculators/reply-shape"] = library.told(lambda: generator.generate(good))
    _as_list(executor)
    executor.collective_rpc(inside.finish_step)
    first = generator.generate(good)
    found["speculators/two-phase-step"] = library.told(lambda: generator.generate(good))
    executor.collective_rpc(inside.finish_step)
    _two_phases(executor)
    states = truth.states(good[0])
    got = first[0]["hidden_states"]
    found["speculators/layer-order"] = {
        "as asked": [tiny.error(s, states[layer]) for layer, s in zip(layers, got)],
        "ascending": [tiny.error(s, states[layer]) for layer, s in zip(sorted(layers), got)],
    }
    found["speculators/whole-prompts"] = _over_budget(generator, truth, sorted(layers))
    found["speculators/finished-requests"] = executor.collective_rpc(inside.known_requests)[0]
    found["speculators/refuse-rows"] = [
        library.told(lambda: generator.generate([good[0], []])),
        library.told(lambda: generator.generate(good)),
    ]
    executor.shutdown()
    return found


def _as_list(executor: Any) -> None:
    rpc = executor.collective_rpc

    def collective_rpc(method: Any, *args: Any, **kwargs: Any) -> Any:
        reply = rpc(method, *args, **kwargs)
        return [reply] if method == "_get_captured_states" else reply

    executor.collective_rpc = collective_rpc


def _two_phases(executor: Any) -> None:
    execute = executor.execute_model

    def execute_model(output: Any) -> Any:
        return execute(output) or executor.sample_tokens(None)

    executor.execute_model = execute_model


def _over_budget(generator: Any, truth: Any, layers: list[int]) -> dict[str, Any]:
    rows = tiny.sequences([100, 200, 250, 50])
    results = generator.generate(rows)
    return {
        "rows": [len(r["hidden_states"][0]) for r in results],
        "error of the first": tiny.error(
            results[0]["hidden_states"][0], truth.states(rows[0])[layers[0]]
        ),
        "second": tiny.error(results[1]["hidden_states"][0], truth.states(rows[1])[layers[0]]),
    }


def main(report: str, folder: str) -> None:
    model = tiny.make("llama", Path(folder) / "model")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    found = library_loop(model)  # first: a patch of vLLM itself stays for the process
    found.update(configurations(model))
    for patch in ("cache-memory", "cache-config", "scheduler-block-size"):
        found[f"speculators/{patch}"] = without(model, f"speculators/{patch}")
    found["speculators/replaced-forward"] = without(model, *LOOP)
    found["speculators/tokenizer"] = without(model, "speculators/tokenizer")
    Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
