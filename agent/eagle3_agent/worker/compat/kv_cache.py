"""Patches of how speculators' generator sizes vLLM's KV cache and makes its scheduler.

The order of calls is EngineCore's: ask every worker for its cache spec and its free
memory, derive one config per worker, make the scheduler, then initialise the workers.
"""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any

from .patch import Patch, Settings, Verdict, generator_module, replace
from .sources import Sources, parameters, passed, shown, takes_anything

_KV_UTILS = "vllm.v1.core.kv_cache_utils"
_EXECUTOR = "vllm.v1.executor.abstract"
_SCHEDULER = "vllm.v1.core.sched.scheduler"
_CONFIG_CALL = "get_kv_cache_config_from_groups"


class _Instead:
    """A module as another module sees it, with some names of its own."""

    def __init__(self, module: Any, names: dict[str, Any]) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Building:
    """The executor of the generator that is being built, and its workers' cache configs."""

    executor: Any = None
    memory: list[int] | None = None
    """Free bytes of each worker; asked once, since asking runs the model."""
    worker_configs: list[Any] | None = None

    def free_memory(self) -> list[int]:
        if self.memory is None:
            self.memory = list(self.executor.determine_available_memory())
        return self.memory


_building = _Building()


def _watch_executor() -> None:
    """Remember the executor that the generator makes, and have it use each worker's config."""

    def made(executor_class: Any) -> Any:
        @wraps(executor_class, updated=())
        def make(*args: Any, **kwargs: Any) -> Any:
            executor = executor_class(*args, **kwargs)
            _building.executor, _building.memory = executor, None
            _building.worker_configs = None
            initialize = executor.initialize_from_config

            def initialize_from_config(configs: list[Any]) -> None:
                configs = _building.worker_configs or configs
                initialize(configs)
                executor.collective_rpc("initialize_cache", args=(configs[0].num_blocks, 0))

            executor.initialize_from_config = initialize_from_config
            return executor

        return make

    replace(generator_module(), "MultiprocExecutor", "speculators/kv-cache", made)


# ------------------------------------------------------------------ memory


def _probe_memory(sources: Sources) -> Verdict:
    module, cls = "speculators.data_generation.vllm_hidden_states_generator", "__init__"
    calls = sources.calls(module, f"VllmHiddenStatesGenerator.{cls}", "cuda.mem_get_info")
    if not calls:
        return "not-needed", "the generator does not call torch.cuda.mem_get_info"
    method = sources.function(_EXECUTOR, "Executor.determine_available_memory")
    return "needed", f"the generator calls {shown(calls[0])}; Executor has {shown(method)}"


def _apply_memory(settings: Settings) -> None:
    _watch_executor()

    def made(torch: Any) -> Any:
        def mem_get_info() -> tuple[int, int]:
            free = min(_building.free_memory())
            return free, free

        cuda = _Instead(torch.cuda, {"mem_get_info": mem_get_info})
        return _Instead(torch, {"cuda": cuda})

    replace(generator_module(), "torch", "speculators/cache-memory", made)


# ------------------------------------------------------------------ cache config


def _probe_config(sources: Sources) -> Verdict:
    call = sources.generator_call(_CONFIG_CALL)
    function = sources.function(_KV_UTILS, _CONFIG_CALL)
    seen = f"vLLM has {shown(function)}; the generator calls {shown(call)}"
    known = parameters(function)
    unknown = [k.arg for k in call.keywords if k.arg not in known]
    missing = [n for n, default in known.items() if not default and passed(call, n) is None]
    if (unknown and not takes_anything(function)) or missing:
        sources.function(_KV_UTILS, "get_kv_cache_configs")
        sources.function(_KV_UTILS, "generate_scheduler_kv_cache_config")
        return "needed", seen
    return "not-needed", seen


def _apply_config(settings: Settings) -> None:
    _watch_executor()

    def made(original: Any) -> Any:
        @wraps(original)
        def config(*, vllm_config: Any, **_: Any) -> Any:
            from vllm.v1.core import kv_cache_utils

            specs = _building.executor.get_kv_cache_specs()
            configs = kv_cache_utils.get_kv_cache_configs(
                vllm_config, specs, _building.free_memory()
            )
            _building.worker_configs = configs
            return kv_cache_utils.generate_scheduler_kv_cache_config(configs)

        return config

    replace(generator_module(), _CONFIG_CALL, "speculators/cache-config", made)


# ------------------------------------------------------------------ scheduler


def _probe_scheduler(sources: Sources) -> Verdict:
    call = sources.generator_call("Scheduler")
    init = sources.function(_SCHEDULER, "Scheduler.__init__")
    seen = f"vLLM has Scheduler.{shown(init)}; the generator calls {shown(call)}"
    wanted = [n for n in ("block_size", "hash_block_size") if n in parameters(init)]
    missing = [n for n in wanted if not parameters(init)[n] and passed(call, n) is None]
    return ("needed" if missing else "not-needed"), seen


def _apply_scheduler(settings: Settings) -> None:
    def made(scheduler: Any) -> Any:
        known = inspect.signature(scheduler.__init__).parameters

        @wraps(scheduler, updated=())
        def make(*, vllm_config: Any, **kwargs: Any) -> Any:
            size = _block_size(vllm_config)
            for name in ("block_size", "hash_block_size"):
                if name in known:
                    kwargs.setdefault(name, size)
            return scheduler(vllm_config=vllm_config, **kwargs)

        return make

    replace(generator_module(), "Scheduler", "speculators/scheduler-block-size", made)


def _block_size(vllm_config: Any) -> int:
    parallel = vllm_config.parallel_config
    size: int = vllm_config.cache_config.block_size
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        size *= getattr(parallel, name, 1)
    return size


PATCHES = (
    Patch(
        id="speculators/cache-memory",
        title="Ask the workers for their free memory",
        symptom="Found no NVIDIA driver, from torch.cuda.mem_get_info; on a GPU host: "
        "the figure of one device, from a process that runs no model",
        cause="the generator asks CUDA in its own process",
        change="uses the executor's determine_available_memory, the least of all workers",
        until="speculators asks the executor",
        probe=_probe_memory,
        apply=_apply_memory,
    ),
    Patch(
        id="speculators/cache-config",
        title="Derive the KV cache's config as EngineCore does",
        symptom="get_kv_cache_config_from_groups() got an unexpected keyword argument "
        "'kv_cache_specs'",
        cause="vLLM changed the function's parameters",
        change="calls get_kv_cache_configs for all workers, and gives each its own config",
        until="the call fits the signature",
        probe=_probe_config,
        apply=_apply_config,
    ),
    Patch(
        id="speculators/scheduler-block-size",
        title="Give the scheduler its block size",
        symptom="Scheduler.__init__() missing 1 required positional argument: 'block_size'",
        cause="vLLM added a required parameter",
        change="passes the cache's block size times the context parallel sizes",
        until="speculators passes it",
        probe=_probe_scheduler,
        apply=_apply_scheduler,
    ),
)
