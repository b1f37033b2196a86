"""What the data holds, as far as it can be told without a tokenizer: rows, tokens, broken lines.

The formats are those that the worker reads; ``jsonl``, ``arrow`` and ``parquet``
look into one each.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field

from . import arrow, jsonl, parquet
from .check import Ask, Probe
from .tally import Limits, Tally

#: Bytes read of a JSONL file in the quick preflight.
QUICK_BYTES = 32 * 1024 * 1024

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
    whole: bool = True
    """Every row that the run will take was looked at."""
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
    try:
        info = os.stat(path)
        if stat.S_ISDIR(info.st_mode):
            return _folder(path, ask)
        if not stat.S_ISREG(info.st_mode):
            return _bad(path, "is not a regular file (a pipe, socket or device)")
        return _file(path, info.st_size, ask)
    except FileNotFoundError:
        return _bad(path, "does not exist")
    except OSError as error:
        return _bad(path, f"cannot be read: {error.strerror or error}")


def _bad(path: str, problem: str, todo: str = "") -> DataFacts:
    return DataFacts(path, problem, todo)


def _file(path: str, size: int, ask: Ask) -> DataFacts:
    suffix = os.path.splitext(path)[1]
    if suffix not in (".jsonl", ".json", ".ndjson", ".parquet"):
        todo = "Name a .jsonl or .parquet file, or a folder that datasets' save_to_disk wrote."
        return _bad(path, f"ends in {suffix!r}, which the worker does not read", todo)
    if size == 0:
        return _bad(path, "is empty (0 bytes)")
    if suffix == ".parquet":
        return _parquet(path, size, ask)
    with open(path, "rb") as file:
        head = file.read(4096)
        problem, todo = jsonl.why_not(head)
        if problem:
            return _bad(path, problem, todo)
        file.seek(0)
        limit = size if ask.deep else QUICK_BYTES
        part = jsonl.read(file, limit, _limits(ask))
    return _from_part(path, size, part, ask)


def _limits(ask: Ask) -> Limits:
    data = ask.profile.data
    return Limits(data.seq_length, data.max_samples)


def _from_part(path: str, size: int, part: jsonl.Part, ask: Ask) -> DataFacts:
    rows = part.tally.rows
    most = ask.profile.data.max_samples
    share = 1.0
    if not part.whole and part.bytes:
        share = size / part.bytes
        rows = round(rows * share)
        if most is not None and rows > most:
            share *= most / rows
            rows = most
    tally = part.tally
    exact = part.whole and not tally.estimated_tokens
    return DataFacts(
        path=path,
        kind="JSONL",
        size=size,
        looked_at=part.bytes,
        whole=part.whole,
        rows=rows,
        tally=tally,
        tokens=round((tally.exact_tokens + tally.estimated_tokens) * share),
        tokens_exact=exact,
        tokens_from=_said(tally, part.whole),
    )


def _said(tally: Tally, whole: bool) -> str:
    words = "4 characters a token" if tally.estimated_tokens else "counted input_ids"
    return words if whole else f"{words}, the rest like the part that was read"


def _parquet(path: str, size: int, ask: Ask) -> DataFacts:
    try:
        table = parquet.read(path)
    except parquet.BadFile as error:
        return _bad(path, str(error), "Write the file again.")
    return _columnar(path, "parquet", size, table.rows, table.columns, table.values, ask)


def _folder(path: str, ask: Ask) -> DataFacts:
    if os.path.exists(os.path.join(path, "dataset_dict.json")):
        splits = sorted(e.name for e in os.scandir(path) if e.is_dir())
        named = ", ".join(splits[:8])
        return _bad(path, f"holds the splits {named}", "Name one of them in data.path.")
    try:
        with open(os.path.join(path, "state.json"), "rb") as file:
            state = json.loads(file.read(_STATE_LIMIT))
        names = [str(entry["filename"]) for entry in state["_data_files"]][:_FILES_MOST]
    except FileNotFoundError:
        todo = "Name a .jsonl or .parquet file, or a folder that datasets' save_to_disk wrote."
        return _bad(path, "is a folder without state.json", todo)
    except (ValueError, KeyError, TypeError, RecursionError):
        return _bad(path, "has a state.json that cannot be understood", "Save the dataset again.")
    if any(os.path.basename(name) != name for name in names):
        return _bad(path, "has a state.json that names files outside it", "Save the dataset again.")
    rows = size = 0
    columns: tuple[str, ...] = ()
    values: dict[str, int] = {}
    for name in names:
        try:
            table = arrow.read(os.path.join(path, name))
        except arrow.BadFile as error:
            return _bad(path, f"holds {name}, which {error}", "Copy or save the dataset again.")
        size += table.size
        rows += table.rows
        columns = columns or table.columns
        for column, count in table.values.items():
            values[column] = values.get(column, 0) + count
    return _columnar(path, "Arrow dataset", size, rows, columns, values, ask)


def _columnar(
    path: str,
    kind: str,
    size: int,
    rows: int,
    columns: tuple[str, ...],
    values: dict[str, int],
    ask: Ask,
) -> DataFacts:
    if not {"input_ids", "messages", "conversations"} & set(columns):
        shown = ", ".join(columns[:12]) or "none"
        todo = "Needed is a column input_ids, messages or conversations."
        return _bad(path, f"has the columns {shown}", todo)
    if rows == 0:
        return _bad(path, "holds no row")
    data = ask.profile.data
    taken = rows if data.max_samples is None else min(rows, data.max_samples)
    most = taken * data.seq_length
    total = values.get("input_ids")
    if total is None:
        tokens, said = most, f"at most: {taken} rows of {data.seq_length}"
    else:
        share = round(total * taken / rows)
        tokens, said = min(share, most), "the length of the column input_ids, before truncation"
        if taken < rows:
            said = "the mean length of the column input_ids"
    return DataFacts(
        path=path,
        kind=kind,
        size=size,
        looked_at=0,
        whole=True,
        rows=taken,
        tokens=tokens,
        tokens_from=said,
    )


PROBE = Probe("data", DataFacts, _collect, timeout=30.0)
