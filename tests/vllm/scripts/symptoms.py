"""symptoms.py REPORT FOLDER GENERATION: what happens when a patch is left out, patch by patch.

GENERATION is ``0.3`` or ``0.4`` of speculators on vLLM 0.16, or ``newest`` for 0.4 on the
newest vLLM.  The library's own loop and worker class are brought to run by the least fixes
(a renamed method, a list around a reply), so that what they do to the data can be seen.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from eagle3_agent.worker.compat import driver, generate
from eagle3_agent.worker.compat.patch import Settings, generator_module
from support import vllm_inside as inside
from support import vllm_library as library
from support import vllm_tiny as tiny

LOOP = tuple(patch.id for patch in generate.PATCHES)
LIMITS = Settings(max_num_batched_tokens=512, max_num_seqs=7)


def without(model: Path, *patches: str) -> str:
    """What starting the generator raises with these patches left out."""

    def start() -> None:
        module = library.patched(patches)
        library.start(module, model, [1, 3]).executor.shutdown()

    return library.told(start)


def without_beside(model: Path, executor: Any, patch: str) -> str:
    """The same for one patch and a loop that is the library's own, over a running executor."""
    module = library.patched((*LOOP, f"speculators/{patch}"), executor=executor)
    return library.told(lambda: library.start(module, model, [1, 3]))


# ------------------------------------------------------------------ configuration


def configured(model: Path, *patches: str) -> dict[str, Any]:
    """What the generator passes to vLLM's configs and what they make of it; starts nothing."""
    module = library.patched(patches, settings=LIMITS)
    parts: dict[str, Any] = {}
    complete = module.VllmConfig

    def recording(**kwargs: Any) -> Any:
        # before vLLM's own defaults for the platform
        parts["asynchronous"] = kwargs["scheduler_config"].async_scheduling
        return complete(**kwargs)

    module.VllmConfig = recording
    generator = object.__new__(module.VllmHiddenStatesGenerator)
    made = generator._create_vllm_config(
        model_path=str(model),
        max_model_len=256,
        gpu_memory_utilization=0.8,
        tensor_parallel_size=1,
    )
    limits = made.scheduler_config
    return {
        "own-dtype": str(made.model_config.dtype),
        "prefix-caching": made.cache_config.enable_prefix_caching,
        "full-length": made.model_config.max_model_len,
        "remote-code": made.model_config.trust_remote_code,
        "async-scheduling": parts["asynchronous"],
        "batch-limits": [limits.max_num_batched_tokens, limits.max_num_seqs],
    }


def configurations(model: Path) -> dict[str, Any]:
    """Patch -> vLLM's setting without it and with it."""
    patched = configured(model)
    found: dict[str, Any] = {
        name: [configured(model, f"speculators/{name}")[name], value]
        for name, value in patched.items()
    }
    found["encoder-decoder-field"] = library.told(
        lambda: configured(model, "speculators/encoder-decoder-field")
    )
    return found


