"""The real speculators 0.3.0 on the real vLLM 0.16.0, through the command line over a real sshd."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent import processes
from eagle3_console.demo import DemoFiles
from eagle3_console.errors import ExitCode
from support import vllm_env
from support.sshd import eventually
from support.workstation import ALIAS, Workstation

#: Importing torch and vLLM twice takes a minute where the processors are shared.
pytestmark = [pytest.mark.ssh, pytest.mark.vllm, pytest.mark.timeout(600)]

ROWS = 12


@pytest.fixture(scope="module")
def parts(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama and a dozen rows of mixed lengths."""
    folder = tmp_path_factory.mktemp("parts")
    assert vllm_env.run_script("make.py", folder, "llama", "float32")["rows"] == ROWS
    return folder


def tiny_profile(
    desk: Workstation, parts: Path, rows: Path | None = None, model: Path | None = None
) -> str:
    env = ", ".join(f"{key} = {json.dumps(value)}" for key, value in vllm_env.ENVIRONMENT.items())
    return desk.profile(
        "tiny-vllm",
        host__python=json.dumps(str(vllm_env.interpreter())),
        host__env=f"{{ {env} }}",
        model__path=json.dumps(str(model or parts / "model")),
        model__max_model_len="256",
        capture__layers="[1, 3, 5, 7]",
        data__path=json.dumps(str(rows or parts / "rows.jsonl")),
        data__seq_length="256",
        output__dir=json.dumps(str(desk.folder / "out")),
        engine__name='"speculators"',
    )


def many(desk: Workstation, parts: Path, times: int) -> Path:
    """Enough rows that a run can be interfered with."""
    path = desk.folder / "many.jsonl"
    path.write_text((parts / "rows.jsonl").read_text() * times)
    return path


def test_the_whole_job(desk: Workstation, parts: Path) -> None:
    path = tiny_profile(desk, parts)
    ready = desk.run("preflight", ALIAS, "-p", path, "--json")
    print(ready.out)
    assert ready.code == ExitCode.DONE, ready.err
    assert ready.object["ready"] is True

    found = desk.run("compat", ALIAS, "-p", path, "--json").object
    assert found["versions"]["vllm"].startswith("0.16.0")
    assert {f["status"] for f in found["findings"]} <= {"needed", "not-needed"}, found
    needed = {f["patch"] for f in found["findings"] if f["status"] == "needed"}

    ran = desk.run("start", ALIAS, "-p", path, "--wait", "--json")
    assert ran.code == ExitCode.DONE, ran.err
    run: dict[str, Any] = ran.object
    assert (run["state"], run["engine"]) == ("completed", "speculators")
    assert run["samples"] == {"total": ROWS, "done": ROWS, "skipped": 0}
    shown = desk.run("show", ALIAS, "last", "--json").object
    assert {p["patch"] for p in shown["patches"] if p["status"] == "needed"} == needed

    checked = desk.run("verify", ALIAS, "last", "--samples", "2", "--json")
    assert checked.code == ExitCode.DONE, checked.err
    assert checked.object["ok"] is True

    files = {f: f.stat().st_mtime_ns for f in (desk.folder / "out").glob("data_*.pt")}
    again = desk.run("resume", ALIAS, "last", "--wait", "--json")
    assert again.code == ExitCode.DONE, again.err
    assert again.object["samples"] == {"total": ROWS, "done": ROWS, "skipped": 0}
    assert {f: f.stat().st_mtime_ns for f in (desk.folder / "out").glob("data_*.pt")} == files

    preview = desk.run("clear", ALIAS, "last")
    assert preview.code == ExitCode.USAGE
    beside = json.loads((desk.folder / "out" / "extras.json").read_bytes())["files"]
    assert f"{ROWS + len(beside)} files" in preview.err
    assert len(list((desk.folder / "out").glob("data_*.pt"))) == ROWS


def vllm_workers(desk: Workstation, run: str) -> list[processes.Process]:
    found = desk.processes_of(run)
    return [p for p in found if processes.command(p.pid).startswith("VLLM::Worker")]


def test_a_killed_vllm_worker_is_named(desk: Workstation, parts: Path) -> None:
    path = tiny_profile(desk, parts, many(desk, parts, 400))
    process = desk.start("start", ALIAS, "-p", path, "--wait", "--json")
    eventually(lambda: bool(list((desk.folder / "out").glob("data_*.pt"))), "a sample", 90)
    (worker,) = vllm_workers(desk, "0001")
    checked = desk.run("preflight", ALIAS, "-p", path, "--json").object["verdicts"]
    (leftovers,) = [v for v in checked if v["check"] == "leftovers"]
    # runs of other homes on this host may be named beside it
    _, _, guarded = leftovers["saw"].partition("running under a supervisor: ")
    assert re.search(r"(?:^|, )0001(?:$|[,; ])", guarded), leftovers
    assert str(worker.pid) not in leftovers["saw"] + leftovers["todo"], "it is no stranger"
    assert processes.send(worker.identity, signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.FAILED
    error = json.loads(out)["error"]
    assert error["type"] == "WorkerDiedError", err
    assert error["message"].startswith("vLLM's worker of rank 0 died: killed by SIGKILL")
    assert desk.processes_of("0001") == []


def test_what_a_lost_run_left_of_vllm_is_ended(desk: Workstation, parts: Path) -> None:
    path = tiny_profile(desk, parts, many(desk, parts, 400))
    run = desk.run("start", ALIAS, "-p", path, "--json").object["run"]
    # while it loads: vLLM's worker is there and does not yet look after its parent
    eventually(lambda: bool(vllm_workers(desk, run)), "vLLM's own worker", 90)
    guardian = desk.folder_of(run).guardian()
    assert guardian is not None
    os.kill(guardian.pid, signal.SIGKILL)
    mine = desk.processes_of(run)
    ended = desk.run("abort", ALIAS, run, "--yes")
    assert ended.code == ExitCode.DONE, ended.err
    assert "was lost already" in ended.out
    assert not any(processes.alive(p.identity) for p in mine)


def test_abort_while_it_loads_leaves_no_process(
    desk: Workstation, parts: Path, made_demo: DemoFiles
) -> None:
    # 270 MB take a while to load and to warm up, where the tiny model is ready at once
    path = tiny_profile(desk, parts, model=made_demo.model)
    run = desk.run("start", ALIAS, "-p", path, "--json").object["run"]
    eventually(lambda: len(desk.processes_of(run)) > 1, "vLLM's own processes", 90)
    mine = desk.processes_of(run)
    ended = desk.run("abort", ALIAS, run, "--yes", "--json")
    assert ended.code == ExitCode.DONE, ended.err
    assert (ended.object["state"], ended.object["samples"]["done"]) == ("aborted", 0)
    assert not any(processes.alive(p.identity) for p in mine)
    assert desk.processes_of(run) == []
    assert not list((desk.folder / "out").glob("*pt"))
