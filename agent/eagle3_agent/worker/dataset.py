"""Rows of the data -> samples to capture, or the reason why not.

A sample's index is its row's place in the data: a row that cannot be used
leaves a hole, so numbers stay the same whatever else is in the file.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from . import rows
from .conversations import ChatEncoder, RowError, messages_of
from .engines.base import Sample
from .errors import DataError, ModelError


@dataclass(frozen=True)
class Usable:
    sample: Sample
    dropped: int
    """Tokens that truncation cut off."""


@dataclass(frozen=True)
class Bad:
    index: int
    reason: str
    """With the line or row it stands in."""


Row = Union[Usable, Bad]


@dataclass(frozen=True)
class Limits:
    """What bounds a sample."""

    vocab: int
    seq_length: int
    max_model_len: int
    max_samples: int | None = None


def read(data: Path, model: Path, limits: Limits, *, trust_remote_code: bool = False) -> Dataset:
    """The data with the model's own tokenizer, loaded once a conversation needs it."""
    return Dataset(data, limits, _Lazy(model, trust_remote_code))


class _Lazy:
    """The model's chat encoder, made when first asked for: token ids need no tokenizer."""

    def __init__(self, model: Path, trust_remote_code: bool) -> None:
        self._model = model
        self._trust = trust_remote_code
        self._encoder: ChatEncoder | None = None

    def __call__(self) -> ChatEncoder:
        if self._encoder is None:
            self._encoder = ChatEncoder(_load_tokenizer(self._model, self._trust))
        return self._encoder


class Dataset:
    """Iterable any number of times; each pass streams the file anew."""

    def __init__(self, path: Path, limits: Limits, encoder: Any) -> None:
        """``encoder`` is called without arguments for a ChatEncoder."""
        self.path = path
        self._limits = limits
        self._encoder = encoder

    def __iter__(self) -> Iterator[Row]:
        """Raises DataError when the file itself is broken, ModelError without a chat template."""
        for index, (place, raw) in enumerate(rows.read(self.path)):
            if self._limits.max_samples is not None and index >= self._limits.max_samples:
                return
            try:
                yield self._row(index, raw)
            except RowError as error:
                yield Bad(index, f"{place}: {error}")

    def _row(self, index: int, raw: Any) -> Usable:
        if isinstance(raw, ValueError):
            raise RowError(str(raw))
        if not isinstance(raw, dict):
            raise RowError("not an object")
        if raw.get("input_ids") is not None:
            ids, mask = _ready(raw)
        else:
            encoded = self._encoder().encode(messages_of(raw), raw.get("tools"))
            ids, mask = encoded.input_ids, encoded.loss_mask
        if not ids:
            raise RowError("empty: no token")
        worst = max(ids)
        if min(ids) < 0 or worst >= self._limits.vocab:
            wrong = min(ids) if min(ids) < 0 else worst
            raise RowError(f"token id {wrong} is outside the vocabulary of {self._limits.vocab}")
        kept = ids[: self._limits.seq_length]
        if len(kept) > self._limits.max_model_len:
            raise RowError(
                f"{len(kept)} tokens, model.max_model_len is {self._limits.max_model_len}"
            )
        sample = Sample(index, array("q", kept), array("b", mask[: len(kept)]))
        return Usable(sample, len(ids) - len(kept))


def _ready(raw: dict[str, Any]) -> tuple[list[int], list[int]]:
    """A row that is tokens already; without a mask every token counts."""
    ids = raw["input_ids"]
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise RowError("input_ids is no list of integers")
    mask = raw.get("loss_mask")
    if mask is None:
        return ids, [1] * len(ids)
    if not isinstance(mask, list) or not all(m in (0, 1) for m in mask):
        raise RowError("loss_mask is no list of 0 and 1")
    if len(mask) != len(ids):
        raise RowError(f"loss_mask has {len(mask)} entries, input_ids {len(ids)}")
    return ids, [int(m) for m in mask]


def digest(values: Sequence[int]) -> str:
    """sha256 of the values as little-endian int64: what a manifest line says of a row."""
    return hashlib.sha256(struct.pack(f"<{len(values)}q", *values)).hexdigest()


def _load_tokenizer(model: Path, trust_remote_code: bool) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise DataError(
            "conversations need transformers in the interpreter that host.python names: "
            "pip install transformers there, or give input_ids"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(model), local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # the library raises many types for one broken folder
        raise ModelError(f"{model}: its tokenizer cannot be loaded: {error}") from error
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(f"{model}: its tokenizer has no chat template: add one, or give input_ids")
    return tokenizer
