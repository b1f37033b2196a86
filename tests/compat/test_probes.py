"""Reading sources, findings of what is absent or broken, and patches that no tried pair needs."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3_agent.protocol.values import PatchFinding
from eagle3_agent.worker.compat import config, imports, kv_cache, patch, registry, runner
from eagle3_agent.worker.compat.generate import RefusedRowsError
from eagle3_agent.worker.compat.patch import Settings, replace
from eagle3_agent.worker.compat.sources import Sources, UnreadableError, parameters, shown
from support.stand_ins import sources


def _status(found: Sources) -> dict[str, PatchFinding]:
    return {f.patch.partition("/")[2]: f for f in registry.findings(found)}


def test_what_is_missing_cannot_be_told_and_is_named(tmp_path: Path) -> None:
    found = sources(tmp_path, "0.16.0", "0.3.0")
    (tmp_path / "vllm/v1/core/sched/scheduler.py").write_text("class Other: ...\n")
    finding = _status(found)["scheduler-block-size"]
    assert finding.status == "cannot-tell"
    assert finding.evidence == "vllm.v1.core.sched.scheduler has no Scheduler.__init__"


def test_patches_of_a_library_that_is_absent_are_not_spoken_of(tmp_path: Path) -> None:
    assert registry.findings(Sources({})) == ()
    found = sources(tmp_path, "0.16.0", "0.3.0")
    del found.roots["speculators"]
    findings = registry.findings(found)
    assert {f.patch.partition("/")[0] for f in findings} == {"vllm"}
    assert registry.undecided(findings) == []
    assert [f.patch for f in findings if not registry.is_patch(f)] == [
        "vllm/worker-extension",
        "vllm/row-order",
        "vllm/layer-interface",
        "vllm/engine-arguments",
    ]


@pytest.mark.parametrize(
    ("file", "finding", "evidence"),
    [
        ("config/parallel.py", "worker-extension", "no ParallelConfig"),
        ("v1/worker/gpu_input_batch.py", "row-order", "no InputBatch.req_ids"),
        ("v1/worker/gpu_model_runner.py", "row-order", "no GPUModelRunner"),
        ("model_executor/models/interfaces.py", "layer-interface", "no supports_eagle3"),
        ("engine/arg_utils.py", "engine-arguments", "no EngineArgs"),
        ("v1/engine/llm_engine.py", "engine-arguments", "no LLMEngine.add_request"),
    ],
)
def test_what_every_engine_asks_of_vllm_fits_or_does_not(
    tmp_path: Path, file: str, finding: str, evidence: str
) -> None:
    found = sources(tmp_path, "0.32.0", "0.4.0.1")
    assert _status(found)[finding].status == "not-needed"
    (tmp_path / "vllm" / file).write_text("class Other: ...\n")
    seen = _status(sources_again(found))[finding]
    assert seen.status == "cannot-tell"
    assert seen.evidence.startswith("does not fit: ")
    assert evidence in seen.evidence


def sources_again(found: Sources) -> Sources:
    """The same packages, read anew."""
    return Sources(found.roots)


def test_a_broken_source_is_named(tmp_path: Path) -> None:
    found = sources(tmp_path, "0.16.0", "0.3.0")
    (tmp_path / "vllm/config/cache.py").write_bytes(b"class \xff(")
    finding = _status(found)["prefix-caching"]
    assert finding.status == "cannot-tell"
    assert finding.evidence.startswith("vllm.config.cache cannot be read")


ANNOTATED = """
{top}
if TYPE_CHECKING:
    import torch
class PreTrainedConfig:
    dtype: {type} | None = None
