"""Login shells as they are in the wild, and hosts where no Python is to be found."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .sshd import Sshd


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def login_shell(server: Sshd, text: str) -> str:
    """The option that makes a script every login's shell, with $SSH_ORIGINAL_COMMAND."""
    return f"ForceCommand {script(server.folder / 'shell', text)}"


def in_own_mounts() -> None:
    """Skip where this machine gives no mount namespace (an unprivileged container)."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("a mount namespace is not allowed here")


def tools(folder: Path) -> Path:
    """A PATH of what any host has, except for Python."""
    folder.mkdir(parents=True)
    for name in ("sh", "cat", "printf", "uname"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def without_python(server: Sshd, path: Path) -> str:
    """Hide the usual places too: the script looks there by their full names."""
    in_own_mounts()
    hide = " ".join(
        f"mount --bind /dev/null {place};"
        for place in ("/usr/bin/python3", "/usr/local/bin/python3")
        if Path(place).exists()
    )
    inner = script(
        server.folder / "bare", f'{hide} PATH={path}; export PATH; exec /bin/sh -c "$1"\n'
    )
    return login_shell(server, f'exec unshare -m {inner} "$SSH_ORIGINAL_COMMAND"\n')
