"""Patches of how speculators' generator sizes vLLM's KV cache and makes its scheduler.

The order of calls is EngineCore's: ask every worker for its cache spec, settle the layout
where this vLLM has one, ask for the free memory, derive one config per worker, make the
scheduler, then start the workers' caches.
"""

from __future__ import annotations

import ast
import inspect
from functools import wraps
from typing import Any

from .patch import Patch, Settings, Verdict, generator_module, replace, wrap
from .sources import (
    GENERATOR,
    GENERATOR_CLASS,
    Sources,
    UnreadableError,
    parameters,
    passed,
    shown,
    takes_anything,
)

_KV_UTILS = "vllm.v1.core.kv_cache_utils"
_EXECUTOR = "vllm.v1.executor.abstract"
_CORE = "vllm.v1.engine.core"
_SCHEDULER = "vllm.v1.core.sched.scheduler"
_CACHE = "vllm.config.cache"
_CONFIG_CALL = "get_kv_cache_config_from_groups"


#: CacheConfig has it where vLLM itself chooses the block size once the backend is known (0.18).
_CHOSEN = "user_specified_block_size"


class _Instead:
    """A module as another module sees it, with some names of its own."""

    def __init__(self, module: Any, names: dict[str, Any]) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Building:
    """The executor of the generator that is being built, and its workers' cache configs."""

    def __init__(self, executor: Any = None, vllm_config: Any = None) -> None:
        self.executor = executor
        self.vllm_config = vllm_config
        self.worker_configs: list[Any] | None = None
        self._memory: list[int] | None = None
        self._specs: list[Any] | None = None

    def free_memory(self) -> list[int]:
        """Free bytes of each worker; asked once, since asking runs the model."""
        if self._memory is None:
            self.specs()  # the layout comes before the run that measures
            self._memory = list(self.executor.determine_available_memory())
        return self._memory

    def specs(self) -> list[Any]:
        """Each worker's cache spec; settles what this vLLM settles first, once."""
        if self._specs is None:
            _register_specs(self.vllm_config)
            self._specs = list(self.executor.get_kv_cache_specs())
            _settle_layout(self.executor, self.vllm_config, self._specs)
        return self._specs

    def derive(self) -> Any:
        """One config per worker, kept for the start; returns the scheduler's."""
        from vllm.v1.core import kv_cache_utils

        configs = kv_cache_utils.get_kv_cache_configs(
            self.vllm_config, self.specs(), self.free_memory()
        )
        layout = getattr(self.vllm_config.cache_config, "kv_cache_layout", None)
        for config in configs:
            if layout is not None:
                config.kv_cache_layout = layout
        self.worker_configs = configs
        made = kv_cache_utils.generate_scheduler_kv_cache_config(configs)
        cache = self.vllm_config.cache_config
        if hasattr(cache, _CHOSEN) and made.kv_cache_groups:
            cache.block_size = min(g.kv_cache_spec.block_size for g in made.kv_cache_groups)
        return made


_building = _Building()


def _register_specs(vllm_config: Any) -> None:
    """vLLM 0.24 and later keep a table of cache specs in the process that schedules."""
    from vllm.v1.core import single_type_kv_cache_manager as managers

    register = getattr(managers, "register_all_kvcache_specs", None)
    if register is not None:
        register(vllm_config)


def _settle_layout(executor: Any, vllm_config: Any, specs: list[Any]) -> None:
    """vLLM 0.32 settles one layout for all workers before it measures."""
    if not hasattr(executor, "set_kv_cache_layout"):
        return
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout

    layout = resolve_kv_cache_layout(
        vllm_config,
        executor.get_supported_kv_cache_layouts(),
        [spec for of_worker in specs for spec in of_worker.values()],
    )
    executor.set_kv_cache_layout(layout.name)


