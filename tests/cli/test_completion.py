"""Tab in a real shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_console import completing

BIN = Path(sys.executable).parent

#: What bash itself sets before it calls a completion function.
ASK = """
source "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_TYPE=9
read -ra COMP_WORDS <<< "$2"
[[ $2 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_python_argcomplete eagle3-console "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, folder: Path) -> Path:
    made = subprocess.run(
        [BIN / "eagle3-console", "completion", shell], capture_output=True, text=True, check=True
    )
    file = folder / f"completion.{shell}"
    file.write_text(made.stdout)
    return file


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(home)}


def bash(folder: Path, line: str) -> set[str]:
    argv = ["bash", "-c", ASK, "bash", str(script("bash", folder)), line]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=True, env=environment(folder), cwd=folder
    )
    return {word.strip() for word in done.stdout.splitlines() if word.strip()}


def test_commands_targets_profiles_and_settings_are_completed(tmp_path: Path) -> None:
    ssh = tmp_path / ".ssh"
    ssh.mkdir()
    (ssh / "config").write_text("Include more/*\nHost *\n  User root\nHost gpu-01 gpu-0?\n")
    (ssh / "more").mkdir()
    (ssh / "more" / "a").write_text("host=gpu-02 !gpu-03\n# Host gpu-04\n")
    assert bash(tmp_path, "eagle3-console pr") == {"preflight", "profiles"}
    assert bash(tmp_path, "eagle3-console preflight gpu") == {"gpu-01", "gpu-02"}
    assert "kimi-k2.5" in bash(tmp_path, "eagle3-console preflight local -p ki")
    line = "eagle3-console start local -p kimi-k2.5 --set "
    assert "output.format=" in bash(tmp_path, f"{line}output.f")
    assert bash(tmp_path, f"{line}output.format=") == {"speculators-pt", "safetensors"}
    assert "last" in bash(tmp_path, "eagle3-console show local la")


def test_a_user_before_the_host_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host gpu-01\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert completing.targets("root@g") == ["root@gpu-01"]
    assert completing.targets("") == ["local", "gpu-01"]


def test_a_broken_configuration_offers_nothing(tmp_path: Path) -> None:
    assert completing.aliases(tmp_path / "not there") == []
    bad = tmp_path / "config"
    bad.write_bytes(b"\xff\xfe\nHost \xff\nInclude config\nHost\nHost ok\n")
    assert completing.aliases(bad)[-1] == "ok"


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed here")
def test_fish_completes(tmp_path: Path) -> None:
    code = 'source $argv[1]; complete -C "eagle3-console pre"'
    done = subprocess.run(
        ["fish", "-c", code, str(script("fish", tmp_path))],
        capture_output=True,
        text=True,
        check=True,
        env=environment(tmp_path),
    )
    assert "preflight" in done.stdout


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed here")
def test_zsh_can_read_its_script(tmp_path: Path) -> None:
    done = subprocess.run(["zsh", "-n", script("zsh", tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
