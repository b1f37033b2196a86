"""The bytes of a sample file, for either generation of the trainer.

Both formats are written here rather than by their libraries: a buffer goes from where it lies
to the disk, is hashed on the way, and is never held twice; and a writer's process does without
torch, whose import takes seconds and hundreds of megabytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

from eagle3_agent.protocol.values import OutputFormat
from eagle3_agent.worker.engines.base import Output

from . import checks, torchzip
from .item import Item, States

Layout = Literal["LSH", "SLH"]

_TAGS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


class Unfit(Exception):
    """Why a sample must not be written; the run goes on without it."""


class Misshapen(Exception):
    """States that are not what the output promises: a fault of the engine."""


class Sink(Protocol):
    """Where a sample's bytes go."""

    def write(self, data: Any) -> None: ...


def layout(kind: OutputFormat) -> Layout:
    """How the states of a sample must lie: L layers as asked, S tokens, H hidden."""
    return "LSH" if kind == "speculators-pt" else "SLH"


def save(item: Item, output: Output, file: Sink) -> None:
    """Write the whole file; raises Unfit, Misshapen, or what ``file`` raises."""
    order = layout(output.kind)
    _check_shape(item, output, order)
    problem = checks.fault(item.states, output.layers, order)
    if problem:
        raise Unfit(problem)
    if output.kind == "speculators-pt":
        _save_pt(item, output, file)
    else:
        _save_safetensors(item, output, file)


def _check_shape(item: Item, output: Output, order: Layout) -> None:
    tokens, layers = len(item.input_ids), len(output.layers)
    sides = (layers, tokens) if order == "LSH" else (tokens, layers)
    shape, dtype = item.states.shape, item.states.dtype
    if (shape, dtype) != ((*sides, output.hidden), output.dtype) or len(item.loss_mask) != tokens:
        raise Misshapen(
            f"sample {item.index}: the engine returned {dtype} states of shape {list(shape)} and "
            f"{len(item.loss_mask)} mask entries, asked were {output.dtype} of "
            f"{[*sides, output.hidden]}"
        )


def _save_pt(item: Item, output: Output, file: Sink) -> None:
    """``data_{i}.pt`` as speculators 0.3 and 0.4 train from it."""
    body = {
        "input_ids": torchzip.Tensor("int64", (len(item.input_ids),), _longs(item.input_ids)),
        "hidden_states": [
            torchzip.Tensor(output.dtype, item.states.shape[1:], data)
            for data in _layers(item.states)
        ],
        "loss_mask": torchzip.Tensor("int64", (len(item.loss_mask),), _longs(item.loss_mask)),
    }
    torchzip.save(body, file)


def _save_safetensors(item: Item, output: Output, file: Sink) -> None:
    """``hs_{i}.safetensors`` as speculators 0.5 and later read it: states ``[S, L, H]``, ids.

    The format is a length, a JSON header and the tensors' bytes.
    """
    ids, states = _longs(item.input_ids), item.states.data
    end = len(ids) + len(states)
    header = json.dumps(
        {
            "__metadata__": output.metadata,
            "token_ids": {
                "dtype": "I64",
                "shape": [len(item.input_ids)],
                "data_offsets": [0, len(ids)],
            },
            "hidden_states": {
                "dtype": _TAGS[output.dtype],
                "shape": list(item.states.shape),
                "data_offsets": [len(ids), end],
            },
        }
    ).encode("ascii")
    header += b" " * (-len(header) % 8)
    file.write(struct.pack("<Q", len(header)) + header)
    file.write(ids)
    file.write(states)


def _longs(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def _layers(states: States) -> Iterator[memoryview]:
    """The bytes of each layer of ``[L, S, H]``, where they lie."""
    step = states.nbytes // states.shape[0]
    for start in range(0, states.nbytes, step):
        yield states.data[start : start + step]
