"""Every file of the output folder against manifest and data; needs no model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from eagle3_agent.protocol.values import Profile
from eagle3_agent.worker import manifest, prepare, stored
from eagle3_agent.worker.dataset import Bad
from eagle3_agent.worker.engines.base import Sample
from eagle3_agent.worker.manifest import Entry, Marker
from eagle3_agent.worker.model_info import ModelInfo
from eagle3_agent.worker.plan import same_row


@dataclass
class Files:
    """What the pass over the data collects."""

    good: list[Entry] = field(default_factory=list)
    cut: list[Entry] = field(default_factory=list)
    """Whole and of the right row, but their states have another number of rows than tokens."""
    bad: list[str] = field(default_factory=list)
    """A file and what is wrong with it; ``cut`` ones too."""


def check(
    profile: Profile,
    info: ModelInfo,
    marker: Marker,
    entries: dict[int, Entry],
    *,
    complete: bool,
) -> Files:
    """Every file by checksum, then its content by the row it was made from.

    ``complete`` says that every usable row must have its file.
    """
    folder = Path(profile.output.dir)
    ordered = [entries[index] for index in sorted(entries)]
    why = dict(zip((e.index for e in ordered), manifest.all_intact(folder, ordered)))
    found = Files()
    unseen = dict(entries)
    for row in prepare.open_data(profile, info):
        index = row.index if isinstance(row, Bad) else row.sample.index
        entry = unseen.pop(index, None)
        if entry is None:
            if complete and not isinstance(row, Bad):
                name = manifest.file_name(index, marker.output_format)
                found.bad.append(f"{name}: the run is complete, and this row has no sample")
        elif why[index]:
            found.bad.append(f"{entry.file}: {why[index]}")
        elif isinstance(row, Bad):
            found.bad.append(f"{entry.file}: its row cannot be used now: {row.reason}")
        else:
            _content(found, folder, marker, entry, row.sample)
    found.bad += [f"{entry.file}: the data has no row {entry.index}" for entry in unseen.values()]
    strangers = manifest.strangers(folder, {entry.file for entry in entries.values()})
    found.bad += [f"{name}: no line of {manifest.MANIFEST} names it" for name in strangers]
    return found


def _content(found: Files, folder: Path, marker: Marker, entry: Entry, sample: Sample) -> None:
    problem = ""
    if not same_row(entry, sample):
        problem = "made from another row than the data has now"
    elif entry.file != manifest.file_name(entry.index, marker.output_format):
        problem = f"the manifest has it as the file of row {entry.index}"
    elif entry.tokens != len(sample.input_ids):
        tokens = len(sample.input_ids)
        problem = f"the manifest says {entry.tokens} tokens, its row has {tokens}"
    else:
        try:
            content = stored.load(folder / entry.file, marker.output_format)
            problem = _rows(content, entry, sample)
            if problem:
                found.cut.append(entry)
            else:
                problem = stored.check(content, entry, sample)
        except stored.StoredError as error:
            problem = str(error)
    if problem:
        found.bad.append(f"{entry.file}: {problem}")
    else:
        found.good.append(entry)


def _rows(content: stored.Stored, entry: Entry, sample: Sample) -> str:
    """Why states of the right number and width have too few or too many rows; "" otherwise."""
    shapes = [tuple(state.shape) for state in content.states]
    if len(shapes) != entry.layers or any(s[1:] != (entry.hidden,) for s in shapes):
        return ""
    counts, tokens = [shape[0] for shape in shapes], len(sample.input_ids)
    if all(count == tokens for count in counts):
        return ""
    told = str(counts[0]) if len(set(counts)) == 1 else f"{', '.join(map(str, counts))} (by layer)"
    return f"its states have {told} rows, its row has {tokens} tokens"
