"""A conversation -> token ids and the loss mask of its assistant turns.

The ids are those of the tokenizer's chat template.  The mask is the template's
own where it marks what the assistant generates; otherwise each assistant turn
is found by rendering the conversation up to it and comparing prefixes.  Either
way a turn's span is what the model would have to generate: content and
end-of-turn token, without the header before and the line break after.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from eagle3_agent.rowrules import RowError

Message = dict[str, Any]

_GENERATION = re.compile(r"\{%-?\s*generation\b")


class Tokenizer(Protocol):
    """What is used of transformers' ``PreTrainedTokenizerBase``."""

    is_fast: bool

    def apply_chat_template(self, conversation: list[Message], **options: Any) -> Any: ...

    def get_chat_template(self, *, tools: Any = None) -> str: ...

    def get_added_vocab(self) -> dict[str, int]: ...

    def __call__(self, text: str, **options: Any) -> Any: ...


@dataclass(frozen=True)
class Encoded:
    input_ids: list[int]
    loss_mask: list[int]


class ChatEncoder:
    """One tokenizer's template, applied to one conversation after the other."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._marked: dict[bool, bool] = {}
        self._special = tokenizer.get_added_vocab() if tokenizer.is_fast else {}

    def encode(self, messages: list[Message], tools: Any = None) -> Encoded:
        """Raises RowError, also when the template refuses the conversation."""
        if all(m["role"] != "assistant" for m in messages):
            raise RowError("no assistant turn")
        options = {"tools": tools} if tools else {}
        if self._marks(tools):
            encoded = self._by_marks(messages, options)
            if any(encoded.loss_mask):
                return encoded
        encoded = self._by_spans(messages, options)
        if not any(encoded.loss_mask):
            raise RowError("no token of an assistant turn")
        return encoded

    def _marks(self, tools: Any) -> bool:
        """Whether the template (a tokenizer may have another one for tools) marks the answers."""
        known = bool(tools)
        if known not in self._marked:
            # offsets tell which tokens a mark covers
            self._marked[known] = self._tokenizer.is_fast and bool(
                _GENERATION.search(str(self._tokenizer.get_chat_template(tools=tools)))
            )
        return self._marked[known]

    def _by_marks(self, messages: list[Message], options: dict[str, Any]) -> Encoded:
        made = self._template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **options
        )
        return Encoded(list(made["input_ids"]), [int(m) for m in made["assistant_masks"]])

    def _by_spans(self, messages: list[Message], options: dict[str, Any]) -> Encoded:
        text = self._render(messages, False, options)
        # an opening turn answers nothing: there is no prompt after which a model would say it
        turns = [at for at, m in enumerate(messages) if at and m["role"] == "assistant"]
        if not turns:
            raise RowError("the first message is the assistant's, and it has no other")
        spans = [self._span(text, messages, at, options) for at in turns]
        if self._tokenizer.is_fast:
            return self._mask_by_offsets(text, spans)
        return self._mask_by_prefixes(text, spans)

    def _span(
        self, text: str, messages: list[Message], at: int, options: dict[str, Any]
    ) -> tuple[int, int]:
        """Characters of ``text`` that assistant message ``at`` generates."""
        start = self._start(text, messages[:at], options)
        alone = self._render(messages[: at + 1], False, options)
        if alone[:start] != text[:start]:
            raise RowError(f"the chat template rewrites what comes before message {at + 1}")
        content = str(messages[at]["content"])
        end = self._end(alone[start:].rstrip(), text, start, content)
        if end <= start:
            raise RowError(f"message {at + 1} is not found in what the chat template renders")
        return start + self._header(text[start:end], messages[:at], content, options), end

    def _end(self, turn: str, text: str, start: int, content: str) -> int:
        """Where ``turn``, the last one of what it was rendered from, ends in ``text``; 0: nowhere.

        Before other messages a template may drop its thinking, and close it with another mark.
        """
        beyond = _end_of(content, turn)
        first = text[start : start + 1]
        cuts = [cut for cut in range(beyond) if turn[cut] == first]
        for cut in cuts:
            if text.startswith(turn[cut:], start):
                return start + len(turn) - cut
        if beyond == len(turn):
            beyond -= max((len(mark) for mark in self._special if turn.endswith(mark)), default=0)
        for cut in cuts:
            if cut < beyond and text.startswith(turn[cut:beyond], start):
                return self._closed(text, start + beyond - cut)
        return 0

    def _closed(self, text: str, end: int) -> int:
        """The end of the special token that follows ``end`` and white space; 0 for none."""
        after = text[end:].lstrip()
        mark = max((mark for mark in self._special if after.startswith(mark)), key=len, default="")
        return len(text) - len(after) + len(mark) if mark else 0

    def _header(
        self, turn: str, before: list[Message], content: str, options: dict[str, Any]
    ) -> int:
        """Characters of ``turn`` before the answer, where the template knows no prompt.

        Such a template renders the same with and without one, so that the turn still holds the
        header of its role; none where nothing but white space stands before the answer.
        """
        answer = content.strip()
        if answer and turn.lstrip().startswith(answer):
            return 0
        if self._render(before, True, options) != self._render(before, False, options):
            return 0
        found = turn.find(content) if content in turn else turn.find(answer)
        if not answer or found < 0:
            raise RowError(
                f"message {len(before) + 1} cannot be told from its header: the chat template has "
                "no generation prompt"
            )
        return found

    def _start(self, text: str, before: list[Message], options: dict[str, Any]) -> int:
        """Where the answer after ``before`` begins: behind the template's generation prompt."""
        prompt = self._render(before, True, options)
        if text.startswith(prompt):
            return len(prompt)
        # a prompt that opens a thinking block which finished turns do not carry
        bare = self._render(before, False, options)
        if text.startswith(bare):
            shared = _common(prompt, text)
            likely = [h for h in self._headers(prompt, before, options) if len(bare) < h <= shared]
            if likely:
                return max(likely)
        raise RowError(f"the chat template rewrites what comes before message {len(before) + 1}")

    def _headers(
        self, prompt: str, before: list[Message], options: dict[str, Any]
    ) -> Iterator[int]:
        """Where the header of an answer ends that shares nothing with the rest of ``prompt``."""
        answered = [*before, {"role": "assistant", "content": "0"}]
        for messages in (answered, [*answered, {"role": "user", "content": "0"}]):
            yield _common(prompt, self._render(messages, False, options))

    def _mask_by_offsets(self, text: str, spans: list[tuple[int, int]]) -> Encoded:
        made = self._tokenize(text, return_offsets_mapping=True)
        ids = list(made["input_ids"])
        mask = [0] * len(ids)
        special = set(self._special.values())
        ordered = iter(sorted(spans))
        start, end = next(ordered)
        for token, (low, high) in enumerate(made["offset_mapping"]):
            while low >= end:
                start, end = next(ordered, (len(text), len(text) + 1))
            if ids[token] in special:  # some take the white space after them along
                high = low + len(text[low:high].rstrip())
            if start <= low and high <= end and low < high:
                mask[token] = 1
        return Encoded(ids, mask)

    def _mask_by_prefixes(self, text: str, spans: list[tuple[int, int]]) -> Encoded:
        """For tokenizers without offsets: a span counts if it is one in tokens as well."""
        ids = self._ids(text)
        mask = [0] * len(ids)
        for start, end in spans:
            before, until = self._ids(text[:start]), self._ids(text[:end])
            if ids[: len(before)] != before or ids[: len(until)] != until:
                raise RowError("an assistant turn does not begin and end between tokens")
            mask[len(before) : len(until)] = [1] * (len(until) - len(before))
        return Encoded(ids, mask)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenize(text)["input_ids"])

    def _render(self, messages: list[Message], prompt: bool, options: dict[str, Any]) -> str:
        made = self._template(messages, tokenize=False, add_generation_prompt=prompt, **options)
        return str(made)

    def _template(self, messages: list[Message], **options: Any) -> Any:
        try:
            return self._tokenizer.apply_chat_template(messages, **options)
        except Exception as error:  # whatever the template raises, this row is what it refused
            raise _refused("chat template", error) from error

    def _tokenize(self, text: str, **options: Any) -> Any:
        try:
            return self._tokenizer(text, add_special_tokens=False, **options)
        except Exception as error:  # half of a surrogate pair, from \ud800 in JSON, is a TypeError
            raise _refused("tokenizer", error) from error


def _refused(who: str, error: Exception) -> RowError:
    first = str(error).strip().split("\n")[0]
    return RowError(f"the {who} refuses it: {first[:200]}")


def _end_of(content: str, turn: str) -> int:
    """Where the template's own end-of-turn text begins in ``turn``; all of it without an answer."""
    answer = content.rpartition("</think>")[2].strip()
    if not answer:
        return len(turn)
    # a template may change white space inside of the answer: the longest end that is as it was
    for length in range(min(32, len(answer)), 0, -1):
        found = turn.rfind(answer[-length:])
        if found >= 0:
            return found + length
    return 0


def _common(a: str, b: str) -> int:
    """Length of the common prefix."""
    shortest = min(len(a), len(b))
    return next((i for i in range(shortest) if a[i] != b[i]), shortest)
