"""Our loss masks and those of the installed speculators, of the same conversations.

masks.py REPORT FOLDER TOKENIZER [PROMPTS]: TOKENIZER is a folder or "bytes"; PROMPTS a folder of
.jsonl files with ``turns`` and ``reference``, of which whole conversations are made.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from speculators.data_generation import preprocessing

from eagle3_agent.rowrules import RowError, messages_of
from eagle3_agent.worker.conversations import ChatEncoder, Encoded
from support import chat_templates, talks

LONGEST = 4096


def main(report: Path, tokenizer: str, prompts: Path | None) -> None:
    found: dict[str, Any] = {}
    for name in chat_templates.ALL:
        made = talks.tokenizer(name, None if tokenizer == "bytes" else Path(tokenizer))
        encoder = ChatEncoder(made)
        library = Library(made)
        for talk, messages in {**talks.TALKS, **_real(prompts)}.items():
            found[f"{name}: {talk}"] = _compare(made, encoder, library, messages)
    report.write_text(json.dumps(found))


def _real(prompts: Path | None) -> dict[str, list[talks.Message]]:
    made = {}
    for file in sorted(prompts.glob("*.jsonl")) if prompts is not None else ():
        for number, line in enumerate(file.read_text().splitlines()):
            row = json.loads(line)
            pairs = zip(row["turns"], (text.strip() for text in row.get("reference") or ()))
            messages = [m for q, a in pairs for m in (talks.user(q), talks.answer(a))]
            # an empty answer is a case of its own
            if messages and all(message["content"] for message in messages):
                made[f"{file.stem} {number}"] = messages
    return made


def _compare(
    tokenizer: Any, encoder: ChatEncoder, library: Library, messages: list[talks.Message]
) -> dict[str, Any]:
    ours: Encoded | None
    try:
        ours = encoder.encode(messages_of({"messages": messages}))
        mine: list[str] | str = talks.learned(tokenizer, ours.input_ids, ours.loss_mask)
    except RowError as error:
        ours, mine = None, str(error)
    try:
        rows = library.rows(messages)
    except Exception as error:  # what it raises is the finding
        return {"ours": mine, "theirs": f"{type(error).__name__}: {error}"}
    return {
        "ours": mine,
        "theirs": [talks.learned(tokenizer, ids, mask) for ids, mask in rows],
        "same_ids": ours is not None and [ids for ids, _ in rows][-1:] == [ours.input_ids],
        "beyond": ours is not None and len(rows) == 1 and _beyond(tokenizer, ours, rows[0]),
    }


def _beyond(tokenizer: Any, ours: Encoded, theirs: tuple[list[int], list[int]]) -> list[str] | bool:
    """Tokens that we learn and the library does not; False where it is the other way round too."""
    ids, mask = theirs
    if ids != ours.input_ids or any(t > o for o, t in zip(ours.loss_mask, mask)):
        return False
    return [
        tokenizer.decode([token])
        for token, o, t in zip(ours.input_ids, ours.loss_mask, mask)
        if o > t
    ]


class Library:
    """The preprocessing of the generation that is installed, whole but for its HTTP client."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._by_turn = hasattr(preprocessing, "_render_boundary_rows")
        if self._by_turn:
            # a server would render with this tokenizer
            preprocessing.render_conversation = self._render
            return
        marks = getattr(preprocessing, "_supports_assistant_mask", lambda tokenizer: False)
        self._pattern = (
            None if marks(tokenizer) else preprocessing._detect_assistant_pattern(tokenizer)
        )

    def rows(self, messages: list[talks.Message]) -> list[tuple[list[int], list[int]]]:
        if self._by_turn:
            normal = preprocessing._normalize_conversation(messages)
            found = preprocessing._render_boundary_rows(normal, "none", LONGEST)
            return [(row["input_ids"], row["loss_mask"]) for row in found]
        made = preprocessing._preprocess_batch(
            {"conversations": [messages]}, self._tokenizer, LONGEST, self._pattern
        )
        return [
            ([int(i) for i in ids], [int(m) for m in mask])
            for ids, mask in zip(made["input_ids"], made["loss_mask"])
        ]

    def _render(self, endpoint: str, messages: Any, **options: Any) -> list[int]:
        text = self._tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=options["add_generation_prompt"],
            tools=options["tools"],
        )
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids[: options["truncate_prompt_tokens"]]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3], Path(sys.argv[4]) if len(sys.argv) > 4 else None)