def _watch_executor() -> None:
    """Remember the executor that the generator makes, and start each worker's own cache."""

    def made(executor_class: Any) -> Any:
        @wraps(executor_class, updated=())
        def make(*args: Any, **kwargs: Any) -> Any:
            global _building
            executor = executor_class(*args, **kwargs)
            _building = _Building(executor, executor.vllm_config)
            initialize = executor.initialize_from_config

            def initialize_from_config(configs: list[Any]) -> None:
                configs = _building.worker_configs or configs
                initialize(configs)
                executor.collective_rpc(_use_blocks, args=(configs[0].num_blocks,))
                if hasattr(executor, "compile_or_warm_up_model"):
                    executor.compile_or_warm_up_model()

            executor.initialize_from_config = initialize_from_config
            return executor

        return make

    replace(generator_module(), "MultiprocExecutor", "speculators/kv-cache", made)


def _use_blocks(worker: Any, blocks: int) -> None:
    """In a worker: keep the number of blocks, which vLLM before 0.18 wants told."""
    tell = getattr(worker, "initialize_cache", None)
    if tell is not None:
        tell(blocks, 0)


# ------------------------------------------------------------------ memory


def _probe_memory(sources: Sources) -> Verdict:
    calls = sources.calls(GENERATOR, f"{GENERATOR_CLASS}.__init__", "mem_get_info")
    if not calls:
        return "not-needed", "the generator does not call mem_get_info"
    method = sources.function(_EXECUTOR, "Executor.determine_available_memory")
    return "needed", f"the generator calls {shown(calls[0])}; Executor has {shown(method)}"


def _apply_memory(settings: Settings) -> None:
    _watch_executor()

    def mem_get_info() -> tuple[int, int]:
        free = min(_building.free_memory())
        return free, free

    module = generator_module()
    if hasattr(module, "mem_get_info"):
        replace(module, "mem_get_info", "speculators/cache-memory", lambda _: mem_get_info)
        return

    def made(torch: Any) -> Any:
        return _Instead(torch, {"cuda": _Instead(torch.cuda, {"mem_get_info": mem_get_info})})

    replace(module, "torch", "speculators/cache-memory", made)


# ------------------------------------------------------------------ cache config


def _probe_config(sources: Sources) -> Verdict:
    call = sources.generator_call(_CONFIG_CALL)
    function = sources.function(_KV_UTILS, _CONFIG_CALL)
    reasons = []
    unknown, missing = _misfit(call, function)
    if unknown or missing:
        reasons.append(f"vLLM has {shown(function)}; the generator calls {shown(call)}")
    reasons += [f"EngineCore {what}, the generator does not" for what in _steps_of_core(sources)]
    if not reasons:
        return "not-needed", f"{shown(call)} fits, and EngineCore does nothing else"
    for name in ("get_kv_cache_configs", "generate_scheduler_kv_cache_config"):
        sources.function(_KV_UTILS, name)
    sources.function(_EXECUTOR, "Executor.get_kv_cache_specs")
    return "needed", "; ".join(reasons)


def _steps_of_core(sources: Sources) -> list[str]:
    """What this vLLM's EngineCore does about the cache and the generator leaves out."""
    core = ast.unparse(sources.find(_CORE, "EngineCore"))
    steps = {
        "'initialize_cache'": "tells the workers their number of blocks",
        "register_all_kvcache_specs(": "registers the cache specs",
        "set_kv_cache_layout(": "settles the cache's layout",
        "compile_or_warm_up_model(": "has the workers warm up",
        "cache_config.block_size = ": "takes the block size that the workers chose",
    }
    return [words for name, words in steps.items() if name in core]


def _misfit(call: ast.Call, function: Any) -> tuple[list[str], list[str]]:
    """Keywords that the function does not take, and parameters that it needs and lacks."""
    known = parameters(function)
    given = [k.arg for k in call.keywords if k.arg]
    unknown = [] if takes_anything(function) else [name for name in given if name not in known]
    missing = [n for n, default in known.items() if not default and n not in given]
    return unknown, missing


def _apply_config(settings: Settings) -> None:
    _watch_executor()

    def made(original: Any) -> Any:
        @wraps(original)
        def config(**_: Any) -> Any:
            return _building.derive()

        return config

    replace(generator_module(), _CONFIG_CALL, "speculators/cache-config", made)


