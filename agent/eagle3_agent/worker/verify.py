"""Prove a run's files: all against manifest and data, some against transformers in float32."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_agent import runs
from eagle3_agent.protocol import ProtocolError
from eagle3_agent.protocol.values import Profile, SampleCheck, VerifyReport
from eagle3_agent.runs import RunFolder

from . import compare, manifest, model_info, prepare, stored
from .dataset import Bad
from .engines.base import EngineError, Sample
from .engines.transformers import TransformersEngine
from .errors import OutputError, WorkerError
from .manifest import Entry, Marker
from .model_info import ModelInfo
from .plan import same_row

_MAX_NAMED = 100


def main(folder: Path, samples: int, report: Path) -> int:
    """Write the report; 0 also when it is bad, 1 with a line on stderr when there is none."""
    try:
        run = RunFolder(folder.resolve())
        end = run.exit()
        complete = end is not None and end.state == "completed"
        made = verify(run.record().profile, samples, complete=complete)
        runs.write_value(report, made)
    except (WorkerError, EngineError, ProtocolError, OSError) as error:
        print(str(error), file=sys.stderr, flush=True)
        return 1
    except Exception as error:  # a library's: the trace first, the sentence last
        traceback.print_exception(error)
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


@dataclass
class _Found:
    """What the pass over the data collects."""

    good: list[Entry]
    bad: list[str]


def verify(profile: Profile, samples: int, *, complete: bool = False) -> VerifyReport:
    """Check every file of the output folder and recompute ``samples`` of them, spread evenly.

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
    found = _check_files(profile, info, marker, entries, complete)
    strangers = manifest.strangers(folder, {entry.file for entry in entries.values()})
    found.bad += [f"{name}: no line of {manifest.MANIFEST} names it" for name in strangers]
    chosen = spread(found.good, samples)
    checks, reference = _recompute(profile, info, chosen)
    return VerifyReport(
        ok=not found.bad
        and len(chosen) == min(samples, len(entries))
        and all(check.ok for check in checks),
        checked=tuple(checks),
        files=len(entries),
        bad_files=tuple(found.bad[:_MAX_NAMED]),
        tolerance=compare.TOLERANCE[marker.dtype],
        dtype=marker.dtype,
        seconds=time.monotonic() - began,
        reference=reference,
    )


def spread(entries: Sequence[Entry], count: int) -> list[Entry]:
    """``count`` entries from first to last, evenly; all of them where there are fewer."""
    if count >= len(entries):
        return list(entries)
    if count <= 1:
        return list(entries[:count])
    last = len(entries) - 1
    return [entries[round(i * last / (count - 1))] for i in range(count)]


def _check_files(
    profile: Profile,
    info: ModelInfo,
    marker: Marker,
    entries: dict[int, Entry],
    complete: bool,
) -> _Found:
    """Every file by checksum, then its content by the row it was made from."""
    folder = Path(profile.output.dir)
    ordered = [entries[index] for index in sorted(entries)]
    why = dict(zip((e.index for e in ordered), manifest.all_intact(folder, ordered)))
    found = _Found([], [])
    unseen = dict(entries)
    for row in prepare.open_data(profile, info):
        index = row.index if isinstance(row, Bad) else row.sample.index
        entry = unseen.pop(index, None)
        if entry is None:
            if complete and not isinstance(row, Bad):
                name = manifest.file_name(index, marker.output_format)
                found.bad.append(f"{name}: the run is complete, and this row has no sample")
            continue
        problem = why[index]
        if not problem and isinstance(row, Bad):
            problem = f"its row cannot be used now: {row.reason}"
        elif not problem and not isinstance(row, Bad):
            problem = _content(folder, marker, entry, row.sample)
        if problem:
            found.bad.append(f"{entry.file}: {problem}")
        else:
            found.good.append(entry)
    found.bad += [f"{entry.file}: the data has no row {entry.index}" for entry in unseen.values()]
    return found


def _content(folder: Path, marker: Marker, entry: Entry, sample: Sample) -> str:
    if not same_row(entry, sample):
        return "made from another row than the data has now"
    if entry.file != manifest.file_name(entry.index, marker.output_format):
        return f"the manifest has it as the file of row {entry.index}"
    if entry.tokens != len(sample.input_ids):
        return f"the manifest says {entry.tokens} tokens, its row has {len(sample.input_ids)}"
    try:
        content = stored.load(folder / entry.file, marker.output_format)
        return stored.check(content, entry, sample)
    except stored.StoredError as error:
        return str(error)


def _recompute(
    profile: Profile, info: ModelInfo, chosen: list[Entry]
) -> tuple[list[SampleCheck], str]:
    """One check per chosen sample, and what they were compared with."""
    if not chosen:
        return [], "none: no sample was recomputed"
    short = _too_large(info)
    if short:
        why = f"not recomputed: {short}"
        return [SampleCheck(e.index, False, e.tokens, None, why) for e in chosen], why
    engine = TransformersEngine(dtype="float32")
    try:
        loaded = engine.load(profile, lambda event: None)
        wanted = {entry.index: entry for entry in chosen}
        checks = []
        for row in prepare.open_data(profile, info):
            if isinstance(row, Bad) or row.sample.index not in wanted:
                continue
            checks.append(_check(profile, info, engine, wanted.pop(row.sample.index), row.sample))
            if not wanted:
                break
    finally:
        engine.close()
    import transformers

    return checks, f"transformers {transformers.__version__}, float32, {loaded.device}"


def _check(
    profile: Profile, info: ModelInfo, engine: TransformersEngine, entry: Entry, sample: Sample
) -> SampleCheck:
    content = stored.load(Path(profile.output.dir) / entry.file, profile.output.format)
    if not stored.finite(content):
        return SampleCheck(entry.index, False, entry.tokens, None, "holds NaN or infinity")
    (reference,) = engine.capture([sample])
    worst = 0.0
    problems = []
    for layer, mine, theirs in zip(profile.capture.layers, content.states, reference.states):
        found = compare.difference(mine, theirs, entry.dtype)
        worst = max(worst, found.median)
        problem = compare.verdict(found, entry.dtype, experts=info.experts > 0)
        if problem:
            problems.append(f"layer {layer}: {problem}")
    return SampleCheck(entry.index, not problems, entry.tokens, worst, "; ".join(problems))


def _too_large(info: ModelInfo) -> str:
    """Why a float32 reference does not fit this host; "" when it does."""
    need = info.weight_bytes * 4 / info.weight_width
    free = _available()
    if free is None or need * 1.2 < free:
        return ""
    return (
        f"the model in float32 needs {need / 2**30:.0f} GiB of host memory, "
        f"{free / 2**30:.0f} GiB are free; with 0 samples the files alone are checked"
    )


def _available() -> int | None:
    """Bytes of host memory that can be had without swapping (MemAvailable)."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
