"""profiles list, show, check, new: files of this workstation, and nothing overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_console.errors import ExitCode
from support.cli import Bench


def test_list_names_the_shipped_ones(host: Bench) -> None:
    listed = host.run("profiles", "--json").object["profiles"]
    assert {"kimi-k2.5", "llama-8b"} <= {entry["name"] for entry in listed}
    assert "kimi-k2.5" in host.run("profiles", "list").out


def test_show_prints_the_file_or_the_resolved_profile(host: Bench, profile_path: str) -> None:
    assert host.run("profiles", "show", profile_path).out == Path(profile_path).read_text()
    shown = host.run("profiles", "show", profile_path, "--json").object
    assert shown["profile"]["model"]["max_model_len"] == 2048


def test_check_reports_everything(host: Bench, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[host]\npyton = 3\n[capture]\nlayers = []\n")
    ran = host.run("profiles", "check", str(path))
    assert ran.code == ExitCode.USAGE
    assert "Profile bad has 6 problems" in ran.err
    assert f"{path}:2: host.pyton: no such key; did you mean host.python?" in ran.err
    assert f"{path}:4: capture.layers: is empty" in ran.err


def test_new_writes_once(host: Bench, tmp_path: Path) -> None:
    ran = host.run("profiles", "new", "mine", "--from", "kimi-k2.5", "--set", "model.path=/m/k")
    path = tmp_path / "home" / "config" / "profiles" / "mine.toml"
    assert ran.code == ExitCode.DONE
    text = path.read_text()
    assert 'path = "/m/k"' in text
    assert "61 decoder layers" in text  # comments came along
    assert host.run("profiles", "check", "mine").code == ExitCode.DONE
    again = host.run("profiles", "new", "mine")
    assert again.code == ExitCode.USAGE
    assert "That profile is there already" in again.err
    assert path.read_text() == text


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "x" * 80, "-p\n"])
def test_new_takes_plain_names_only(host: Bench, tmp_path: Path, name: str) -> None:
    ran = host.run("profiles", "new", "--", name)
    assert ran.code == ExitCode.USAGE
    assert not list(tmp_path.rglob("*.toml"))


def test_a_name_is_needed(host: Bench) -> None:
    assert host.run("profiles", "check").code == ExitCode.USAGE
