"""What a preflight says while it goes on, and that it does not outlive who asked for it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_agent.preflight import command, runner
from eagle3_agent.preflight.check import Ask, Outcome, Probe, Progress
from eagle3_agent.protocol import dumps, from_json, to_json
from support.preflight import gone, profile, until

ROOT = Path(runner.__file__).parents[2]


def test_a_line_for_each_probe_that_answered_and_the_outcome_last() -> None:
    stdout = io.BytesIO()
    request = dumps({"profile": to_json(profile())}).encode()
    command.main(io.BytesIO(request), stdout)
    *lines, last = stdout.getvalue().splitlines()
    said = [from_json(Progress, json.loads(line)) for line in lines]
    total = said[0].total
    assert [s.done for s in said] == list(range(total))
    assert [len(s.waiting) for s in said] == [total - n for n in range(total)]
    assert "gpu" in said[0].waiting
    assert from_json(Outcome, json.loads(last)).report.verdicts


def test_a_probe_that_hangs_is_the_one_that_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, time; print('{}'); time.sleep(30 * (sys.argv[3] == 'slow'))"
    monkeypatch.setattr(runner, "_CHILD", code)
    probes = [Probe(n, Progress, lambda a: Progress(0, 0), 2.0) for n in ("slow", "quick")]
    said: list[Progress] = []
    runner.gather(probes, Ask(profile()), said.append)
    assert said == [Progress(0, 2, ("slow", "quick")), Progress(1, 2, ("slow",))]


_MIDDLE = """
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-E", "-s", "-c", sys.argv[1]], stdin=open(sys.argv[2]), start_new_session=True
)
print(child.pid, flush=True)
child.wait()
"""
_PREFLIGHT = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from eagle3_agent.preflight import command, runner
runner._CHILD = '''
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"])
with open(os.environ["TEST_NOTE"], "a") as file:
    file.write(str(os.getpid()) + " " + str(child.pid) + " ")
time.sleep(600)
'''
command.main(sys.stdin.buffer, sys.stdout.buffer)
"""


def test_it_ends_with_all_its_probes_when_its_parent_is_killed(tmp_path: Path) -> None:
    request = tmp_path / "request"
    request.write_text(dumps({"profile": to_json(profile()), "deep": True}))
    note = tmp_path / "pids"
    parent = subprocess.Popen(
        [sys.executable, "-c", _MIDDLE, _PREFLIGHT, str(request)],
        stdout=subprocess.PIPE,
        env={**os.environ, "TEST_NOTE": str(note)},
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until(lambda: note.exists() and len(note.read_text().split()) >= 8, 30)
        pids = [pid, *map(int, note.read_text().split())]
        assert not any(map(gone, pids))
        parent.kill()
    until(lambda: all(map(gone, pids)), 10)
