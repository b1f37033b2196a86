"""speculators 0.3's own generator and loop, made to run on a newer vLLM and no more.

The product's patches of configuration, memory and scheduler are applied, since
without them nothing starts; its replacement of ``generate`` and of the capture is
not.  Three shims stand for the rest of what 0.3.0 needs to run on 0.12 and later: the
new name of the embedding call, the second phase of a step, and the shape of one reply.
The loop is that of the library's script: batches, and four threads that ``torch.save``.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import files
from .spec import Round, Spec, rows
from .versions import versions

#: What the scripts of 0.3 save with.
_SAVERS = 4
_BUDGET = 8192
_EXTENSION = "bench.extraction.library_worker.Extension"


class Library:
    """See ``spec.Side``."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        data = rows(spec.data)
        # a batch beyond one step's tokens comes out wrong: the library aborts after one step
        per_batch = max(1, _BUDGET // spec.longest)
        self._batches = [data[i : i + per_batch] for i in range(0, len(data), per_batch)]
        self._count, self._tokens = len(data), sum(map(len, data))
        self._generator = _made(spec)
        self._generator.generate(self._batches[0])
        self.about = {**versions(), "batch": per_batch}

    def round(self) -> Round:
        import torch

        folder = files.emptied(self._spec.out)
        began = time.perf_counter()
        futures = []
        number = 0
        with ThreadPoolExecutor(_SAVERS) as pool:
            for batch in self._batches:
                for row, found in zip(batch, self._generator.generate(batch), strict=True):
                    sample = {
                        "input_ids": found["input_ids"],
                        "hidden_states": [h.contiguous() for h in found["hidden_states"]],
                        "loss_mask": torch.ones(len(row), dtype=torch.long),
                    }
                    futures.append(pool.submit(torch.save, sample, folder / f"data_{number}.pt"))
                    number += 1
            seconds = time.perf_counter() - began
            for future in futures:
                future.result()
        closed = time.perf_counter() - began
        files.sync(folder, "data_*.pt")
        durable = time.perf_counter() - began
        written = files.size(folder, "data_*.pt", self._count)
        files.emptied(self._spec.out)
        return Round(self._tokens, seconds, 0.0, durable, written, {"closed": closed})

    def close(self) -> None:
        self._generator.executor.shutdown()


def _made(spec: Spec) -> Any:
    from eagle3_agent.worker.compat import generate, registry
    from eagle3_agent.worker.compat.patch import Settings, generator_module

    # what it takes to start: not what it takes to be right
    found = [
        f
        for f in registry.findings()
        if f.status == "needed" and _patch(f.patch) not in (None, generate.apply)
    ]
    registry.apply(found, Settings(spec.dtype))
    module = generator_module()
    module.ParallelConfig = _extended(module.ParallelConfig)
    made = module.VllmHiddenStatesGenerator(
        model_path=spec.model,
        layer_ids=sorted(set(spec.layers)),
        max_model_len=spec.longest + 1,
        gpu_memory_utilization=spec.memory,
        tensor_parallel_size=1,
    )
    _complete_steps(made.executor)
    return made


def _patch(name: str) -> Any:
    from eagle3_agent.worker.compat import registry

    return next((p.apply for p in registry.PATCHES if p.id == name), None)


def _extended(parallel_config: Any) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        return parallel_config(*args, **{**kwargs, "worker_extension_cls": _EXTENSION})

    return make


def _complete_steps(executor: Any) -> None:
    """Both phases of a step, and one reply as a list of one."""
    import torch

    execute, call = executor.execute_model, executor.collective_rpc

    def execute_model(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        found = execute(scheduled, *args, **kwargs)
        if found is None and hasattr(executor, "sample_tokens"):
            return executor.sample_tokens(None)
        return found

    def collective_rpc(*args: Any, **kwargs: Any) -> Any:
        found = call(*args, **kwargs)
        bare = isinstance(found, list) and found and isinstance(found[0], torch.Tensor)
        return [found] if bare else found

    executor.execute_model = execute_model
    executor.collective_rpc = collective_rpc
