"""The script that engine ``script`` runs: there, readable, and Python to the interpreter."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from eagle3_agent.preflight.check import known
from eagle3_agent.preflight.libraries import script
from eagle3_agent.preflight.libraries.script import PROBE, ScriptFacts, Syntax
from eagle3_agent.protocol.values import Verdict
from support.preflight import gather, profile


def verdict(path: Path | str, *, python: str = sys.executable) -> Verdict:
    asked = profile(host_python=python, engine_name="script", engine_script=str(path))
    return script.CHECK.decide(gather(PROBE, asked), asked)


def test_a_script_that_compiles_passes_and_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "02_extract.py"
    path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    found = verdict(path)
    assert (found.status, found.saw.startswith(f"{path}, ")) == ("pass", True)
    assert os.listdir(tmp_path) == ["02_extract.py"]


def test_a_syntax_error_blocks_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("x = 1\nfor y in x\n    print(y)\n")
    found = verdict(path)
    assert found.status == "block"
    assert found.saw.startswith(f"{path}:2: ")
    assert found.saw.endswith("\nfor y in x")


@pytest.mark.parametrize(
    ("name", "words"),
    [("missing.py", "does not exist"), ("folder", "not a regular file"), ("fifo", "regular file"),
     ("link.py", "a symlink to")],
)  # fmt: skip
def test_what_is_no_file_blocks_by_its_path(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link.py").symlink_to("nowhere")
    found = verdict(tmp_path / name)
    assert found.status == "block"
    assert str(tmp_path / name) in found.saw
    assert words in found.saw


def test_bytes_that_are_no_source_block(tmp_path: Path) -> None:
    path = tmp_path / "weights.py"
    path.write_bytes(b"\x00\xff" * 100)
    assert verdict(path).status == "block"
    path.write_bytes(b"#" * (5 * 1024 * 1024))
    assert "which is no script" in verdict(path).saw


def test_an_interpreter_that_is_not_there_leaves_the_syntax_open(tmp_path: Path) -> None:
    path = tmp_path / "s.py"
    path.write_text("print(1)\n")
    found = verdict(path, python="/nonexistent/python")
    assert (found.status, "not known" in found.saw) == ("warn", True)


def test_hostile_words_come_out_printable() -> None:
    seen = ScriptFacts("/s\x1b[2J.py", bytes=9, syntax=Syntax(3, "\x1b[31m" + "x" * 9000, "bad"))
    found = script.CHECK.decide(known((PROBE, seen)), profile(engine_name="script"))
    assert "\x1b" not in found.saw
    assert len(found.saw) < 500
