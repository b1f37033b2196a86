"""A whole run with an engine over vLLM: run folder, supervisor, worker, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from eagle3_agent.protocol.events import Failure, Patched, Plan, Stage, Throughput
from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    EngineSection,
    HostSection,
    ModelSection,
    OutputSection,
    Profile,
)
from support import needs, vllm_env
from support.vllm_env import run_script
from support.vllm_runs import supervised, verified

LAYERS = (5, 1, 3, 7)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3_HOME", str(tmp_path / "home"))


Engine = Literal["speculators", "vllm"]


def _profile(
    folder: Path, engine: Engine = "speculators", version: vllm_env.Version = "0.16"
) -> Profile:
    variables = vllm_env.ENVIRONMENT if version == "0.16" else vllm_env.ENVIRONMENT_0_32
    return Profile(
        name="tiny",
        host=HostSection(str(vllm_env.interpreter(version)), variables),
        # vLLM 0.32 wants its share of the host's memory to be free, whatever it takes of it
        model=ModelSection(str(folder / "model"), max_model_len=256, gpu_memory_utilization=0.3),
        capture=CaptureSection(LAYERS),
        data=DataSection(str(folder / "rows.jsonl"), seq_length=256),
        output=OutputSection(str(folder / "out")),
        engine=EngineSection(engine),
    )


@pytest.mark.parametrize(
    ("engine", "version"), [("speculators", "0.16"), ("vllm", "0.16"), ("vllm", "0.32")]
)
def test_a_run_ends_completed_with_right_files(
    tmp_path: Path, engine: Engine, version: vllm_env.Version
) -> None:
    needs.vllm_python(version)
    made = run_script("make.py", tmp_path, "llama", "float32")
    folder = supervised(_profile(tmp_path, engine, version), 200)
    end = folder.exit()
    assert end is not None
    assert end.state == "completed", folder.output.read_text(errors="replace")[-4000:]
    assert end.survivors == ()

    events = [event for _, event in folder.read_events()]
    assert [(p.total, p.tokens) for p in events if isinstance(p, Plan)] == [
        (made["rows"], made["tokens"])
    ]
    done = [e.name for e in events if isinstance(e, Stage) and e.status == "done"]
    assert list(dict.fromkeys(done)) == ["load", "warmup", "extract", "write", "done"]
    patched = {e.finding.patch: e.applied for e in events if isinstance(e, Patched)}
    _check_patches(patched, engine)
    timing = [event for event in events if isinstance(event, Throughput)][-1]
    assert timing.tokens == made["tokens"]
    assert timing.prefill > 0
    assert timing.write > 0
    assert 0 < timing.buffer_peak <= timing.buffer_limit

    found = run_script("compare.py", tmp_path, json.dumps(LAYERS))
    print(found)
    assert found["wrong"] == []
    assert found["files"] == made["rows"]
    assert found["worst"] <= 1e-5

    report = verified(folder, tmp_path / "verify.json")
    assert report.ok
    assert report.files == made["rows"]
    assert [check.ok for check in report.checked] == [True, True]


def _check_patches(patched: dict[str, bool], engine: Engine) -> None:
    if engine == "vllm":
        assert {name.partition("/")[0] for name in patched} == {"vllm"}
        return
    assert patched.pop("speculators/request-arguments") is False
    assert len(patched) >= 18


def test_a_load_that_fails_says_what_and_where(tmp_path: Path) -> None:
    run_script("make.py", tmp_path, "llama", "float32")
    config = tmp_path / "model" / "config.json"
    # more ids than the shards hold rows: vLLM ends this in a bare assert
    config.write_text(config.read_text().replace('"vocab_size": 500', '"vocab_size": 600'))
    folder = supervised(_profile(tmp_path), 200)
    end = folder.exit()
    assert end is not None
    assert end.state == "failed"
    failures = [e for _, e in folder.read_events() if isinstance(e, Failure)]
    assert len(failures) == 1
    error = failures[0].error
    print(error)
    assert error.type == "AssertionError"
    assert error.message == ""
    assert error.rank == 0
    assert error.where is not None
    assert "/vllm/" in error.where.file
    assert error.where.line > 0
    assert "assert" in error.where.source
    assert "Traceback" in error.traceback
    assert not list((tmp_path / "out").glob("data_*"))
