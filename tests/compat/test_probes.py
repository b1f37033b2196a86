"""What the probes say of sources: signatures decide, and what is missing is not guessed at."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from eagle3_agent.protocol.values import PatchFinding
from eagle3_agent.worker.compat import registry
from eagle3_agent.worker.compat.generate import RefusedRowsError
from eagle3_agent.worker.compat.patch import replace
from eagle3_agent.worker.compat.sources import Sources, UnreadableError, parameters, shown

GENERATOR = "speculators/data_generation/vllm_hidden_states_generator.py"
LIBRARY = """
class VllmHiddenStatesGenerator:
    def __init__(self, model):
        self.scheduler = Scheduler(vllm_config=c, kv_cache_config=k{scheduler})
        get_kv_cache_config_from_groups(
            vllm_config=c, kv_cache_groups=g{groups}, available_memory=m
        )

    def make(self):
        CacheConfig(block_size=16{cache})
        SchedulerConfig(max_num_seqs=32{config})
        Request(request_id="a"{request})

    def generate(self, token_ids):
        self.executor.collective_rpc("_get_captured_states", unique_reply_rank=0)[0]
"""

VLLM = {
    "vllm/config/scheduler.py": """
        class SchedulerConfig:
            is_encoder_decoder: InitVar[bool]
            async_scheduling: bool = Field(default=None)
    """,
    "vllm/config/cache.py": """
        class CacheConfig:
            enable_prefix_caching: bool = True
    """,
    "vllm/v1/core/sched/scheduler.py": """
        class Scheduler:
            def __init__(self, vllm_config, kv_cache_config, block_size: int, log_stats=False): ...
    """,
    "vllm/v1/core/kv_cache_utils.py": """
        def get_kv_cache_config_from_groups(vllm_config, kv_cache_groups, available_memory): ...
        def get_kv_cache_configs(vllm_config, specs, memory): ...
        def generate_scheduler_kv_cache_config(configs): ...
    """,
    "vllm/v1/request.py": """
        class Request:
            def __init__(self, request_id, prompt_token_ids=None): ...
    """,
    "vllm/v1/executor/multiproc_executor.py": """
        class MultiprocExecutor:
            def collective_rpc(self, method, unique_reply_rank=None):
                return responses[0] if output_rank is not None else responses
    """,
}


def _write(root: Path, **library: str) -> Sources:
    slots = dict.fromkeys(("scheduler", "groups", "cache", "config", "request"), "")
    text = LIBRARY.format(**{**slots, **library})
    for name, body in {**VLLM, GENERATOR: text}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(body))
    return Sources({"vllm": root / "vllm", "speculators": root / "speculators"})


def _status(sources: Sources) -> dict[str, PatchFinding]:
    return {f.patch.partition("/")[2]: f for f in registry.findings(sources)}


NEEDED = {
    "encoder-decoder-field": {},
    "async-scheduling": {},
    "prefix-caching": {},
    "scheduler-block-size": {},
    "cache-config": {"groups": ", kv_cache_specs=s"},
    "request-arguments": {"request": ", eos_token_id=1"},
    "reply-shape": {},
}

FITTING = {
    "encoder-decoder-field": {"config": ", is_encoder_decoder=False"},
    "async-scheduling": {"config": ", async_scheduling=False"},
    "prefix-caching": {"cache": ", enable_prefix_caching=False"},
    "scheduler-block-size": {"scheduler": ", block_size=16"},
    "cache-config": {},
    "request-arguments": {},
}


@pytest.mark.parametrize("patch", NEEDED)
def test_a_call_that_does_not_fit_needs_its_patch(tmp_path: Path, patch: str) -> None:
    finding = _status(_write(tmp_path, **NEEDED[patch]))[patch]
    assert finding.status == "needed", finding.evidence
    assert finding.evidence


@pytest.mark.parametrize("patch", FITTING)
def test_a_call_that_fits_does_not(tmp_path: Path, patch: str) -> None:
    finding = _status(_write(tmp_path, **FITTING[patch]))[patch]
    assert finding.status == "not-needed", finding.evidence


def test_an_older_executor_returns_a_list_of_one(tmp_path: Path) -> None:
    sources = _write(tmp_path)
    file = tmp_path / "vllm/v1/executor/multiproc_executor.py"
    file.write_text("class MultiprocExecutor:\n    def collective_rpc(self): return responses\n")
    assert _status(sources)["reply-shape"].status == "not-needed"


def test_what_is_missing_cannot_be_told_and_is_named(tmp_path: Path) -> None:
    sources = _write(tmp_path)
    (tmp_path / "vllm/v1/core/sched/scheduler.py").write_text("class Other: ...\n")
    finding = _status(sources)["scheduler-block-size"]
    assert finding.status == "cannot-tell"
    assert finding.evidence == "vllm.v1.core.sched.scheduler has no Scheduler.__init__"


def test_without_the_libraries_nothing_is_told(tmp_path: Path) -> None:
    findings = registry.findings(Sources({}))
    assert {f.status for f in findings} == {"cannot-tell"}
    assert registry.undecided(findings) == list(findings)
    assert all("is not installed" in f.evidence for f in findings)


def test_a_broken_source_is_named(tmp_path: Path) -> None:
    sources = _write(tmp_path)
    (tmp_path / "vllm/config/cache.py").write_bytes(b"class \xff(")
    finding = _status(sources)["prefix-caching"]
    assert finding.status == "cannot-tell"
    assert finding.evidence.startswith("vllm.config.cache cannot be read")


def test_a_folder_of_that_name_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm_folder").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Sources.installed("vllm_folder").roots == {}


def test_parameters_know_what_has_a_default(tmp_path: Path) -> None:
    file = tmp_path / "package" / "__init__.py"
    file.parent.mkdir()
    file.write_text("def f(self, a, b=1, *, c, d=2, **rest): ...\n")
    sources = Sources({"package": file.parent})
    function = sources.function("package", "f")
    assert parameters(function) == {"a": False, "b": True, "c": False, "d": True}
    assert shown(function) == "f(self, a, b=1, *, c, d=2, **rest)"
    with pytest.raises(UnreadableError, match="package has no g"):
        sources.function("package", "g")


def test_a_name_is_replaced_once_by_each_patch() -> None:
    owner = SimpleNamespace(call=lambda: [])

    def wrapping(word: str) -> Iterator[None]:
        def make(current: object) -> object:
            assert callable(current)
            return lambda: [*current(), word]

        replace(owner, "call", f"test/{word}", make)
        yield

    for word in ("one", "two", "one", "two"):
        next(wrapping(word))
    assert owner.call() == ["one", "two"]


def test_refused_rows_are_named_and_counted() -> None:
    reasons = dict.fromkeys(range(8), "is empty")
    error = RefusedRowsError(reasons)
    assert error.reasons == reasons
    assert str(error).startswith("sequence 0 is empty; sequence 1 is empty; ")
    assert str(error).endswith("; and 3 more")


def test_every_patch_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "compat.md").read_text()
    listed = re.findall(r"^\| `([\w/-]+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(p.id for p in registry.PATCHES)
    assert len(set(listed)) == len(listed)