# ------------------------------------------------------------------ block size


def _probe_block_size(sources: Sources) -> Verdict:
    call = sources.generator_call("CacheConfig")
    if passed(call, "block_size") is None:
        return "not-needed", f"the generator calls {shown(call)}"
    seen = f"the generator calls {shown(call)}; CacheConfig has "
    if sources.field(_CACHE, "CacheConfig", _CHOSEN) is None:
        return "not-needed", f"{seen}no {_CHOSEN}: vLLM changes a size that does not fit"
    return "needed", f"{seen}{_CHOSEN}: a size that is given is not changed"


def _apply_block_size(settings: Settings) -> None:
    def made(cache_config: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop("block_size", None)
            return cache_config(*args, **kwargs)

        return make

    wrap("CacheConfig", "speculators/cache-block-size", made)


# ------------------------------------------------------------------ scheduler


def _probe_scheduler(sources: Sources) -> Verdict:
    call = sources.generator_call("Scheduler")
    init = sources.function(_SCHEDULER, "Scheduler.__init__")
    seen = f"vLLM has Scheduler.{shown(init)}; the generator calls {shown(call)}"
    unknown, missing = _misfit(call, init)
    beyond = [n for n in (*unknown, *missing) if n not in _BLOCK_SIZES]
    if beyond:
        raise UnreadableError(f"{', '.join(beyond)} is not known to this patch: {seen}")
    if sources.field(_CACHE, "CacheConfig", _CHOSEN) is not None:
        return "needed", f"{seen}; CacheConfig has {_CHOSEN}: the size is known later"
    return ("needed" if unknown or missing else "not-needed"), seen


_BLOCK_SIZES = ("block_size", "hash_block_size")


def _apply_scheduler(settings: Settings) -> None:
    def made(scheduler: Any) -> Any:
        known = inspect.signature(scheduler.__init__).parameters

        @wraps(scheduler, updated=())
        def make(*, vllm_config: Any, **kwargs: Any) -> Any:
            for name in _BLOCK_SIZES:
                given = kwargs.pop(name, None) is not None
                if name in known and (given or known[name].default is inspect.Parameter.empty):
                    kwargs[name] = _block_size(vllm_config)
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
        symptom="Found no NVIDIA driver, from torch.cuda.mem_get_info, or no memory at all; on a "
        "GPU host: the figure of one device, from a process that runs no model",
        cause="the generator asks for the free memory in its own process",
        change="uses the executor's determine_available_memory, the least of all workers",
        until="speculators asks the executor",
        probe=_probe_memory,
        apply=_apply_memory,
    ),
    Patch(
        id="speculators/cache-config",
        title="Derive and start the KV cache as EngineCore does",
        symptom="get_kv_cache_config_from_groups() got an unexpected keyword argument "
        "'kv_cache_specs'; FlexAttention requires num_gpu_blocks to be set",
        cause="the function's parameters and the steps around it change between releases",
        change="calls get_kv_cache_configs for all workers, gives each its own config, and does "
        "what this vLLM's EngineCore does before and after",
        until="the call fits and speculators does EngineCore's steps",
        probe=_probe_config,
        apply=_apply_config,
    ),
    Patch(
        id="speculators/cache-block-size",
        title="Let vLLM choose the block size",
        symptom="No common block size for 16",
        cause="attention backends ask for other sizes, and vLLM 0.18 and later keep a given one",
        change="passes none, and tells the scheduler the one that was chosen",
        until="speculators passes none",
        probe=_probe_block_size,
        apply=_apply_block_size,
    ),
    Patch(
        id="speculators/scheduler-block-size",
        title="Give the scheduler its block size",
        symptom="Scheduler.__init__() missing 1 required positional argument: 'block_size', or "
        "got an unexpected one; another size than the workers'",
        cause="vLLM added a required parameter",
        change="passes the cache's block size times the context parallel sizes where it is asked "
        "for, and nothing elsewhere",
        until="the call fits the signature",
        probe=_probe_scheduler,
        apply=_apply_scheduler,
    ),
)
