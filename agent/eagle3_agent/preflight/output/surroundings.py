"""What an output folder has in it or above it that is not its own."""

from __future__ import annotations

import os

from eagle3_agent import archive, paths
from eagle3_agent.outputs import MARKER
from eagle3_agent.protocol.values import Profile


def held(folder: str, profile: Profile) -> str:
    """What must stay where it is, and is ``folder`` or lies in it, in words; empty when nothing.

    By names alone for what the profile names: a mount that hangs must not cost this probe, too.
    """
    own = (
        ("the model", profile.model.path),
        ("the data", profile.data.path),
        ("host.python", profile.host.python),
        ("engine.script", profile.engine.script or ""),
        ("the agent's records", os.path.realpath(paths.state_dir())),
        ("the agent itself", os.fspath(archive.ROOT)),
        ("the home folder", os.path.realpath(os.path.expanduser("~"))),
    )
    for words, path in own:
        if os.path.isabs(path) and within(path, folder):
            return words
    return "a mount" if os.path.ismount(folder) else ""


def within(path: str, folder: str) -> bool:
    """Whether it is the folder or below it; pure."""
    clean = os.path.normpath(folder)
    return f"{os.path.normpath(path)}/".startswith(f"{clean.rstrip('/')}/")


def same(one: str, other: str) -> bool:
    """Whether both name one place; pure."""
    return os.path.normpath(one) == os.path.normpath(other)


def above(path: str) -> str:
    """The nearest folder above that holds samples of a run; empty when there is none."""
    folder = os.path.normpath(path)
    while folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        if os.path.lexists(os.path.join(folder, MARKER)):
            return folder
    return ""
