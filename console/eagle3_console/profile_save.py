"""A profile's file: what it holds now, and replacing it whole without losing anybody's work.

What is in it is ``profile.py``'s and ``profile_edit``'s.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from . import home, profile_edit
from . import profile as profiles
from .errors import ConsoleError, error
from .profile_edit import Draft
from .profile_files import file_error
from .replacing import replace

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


def opened(path: Path) -> Draft:
    """A draft of the file.  Raises ConsoleError, ProfileError for broken TOML."""
    profiles.read(path)  # its size, its bytes and its TOML are judged there
    return profile_edit.of_text(path, _held(path) or "")


def _held(path: Path) -> str | None:
    """What the file holds, its line ends as they are; None when there is no file."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8"
        raise file_error(path, why or str(problem), "read") from None


def held_now(draft: Draft) -> str | None:
    """What the draft's file holds now where that is not what was read; None when it is.

    Raises ConsoleError when the file is gone or cannot be read.
    """
    now = _held(draft.path)
    if now is None:
        raise file_error(draft.path, "it is gone since it was read", "saved")
    return None if now == draft.text else now


def is_shipped(path: Path) -> bool:
    """Whether it came with the console; the next version would overwrite what is saved there."""
    shipped = home.shipped_profiles_dir()
    return shipped is not None and path.resolve().parent == shipped.resolve()


def own_path(name: str) -> Path:
    """Where the user's own profile of this name is kept.  Raises ConsoleError for a name that
    cannot be used, or that is taken."""
    stem = name.strip().removesuffix(".toml")
    if not _NAME.match(stem):
        raise error(
            "Not a name for a profile",
            f'"{name}" has other characters than letters, digits, dot, dash and underscore.',
            "Write a plain name, such as night-run.",
            "usage",
        )
    path = home.user_profiles_dir() / f"{stem}.toml"
    if path.exists():
        raise error(
            "The name is taken", f"{path} is there already.", "Write another name.", "usage"
        )
    return path


def save(draft: Draft) -> Draft:
    """Replace the file; the draft of what it holds then.  The mode stays, a link stays a link.

    Raises ConsoleError when the file changed since it was read, or cannot be written.
    """
    if held_now(draft) is not None:
        raise file_error(draft.path, "it changed since it was read", "saved")
    after = profile_edit.text(draft)
    target = draft.path.resolve()
    try:
        mode = target.stat().st_mode & 0o7777
        replace(target, after.encode(), mode=mode, durable=True)
    except OSError as problem:
        raise file_error(draft.path, problem.strerror or str(problem), "written") from None
    return profile_edit.of_text(draft.path, after)


def save_new(draft: Draft, path: Path) -> Draft:
    """Write a new file, never over one that is there; the draft of it.  Raises ConsoleError."""
    after = profile_edit.text(draft)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError as problem:
        raise file_error(path, problem.strerror or str(problem), "written") from None
    try:
        with open(handle, "wb") as file:
            file.write(after.encode())
    except OSError as problem:
        path.unlink(missing_ok=True)
        raise file_error(path, problem.strerror or str(problem), "written") from None
    return profile_edit.of_text(path, after)


def listed() -> list[tuple[str, Path, Draft | ConsoleError]]:
    """Every profile that can be named, and what is wrong with a file that cannot be read."""
    found: list[tuple[str, Path, Draft | ConsoleError]] = []
    for name, path in profiles.available():
        try:
            found.append((name, path, opened(path)))
        except ConsoleError as problem:
            found.append((name, path, problem))
    return found