"""


@pytest.mark.parametrize(
    ("top", "annotation", "status"),
    [
        ("", "torch.dtype", "needed"),
        ("import torch", "torch.dtype", "not-needed"),
        ("", "str", "not-needed"),
    ],
)
def test_an_annotation_that_names_torch_needs_it(
    tmp_path: Path, top: str, annotation: str, status: str
) -> None:
    found = sources(tmp_path, "0.32.0", "0.3.0")
    file = tmp_path / "transformers/configuration_utils.py"
    file.write_text(ANNOTATED.format(top=top, type=annotation))
    assert _status(found)["config-annotations"].status == status


def _apply(patches: tuple[patch.Patch, ...], name: str) -> None:
    next(p for p in patches if p.id == name).apply(Settings())


def test_a_function_is_found_where_an_older_vllm_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "vllm" / "utils"
    folder.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    (folder / "__init__.py").write_text("def get_hash_fn_by_name(name): return name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    held = dict(sys.modules)
    try:
        with pytest.raises(ModuleNotFoundError, match=r"vllm\.utils\.hashing"):
            importlib.import_module("vllm.utils.hashing")
        _apply(imports.PATCHES, "speculators/moved-imports")
        _apply(imports.PATCHES, "speculators/moved-imports")
        assert importlib.import_module("vllm.utils.hashing").get_hash_fn_by_name("a") == "a"
    finally:
        for name in set(sys.modules) - set(held):
            del sys.modules[name]


def test_chunked_prefill_is_switched_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM 0.11: a SchedulerConfig made by hand leaves it off."""
    calls: list[dict[str, Any]] = []
    module = SimpleNamespace(SchedulerConfig=lambda **given: calls.append(given))
    module.SchedulerConfig(max_num_seqs=32)
    assert calls.pop() == {"max_num_seqs": 32}
    monkeypatch.setattr(patch, "generator_module", lambda: module)
    for _ in range(2):
        _apply(config.PATCHES, "speculators/chunked-prefill")
        module.SchedulerConfig(max_num_seqs=32)
    assert calls == [{"max_num_seqs": 32, "enable_chunked_prefill": True}] * 2


CONFIG = SimpleNamespace(
    cache_config=SimpleNamespace(block_size=32),
    parallel_config=SimpleNamespace(decode_context_parallel_size=2),
)


@pytest.mark.parametrize(
    ("parameters", "given", "passed"),
    [
        ("", {"block_size": 16}, {}),
        ("block_size", {}, {"block_size": 64}),
        ("block_size", {"block_size": 16}, {"block_size": 64}),
        ("block_size, hash_block_size=None", {}, {"block_size": 64}),
        ("block_size, hash_block_size", {}, {"block_size": 64, "hash_block_size": 64}),
    ],
)
def test_the_scheduler_gets_the_block_sizes_that_it_asks_for(
    monkeypatch: pytest.MonkeyPatch,
    parameters: str,
    given: dict[str, int],
    passed: dict[str, int],
) -> None:
    scope: dict[str, Any] = {}
    names = [name.partition("=")[0].strip() for name in parameters.split(",") if name]
    taken = ", ".join(f"{name}={name}" for name in names)
    text = f"class Scheduler:\n def __init__(self, vllm_config, {parameters}):\n"
    exec(f"{text}  self.passed = dict({taken})", scope)  # noqa: S102
    module = SimpleNamespace(Scheduler=scope["Scheduler"])
    monkeypatch.setattr(kv_cache, "generator_module", lambda: module)
    _apply(kv_cache.PATCHES, "speculators/scheduler-block-size")
    found = module.Scheduler(vllm_config=CONFIG, **given).passed
    assert {name: value for name, value in found.items() if value is not None} == passed


@pytest.mark.parametrize(("theirs", "found"), [(None, "0"), ("1", "1")])
def test_the_first_model_runner_is_asked_for_unless_the_user_says(
    monkeypatch: pytest.MonkeyPatch, theirs: str | None, found: str
) -> None:
    name = "VLLM_USE_V2_MODEL_RUNNER"
    monkeypatch.setenv(name, "to be put back")
    if theirs is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, theirs)
    _apply(runner.PATCHES, "vllm/model-runner")
    assert os.environ[name] == found
    monkeypatch.delenv(name)


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
    found = Sources({"package": file.parent})
    function = found.function("package", "f")
    assert parameters(function) == {"a": False, "b": True, "c": False, "d": True}
    assert shown(function) == "f(self, a, b=1, *, c, d=2, **rest)"
    with pytest.raises(UnreadableError, match="package has no g"):
        found.function("package", "g")


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
