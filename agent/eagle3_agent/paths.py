"""Where the agent keeps its files on this host.

``EAGLE3_HOME`` moves all of it; otherwise the XDG base directories hold it.
Run folders are shared by all hosts that share the home; the socket is not.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from pathlib import Path

#: ``sun_path`` holds 108 bytes with its terminator on Linux (unix(7)).
_SOCKET_PATH_MAX = 100


def settle() -> None:
    """Make a relative ``EAGLE3_HOME`` absolute, for this process and all that it starts.

    Whoever changes the folder later (the daemon does) must not take the files elsewhere.
    """
    home = os.environ.get("EAGLE3_HOME")
    if home:
        os.environ["EAGLE3_HOME"] = os.path.abspath(os.path.expanduser(home))


def _base(kind: str, variable: str, fallback: str) -> Path:
    home = os.environ.get("EAGLE3_HOME")
    if home:
        return Path(home) / kind
    xdg = os.environ.get(variable)
    root = Path(xdg) if xdg and os.path.isabs(xdg) else Path.home() / fallback
    return root / "eagle3"


def cache_dir() -> Path:
    """Unpacked agents and other things that can be made again."""
    return _base("cache", "XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    """Run folders and the agent's own log."""
    return _base("state", "XDG_STATE_HOME", ".local/state")


def runs_dir() -> Path:
    return state_dir() / "runs"


def agent_dir() -> Path:
    """This host's daemon: its socket, lock and log."""
    return state_dir() / "agent" / (platform.node() or "localhost")


def socket_path(folder: Path | None = None) -> Path:
    """The daemon's socket in ``folder`` (``agent_dir()``); a short path under /tmp if too long."""
    path = (folder or agent_dir()) / "agent.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
        return path
    tag = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return Path("/tmp") / f"eagle3-{os.getuid()}-{tag}" / "agent.sock"


def private_dir(path: Path) -> Path:
    """Make ``path`` (0700 whatever the umask) and prove that it is ours and nobody else's.

    Raises PermissionError when it is a symlink, another user's, or open to others and
    cannot be closed.
    """
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for folder in reversed(missing):  # one by one: mkdir(parents=True) leaves parents to the umask
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        raise PermissionError(f"{path} is not a folder (a symlink or a file stands there)")
    if info.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to uid {info.st_uid}, not to {os.getuid()}")
    if stat.S_IMODE(info.st_mode) != 0o700:
        os.chmod(path, 0o700)
    return path
