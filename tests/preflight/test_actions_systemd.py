"""A unit from the check that finds it to its stop, by a real manager of systemd."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3_agent.preflight.actions import perform
from eagle3_agent.preflight.running import others
from support.preflight import profile, until

_SYSTEMD = "/lib/systemd/systemd"
_CGROUPS = Path("/sys/fs/cgroup")
_NAME = "eagle3-console-test.service"
#: Where a host that systemd has booted keeps the units of root's own manager.
_MANAGER = "user.slice/user-0.slice/user@0.service"

#: systemd serves a user only where /run/systemd/system says that it has booted the host.  It takes
#: over all processes of the cgroup that it begins in: never without one of its own, everywhere.
_START = """
mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system || exit 77
for root in "$@"; do mkdir -p "$root" && echo $$ > "$root/cgroup.procs" || exit 77; done
grep -v '/user@0.service$' /proc/self/cgroup | grep -qE '^[0-9]+:(name=systemd)?:' && exit 77
exec /lib/systemd/systemd --user
"""

_SERVER = (
    "import mmap, pathlib, signal, sys; f = open(sys.argv[1], 'rb'); "
    "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); "
    "pathlib.Path(sys.argv[2]).touch(); signal.pause()"
)


def _hierarchies() -> list[Path]:
    """Those by which systemd names its units: its own of version 1, or the one of version 2."""
    found = [_CGROUPS / "systemd", _CGROUPS / "unified", _CGROUPS]
    return [path for path in found if (path / "cgroup.procs").exists()]


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the units of a user's manager, which is ended with all its units."""
    able = os.access(_SYSTEMD, os.X_OK) and shutil.which("unshare") and os.geteuid() == 0
    if not able or os.path.exists("/run/systemd/system") or not _hierarchies():
        pytest.skip("needs root and a systemd that has not booted this host; not on this machine")
    runtime = tempfile.mkdtemp(prefix="e3-")
    units = tmp_path / "config" / "systemd" / "user"
    units.mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    roots = [str(root / _MANAGER) for root in _hierarchies()]
    serving = subprocess.Popen(["unshare", "-m", "sh", "-c", _START, "sh", *roots], env=env)
    try:
        until(lambda: Path(runtime, "systemd", "private").exists() or serving.poll() is not None)
        if serving.poll() is not None:
            pytest.skip("the cgroups of this host cannot be written; not on this machine")
        yield units
        _systemctl("stop", _NAME)
    finally:
        serving.terminate()
        serving.wait(20)
        shutil.rmtree(runtime)
        _remove_cgroups()


def _remove_cgroups() -> None:
    """What the manager made: empty folders once nothing lives in them."""
    for root in (*_CGROUPS.iterdir(), _CGROUPS):
        made = root / "user.slice"
        for folder, _, _ in os.walk(made, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _systemctl(*arguments: str) -> str:
    done = subprocess.run(["systemctl", "--user", *arguments], capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.strip()


def test_a_service_that_runs_vllm_is_named_offered_stopped_and_gone(
    manager: Path, tmp_path: Path
) -> None:
    library, ready = tmp_path / "vllm" / "_C.abi3.so", tmp_path / "ready"
    library.parent.mkdir()
    library.write_bytes(bytes(4096))
    program = tmp_path / "server.py"
    program.write_text(_SERVER)
    (manager / _NAME).write_text(
        f"[Service]\nExecStart={sys.executable} {program} {library} {ready}\nRestart=always\n"
    )
    _systemctl("daemon-reload")
    assert _systemctl("start", _NAME) == ""
    until(ready.exists)
    before = perform.look(others.CHECK, profile())
    assert f"in user@0: {_NAME}" in before.saw
    assert f"systemctl --user stop {_NAME} (as user 0)" in before.todo
    (action,) = (a for a in before.actions if a.unit == f"user@0: {_NAME}")
    assert any(line.startswith("Restart=always: systemd starts it again") for line in action.effect)
    result = perform.perform(perform.Request(profile(), "others", action))
    assert result.refusal is None
    (line,) = result.done
    assert line.startswith(f"systemctl --user --no-ask-password stop -- {_NAME}: done in")
    assert result.helped
    assert _systemctl("is-active", _NAME) == "inactive"
    again = perform.perform(perform.Request(profile(), "others", action))
    assert again.refusal is not None
