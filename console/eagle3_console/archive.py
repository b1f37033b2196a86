"""The agent as it travels to a host: one archive, the same bytes from every workstation."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from .errors import error

_MAIN = b'''"""Runs the agent: ``python FOLDER COMMAND``."""

from eagle3_agent.__main__ import main

if __name__ == "__main__":
    main()
'''


@dataclass(frozen=True)
class Archive:
    """The agent as it travels."""

    name: str
    """First 16 hex digits of the sha256 of ``tar``: the folder's name on the host."""
    tar: bytes

    @functools.cached_property
    def packed(self) -> bytes:
        return zlib.compress(self.tar, 6)


@functools.lru_cache(maxsize=1)
def agent_archive() -> Archive:
    """The installed agent and pynvml; the same files give the same bytes on every machine."""
    agent = _package_folder("eagle3_agent")
    members = {
        f"eagle3_agent/{path.relative_to(agent).as_posix()}": path.read_bytes()
        for path in agent.rglob("*.py")
    }
    members["__main__.py"] = _MAIN
    spec = importlib.util.find_spec("pynvml")
    if spec is not None and spec.origin:
        members["vendor/pynvml.py"] = Path(spec.origin).read_bytes()
    return build_archive(members)


def build_archive(members: dict[str, bytes]) -> Archive:
    """A tar of plain files: sorted, no times, no owners, one mode."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(members):
            info = tarfile.TarInfo(name)
            info.size = len(members[name])
            info.mode = 0o600
            tar.addfile(info, io.BytesIO(members[name]))
    data = out.getvalue()
    return Archive(hashlib.sha256(data).hexdigest()[:16], data)


def _package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise error(
            "This console is not installed whole",
            f"Its package {name} is missing.",
            "Install eagle3-console again.",
            "internal",
        )
    return Path(spec.submodule_search_locations[0])
