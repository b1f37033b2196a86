"""Engine ``script``: a user's script over the real library, unmodified, and the same without us."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent import processes, runs
from eagle3_agent.protocol.events import Failure, Load, Patched, Plan, Progress, Stage, Wrote
from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    EngineSection,
    HostSection,
    ModelSection,
    OutputSection,
    Profile,
)
from eagle3_agent.runs import RunFolder
from support import own_script, vllm_env
from support.vllm_env import run_script
from support.vllm_runs import supervised, verified

#: An engine start and two reference models, on a machine that may be busy.
pytestmark = pytest.mark.timeout(600)

LAYERS = (5, 1, 3, 7)
NAME = "02_extract_hidden_states.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder: model, dataset and script beside each other."""
    run_script("make.py", tmp_path, "llama", "float32")
    run_script("users_folder.py", tmp_path)
    shutil.copy(vllm_env.SCRIPTS / NAME, tmp_path / NAME)
    return tmp_path


def _arguments(folder: Path, layers: tuple[int, ...], ranks: int) -> tuple[str, ...]:
    return (
        *("--target-model-path", "model", "--train-data-path", "data_test"),
        *("--output-dir", str(folder / "out"), "--tensor-parallel-size", str(ranks)),
        *("--layer-ids", *map(str, layers)),
    )


def _profile(folder: Path, arguments: tuple[str, ...], ranks: int = 1) -> Profile:
    return Profile(
        name="tiny",
        host=HostSection(str(vllm_env.interpreter()), vllm_env.ENVIRONMENT),
        model=ModelSection(str(folder / "model"), tensor_parallel_size=ranks, max_model_len=256),
        capture=CaptureSection(LAYERS),
        data=DataSection(str(folder / "data_test"), seq_length=256),
        output=OutputSection(str(folder / "out")),
        engine=EngineSection("script", str(folder / NAME), arguments),
    )


def _tail(run: RunFolder) -> str:
    return run.output.read_text(errors="replace")[-6000:]


def test_the_script_as_it_is_gives_right_files_over_two_ranks(folder: Path) -> None:
    run = supervised(_profile(folder, _arguments(folder, LAYERS, 2), ranks=2), 500)
    end = run.exit()
    assert end is not None
    assert (end.state, end.survivors) == ("completed", ()), _tail(run)

    events = [event for _, event in run.read_events()]
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    tokens = sum(len(row["input_ids"]) for row in rows)
    assert [(p.total, p.tokens) for p in events if isinstance(p, Plan)] == [(len(rows), tokens)]
    done = [e.name for e in events if isinstance(e, Stage) and e.status == "done"]
    assert done == ["load", "extract", "write", "done"]
    loads = [e for e in events if isinstance(e, Load)]
    assert (loads[-1].done, loads[-1].total) == (1, 1)
    applied = {e.finding.patch for e in events if isinstance(e, Patched) and e.applied}
    assert {"script/atomic-save", "speculators/whole-prompts", "vllm/worker-errors"} <= applied
    progress = [e for e in events if isinstance(e, Progress)]
    assert (progress[-1].done, progress[-1].tokens) == (len(rows), tokens)
    assert any(isinstance(e, Wrote) for e in events)

    found = run_script("compare.py", folder, json.dumps(LAYERS))
    assert (found["wrong"], found["files"]) == ([], len(rows))
    assert found["worst"] <= 1e-5
    report = verified(run, folder / "verify.json")
    assert (report.ok, report.files) == (True, len(rows))


def test_the_same_script_by_itself_fails(folder: Path) -> None:
    command = [str(vllm_env.interpreter()), NAME, *_arguments(folder, LAYERS, 1)]
    done = subprocess.run(
        command,
        cwd=folder,
        env=vllm_env.environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode != 0
    assert "is_encoder_decoder" in done.stderr
    assert not list((folder / "out").glob("data_*.pt"))


def test_layers_that_the_profile_does_not_name_end_it_before_the_load(folder: Path) -> None:
    run = supervised(_profile(folder, _arguments(folder, (2, 4, 5, 7), 1)), 500)
    end = run.exit()
    assert end is not None
    assert end.state == "failed"
    (failure,) = [e for _, e in run.read_events() if isinstance(e, Failure)]
    assert failure.error.type == "ScriptMismatchError"
    assert "[2, 4, 5, 7]" in failure.error.message
    assert "[5, 1, 3, 7]" in failure.error.message
    assert failure.error.where is not None
    assert failure.error.where.file == str(folder / NAME)
    assert failure.error.where.source == "generator = VllmHiddenStatesGenerator("
    assert "Loading safetensors" not in _tail(run)


def test_an_error_inside_of_vllms_worker_is_told_whole(folder: Path) -> None:
    config = folder / "model" / "config.json"
    # more ids than the shards hold rows: vLLM ends this in a bare assert
    config.write_text(config.read_text().replace('"vocab_size": 500', '"vocab_size": 600'))
    run = supervised(_profile(folder, _arguments(folder, LAYERS, 1)), 500)
    end = run.exit()
    assert end is not None
    assert (end.state, end.survivors) == ("failed", ())
    (failure,) = [e for _, e in run.read_events() if isinstance(e, Failure)]
    error = failure.error
    assert (error.type, error.message, error.rank) == ("AssertionError", "", 0)
    assert error.where is not None
    assert "/vllm/" in error.where.file
    assert f'{folder / NAME}", line' in error.traceback  # the way to it in the script


#: One process for each part of the data, as scripts for several GPUs do it.
SPREAD = """
import multiprocessing, runpy, sys
from pathlib import Path

def work():
    script = Path(__file__).with_name("02_extract_hidden_states.py")
    runpy.run_path(str(script), run_name="__main__")

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


def test_an_abort_ends_processes_that_the_script_spawned_and_keeps_what_is_whole(
    folder: Path,
) -> None:
    (folder / "spread.py").write_text(SPREAD)
    rows = (folder / "rows.jsonl").read_text().splitlines()
    (folder / "rows.jsonl").write_text("".join(f"{row}\n" for row in rows * 60))
    shutil.rmtree(folder / "data_test")
    run_script("users_folder.py", folder)
    asked = _profile(folder, (*_arguments(folder, LAYERS, 1), "--batch-size", "1"))
    asked = replace(asked, engine=replace(asked.engine, script=str(folder / "spread.py")))

    run = runs.create(asked, "script", attempt=1)
    command = [sys.executable, "-E", "-s", str(vllm_env.AGENT), "supervise", str(run.path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as supervisor:
        own_script.wait_until(
            lambda: run.standing().done > 0 or supervisor.poll() is not None, seconds=200
        )
        supervisor.terminate()
        supervisor.wait(60)
    end = run.exit()
    assert end is not None
    assert (end.state, end.survivors) == ("aborted", ()), _tail(run)
    assert processes.marked(str(run.path)) == []
    assert list((folder / "out").glob(".*")) == []
    report = verified(run, folder / "verify.json")
    kept = len(list((folder / "out").glob("data_*.pt")))
    assert 0 < report.files <= kept < len(rows) * 60
    assert all(check.ok for check in report.checked)
    assert len(report.checked) == 2