def config_class(folder: Path) -> list[str]:
    """A model type that vLLM alone knows: what its config is without the patch and with it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "kimi_k25"}))

    def read(*patches: str) -> str:
        module = library.patched(patches)
        return library.told(lambda: module.AutoConfig.from_pretrained(str(folder))) or "read"

    return [read("speculators/config-class"), read()]


# ------------------------------------------------------------------ the library's own loop


def library_module(extension: str) -> Any:
    """Everything patched but the loop; its own worker class, or one with the least fix."""
    module = library.patched((*LOOP, "vllm/worker-errors"))
    original = module.ParallelConfig

    def renamed(**kwargs: Any) -> Any:
        return original(**{**kwargs, "worker_extension_cls": extension})

    module.ParallelConfig = renamed
    return module


def loop_0_3(model: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    layers = [5, 1, 3]
    generator = library.start(library_module("support.vllm_inside.RenamedExtension"), model, layers)
    executor = generator.executor
    truth = tiny.Truth(model)
    good = tiny.sequences([30, 20])
    found["vllm/worker-errors"] = library.told(lambda: executor.collective_rpc(inside.bare_assert))
    found["reply-shape"] = library.told(lambda: generator.generate(good))
    _as_list(executor)
    executor.collective_rpc(inside.finish_step)
    first = generator.generate(good)
    found["two-phase-step"] = library.told(lambda: generator.generate(good))
    executor.collective_rpc(inside.finish_step)
    _two_phases(executor)
    found["layer-order"] = _layer_order(first[0], truth.states(good[0]), layers)
    found["whole-prompts"] = _over_budget(generator, truth, sorted(layers))
    found["finished-requests"] = executor.collective_rpc(inside.known_requests)[0]
    long = generator.generate(tiny.sequences([300]))[0]
    found["cut"] = [len(long["input_ids"]), len(long["hidden_states"][0])]
    found["refuse-rows"] = _refusals(generator, good)
    for patch in ("cache-memory", "cache-config", "scheduler-block-size", "tokenizer"):
        found[patch] = without_beside(model, executor, patch)
    executor.shutdown()
    return found


def loop_0_4(model: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    layers = [5, 1, 3]
    generator = library.start(
        library_module("speculators.data_generation.custom_worker.HiddenStatesWorkerExtension"),
        model,
        layers,
    )
    truth = tiny.Truth(model)
    rows = tiny.sequences([20 + n for n in range(12)])
    results = generator.generate(rows)
    found["sample-order"] = [rows.index(r["input_ids"].tolist()) for r in results]
    found["layer-order"] = _layer_order(results[0], truth.states(rows[0]), layers)
    found["finished-requests"] = generator.executor.collective_rpc(inside.known_requests)[0]
    found["held-requests"] = library.told(lambda: generator.generate(tiny.sequences([9] * 40)))
    found["refuse-rows"] = _refusals(generator, rows[:2])
    found["cache-memory"] = without_beside(model, generator.executor, "cache-memory")
    generator.executor.shutdown()
    return found


def _layer_order(result: dict[str, Any], states: list[Any], layers: list[int]) -> dict[str, Any]:
    got = result["hidden_states"]
    return {
        "as asked": [tiny.error(s, states[layer]) for layer, s in zip(layers, got)],
        "ascending": [tiny.error(s, states[layer]) for layer, s in zip(sorted(layers), got)],
    }


def _refusals(generator: Any, good: list[list[int]]) -> list[str]:
    """What an empty row raises, and the good call after it."""
    return [
        library.told(lambda: generator.generate([good[0], []])),
        library.told(lambda: generator.generate(good)),
    ]


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


# ------------------------------------------------------------------ what is run


def on_0_3(model: Path) -> dict[str, Any]:
    found = loop_0_3(model)  # first: a patch of vLLM itself stays for the process
    found.update(configurations(model))
    found["config-class"] = config_class(model.parent / "kimi")
    found["replaced-forward"] = without(model, *LOOP)
    return found


def on_0_4(model: Path) -> dict[str, Any]:
    found = loop_0_4(model)
    found.update(configurations(model))
    return found


def on_newest(model: Path) -> dict[str, Any]:
    """The patches that only a newer vLLM needs."""
    found: dict[str, Any] = {
        "config-annotations": library.told(generator_module),  # before anything mends it
    }
    for name in [n for n in sys.modules if n.partition(".")[0] == "speculators"]:
        del sys.modules[name]
    found["cache-block-size"] = without(model, "speculators/cache-block-size")
    found["request-arguments"] = [library.told(request_as_speculators), library.told(request)]
    return found


def request_as_speculators() -> None:
    from vllm.v1.request import Request

    Request(
        request_id="a",
        prompt_token_ids=[1, 2, 3],
        sampling_params=None,
        pooling_params=None,
        eos_token_id=None,
        arrival_time=0.0,
    )


def request() -> None:
    driver.make_request("a", [1, 2, 3], None)


def main(report: str, folder: str, generation: str) -> None:
    model = tiny.make("llama", Path(folder) / "model")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    run = {"0.3": on_0_3, "0.4": on_0_4, "newest": on_newest}[generation]
    Path(report).write_text(json.dumps(run(model)))


if __name__ == "__main__":
    main(*sys.argv[1:])
