"""Prove a run's files: all against manifest and data, some against a second model.

The parts stand in ``verification/``; here they become one report.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_agent import runs
from eagle3_agent.protocol import ProtocolError
from eagle3_agent.protocol.values import (
    Profile,
    ReferenceDtype,
    SampleCheck,
    Substitute,
    VerifyReport,
)
from eagle3_agent.runs import RunFolder

from . import manifest, model_info, prepare
from .engines.base import EngineError
from .errors import OutputError, WorkerError
from .verification import choose, compare, files, instead, recompute, reference
from .verification.choose import Chosen
from .verification.job import Job
from .verification.reference import NoReference

_MAX_NAMED = 100

#: Files with too few rows that are looked into, whatever number of samples is asked.
_CUT = 3


@dataclass(frozen=True)
class Asked:
    """What of a run is verified, and how."""

    samples: int
    """The longest and the shortest are always among them; 0 checks the files alone."""
    seed: int | None = None
    """None draws one."""
    dtype: ReferenceDtype = "auto"


def main(folder: Path, asked: Asked, report: Path) -> int:
    """Write the report; 0 also when it is bad, 1 with a line on stderr when there is none."""
    try:
        run = RunFolder(folder.resolve())
        end = run.exit()
        complete = end is not None and end.state == "completed"
        runs.write_value(report, verify(run.record().profile, asked, complete=complete))
    except (WorkerError, EngineError, ProtocolError, OSError) as error:
        print(str(error), file=sys.stderr, flush=True)
        return 1
    except Exception as error:  # a library's: the trace first, the sentence last
        traceback.print_exception(error)
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


@dataclass(frozen=True)
class _Found:
    """What became of the chosen samples."""

    checked: tuple[SampleCheck, ...] = ()
    reference: str = ""
    dtype: str = ""
    not_recomputed: str = ""
    instead: tuple[Substitute, ...] = ()


def verify(profile: Profile, asked: Asked, *, complete: bool = False) -> VerifyReport:
    """Check every file of the output folder and recompute some samples.

    ``complete`` says that every usable row must have its file.  Raises WorkerError when there is
    nothing to check or model, data and folder do not fit.
    """
    began = time.monotonic()
    info = model_info.read(Path(profile.model.path))
    folder = Path(profile.output.dir)
    marker = manifest.examine(folder, prepare.make_marker(profile, info, ""))
    entries = manifest.entries(folder) if marker is not None else {}
    if marker is None or not entries:
        raise OutputError(f"{folder} holds no sample of this run: nothing to verify")
    seed = choose.new_seed() if asked.seed is None else asked.seed
    seen = files.check(profile, info, marker, entries, complete=complete)
    chosen = choose.choose(seen.good, asked.samples, seed)
    if asked.samples:
        chosen += [Chosen(entry, "cut") for entry in seen.cut[: max(_CUT, asked.samples)]]
    found = _recompute(Job(profile, info, marker, seen.good), chosen, asked.dtype)
    wrong = [check for check in found.checked if not check.ok]
    failed = [check for check in found.instead if check.status == "fails"]
    return VerifyReport(
        ok=not (seen.bad or wrong or failed),
        checked=found.checked,
        files=len(entries),
        bad_files=tuple(seen.bad[:_MAX_NAMED]),
        tolerance=compare.tolerance(marker.dtype, found.dtype or "float32"),
        dtype=marker.dtype,
        seconds=time.monotonic() - began,
        reference=found.reference or "none: no sample was recomputed",
        reference_dtype=found.dtype,
        seed=seed if asked.samples else None,
        verdict=_sentence(found, len(seen.bad)),
        why_tolerance=compare.why(marker.dtype, found.dtype) if found.dtype else "",
        not_recomputed=found.not_recomputed,
        instead=found.instead,
    )


def _recompute(job: Job, chosen: Sequence[Chosen], dtype: ReferenceDtype) -> _Found:
    if not chosen:
        return _Found()
    try:
        model = reference.load(job.profile, job.info, dtype, max(c.entry.tokens for c in chosen))
    except NoReference as why:
        whole = [c.entry for c in chosen if c.role != "cut"]
        return _Found(not_recomputed=str(why), instead=instead.check(job, whole))
    try:
        return _Found(recompute.check(job, model, chosen), model.described, model.dtype)
    finally:
        model.close()


def _sentence(found: _Found, bad: int) -> str:
    """What the whole report says."""
    told = _recomputed(found.checked) if found.checked else "no sample recomputed"
    if found.not_recomputed:
        told = _checked_instead(found.instead)
    if not bad:
        return told
    return f"{told}; 1 file is bad" if bad == 1 else f"{told}; {bad} files are bad"


def _recomputed(checks: Sequence[SampleCheck]) -> str:
    wrong = [check for check in checks if not check.ok]
    if wrong:
        return f"{len(wrong)} of {len(checks)} recomputed samples are wrong: {_kinds(wrong)}"
    if len(checks) == 1:
        return "the recomputed sample agrees in every layer"
    return f"all {len(checks)} recomputed samples agree in every layer"


def _checked_instead(checks: Sequence[Substitute]) -> str:
    by = {
        status: ", ".join(check.check for check in checks if check.status == status)
        for status in ("fails", "holds", "cannot-tell")
    }
    words = {"fails": "does not hold", "holds": "holds", "cannot-tell": "cannot be told"}
    told = "; ".join(f"{names} {words[status]}" for status, names in by.items() if names)
    return f"not recomputed; checked instead: {told}"


def _kinds(wrong: Sequence[SampleCheck]) -> str:
    """Each kind of fault with the samples that have it; the widest first."""
    by: dict[str, list[int]] = {}
    for check in wrong:
        for kind in dict.fromkeys(fault.kind for fault in check.faults):
            by.setdefault(kind, []).append(check.index)
    told = []
    for kind, indexes in sorted(by.items(), key=lambda item: -len(item[1])):
        some = ", ".join(map(str, indexes[:5])) + (" ..." if len(indexes) > 5 else "")
        told.append(f"{kind} (sample{'s' if len(indexes) > 1 else ''} {some})")
    return ", ".join(told)
