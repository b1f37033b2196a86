"""Bad input against the real agent: one clear message, the right code, nothing half-written."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3_console.errors import ExitCode
from support.local import Local, job


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """One agent for the module: what is refused here must leave no trace for the next test."""
    made = Local(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("work"))
    yield made
    made.close()


@pytest.fixture
def good(local: Local) -> dict[str, str]:
    """Settings of which each test spoils one; the interpreter has no torch and blocks as well."""
    model = local.folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(
        json.dumps({"model_type": "llama", "num_hidden_layers": 6, "hidden_size": 32})
    )
    data = local.folder / "data.jsonl"
    data.write_text('{"conversations": [{"role": "user", "content": "hello"}]}\n')
    return job(Path(sys.executable), model, data, local.folder / "out")


def test_an_empty_home_has_no_runs(local: Local) -> None:
    assert local.run("runs", "local").out == "no runs yet\n"
    assert local.run("runs", "local", "--json").object["runs"] == []
    ran = local.run("show", "local", "last")
    assert ran.code == ExitCode.FAILED
    assert ran.err.splitlines()[0] == "There is no run 'last'"


def test_gpus_or_why_there_are_none(local: Local) -> None:
    sample = local.run("gpus", "local", "--json").object
    assert bool(sample["gpus"]) != bool(sample["gpu_problem"])
    assert sample["cpu_count"] >= 1
    text = local.run("gpus", "local")
    assert text.code == ExitCode.DONE
    assert sample["gpus"] or "no NVIDIA GPU: " in text.out


@pytest.mark.parametrize(
    ("settings", "check", "says"),
    [
        ({"model__path": '"/nope"'}, "model", "/nope does not exist"),
        ({"capture__layers": "[2, 99]"}, "layers", "99 not in 0..5"),
        ({"data__path": '"/nope.jsonl"'}, "data", "/nope.jsonl does not exist"),
        ({"output__dir": '"/proc/x"'}, "output", "/proc/x cannot be written"),
        ({"host__python": '"/nope/python"'}, "interpreter", "/nope/python does not exist"),
    ],
)
def test_what_the_host_finds_blocks_the_start(
    local: Local, good: dict[str, str], settings: dict[str, str], check: str, says: str
) -> None:
    profile = local.profile(**{**good, **settings})
    ran = local.run("start", "local", "-p", profile, "--wait", "--json")
    assert ran.code == ExitCode.FAILED
    assert ran.object["problem"]["code"] == "blocked"
    verdict = next(v for v in ran.object["preflight"]["verdicts"] if v["check"] == check)
    assert verdict["status"] == "block"
    assert says in verdict["saw"]
    assert verdict["todo"]
    assert f"--force {check}" in ran.err
    assert local.run("runs", "local", "--json").object["runs"] == []
    assert not (local.folder / "out").exists()


def test_empty_data_blocks(local: Local, good: dict[str, str]) -> None:
    (local.folder / "data.jsonl").write_text("")
    ran = local.run("preflight", "local", "-p", local.profile(**good), "--json")
    assert "data" in ran.object["blocking"]
    assert "is empty (0 bytes)" in ran.out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[host]\npyton = 3\n", "host.pyton: no such key; did you mean host.python?"),
        ("[host]\npython = /x\n", ":2:9: broken TOML"),
        ("", "host.python: is missing"),
    ],
)
def test_a_bad_profile_is_told_before_any_host_is_asked(local: Local, text: str, says: str) -> None:
    path = local.folder / "bad.toml"
    path.write_text(text)
    ran = local.run("start", "nosuch.invalid", "-p", str(path))
    assert ran.code == ExitCode.USAGE
    assert ran.out == ""
    assert says in ran.err


@pytest.mark.parametrize(
    ("target", "code", "says"),
    [
        ("nosuch.invalid", ExitCode.CONNECT, "There is no host named nosuch.invalid"),
        ("127.0.0.1:1", ExitCode.CONNECT, "127.0.0.1:1 refuses connections"),
        ("two words", ExitCode.USAGE, "'two words' is not a target"),
    ],
)
def test_a_host_that_is_not_there(local: Local, target: str, code: ExitCode, says: str) -> None:
    ran = local.run("runs", target)
    assert ran.code == code
    assert ran.out == ""
    assert ran.err.splitlines()[0] == says
    assert local.run("runs", target, "--json").object["problem"]["title"] == says


def test_connect_without_a_terminal_is_refused(local: Local) -> None:
    ran = local.run("connect", "local")
    assert ran.code == ExitCode.USAGE
    assert ran.err.splitlines()[0] == "connect needs a terminal"


def test_a_reader_that_leaves_early_is_no_error(local: Local) -> None:
    process = local.start("profiles", "list")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(30) == ExitCode.DONE
    process.stderr.close()
