"""Stand-ins for releases of vLLM and speculators: the headers and calls that differ, no more.

Written down after reading the releases' sources; what a header does is not here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from eagle3_agent.worker.compat.sources import Sources

#: What changed with which release.  A release has the newest entry that is not newer than itself.
CHANGES: dict[str, dict[str, str]] = {
    "0.11.0": {
        "encoder": "",
        "async": "async_scheduling: bool = False",
        "chunked": "enable_chunked_prefill: SkipValidation[bool] = None",
        "chosen": "",
        "kv_specs": "kv_cache_specs, ",
        "block_size": "",
        "reply": "return responses",
        "sample": "",
        "eos": "eos_token_id, ",
        "utils": "def get_hash_fn_by_name(name): ...",
        "hashing": "",
        "core": "self.collective_rpc('initialize_cache')",
        "runner": "",
    },
    "0.11.2": {
        "block_size": "block_size, ",
        "reply": "return responses[0] if output_rank is not None else responses",
        "sample": "def sample_tokens(self, grammar_output): ...",
        "utils": "",
        "hashing": "def get_hash_fn_by_name(name): ...",
        "runner": "VLLM_USE_V2_MODEL_RUNNER: bool = False",
    },
    "0.12.0": {
        "encoder": "is_encoder_decoder: InitVar[bool]",
        "chunked": "enable_chunked_prefill: bool = True",
        "kv_specs": "",
    },
    "0.14.1": {"async": "async_scheduling: bool = Field(default=None)"},
    "0.17.1": {"eos": ""},
    "0.18.1": {
        "chosen": "user_specified_block_size: bool = field(default=False, init=False)",
        "core": "vllm_config.cache_config.block_size = min(sizes)",
    },
    "0.20.2": {
        "async": "async_scheduling: bool | None = None",
        "block_size": "block_size, hash_block_size=None, ",
    },
    "0.24.0": {
        "core": "register_all_kvcache_specs(vllm_config)\n"
        "vllm_config.cache_config.block_size = min(sizes)",
        "runner": "VLLM_USE_V2_MODEL_RUNNER: bool | None = None",
    },
    "0.28.0": {
        "core": "register_all_kvcache_specs(vllm_config)\n"
        "self.model_executor.compile_or_warm_up_model()",
    },
    "0.32.0": {
        "core": "self.model_executor.set_kv_cache_layout(name)\n"
        "self.model_executor.compile_or_warm_up_model()",
    },
}

VLLM = (
    *("0.11.0", "0.11.2", "0.12.0", "0.13.0", "0.14.1", "0.15.1", "0.16.0"),
    *("0.17.1", "0.18.1", "0.20.2", "0.24.0", "0.28.0", "0.32.0"),
)
SPECULATORS = ("0.3.0", "0.4.0.1")

_FILES = {
    "vllm/envs.py": "{runner}",
    "vllm/utils/__init__.py": "{utils}",
    "vllm/utils/hashing.py": "{hashing}",
    "vllm/config/__init__.py": "class ParallelConfig: ...",
    "vllm/config/parallel.py": """
        class ParallelConfig:
            worker_extension_cls: str = ""
    """,
    "vllm/config/scheduler.py": """
        class SchedulerConfig:
            {encoder}
            {async}
            {chunked}
    """,
    "vllm/config/cache.py": """
        class CacheConfig:
            enable_prefix_caching: bool = True
            sliding_window: int | None = None
            {chosen}
    """,
    "vllm/config/model.py": """
        class ModelConfig:
            skip_tokenizer_init: bool = False
    """,
    "vllm/transformers_utils/config.py": "def get_config(model, trust_remote_code): ...",
    "vllm/engine/arg_utils.py": """
        class EngineArgs:
            worker_extension_cls: str = ""
            enforce_eager: bool = False
            enable_prefix_caching: bool | None = None
            enable_chunked_prefill: bool | None = None
            max_num_batched_tokens: int | None = None
            max_num_seqs: int | None = None
    """,
    "vllm/model_executor/models/interfaces.py": """
        class SupportsEagle3:
            def set_aux_hidden_state_layers(self, layers): ...
        def supports_eagle3(model): ...
    """,
    "vllm/v1/core/sched/scheduler.py": """
        class Scheduler:
            def __init__(self, vllm_config, kv_cache_config, structured_output_manager,
                         {block_size}log_stats=False): ...
    """,
    "vllm/v1/core/kv_cache_utils.py": """
        def get_kv_cache_config_from_groups(
            vllm_config, kv_cache_groups, {kv_specs}available_memory): ...
        def get_kv_cache_configs(vllm_config, kv_cache_specs, available_memory): ...
        def generate_scheduler_kv_cache_config(kv_cache_configs): ...
    """,
    "vllm/v1/engine/core.py": """
        class EngineCore:
            def _initialize_kv_caches(self, vllm_config):
                {core}
    """,
    "vllm/v1/engine/llm_engine.py": """
        class LLMEngine:
            def add_request(self, request_id, prompt, params): ...
            def step(self): ...
            def collective_rpc(self, method): ...
    """,
    "vllm/v1/executor/abstract.py": """
        class Executor:
            def determine_available_memory(self): ...
            def get_kv_cache_specs(self): ...
            {sample}
    """,
    "vllm/v1/executor/multiproc_executor.py": """
        class MultiprocExecutor:
            def collective_rpc(self, method, unique_reply_rank=None):
                {reply}
        class WorkerProc:
            def __init__(self): ...
            def worker_main(*args): ...
            def make_worker_process(rank): ...
            def handle_output(self, output): ...
            def enqueue_output(self, output):
                return (FAILURE, str(output))
    """,
    "vllm/v1/request.py": """
        class Request:
            def __init__(self, request_id, prompt_token_ids, sampling_params, {eos}
                         arrival_time=None, block_hasher=None): ...
    """,
    "vllm/v1/worker/gpu_input_batch.py": """
        class InputBatch:
            def __init__(self):
                self.num_computed_tokens_cpu = None
            @property
            def req_ids(self): ...
    """,
    "vllm/v1/worker/gpu_model_runner.py": """
        class GPUModelRunner:
            def __init__(self):
                self.requests: dict = {{}}
                self.input_batch = InputBatch()
            def execute_model(self, scheduler_output): ...
    """,
    "transformers/configuration_utils.py": """
        class PreTrainedConfig:
            dtype: str | None = None
    """,
}

_EXTENSION = """
    def _patched_forward(self, input_ids):
        self.{embedding}(input_ids)
    class HiddenStatesWorkerExtension:
        def _setup_hidden_states_capture(self, layer_ids):
            self._layer_ids = frozenset(layer_ids)
