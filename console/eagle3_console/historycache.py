"""What this workstation keeps of a host's history, so that it can be read when the host is gone.

One folder for each target in the cache folder, only for its owner: ``runs.json`` with the list, and
for each run that was opened its detail, and what was read of its events, its GPUs and its log.
Every file has a version; one that is damaged or of another version is as good as none.  Secrets
are masked before anything is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from eagle3_agent.protocol import ProtocolError, from_json, to_json
from eagle3_agent.protocol.values import RunDetail, RunSummary

from . import home, scrub
from .linkstate import Kept
from .replacing import replace

VERSION = 1
#: Bytes for one host; the oldest files of runs go first.
LIMIT = 200 << 20
#: Runs of the list that are kept, the newest.
RUNS = 20_000
#: Bytes of one file that are read back; nothing larger was written here.
_FILE_MAX = 64 << 20

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_masked = lru_cache(maxsize=8192)(scrub.text)


@dataclass(frozen=True)
class KeptRun:
    """One run as it was last seen."""

    seen: float
    """Epoch seconds, the workstation's clock."""
    detail: RunDetail


def mask(value: Any, name: str = "") -> Any:
    """As ``scrub.value``; texts that come again, such as a model's path, are looked at once."""
    if isinstance(value, dict):
        return {k: mask(v, k) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask(v, name) for v in value]
    if isinstance(value, str) and value:
        if scrub.is_secret(name):
            return scrub.MASK
        return _masked(value) if len(value) < 500 else scrub.text(value)
    return value


def _masked_log(text: str) -> str:
    """A log without secrets, worked through in blocks: one long search would hold the screen up."""
    if "-----BEGIN" in text:  # a key stands on many lines
        return scrub.text(text)
    told, block = [], ""
    for line in text.splitlines(keepends=True):
        block += line
        if len(block) > 4096:
            told.append(scrub.text(block))
            block = ""
    return "".join([*told, scrub.text(block)])


class HistoryCache:
    """The files of one target.  Nothing here raises for a disk or a file that will not do."""

    def __init__(self, target: str, base: Path | None = None, limit: int = LIMIT) -> None:
        self.target = target
        self._limit = limit
        digest = hashlib.sha256(target.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        words = re.sub(r"[^A-Za-z0-9.-]+", "_", target)[:40].strip("._") or "host"
        self.folder = (base or home.cache_dir()) / "history" / f"{words}-{digest}"
        self._lines: dict[str, tuple[RunSummary, str]] = {}

    # ------------------------------------------------------------------ reading

    def kept(self) -> Kept | None:
        """The list as it was last seen, oldest first; None when there is none."""
        found = self._read("runs.json")
        if found is None:
            return None
        try:
            runs = [from_json(RunSummary, run) for run in found["runs"]]
            return Kept(float(found["seen"]), tuple(sorted(runs, key=lambda r: r.number)))
        except (KeyError, TypeError, ValueError, RecursionError, ProtocolError):
            return None

    def run(self, run: str) -> KeptRun | None:
        """Everything about one run that is not a stream; None when it was never opened."""
        found = self._read(f"{run}.detail.json")
        if found is None:
            return None
        try:
            return KeptRun(float(found["seen"]), from_json(RunDetail, found["detail"]))
        except (KeyError, TypeError, ValueError, RecursionError, ProtocolError):
            return None

    def stream(self, run: str, stream: str) -> bytes:
        """What is kept of a run's file; empty when nothing was seen of it."""
        found = self._read(f"{run}.{stream}.json")
        text = found.get("text") if found is not None else None
        return text.encode("utf-8", "replace") if isinstance(text, str) else b""

    def cause_line(self, run: str) -> int | None:
        """Where the cause stands in what is kept of the log, from 0; None where it does not."""
        found = self._read(f"{run}.output.json")
        line = found.get("cause") if found is not None else None
        return line if isinstance(line, int) and line >= 0 else None

    def _read(self, name: str) -> dict[str, Any] | None:
        if not _PLAIN.fullmatch(name):
            return None
        try:
            with open(self.folder / name, "rb") as file:
                found = json.loads(file.read(_FILE_MAX))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or found.get("version") != VERSION:
            return None
        return found if found.get("target") == self.target else None

    # ------------------------------------------------------------------ writing

    def keep_runs(self, runs: Iterable[RunSummary], seen: float) -> None:
        """The list as it stands; a run whose number now means another one loses its files."""
        newest = sorted(runs, key=lambda r: r.number)[-RUNS:]
        if not self._lines:
            self._forget_others(newest)
        known, self._lines = self._lines, {}
        for run in newest:
            before = known.get(run.run)
            same = before is not None and before[0] == run
            line = before[1] if before and same else json.dumps(mask(to_json(run)))
            self._lines[run.run] = (run, line)
            if before is not None and before[0].created != run.created:
                self._forget(run.run)
        head = json.dumps({"version": VERSION, "target": self.target, "seen": seen})
        body = ",\n".join(line for _, line in self._lines.values())
        self._write("runs.json", f'{head[:-1]}, "runs": [\n{body}\n]}}\n')

    def _forget_others(self, runs: Iterable[RunSummary]) -> None:
        """What an earlier console kept under these ids may be of another host of this name."""
        kept = self.kept()
        created = {run.run: run.created for run in kept.runs} if kept is not None else {}
        for run in runs:
            if run.run in created and created[run.run] != run.created:
                self._forget(run.run)

    def keep_run(self, detail: RunDetail, seen: float) -> None:
        run = detail.summary.run
        before = self.run(run)
        if before is not None and before.detail.summary.created != detail.summary.created:
            self._forget(run)
        self._put(f"{run}.detail.json", {"seen": seen, "detail": mask(to_json(detail))})

    def keep_stream(
        self, run: str, stream: str, text: str, seen: float, cause: int | None = None
    ) -> None:
        """``text`` is masked already where it is JSON; a log's is masked here.

        ``cause`` is the line of this text, from 0, where the run's cause begins.
        """
        masked = _masked_log(text) if stream == "output" else text
        self._put(f"{run}.{stream}.json", {"seen": seen, "text": masked, "cause": cause})

    def _put(self, name: str, value: dict[str, Any]) -> None:
        self._write(name, json.dumps({"version": VERSION, "target": self.target, **value}) + "\n")

    def _write(self, name: str, text: str) -> None:
        if not _PLAIN.fullmatch(name):  # a run's id is the host's word
            return
        with contextlib.suppress(OSError):
            self.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.folder.mkdir(exist_ok=True, mode=0o700)
            self.folder.chmod(0o700)
            replace(self.folder / name, text.encode("utf-8", "replace"))
            self._bound()

    def _bound(self) -> None:
        """Let the oldest go until the rest fits; the list itself is the last."""
        files = []
        for entry in os.scandir(self.folder):
            if entry.is_file(follow_symlinks=False):
                seen = entry.stat(follow_symlinks=False)
                files.append(
                    (entry.name == "runs.json", seen.st_mtime_ns, seen.st_size, entry.path)
                )
        size = sum(file[2] for file in files)
        for _, _, bytes_, path in sorted(files):
            if size <= self._limit:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            size -= bytes_

    def _forget(self, run: str) -> None:
        for kind in ("detail", "events", "gpu", "output"):
            if _PLAIN.fullmatch(f"{run}.{kind}.json"):
                with contextlib.suppress(OSError):
                    os.unlink(self.folder / f"{run}.{kind}.json")
