"""Which file a profile's name means.  What is in the file is ``profile.py``'s."""

from __future__ import annotations

import os
from pathlib import Path

from eagle3_agent.protocol.values import Problem

from . import home
from .errors import ConsoleError
from .profile_settings import nearest


def folders() -> list[Path]:
    """Where a profile's bare name is looked for, first match first."""
    shipped = home.shipped_profiles_dir()
    places = [Path.cwd() / "profiles", home.user_profiles_dir()]
    if shipped is not None:
        places.append(shipped)
    seen: dict[Path, Path] = {}
    for place in places:
        seen.setdefault(place.resolve(), place)
    return list(seen.values())


def available() -> list[tuple[str, Path]]:
    """Every profile that can be named, each name once, in the order in which it is looked up."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob("*.toml")):
            found.setdefault(path.stem, path)
    return list(found.items())


def resolve(name: str) -> Path:
    """The file that ``name`` means: a path, or a bare name in one of ``folders()``.

    Raises ConsoleError (usage) when there is none, with the nearest name that there is.
    """
    given = Path(name).expanduser()
    if given.is_file():
        return given
    if not any(mark in name for mark in ("/", os.sep)):
        stem = name[:-5] if name.endswith(".toml") else name
        for folder in folders():
            candidate = folder / f"{stem}.toml"
            if candidate.is_file():
                return candidate
        places = ", ".join(str(folder) for folder in folders())
        close = nearest(stem, [known for known, _ in available()])
        todo = f"Did you mean {close}?" if close else "`eagle3-console profiles list` shows them."
        if Path(f"{stem}.toml").is_file():
            todo = f"{stem}.toml lies in this folder: name it with its ending."
        raise ConsoleError(
            Problem(
                f"There is no profile {name}", f"Looked for {stem}.toml in {places}.", todo, "usage"
            )
        )
    if given.is_dir():
        raise file_error(given, "it is a folder", "read")
    raise file_error(given, "no such file", "read")


def file_error(path: Path, why: str, act: str) -> ConsoleError:
    return ConsoleError(
        Problem(
            f"Profile {path.name} cannot be {act}",
            f"{path}: {why}",
            "Name a profile's file, or one that `eagle3-console profiles list` shows.",
            "usage",
        )
    )
