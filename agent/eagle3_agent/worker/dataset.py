"""Rows of the data -> samples to capture, or the reason why not.

A sample's index is its row's place in the data: a row that cannot be used
leaves a hole, so numbers stay the same whatever else is in the file.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Union

from eagle3_agent import rowrules
from eagle3_agent.rowrules import Ready, RowError

from . import rows, tokens
from .conversations import ChatEncoder
from .engines.base import Sample
from .errors import DataError, ModelError
from .limits import Limits

#: So many rows are looked at for the first one that is no broken line.
_PEEK = 100

#: Text that every chat model's tokenizer gives back, but for white space at its ends.
_PROBE = "Two words.\n\n  {x: 1}\n"


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


def read(data: Path, model: Path, limits: Limits, *, trust_remote_code: bool = False) -> Dataset:
    """The data with the model's own tokenizer, loaded once a conversation needs it."""
    return Dataset(
        data,
        limits,
        _Lazy(model, trust_remote_code),
        cache=lambda: tokens.find(data, model, limits, trust_remote_code=trust_remote_code),
    )


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
    """Iterable any number of times; each pass streams the rows anew.

    Conversations are tokenised once: what the first pass over them yields is kept under the
    agent's cache folder, by content, and the passes after it read that.
    """

    def __init__(
        self,
        path: Path,
        limits: Limits,
        encoder: Callable[[], ChatEncoder],
        *,
        cache: Callable[[], tokens.Cache | None] | None = None,
    ) -> None:
        """``cache`` says where the rows of this content are kept, if anywhere."""
        self.path = path
        self._limits = limits
        self._encoder = encoder
        self._cache = cache

    def __iter__(self) -> Iterator[Row]:
        """Raises DataError when the file itself is broken, ModelError without a chat template."""
        found = rows.read(self.path)
        first = _until_object(found)
        cache = self._cache() if self._cache is not None and _talks(first) else None
        source = self._rows(islice(chain(first, found), self._limits.max_samples))
        return source if cache is None else _unpacked(cache.rows(_packed(source)))

    def _rows(self, found: Iterator[rows.Raw]) -> Iterator[Row]:
        for index, (place, raw) in enumerate(found):
            try:
                yield self._row(index, raw)
            except RowError as error:
                yield Bad(index, f"{place}: {error}")

    def _row(self, index: int, raw: Any) -> Usable:
        row = rowrules.look(raw)
        if isinstance(row, Ready):
            ids, mask = row.ids, row.mask or [1] * len(row.ids)
        else:
            encoded = self._encoder().encode(row.messages, row.tools)
            ids, mask = encoded.input_ids, encoded.loss_mask
        wrong = rowrules.id_outside(ids, self._limits.vocab)
        if wrong is not None:
            raise RowError(f"token id {wrong} is outside the vocabulary of {self._limits.vocab}")
        kept, mask = self._within(ids, mask, given=isinstance(row, Ready))
        return Usable(Sample(index, array("q", kept), array("b", mask)), len(ids) - len(kept))

    def _within(
        self, ids: list[int], mask: list[int], *, given: bool
    ) -> tuple[list[int], list[int]]:
        """Ids and mask within the limits; raises RowError for a row that they leave out.

        A mask that came with the data is the user's, also where it learns nothing.
        """
        limits = self._limits
        if len(ids) > limits.seq_length and limits.too_long == "skip":
            raise RowError(
                f"{len(ids)} tokens, more than data.seq_length = {limits.seq_length}, and "
                "data.too_long = 'skip'"
            )
        ids, mask = ids[: limits.seq_length], mask[: limits.seq_length]
        if len(ids) > limits.max_model_len:
            raise RowError(f"{len(ids)} tokens, model.max_model_len is {limits.max_model_len}")
        if not given and not any(mask):
            raise RowError(
                f"no token of an assistant turn is left within data.seq_length = "
                f"{limits.seq_length}"
            )
        return ids, mask


def _until_object(found: Iterator[rows.Raw]) -> list[rows.Raw]:
    """The first rows, up to one that is an object."""
    first = []
    for place, raw in islice(found, _PEEK):
        first.append((place, raw))
        if isinstance(raw, dict):
            break
    return first


def _talks(first: Sequence[rows.Raw]) -> bool:
    """Whether the data is made of conversations, by its first row that is an object."""
    row = first[-1][1] if first else None
    return isinstance(row, dict) and row.get("input_ids") is None


def _packed(source: Iterator[Row]) -> Iterator[tokens.Kept]:
    for row in source:
        if isinstance(row, Bad):
            yield tokens.Kept(row.index, reason=row.reason)
        else:
            sample = row.sample
            yield tokens.Kept(sample.index, sample.input_ids, sample.loss_mask, row.dropped)


def _unpacked(kept: Iterator[tokens.Kept]) -> Iterator[Row]:
    for row in kept:
        if row.reason:
            yield Bad(row.index, row.reason)
        else:
            yield Usable(Sample(row.index, row.input_ids, row.loss_mask), row.dropped)


def _load_tokenizer(model: Path, trust_remote_code: bool) -> Any:
    try:
        import transformers
    except ImportError:
        raise DataError(
            "conversations need transformers in the interpreter that host.python names: "
            "pip install transformers there, or give input_ids"
        ) from None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(model), local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # the library raises many types for one broken folder
        raise ModelError(f"{model}: its tokenizer cannot be loaded: {error}") from error
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(f"{model}: its tokenizer has no chat template: add one, or give input_ids")
    ids = tokenizer(_PROBE, add_special_tokens=False)["input_ids"]
    again = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if again.strip() != _PROBE.strip():
        # transformers 5 rebuilds the tokenizer of some classes and leaves out how text is split
        raise ModelError(
            f"{model}: its tokenizer turns {_PROBE!r} into {again!r}: "
            f"{type(tokenizer).__name__} of transformers {transformers.__version__} does not read "
            "tokenizer.json as it stands; set tokenizer_class to PreTrainedTokenizerFast in "
            "tokenizer_config.json, or give input_ids"
        )
    return tokenizer
