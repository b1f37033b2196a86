"""The data as it lies on disk: JSONL, parquet or an Arrow dataset folder -> plain rows.

Streamed: one row (or one small batch of a columnar file) is in memory at a
time.  What a row means is ``dataset``'s.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagle3_agent import jsonline

from .errors import DataError

_BATCH = 64
_COLUMNS = ("input_ids", "loss_mask", "messages", "conversations", "tools")

Raw = tuple[str, Any]
"""Where a row stands (``line 7``, ``row 7``) and its object; a ValueError for a broken line."""


def read(path: Path) -> Iterator[Raw]:
    """Every row in order, broken ones included (as a ValueError that says why).

    Raises DataError when the data as a whole cannot be read.
    """
    try:
        if path.is_dir():
            yield from _arrow_folder(path)
        elif path.suffix == ".parquet":
            yield from _parquet(path)
        elif path.suffix in (".jsonl", ".json", ".ndjson"):
            yield from _jsonl(path)
        else:
            raise DataError(
                f"{path}: data.path must be a .jsonl or .parquet file or a dataset's folder"
            )
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def fingerprint(path: Path) -> str:
    """sha256 over the content of the files that hold the rows; raises DataError."""
    digest = hashlib.sha256()
    try:
        for file in _arrow_files(path) if path.is_dir() else [path]:
            digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while chunk := stream.read(1 << 20):
                    digest.update(chunk)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def _jsonl(path: Path) -> Iterator[Raw]:
    with path.open("rb") as file:
        number = 0
        while (line := jsonline.take(file)[0]) != b"":
            number += 1
            if line is None or line.strip():  # JSON lines readers take a blank line for no row
                yield f"line {number}", jsonline.parse(line)


def _parquet(path: Path) -> Iterator[Raw]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise _needs_pyarrow(path) from None
    try:
        file = parquet.ParquetFile(path)
        columns = _columns(path, file.schema_arrow.names)
        batches = file.iter_batches(batch_size=_BATCH, columns=columns)
        yield from _batches(batches)
    except arrow.ArrowInvalid as error:
        raise DataError(f"{path} is not a parquet file: {error}") from error


def _arrow_folder(path: Path) -> Iterator[Raw]:
    try:
        import pyarrow as arrow
    except ImportError:
        raise _needs_pyarrow(path) from None
    row = 0
    for file in _arrow_files(path):
        try:
            with arrow.memory_map(str(file)) as source, arrow.ipc.open_stream(source) as stream:
                columns = _columns(file, stream.schema.names)
                for batch in stream:
                    parts = batch.select(columns)
                    for start in range(0, parts.num_rows, _BATCH):
                        for item in parts.slice(start, _BATCH).to_pylist():
                            row += 1
                            yield f"row {row}", _without_nulls(item)
        except arrow.ArrowInvalid as error:
            raise DataError(f"{file} is not an Arrow stream: {error}") from error


def _arrow_files(path: Path) -> list[Path]:
    """The files of a folder that ``datasets`` saved, in order; raises DataError."""
    if (path / "dataset_dict.json").exists():
        splits = sorted(p.name for p in path.iterdir() if p.is_dir())
        raise DataError(f"{path} holds the splits {', '.join(splits)}: name one in data.path")
    try:
        state = json.loads((path / "state.json").read_bytes())
        names = [str(entry["filename"]) for entry in state["_data_files"]]
        moved = bool(state.get("_indices_data_files") or state.get("_indices_files"))
    except FileNotFoundError:
        raise DataError(
            f"{path} has no state.json: data.path must be a file or a folder that "
            "datasets' save_to_disk wrote"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{path / 'state.json'} is broken: save the dataset again") from None
    if moved:
        raise DataError(f"{path} is saved with an index: flatten_indices() and save it again")
    if any(Path(name).name != name for name in names):
        raise DataError(f"{path / 'state.json'} names files outside its folder: save it again")
    return [path / name for name in names]


def _columns(path: Path, names: list[str]) -> list[str]:
    found = [c for c in _COLUMNS if c in names]
    if not {"input_ids", "messages", "conversations"} & set(found):
        raise DataError(
            f"{path} has the columns {', '.join(map(str, names[:20]))}; "
            "needed is one of input_ids, messages, conversations"
        )
    return found


def _batches(batches: Any) -> Iterator[Raw]:
    row = 0
    for batch in batches:
        for item in batch.to_pylist():
            row += 1
            yield f"row {row}", _without_nulls(item)


def _without_nulls(value: Any) -> Any:
    """Objects without the fields that are null: a column holds every field that any row has."""
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return [_without_nulls(item) for item in value]
    return value


def _needs_pyarrow(path: Path) -> DataError:
    return DataError(
        f"{path} needs pyarrow in the interpreter that host.python names: "
        "pip install pyarrow there, or use .jsonl"
    )
