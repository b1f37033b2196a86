"""Tokenizers of one token a character, with chat templates in Python: real spans, no library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Template = Callable[[list[dict[str, Any]], bool], str]


def chatml(messages: list[dict[str, Any]], prompt: bool) -> str:
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return text + ("<|im_start|>assistant\n" if prompt else "")


def thinking(messages: list[dict[str, Any]], prompt: bool) -> str:
    """As Qwen3's: only the last turn carries a thinking block, an empty one if need be."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    text = ""
    for i, m in enumerate(messages):
        content = m["content"]
        if m["role"] == "assistant":
            thought, _, answer = content.rpartition("</think>")
            block = f"<think>\n{thought.removeprefix('<think>').strip()}\n</think>\n\n"
            content = block + answer.strip() if i > last else answer.strip()
        text += f"<|im_start|>{m['role']}\n{content}<|im_end|>\n"
    return text + ("<|im_start|>assistant\n" if prompt else "")


def opening(messages: list[dict[str, Any]], prompt: bool) -> str:
    """The prompt opens a thinking block that finished turns do not carry."""
    text = chatml(messages, False)
    return text + ("<|im_start|>assistant\n<think>\n" if prompt else "")


def counting(messages: list[dict[str, Any]], prompt: bool) -> str:
    """Begins with the number of messages: no prefix of it is ever a prefix."""
    return f"{len(messages)} messages\n" + chatml(messages, prompt)


class CharacterTokenizer:
    """See ``conversations.Tokenizer``; ids are code points."""

    def __init__(self, template: Template, *, is_fast: bool = True) -> None:
        self._template, self.is_fast = template, is_fast

    def get_chat_template(self, *, tools: Any = None) -> str:
        return "{% for m in messages %}"

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> str:
        assert options["tokenize"] is False
        if conversation[0]["role"] == "tool":
            raise ValueError("Conversation roles must alternate\nuser/assistant")
        return self._template(conversation, options["add_generation_prompt"])

    def __call__(self, text: str, **options: Any) -> dict[str, Any]:
        assert options.pop("add_special_tokens") is False
        made: dict[str, Any] = {"input_ids": [ord(c) for c in text]}
        if options.pop("return_offsets_mapping", False):
            assert self.is_fast
            made["offset_mapping"] = [(i, i + 1) for i in range(len(text))]
        assert not options
        return made
