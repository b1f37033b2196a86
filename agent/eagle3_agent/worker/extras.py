"""What speculators' later steps expect beside the samples of a run that is done.

    speculators-pt    sample_lengths.json   tokens of each file: 0.4 packs batches by it
                      data_config.json      what was captured and how: for people, no tool reads it
                      token_freq.bin        learned tokens counted: build_vocab_mapping.py
    safetensors       prepared/             Arrow dataset, row i for hs_i.safetensors: --data-path
                      prepared/token_freq.pt

The 0.3 and 0.4 trainers read every file below the data folder whose name ends in ``pt`` as a
sample, so their counts have another name here; ``--token-freq-path`` takes any.  From 0.5 on the
trainer joins a hidden-state file with the row of its number in a prepared dataset, which has the
loss mask, and drops it unless the ids agree: the rows here are those that were captured, after
truncation, and empty where there is no sample.

All of it follows from the data and the manifest: written again, it has the same bytes.
``extras.json`` names what was written, for whoever clears the run.
Source: scripts/data_generation_offline.py and speculators/train of 0.3.0, 0.4.0.1 and 0.9.0.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import compress
from pathlib import Path
from typing import Any

from eagle3_agent import clearing
from eagle3_agent.protocol.values import Profile

from . import manifest, model_info, prepare
from .dataset import Bad
from .engines.base import Sample
from .manifest import Entry, Marker
from .plan import same_row

LENGTHS = "sample_lengths.json"
CONFIG = "data_config.json"
COUNTS = "token_freq.bin"
PREPARED = clearing.PREPARED
RECORD = clearing.EXTRAS

_ARROW = re.compile(r"data-[0-9a-f]{16}\.arrow")
_COLUMNS = ("input_ids", "loss_mask", "seq_len")
_ROWS_A_BATCH = 1000


def write(
    folder: Path, marker: Marker, entries: Mapping[int, Entry], profile: Profile
) -> list[str]:
    """Write what belongs to the format of ``marker``; each file is replaced whole.

    Reads the data once more.  Returns what could not be written and why, for a person: the
    samples are good without it.  Raises DataError and ModelError as reading the data does.
    """
    written = _Written(folder)
    try:
        try:
            return _write(written, marker, entries, profile)
        finally:
            written.record()
    except OSError as error:
        where = error.filename or folder
        return [f"{where} could not be written ({error.strerror or error}): resume the run"]


def _write(
    written: _Written, marker: Marker, entries: Mapping[int, Entry], profile: Profile
) -> list[str]:
    counts: Counter[int] = Counter()
    rows = _counted(_rows(entries, profile), counts)
    if marker.output_format == "safetensors":
        return _write_prepared(written, rows, counts)
    for _ in rows:
        pass
    lengths = {str(index): entries[index].tokens for index in sorted(entries)}
    written.put(LENGTHS, _json(lengths))
    written.put(CONFIG, _json(_config(marker, entries, profile)))
    written.put(COUNTS, _torch(counts))
    return []


def _rows(entries: Mapping[int, Entry], profile: Profile) -> Iterator[Sample | None]:
    """Every row of the data in order; None where it has no file."""
    info = model_info.read(Path(profile.model.path))
    for row in prepare.open_data(profile, info):
        entry = None if isinstance(row, Bad) else entries.get(row.sample.index)
        if isinstance(row, Bad) or entry is None or not same_row(entry, row.sample):
            yield None
        else:
            yield row.sample


def _counted(rows: Iterator[Sample | None], counts: Counter[int]) -> Iterator[Sample | None]:
    """The same rows; their learned tokens are added up on the way."""
    for sample in rows:
        if sample is not None:
            counts.update(compress(sample.input_ids, sample.loss_mask))
        yield sample


# ------------------------------------------------------------------ speculators 0.3 and 0.4


def _config(marker: Marker, entries: Mapping[int, Entry], profile: Profile) -> dict[str, Any]:
    """The fields of speculators' ``DataGenerationConfig`` 2.0, and ours under a name of their own.

    Without its ``generated_at``, and without the run's number: equal runs write equal files.
    """
    return {
        "version": "2.0",
        "speculators_version": _version("speculators"),
        "reproducibility": {
            "command": "eagle3-console",
            "package_versions": {
                name: _version(name) for name in ("torch", "vllm", "transformers", "speculators")
            },
        },
        "model": {
            "target_model_path": marker.model,
            "tensor_parallel_size": profile.model.tensor_parallel_size,
            "gpu_memory_utilization": profile.model.gpu_memory_utilization,
            "hidden_size": marker.hidden,
        },
        "data": {
            "train_data_path": marker.data,
            "seq_length": profile.data.seq_length,
            "max_samples": profile.data.max_samples,
            "num_samples": len(entries),
            "chat_template_note": "Uses tokenizer's built-in chat template",
        },
        "hidden_states": {"layer_ids": list(marker.layers), "description": marker.convention},
        "format": {
            "file_pattern": "data_{idx}.pt",
            "data_format_version": 1,
            "schema": {
                "input_ids": {"dtype": "torch.long", "shape": "[seq_len]"},
                "hidden_states": {
                    "dtype": f"list[torch.{marker.dtype}]",
                    "shape": f"list of [seq_len, {marker.hidden}]",
                    "num_tensors": len(marker.layers),
                },
                "loss_mask": {"dtype": "torch.long", "shape": "[seq_len]"},
            },
        },
        "eagle3": {
            "model_fingerprint": marker.model_fingerprint,
            "data_fingerprint": marker.data_fingerprint,
            "too_long": profile.data.too_long,
        },
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


# ------------------------------------------------------------------ speculators 0.5 and later


def _write_prepared(
    written: _Written, rows: Iterator[Sample | None], counts: Counter[int]
) -> list[str]:
    """A folder as ``datasets`` saves it; its state.json changes last.  Raises OSError."""
    folder = written.folder / PREPARED
    try:
        import pyarrow
    except ImportError:
        return [
            f"{folder} was not written, and training needs its loss masks: install pyarrow in the "
            "interpreter that host.python names, and resume the run"
        ]
    if _is_foreign(folder):
        return [
            f"{folder} was not written, since it holds a dataset that no run wrote, and training "
            "needs its loss masks: move it away and resume the run"
        ]
    folder.mkdir(exist_ok=True)
    grown = _partial(folder / "data.arrow")
    _write_arrow(pyarrow, grown, rows)
    digest = manifest.file_digest(grown)
    name = f"data-{digest[:16]}.arrow"
    written.moved(f"{PREPARED}/{name}", grown, digest)
    written.put(f"{PREPARED}/token_freq.pt", _torch(counts))
    written.put(f"{PREPARED}/dataset_info.json", _json({"features": None}))
    written.put(f"{PREPARED}/state.json", _json(_state(name, digest)))
    for old in folder.iterdir():
        if _ARROW.fullmatch(old.name) and old.name != name:
            old.unlink()
    return []


def _is_foreign(folder: Path) -> bool:
    """Whether it is a link, or ``datasets`` saved into it; raises OSError."""
    if folder.is_symlink():
        return True
    try:
        files = json.loads((folder / "state.json").read_bytes())["_data_files"]
        return not all(_ARROW.fullmatch(file["filename"]) for file in files)
    except FileNotFoundError:
        return False
    except (ValueError, TypeError, KeyError):
        return True


def _write_arrow(pyarrow: Any, path: Path, rows: Iterator[Sample | None]) -> None:
    ids = pyarrow.list_(pyarrow.int64())
    schema = pyarrow.schema(zip(_COLUMNS, (ids, ids, pyarrow.int64())))
    with path.open("wb") as file:
        with pyarrow.ipc.new_stream(file, schema) as stream:
            batch: list[tuple[Any, Any, int]] = []
            for sample in rows:
                batch.append(_record(sample))
                if len(batch) == _ROWS_A_BATCH:
                    stream.write_batch(_batch(pyarrow, schema, batch))
                    batch = []
            if batch:
                stream.write_batch(_batch(pyarrow, schema, batch))
        file.flush()
        os.fsync(file.fileno())


def _record(sample: Sample | None) -> tuple[Any, Any, int]:
    if sample is None:
        return [], [], 0
    return sample.input_ids, sample.loss_mask, len(sample.input_ids)


def _batch(pyarrow: Any, schema: Any, rows: list[tuple[Any, Any, int]]) -> Any:
    columns = [
        pyarrow.array(list(column), type=field.type) for column, field in zip(zip(*rows), schema)
    ]
    return pyarrow.record_batch(columns, schema=schema)


def _state(name: str, digest: str) -> dict[str, Any]:
    return {
        "_data_files": [{"filename": name}],
        "_fingerprint": digest[:16],
        "_format_columns": list(_COLUMNS),
        "_format_kwargs": {},
        "_format_type": "torch",
        "_output_all_columns": False,
        "_split": None,
    }


# ------------------------------------------------------------------ files


class _Written:
    """Files below the output folder, each replaced whole, and the record of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}

    def put(self, name: str, data: bytes) -> None:
        """Raises OSError."""
        _replace(self.folder / name, data)
        self._add(name, len(data), hashlib.sha256(data).hexdigest())

    def moved(self, name: str, grown: Path, digest: str) -> None:
        """``grown``, whose sha256 is ``digest``, gets its name; raises OSError."""
        size = grown.stat().st_size
        os.replace(grown, self.folder / name)
        self._add(name, size, digest)

    def _add(self, name: str, size: int, digest: str) -> None:
        self._files[name] = {"bytes": size, "sha256": digest}

    def record(self) -> None:
        """Also what an earlier attempt wrote and this one did not.  Raises OSError."""
        files = {**self._earlier(), **self._files}
        if files:
            _replace(self.folder / RECORD, _json({"files": dict(sorted(files.items()))}))

    def _earlier(self) -> dict[str, Any]:
        """What stands in the record and is still there; one that cannot be read says nothing."""
        try:
            files = json.loads((self.folder / RECORD).read_bytes())["files"]
            return {n: body for n, body in files.items() if _has(self.folder / n, body["bytes"])}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}


def _has(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _torch(counts: Counter[int]) -> bytes:
    """Token id -> how often it is learned, as ``torch.load`` reads it."""
    import torch

    made = io.BytesIO()
    torch.save(dict(sorted(counts.items())), made)
    return made.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode("ascii") + b"\n"


def _partial(path: Path) -> Path:
    """Where a file grows; leftovers of a killed attempt are removed first.  Raises OSError."""
    for old in path.parent.glob(f".{path.name}.*.partial"):
        old.unlink()
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def _replace(path: Path, data: bytes) -> None:
    """Raises OSError."""
    grown = _partial(path)
    with grown.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(grown, path)
