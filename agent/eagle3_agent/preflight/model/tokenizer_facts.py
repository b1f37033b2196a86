"""The tokenizer's files: there, parsed, and how large a vocabulary they make; no library."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.preflight.files import LFS_POINTER, open_regular

from . import config as configs
from . import jsonfile

#: A vocabulary of a million entries with its merges is about this large.
_TOKENIZER_LIMIT = 128 * 1024 * 1024
_SMALL_LIMIT = 16 * 1024 * 1024
_TEMPLATES_MOST = 16
_GENERATION = re.compile(r"\{%[-+]?\s*generation\b")

#: Forms of a vocabulary, in the order in which transformers looks for them.
FILES = (
    "tokenizer.json",
    "tekken.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "tiktoken.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
)


@dataclass(frozen=True)
class TokenizerFacts:
    folder_problem: str = ""
    """Why the folder cannot be listed; the rest is empty then."""
    files: tuple[str, ...] = ()
    """Of ``FILES``, those that are there."""
    problems: tuple[str, ...] = ()
    """What is wrong with a file, beginning with its name."""
    tokens: int | None = None
    """Entries of the vocabulary, added tokens included; None where its form is not read here."""
    largest_id: int = -1
    largest_token: str = ""
    cls: str = ""
    """``tokenizer_class``"""
    template: str = ""
    """The file that holds the chat template; empty when there is none."""
    marked: bool = False
    """The template marks what the assistant generates."""
    special: dict[str, str] = field(default_factory=dict)
    """``eos_token`` and the like -> its text, of those that are not in the vocabulary."""


def _collect(ask: Ask) -> TokenizerFacts:
    path = ask.profile.model.path
    try:
        names = set(os.listdir(path)) if os.path.isabs(path) else set()
    except (OSError, ValueError) as error:
        return TokenizerFacts(f"cannot be listed: {getattr(error, 'strerror', None) or error}")
    problems: list[str] = []
    files = tuple(n for n in FILES if n in names)
    for name in files:
        problem = _why_not(os.path.join(path, name))
        if problem:
            problems.append(f"{name} {problem}")
    config = _object(path, "tokenizer_config.json", names, _SMALL_LIMIT, problems)
    vocabulary: dict[str, int] = {}
    if "tokenizer.json" in files and not problems:
        body = _object(path, "tokenizer.json", names, _TOKENIZER_LIMIT, problems)
        vocabulary = entries(body)
        if not vocabulary and not problems:
            problems.append("tokenizer.json holds no vocabulary")
    template, text = _template(path, names, config, problems)
    largest = max(vocabulary, key=lambda t: vocabulary[t], default="")
    return TokenizerFacts(
        files=files,
        problems=tuple(problems[:8]),
        tokens=len(vocabulary) or None,
        largest_id=min(vocabulary.get(largest, -1), 2**62),
        largest_token=largest[:60],
        cls=configs.word(config.get("tokenizer_class")),
        template=template,
        marked=bool(_GENERATION.search(text)),
        special=_strangers(config, vocabulary),
    )


def _why_not(path: str) -> str:
    try:
        file, size = open_regular(path)
        with file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                return "is a Git LFS pointer: run git lfs pull in its folder"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "is empty (0 bytes)" if size == 0 else ""


def _object(
    path: str, name: str, names: set[str], limit: int, problems: list[str]
) -> dict[str, Any]:
    if name not in names:
        return {}
    body, problem = jsonfile.read(os.path.join(path, name), limit)
    if problem:
        problems.append(problem)
    return body


def entries(body: Mapping[str, Any]) -> dict[str, int]:
    """Token -> id of a ``tokenizer.json``, whatever its model's kind; empty when it has none.

    BPE, WordPiece and WordLevel keep an object of ids, Unigram a list of (token, score) whose
    places are the ids.
    Source: the files that huggingface/tokenizers writes.
    """
    model = body.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    found: dict[str, int] = {}
    if isinstance(vocab, dict):
        found = {t: i for t, i in vocab.items() if type(i) is int and i >= 0}
    elif isinstance(vocab, list):
        found = {str(e[0]): i for i, e in enumerate(vocab) if isinstance(e, list) and len(e) == 2}
    added = body.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and type(token.get("id")) is int and token["id"] >= 0:
            found[str(token.get("content"))] = token["id"]
    return found


def _template(
    path: str, names: set[str], config: dict[str, Any], problems: list[str]
) -> tuple[str, str]:
    """(the file that holds it, its text), in the order in which transformers prefers them."""
    if "chat_template.jinja" in names:
        try:
            file, _ = open_regular(os.path.join(path, "chat_template.jinja"))
            with file:
                text = file.read(_SMALL_LIMIT).decode("utf-8", "replace")
        except OSError as error:
            problems.append(f"chat_template.jinja cannot be read: {error.strerror}")
            text = ""
        if text.strip():
            return "chat_template.jinja", text
    body = _object(path, "chat_template.json", names, _SMALL_LIMIT, problems)
    for name, value in (
        ("chat_template.json", body.get("chat_template")),
        ("tokenizer_config.json", config.get("chat_template")),
    ):
        text = _texts(value)
        if text.strip():
            return name, text
    return "", ""


def _texts(value: Any) -> str:
    """One template, or a list of named ones."""
    if isinstance(value, str):
        return value
    found = value[:_TEMPLATES_MOST] if isinstance(value, list) else []
    texts = [v.get("template") for v in found if isinstance(v, dict)]
    return "\n".join(t for t in texts if isinstance(t, str))


def _strangers(config: dict[str, Any], vocabulary: dict[str, int]) -> dict[str, str]:
    """Special tokens that no entry of the vocabulary is; nothing without a vocabulary."""
    decoder = config.get("added_tokens_decoder")
    more = {
        v.get("content")
        for v in (decoder.values() if isinstance(decoder, dict) else ())
        if isinstance(v, dict) and isinstance(v.get("content"), str)
    }
    found = {}
    for name in ("bos_token", "eos_token", "pad_token"):
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and text and text not in vocabulary and text not in more:
            found[name] = text[:60]
    return found if vocabulary else {}


PROBE = Probe("tokenizer", TokenizerFacts, _collect, timeout=30.0)
