"""What the data holds, as far as it can be told without a tokenizer: rows, tokens, broken lines.

The formats are those that the worker reads; ``jsonl``, ``arrow`` and ``parquet``
look into one each.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from typing import IO

from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.preflight.files import open_regular

from . import arrow, jsonl, parquet, values
from .tally import CHARACTERS_A_TOKEN, Limits, Tally

#: Bytes judged of a JSONL file in the quick preflight, and of the ids of a saved dataset.
QUICK_BYTES = 12 * 1024 * 1024
QUICK_VALUES = 16 * 1024 * 1024

_STATE_LIMIT = 16 * 1024 * 1024
_FILES_MOST = 10_000


@dataclass(frozen=True)
class DataFacts:
    path: str
    problem: str = ""
    """Why the data as a whole cannot be used, in words; the rest is empty then."""
    todo: str = ""
    kind: str = ""
    """``JSONL``, ``parquet`` or ``Arrow dataset``."""
    size: int = 0
    """Bytes of the file or files."""
    looked_at: int = 0
    """Bytes read; less than ``size`` when a part was enough or all that the time allows."""
    places: int = 0
    """Places after the file's beginning at which it was read, when not whole."""
    whole: bool = True
    """Every row that the run will take was looked at; of columnar files, its lengths and ids."""
    unseen: str = ""
    """Why a columnar file's rows were not looked at one by one, in words."""
    talks: bool | None = None
    """Whether it holds conversations, for which a tokenizer is needed; None when nothing says."""
    masked: bool | None = None
    """Whether a columnar file has the column loss_mask."""
    repeated: int = 0
    """Rows that are byte for byte another one's, among those that were looked at."""
    notes: tuple[str, ...] = ()
    """What is odd about the file and does no harm."""
    rows: int = 0
    """Rows that the run will take; estimated from the part when not ``whole``."""
    tally: Tally = field(default_factory=Tally)
    tokens: int | None = None
    """Tokens that the run will capture, after truncation; None when nothing says."""
    tokens_exact: bool = False
    tokens_from: str = ""
    """What the number rests on, in words."""


def _collect(ask: Ask) -> DataFacts:
    path = ask.profile.data.path
    if not os.path.isabs(path):
        return _bad(path, "is not a whole path: it must begin with /")
    try:
        if os.path.isdir(path):
            return _folder(path, ask)
        file, size = open_regular(path)
        with file:
            return _file(path, file, size, ask)
    except FileNotFoundError:
        return _bad(path, "does not exist")
    except OSError as error:
        return _bad(path, f"cannot be read: {error.strerror or error}")


def _bad(path: str, problem: str, todo: str = "") -> DataFacts:
    return DataFacts(path, problem, todo)


def _file(path: str, file: IO[bytes], size: int, ask: Ask) -> DataFacts:
    suffix = os.path.splitext(path)[1]
    if suffix not in (".jsonl", ".json", ".ndjson", ".parquet"):
        todo = "Name a .jsonl or .parquet file, or a folder that datasets' save_to_disk wrote."
        return _bad(path, f"ends in {suffix!r}, which the worker does not read", todo)
    if size == 0:
        return _bad(path, "is empty (0 bytes)")
    if suffix == ".parquet":
        return _parquet(path, size, ask)
    head = file.read(4096)
    problem, todo = jsonl.why_not(head)
    if problem:
        return _bad(path, problem, todo)
    file.seek(0)
    part = jsonl.read(file, size, size if ask.deep else QUICK_BYTES, _limits(ask))
    return replace(_from_part(path, size, part, ask), notes=jsonl.notes(head))


def _limits(ask: Ask) -> Limits:
    data = ask.profile.data
    return Limits(data.seq_length, data.max_samples, ask.profile.model.max_model_len)


def _from_part(path: str, size: int, part: jsonl.Part, ask: Ask) -> DataFacts:
    tally = part.tally
    rows = tally.rows
    if not part.whole and part.bytes:
        rows = max(1, round(tally.rows * size / part.bytes))
        rows = min(rows, ask.profile.data.max_samples or rows)
    tokens = tally.exact_tokens + tally.estimated_tokens
    return DataFacts(
        path=path,
        kind="JSONL",
        size=size,
        looked_at=part.read,
        places=part.places,
        whole=part.whole,
        talks=tally.conversations > 0 if tally.conversations or tally.input_ids else None,
        repeated=part.repeated,
        rows=rows,
        tally=tally,
        tokens=round(tokens * rows / tally.rows) if tally.rows else 0,
        tokens_exact=part.whole and not tally.estimated_tokens,
        tokens_from=_said(tally, part.whole),
    )


def _said(tally: Tally, whole: bool) -> str:
    words = (
        f"{CHARACTERS_A_TOKEN} characters a token"
        if tally.estimated_tokens
        else "counted input_ids"
    )
    return words if whole else f"{words}, the rest like what was read"