"""

_GENERATOR = """
    {imports}
    MAX_NUM_SEQS = 32
    MIN_MAX_BATCHED_TOKENS = 8192

    class VllmHiddenStatesGenerator:
        def __init__(self, model_path):
            AutoTokenizer.from_pretrained(model_path)
            AutoConfig.from_pretrained(model_path, trust_remote_code=True)
            {memory}
            get_kv_cache_config_from_groups(
                vllm_config=c, kv_cache_groups=g, {kv_specs}available_memory=m)
            Scheduler(vllm_config=c, kv_cache_config=k, structured_output_manager=s{block_size})

        def _create_vllm_config(self):
            CacheConfig(block_size=16{prefix_caching})
            ModelConfig(trust_remote_code=True, dtype="auto")
            SchedulerConfig(max_num_seqs=s, max_num_batched_tokens=t{encoder})

        def generate(self, token_ids):
            max_len = self.vllm_config.model_config.max_model_len - 1
            rows = [ids[:max_len] for ids in token_ids]
            Request(request_id=n, prompt_token_ids=i, sampling_params=p, eos_token_id=e{hasher})
            while (output := self.scheduler.schedule()).total_num_scheduled_tokens > 0:
                self.executor.execute_model(output)
                {in_loop}
            {after_loop}
            states = self.executor.collective_rpc("_get_captured_states", unique_reply_rank=0)
            {results}
"""

_GENERATIONS: dict[str, dict[str, str]] = {
    "0.3.0": {
        "embedding": "get_input_embeddings",
        "imports": "from vllm.config import ParallelConfig",
        "memory": "torch.cuda.mem_get_info()",
        "kv_specs": "kv_cache_specs=x, ",
        "block_size": "",
        "prefix_caching": "",
        "encoder": "",
        "hasher": "",
        "in_loop": "self.scheduler.finish_requests([name])",
        "after_loop": "pass",
        "results": "return states[0]",
    },
    "0.4.0.1": {
        "embedding": "embed_input_ids",
        "imports": "from vllm.utils.hashing import get_hash_fn_by_name",
        "memory": "mem_get_info()",
        "kv_specs": "",
        "block_size": ", block_size=16",
        "prefix_caching": ", enable_prefix_caching=False",
        "encoder": ", is_encoder_decoder=False",
        "hasher": ", block_hasher=h",
        "in_loop": "self.executor.sample_tokens(None)",
        "after_loop": "self.scheduler.finish_requests(names)",
        "results": "return [states[req_id] for req_id in sorted(request_ids)]",
    },
}


def sources(
    root: Path,
    vllm: str,
    speculators: str,
    changes: Mapping[str, str] | None = None,
    vllm_changes: Mapping[str, str] | None = None,
) -> Sources:
    """Write both under ``root``; changes are put over what speculators and vLLM have."""
    slots = {**at(vllm), **(vllm_changes or {})}
    files = {name: _filled(text, slots) for name, text in _FILES.items()}
    if not slots["hashing"]:
        del files["vllm/utils/hashing.py"]
    generation = {**_GENERATIONS[speculators], **(changes or {})}
    folder = "speculators/data_generation"
    files[f"{folder}/vllm_hidden_states_generator.py"] = _filled(_GENERATOR, generation)
    files[f"{folder}/custom_worker.py"] = _filled(_EXTENSION, generation)
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    packages = ("vllm", "speculators", "transformers")
    return Sources({name: root / name for name in packages})


def at(version: str) -> dict[str, str]:
    """What a release has, slot by slot."""
    slots: dict[str, str] = {}
    for since, changed in CHANGES.items():
        if _order(since) <= _order(version):
            slots.update(changed)
    return slots


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _filled(text: str, slots: Mapping[str, str]) -> str:
    """Slots filled line by line, so that a slot of several lines keeps its indent."""
    lines = []
    for line in textwrap.dedent(text).splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines += [indent + part for part in line.strip().format(**slots).splitlines()]
    return "\n".join(lines) + "\n"
