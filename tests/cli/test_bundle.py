"""One file about a run, with secrets taken out."""

from __future__ import annotations

import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.protocol.messages import Detail, GetRun
from eagle3_agent.protocol.values import ErrorInfo
from eagle3_console.commands import bundle
from eagle3_console.errors import ExitCode
from eagle3_console.linkstate import Piece
from eagle3_console.scrub import MASK
from support.cli import Bench, detail, summary

TOKEN = "hf_" + "aB3dE5gH7j" * 3
LOG = (
    b"loading with HF_TOKEN=verysecret\n\xff\xfe raw bytes stay\n"
    b'Traceback (most recent call last):\n  File "/a.py", line 1, in f\n    x()\n'
    b"OSError: [Errno 28] No space left on device\n"
)


def piece(data: bytes) -> list[Piece]:
    return [Piece(0, data, caught_up=True, ended=True)]


@pytest.fixture
def asked(host: Bench) -> Bench:
    failed = summary("failed", run="0003", number=3, error=ErrorInfo("OSError", "no space"))
    told = detail(summary=failed)
    env = {"HF_TOKEN": "verysecret", "NCCL_DEBUG": "WARN", "X": f"--token {TOKEN}"}
    told = replace(told, resolved=replace(told.resolved, host=replace(told.resolved.host, env=env)))
    host.answers[GetRun] = Detail(1, told)
    host.streams["output"] = piece(LOG)
    host.streams["events"] = piece(b'{"type":"Log","text":"password=verysecret"}\nno json\n')
    host.streams["gpu"] = piece(b'{"t":1}\n')
    return host


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive:
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.partition("/")[2]] = file.read()
        return found


def test_everything_is_in_it_and_no_secret(asked: Bench, tmp_path: Path) -> None:
    path = tmp_path / "run3.tar.gz"
    old = os.umask(0)
    try:
        done = asked.run("bundle", "local", "3", "-o", str(path), "--json")
    finally:
        os.umask(old)
    assert done.code == ExitCode.DONE, done.err
    assert done.object["bytes"] == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600
    found = members(path)
    assert sorted(found) == sorted(done.object["members"])
    assert all(b"verysecret" not in data and TOKEN.encode() not in data for data in found.values())
    run: dict[str, Any] = json.loads(found["run.json"])
    assert run["resolved"]["host"]["env"]["NCCL_DEBUG"] == "WARN"
    assert run["resolved"]["host"]["env"]["HF_TOKEN"] == MASK
    assert b"\xff\xfe raw bytes stay" in found["output.log"]
    assert b"No space left" in found["cause.txt"]
    assert b"resume" in found["cause.txt"]
    assert json.loads(found["console.json"])["versions"]["eagle3-console"]


def test_a_file_that_exists_is_not_overwritten(asked: Bench, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("mine")
    done = asked.run("bundle", "local", "3", "-o", str(path))
    assert done.code == ExitCode.USAGE
    assert "File exists" in done.err
    assert path.read_text() == "mine"


def test_the_name_is_plain_whatever_the_target(
    asked: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert asked.run("bundle", "local", "3").code == ExitCode.DONE
    (made,) = tmp_path.iterdir()
    assert made.name.startswith("eagle3-local-run0003-")


def test_a_log_too_long_keeps_its_beginning_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_HEAD", 100)
    monkeypatch.setattr(bundle, "_TAIL", 200)
    kept = bundle._Kept()
    text = b"".join(b"line %04d\n" % i for i in range(1000))
    for at in range(0, len(text), 37):
        kept.add(text[at : at + 37])
    lines = kept.lines()
    assert lines[0] == b"line 0000"
    assert lines[-2:] == [b"line 0999", b""]
    assert any(b"bytes left out here" in line for line in lines)
    assert all(len(line) == 9 or b"left out" in line or not line for line in lines), lines
    assert len(kept.head) + 200 <= len(text) - kept.left_out <= 100 + 200 + 37