def _parquet(path: str, size: int, ask: Ask) -> DataFacts:
    try:
        found = parquet.read(path)
    except parquet.BadFile as error:
        return _bad(path, str(error), "Write the file again.")
    table = _Table(size, found.bytes, found.rows, found.columns, found.values)
    seen = _columnar(path, "parquet", table, ask)
    if seen.problem:
        return seen
    tally = _from_ranges(found)
    return replace(seen, tally=tally, unseen="parquet is not unpacked here")


def _from_ranges(found: parquet.Table) -> Tally:
    """What the footer's least and largest values tell of all rows."""
    low, high = found.ranges.get("input_ids", (0, -1))
    learned = found.ranges.get("loss_mask", (0, 1))[1]
    return Tally(
        broken_at="some row" if low < 0 else "",
        broken_why=f"token id {low} is negative" if low < 0 else "",
        largest_id=high,
        largest_id_at="some row",
        unlearned=found.rows if learned == 0 else 0,
    )


def _folder(path: str, ask: Ask) -> DataFacts:
    if os.path.exists(os.path.join(path, "dataset_dict.json")):
        splits = sorted(e.name for e in os.scandir(path) if e.is_dir())
        named = ", ".join(splits[:8])
        return _bad(path, f"holds the splits {named}", "Name one of them in data.path.")
    try:
        file, _ = open_regular(os.path.join(path, "state.json"))
        with file:
            state = json.loads(file.read(_STATE_LIMIT))
        names = [str(entry["filename"]) for entry in state["_data_files"]][:_FILES_MOST]
        moved = bool(state.get("_indices_data_files") or state.get("_indices_files"))
    except FileNotFoundError:
        todo = "Name a .jsonl or .parquet file, or a folder that datasets' save_to_disk wrote."
        return _bad(path, "is a folder without state.json", todo)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _bad(path, "has a state.json that cannot be understood", "Save the dataset again.")
    if moved:
        todo = "Call flatten_indices() on the dataset and save it again."
        return _bad(path, "is a dataset saved with an index of rows", todo)
    if any(os.path.basename(name) != name for name in names):
        return _bad(path, "has a state.json that names files outside it", "Save the dataset again.")
    table = _Table()
    files = []
    for name in names:
        whole = os.path.join(path, name)
        try:
            read = arrow.read(whole)
        except arrow.BadFile as error:
            return _bad(path, f"holds {name}, which {error}", "Copy or save the dataset again.")
        table.add(read)
        files.append((whole, read.batches))
    seen = _columnar(path, "Arrow dataset", table, ask)
    if seen.problem or "input_ids" not in table.columns:
        return seen
    return _looked_into(seen, files, table, ask)


def _looked_into(
    seen: DataFacts, files: list[tuple[str, list[arrow.Batch]]], table: _Table, ask: Ask
) -> DataFacts:
    """With its rows judged one by one, as many as the time allows."""
    budget = None if ask.deep else QUICK_VALUES
    found, why = values.look(files, budget, _limits(ask), masked="loss_mask" in table.columns)
    if found is None:
        return replace(seen, unseen=why)
    return replace(
        seen,
        tally=found.tally,
        whole=found.whole,
        looked_at=found.bytes,
        tokens=found.tally.exact_tokens if found.whole else seen.tokens,
        tokens_exact=found.whole,
    )


@dataclass
class _Table:
    """A columnar dataset, whatever its files."""

    size: int = 0
    text: int = 0
    """Bytes of the columns, uncompressed."""
    rows: int = 0
    columns: tuple[str, ...] = ()
    values: dict[str, int] = field(default_factory=dict)

    def add(self, table: arrow.Table) -> None:
        self.size += table.size
        self.text += table.size
        self.rows += table.rows
        self.columns = self.columns or table.columns
        for column, count in table.values.items():
            self.values[column] = self.values.get(column, 0) + count


def _columnar(path: str, kind: str, table: _Table, ask: Ask) -> DataFacts:
    if not {"input_ids", "messages", "conversations"} & set(table.columns):
        shown = ", ".join(table.columns[:12]) or "none"
        todo = "Needed is a column input_ids, messages or conversations."
        return _bad(path, f"has the columns {shown}", todo)
    if table.rows == 0:
        return _bad(path, "holds no row", "Prepare the data again.")
    data = ask.profile.data
    taken = table.rows if data.max_samples is None else min(table.rows, data.max_samples)
    total = table.values.get("input_ids")
    said = "the length of the column input_ids"
    if total is None:
        total = table.text // CHARACTERS_A_TOKEN
        said = f"{CHARACTERS_A_TOKEN} bytes of the columns a token"
    share = round(total * taken / table.rows)
    return DataFacts(
        path=path,
        kind=kind,
        size=table.size,
        rows=taken,
        tokens=min(share, taken * data.seq_length),
        tokens_from=said,
        talks="input_ids" not in table.columns,
        masked="loss_mask" in table.columns,
    )


PROBE = Probe("data", DataFacts, _collect, timeout=30.0, deep_timeout=1800.0)
