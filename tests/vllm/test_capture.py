"""Engine ``vllm`` over the capture core, on the oldest and the newest vLLM that is supported."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support import needs
from support.vllm_env import SCRIPTS, Version, environment, interpreter, run_script

FLOAT32 = 1e-5

#: Seconds of a script with one or two engine starts, on a busy machine.
_LIMIT = 420

_TWO_RANKS = {
    "VLLM_SLEEP_WHEN_IDLE": "1",  # three processes that spin are too many for two cores
    "TORCH_COMPILE_DISABLE": "1",  # the split embedding would be compiled for 40 s
}

_VERSIONS: tuple[Version, ...] = ("0.16", "0.32")


@pytest.mark.parametrize("version", _VERSIONS)
def test_states_by_every_source_are_those_of_transformers(tmp_path: Path, version: Version) -> None:
    needs.vllm_python(version)
    found = run_script("capture.py", tmp_path, "1", version=version, timeout=_LIMIT)
    _check(found)
    assert found["failing step"] == "AssertionError: "
    assert "prefix caching is on" in found["refused"]
    assert "Set enable_prefix_caching=False" in found["refused"]
    assert found["hooks"].pop("source") == "forward hooks on layers 1, 3, 5, 7"
    assert {k: v for k, v in found["hooks"].items() if not v <= FLOAT32} == {}
    layout = found["layout"]
    assert layout["error"] <= FLOAT32
    assert layout["peak"] <= 2, "beyond the bound by more than the one sample that is split"
    assert layout["tokens"] == 0
    assert 0.8 < layout["fill"] <= 1
    assert layout["padding"] == 0
    assert layout["prefill"]
    assert layout["write"]


@pytest.mark.parametrize("version", _VERSIONS)
def test_of_two_ranks_one_writes(tmp_path: Path, version: Version) -> None:
    needs.vllm_python(version)
    found = run_script(
        "capture.py", tmp_path, "2", version=version, variables=_TWO_RANKS, timeout=_LIMIT
    )
    _check(found)
    assert found["ranks that wrote"] == [["writes"], []]
    # a bare assert: the type and the place speak where the message is empty
    assert re.match(
        r"RemoteError: worker of rank \d: AssertionError: \(no message\) at .*inside.py:\d+",
        found["failing step"],
    )


def test_rows_that_a_cache_kept_are_found_missing(tmp_path: Path) -> None:
    found = run_script("cached.py", tmp_path, timeout=_LIMIT)
    assert "prefix caching is on" in found["refused"]
    assert found["first"] <= FLOAT32
    assert "came after row 0" in found["same again"]
    assert "prefix caching" in found["same again"]


@pytest.mark.parametrize("version", _VERSIONS)
def test_ranks_end_soon_after_their_parent_is_killed(tmp_path: Path, version: Version) -> None:
    needs.vllm_python(version)
    report = tmp_path / "pids.json"
    command = [str(interpreter(version)), str(SCRIPTS / "orphan.py"), str(report), str(tmp_path)]
    with (tmp_path / "log").open("w+b") as log:
        process = subprocess.Popen(
            command,
            env={**environment(version), **_TWO_RANKS},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _until(lambda: report.exists() or process.poll() is not None, _LIMIT)
            assert report.exists(), (tmp_path / "log").read_text()[-4000:]
            parent, *ranks = json.loads(report.read_bytes())
            assert parent == process.pid
            os.kill(parent, signal.SIGKILL)
            process.wait()
            # 2 s of grace, and a busy kernel takes its time to give back what they held
            _until(lambda: not any(_runs(pid) for pid in ranks), 40)
            assert [pid for pid in ranks if _runs(pid)] == []
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _until(condition: Callable[[], bool], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _check(found: dict[str, Any]) -> None:
    print(json.dumps(found))
    assert found["loaded"] == ["float32", 128, 8, 500]
    assert found["interface"].pop("source") == "vLLM's SupportsEagle3 for layers 1, 3, 5"
    assert found["mixed"].pop("source") == (
        "vLLM's SupportsEagle3 for layers 2, 5, the final norm's input for layer 7"
    )
    for source in ("interface", "mixed"):
        assert {k: v for k, v in found[source].items() if not v <= FLOAT32} == {}
    assert found["neighbour"] > 0.1, "a layer off by one would pass unseen"
    assert found["closed twice"] == ""
