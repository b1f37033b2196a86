"""Writers that are processes: the pool's promises, and what happens when one of them is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.worker import manifest
from support import tiny
from support.bare_host import in_own_mounts

pytestmark = pytest.mark.worker

_SCRIPT = Path(__file__).parent / "scripts" / "writers.py"
_TODO = (
    "resume the run; if the kernel killed it for want of memory, with a smaller output.buffer or "
    "fewer output.writer_threads; its own last words are in the run's output"
)

Play = Callable[..., dict[str, Any]]


@pytest.fixture
def play(python: Path, tmp_path: Path) -> Play:
    """Run a case of scripts/writers.py; what it found."""

    def run(case: str, *before: str) -> dict[str, Any]:
        done = subprocess.run(
            [*before, str(python), str(_SCRIPT), case, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(tiny.AGENT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert found.pop("children") == [], "a writer is left"
        return found

    return run


def test_files_lines_and_digests_are_those_of_a_thread(play: Play) -> None:
    found = play("good")
    assert found["bodies"] == 1, "two processes and a thread write the same bytes"
    assert found["written"] == [*range(20), 21]
    why = "the state of token 0 after layer 1 holds NaN or infinity"
    assert found["rejected"] == [{"index": 20, "reason": why}]
    assert found["names"] == sorted([*(f"data_{i}.pt" for i in (*range(20), 21)), "manifest.jsonl"])
    assert found["intact"] == [""] * 21
    assert found["released"] == list(range(22))
    assert found["digests"] == [True, True]
    assert (found["started"], found["faults"], found["seconds"]) == (2, [], True)


@pytest.mark.parametrize("case", ["torn", "idle"])
def test_a_killed_writer_ends_the_run_and_is_named(play: Play, case: str) -> None:
    found = play(case)
    title = "a writer's process was killed by SIGKILL"
    assert found["faults"] == [{"title": title, "text": _TODO, "kind": "output"}]
    assert found["failure"] == f"{title}: {_TODO}"
    if case == "torn":
        assert (found["names"], found["released"]) == ([], [0])
        assert found["seconds"] < 5
    else:
        assert (found["names"], found["released"]) == (["data_0.pt", "manifest.jsonl"], [0, 1])


def test_signals_of_the_run_s_group_are_not_the_writers_to_follow(play: Play) -> None:
    found = play("group")
    assert (found["written"], found["faults"]) == ([0, 1, 2, 3], [])


def test_abort_leaves_no_file_and_no_process(play: Play) -> None:
    found = play("abort")
    assert (found["names"], found["faults"]) == ([], [])
    assert found["released"] == [0, 1, 5]
    assert found["failure"] == "the run was stopped"
    assert found["took"] < 5


def test_a_writer_that_does_not_answer_does_not_keep_an_abort(play: Play) -> None:
    found = play("stuck")
    assert (found["names"], found["released"]) == (["data_0.pt", "manifest.jsonl"], [0, 1])
    assert found["took"] < 25


def test_an_error_of_the_system_is_told_once_in_its_own_words(play: Play, tmp_path: Path) -> None:
    found = play("limited")
    title = f"{tmp_path / 'out'} cannot be written (File too large)"
    assert [(f["title"], f["kind"]) for f in found["faults"]] == [(title, "output")]
    assert found["names"] == []


def test_a_full_disk_is_told_as_one(play: Play, tmp_path: Path) -> None:
    in_own_mounts()
    out = tmp_path / "out"
    out.mkdir()
    mount = f'mount -t tmpfs -o size=1m none {out} && exec "$@"'
    found = play("full", "unshare", "-m", "sh", "-c", mount, "sh")
    title = f"no space left on {out}"
    assert [(f["title"], f["kind"]) for f in found["faults"]] == [(title, "full")]
    assert not [name for name in found["names"] if name.endswith(".partial")]
    assert found["intact"] == [""] * len(found["written"])


@pytest.mark.parametrize(
    ("case", "title"),
    [
        ("unstarted", "a writer's process could not be started (No such file or directory)"),
        ("broken", "a writer's process ended with exit status 1"),
    ],
)
def test_a_writer_that_cannot_start_ends_the_run(play: Play, case: str, title: str) -> None:
    found = play(case)
    assert [f["title"] for f in found["faults"]] == [title]
    assert found["failure"].startswith(title)
    assert (found["names"], found["released"]) == ([], [0])


@pytest.mark.parametrize("case", ["orphans", "orphans_of_a_thread"])
def test_no_writer_outlives_a_killed_parent(python: Path, tmp_path: Path, case: str) -> None:
    command = [str(python), str(_SCRIPT), case, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(tiny.AGENT)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        children = [int(pid) for pid in json.loads(process.stdout.readline())]
        assert len(children) == 2
        process.send_signal(signal.SIGKILL)
    end = time.monotonic() + 5
    while (alive := [pid for pid in children if _lives(pid)]) and time.monotonic() < end:
        time.sleep(0.02)
    assert alive == []
    # of what was begun nothing has a sample's name
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names <= {manifest.partial_name(f"data_{i}.pt", process.pid) for i in range(2)}


def _lives(pid: int) -> bool:
    """Whether a process of ours is there and not over."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return words[0] not in "ZX"


#: Of every 16-bit pattern, and of many 32-bit ones, in rows of one and of eight.
_BITS = """
import json, random, sys
import numpy as np
import torch
from eagle3_agent.worker.writing import checks
from eagle3_agent.worker.writing.item import States
random.seed(3)
differ, wrong = 0, 0
for dtype, width in (("bfloat16", "uint16"), ("float16", "uint16"), ("float32", "uint32")):
    bits = np.dtype(width).itemsize * 8
    every = list(range(1 << 16)) if bits == 16 else [random.getrandbits(32) for _ in range(20000)]
    if bits == 32:
        ends = (0, 1, 254, 255)
        every += [s << 31 | e << 23 | m for s in (0, 1) for e in ends for m in (0, 1, 5)]
    for hidden in (1, 8):
        rows = np.array([random.choice(every) if hidden > 1 else x for x in every * hidden],
                        dtype=width)[:len(every) // hidden * hidden].reshape(-1, hidden)
        tensor = torch.from_numpy(rows).view(getattr(torch, dtype))
        bad = ~torch.isfinite(tensor).all(1) | (tensor == 0).all(1)
        whole = States.of(tensor.unsqueeze(0))
        for number in range(len(rows)):
            part = whole.data[number * hidden * bits // 8 : (number + 1) * hidden * bits // 8]
            found = checks.fault(States(part, (1, 1, hidden), dtype), (3,), "LSH")
            differ += bool(found) != bool(bad[number])
            wrong += bool(found)
        first = int(bad.nonzero()[0])
        assert checks.fault(whole, (3,), "LSH").startswith(f"the state of token {first} after")
print(json.dumps([differ, wrong]))
"""


def test_broken_numbers_are_those_that_torch_finds(python: Path) -> None:
    differ, wrong = json.loads(tiny.run_python(python, _BITS, path=tiny.AGENT))
    assert differ == 0
    assert wrong > 1000


def test_a_writer_imports_no_torch(python: Path) -> None:
    code = (
        "import sys; from eagle3_agent.worker.writing import child, checks; import numpy; "
        "print(sorted({'torch', 'vllm', 'transformers', 'asyncio'} & set(sys.modules)))"
    )
    assert tiny.run_python(python, code, path=tiny.AGENT) == "[]\n"
