"""Where the loss mask falls, for templates that render turns in different ways."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.rowrules import RowError, messages_of
from eagle3_agent.worker.conversations import ChatEncoder, Encoded
from support import tiny
from support.characters import CharacterTokenizer, Template, chatml, counting, opening, thinking


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def learned(encoded: Encoded) -> list[str]:
    """The masked-in runs of text."""
    text = "".join(c if m else "\0" for c, m in zip(map(chr, encoded.input_ids), encoded.loss_mask))
    return [part for part in text.split("\0") if part]


def encode(template: Template, *messages: dict[str, Any], is_fast: bool = True) -> Encoded:
    return ChatEncoder(CharacterTokenizer(template, is_fast=is_fast)).encode(list(messages))


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize(
    ("template", "messages", "spans"),
    [
        (chatml, [user("a"), answer("b")], ["b<|im_end|>"]),
        (
            chatml,
            [user("a"), answer("same"), user("same"), answer("same")],
            ["same<|im_end|>", "same<|im_end|>"],
        ),
        (
            thinking,
            [user("a"), answer("one"), user("b"), answer("two")],
            ["one<|im_end|>", "<think>\n\n</think>\n\ntwo<|im_end|>"],
        ),
        (
            thinking,
            [user("a"), answer("<think>why</think>one"), user("b"), answer("<think>c</think>two")],
            ["one<|im_end|>", "<think>\nc\n</think>\n\ntwo<|im_end|>"],
        ),
        (
            opening,
            [user("a"), answer("one"), user("b"), answer("two")],
            ["one<|im_end|>", "two<|im_end|>"],
        ),
        (opening, [user("a"), answer("<think>\nx</think>")], ["x</think><|im_end|>"]),
    ],
)
def test_a_turn_is_learned_from_its_first_token_to_its_end(
    template: Template, messages: list[dict[str, Any]], spans: list[str], is_fast: bool
) -> None:
    encoded = encode(template, *messages, is_fast=is_fast)
    whole = template(messages, False)
    assert "".join(map(chr, encoded.input_ids)) == whole
    assert learned(encoded) == spans


def test_a_template_that_rewrites_earlier_turns_is_an_error() -> None:
    with pytest.raises(RowError, match="rewrites what comes before message 2"):
        encode(counting, user("a"), answer("b"), user("c"))


def test_a_template_that_refuses_says_why_in_one_line() -> None:
    tool = {"role": "tool", "content": "x"}
    with pytest.raises(RowError) as caught:
        encode(chatml, tool, answer("b"))
    assert str(caught.value) == ("the chat template refuses it: Conversation roles must alternate")


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([user("a")], "no assistant turn"),
        ([answer("a"), user("b")], "the first message is the assistant's, and it has no other"),
    ],
)
def test_conversations_without_a_turn_to_learn(messages: list[dict[str, Any]], text: str) -> None:
    with pytest.raises(RowError, match=text):
        encode(chatml, *messages)


def test_both_styles_and_parts_become_messages() -> None:
    old = {
        "conversations": [
            {"from": "system", "value": "s"},
            {"from": "human", "value": "u"},
            {"from": "gpt", "value": "a"},
            {"from": "observation", "value": "t"},
        ]
    }
    assert [(m["role"], m["content"]) for m in messages_of(old)] == [
        ("system", "s"),
        ("user", "u"),
        ("assistant", "a"),
        ("tool", "t"),
    ]
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, "y"]}]}
    assert messages_of(parts) == [user("xy")]
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}], "name": None}
    assert messages_of({"messages": [call]}) == [
        {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}
    ]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"messages": [{"role": "wizard", "content": "x"}]}, "message 1 has the role 'wizard'"),
        ({"messages": ["x"]}, "message 1 is no object"),
        ({"messages": [{"role": "user", "content": 7}]}, "message 1 has no text"),
        ({"messages": [user("x"), {"role": "user"}]}, "message 2 has no text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "image": "x.png"}]}]},
            "message 1 has no text",
        ),
        (
            {"messages": [user("x"), {"role": "assistant", "content": "a\ud800b"}]},
            r"message 2 has half of a surrogate pair: \\ud800",
        ),
        ({"messages": "x"}, "neither input_ids, messages nor conversations is a list"),
    ],
)
def test_messages_that_are_none(row: dict[str, Any], text: str) -> None:
    with pytest.raises(RowError, match=text):
        messages_of(row)


# ------------------------------------------------------------------ templates as models ship them

_ENCODE = """
import json, sys
from eagle3_agent.rowrules import RowError, messages_of
from eagle3_agent.worker.conversations import ChatEncoder
from support import chat_templates, talks
found = {}
for name in chat_templates.ALL:
    tokenizer = talks.tokenizer(name)
    encoder = ChatEncoder(tokenizer)
    for talk, messages in talks.TALKS.items():
        try:
            made = encoder.encode(messages_of({"messages": messages}))
        except RowError as error:
            found[f"{name}: {talk}"] = str(error)
            continue
        text = tokenizer.apply_chat_template(
            messages_of({"messages": messages}), tokenize=False)
        assert made.input_ids == tokenizer(text, add_special_tokens=False)["input_ids"]
        found[f"{name}: {talk}"] = talks.learned(tokenizer, made.input_ids, made.loss_mask)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def masked(python: Path) -> dict[str, list[str] | str]:
    """``template: talk`` -> what is learned of it, or why it is refused."""
    env = {**os.environ, "PYTHONPATH": f"{tiny.AGENT}:{tiny.AGENT.parent / 'tests'}"}
    done = subprocess.run(
        [str(python), "-c", _ENCODE], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str] | str] = json.loads(done.stdout)
    return found


_REWRITES = "the chat template rewrites what comes before message"
_NO_PROMPT = "message 2 cannot be told from its header: the chat template has no generation prompt"
_REFUSES = "the chat template refuses it: only user and assistant"

_EXPECTED: dict[str, list[str] | str] = {
    "chatml: one": ["Hello, you.<|im_end|>"],
    "chatml: system": ["One.<|im_end|>"],
    "chatml: multi": ["One.<|im_end|>", "Two.<|im_end|>"],
    "chatml: empty": ["<|im_end|>", "Two.<|im_end|>"],
    # nothing asked for it
    "chatml: opens": ["One.<|im_end|>"],
    "chatml: ends with user": ["One.<|im_end|>"],
    "chatml: repeats": ["Two.<|im_end|>", "Two.<|im_end|>"],
    # the line break that the header's own grew together with is no token of the answer
    "chatml: spaces": ["  code()\n\n<|im_end|>", "Two.\n<|im_end|>"],
    "chatml: quotes": ["No.<|im_end|>", "Two.<|im_end|>"],
    "llama3: multi": ["One.<|eot|>", "Two.<|eot|>"],
    "llama3: empty": ["<|eot|>", "Two.<|eot|>"],
    "llama3: spaces": ["code()<|eot|>", "Two.<|eot|>"],
    "llama3: tool": ["<|eot|>", "It is sunny.<|eot|>", "Two.<|eot|>"],
    "qwen3: multi": ["One.<|im_end|>", "<think>\n\n</think>\n\nTwo.<|im_end|>"],
    "qwen3: empty": ["<|im_end|>", "<think>\n\n</think>\n\nTwo.<|im_end|>"],
    "qwen3: ends with user": ["One.<|im_end|>"],
    "qwen3: thought": ["One.<|im_end|>", "<think>\nhmm\n</think>\n\nTwo.<|im_end|>"],
    "qwen3: reasons": ["One.<|im_end|>", "<think>\nhmm\n</think>\n\nTwo.<|im_end|>"],
    "qwen3: tool": [
        '<call>{"type": "function", "function": {"name": "sky", "arguments": {"at": "Oslo"}}}'
        "</call><|im_end|>",
        "It is sunny.<|im_end|>",
        "<think>\n\n</think>\n\nTwo.<|im_end|>",
    ],
    # the call's thinking stands while its answer is awaited, and is gone later
    "qwen3: tool thought": f"{_REWRITES} 4",
    # the prompt opens a thinking block that the turns do not have
    "deepseek: multi": ["One.<|end|>", "Two.<|end|>"],
    "deepseek: empty": ["<|end|>", "Two.<|end|>"],
    "deepseek: html": ["<div>x</div><|end|>", "<b><|end|>"],
    "deepseek: thought": ["\n\nOne.<|end|>", "\n\nTwo.<|end|>"],
    # another mark closes the last turn than the ones before it
    "harmony: multi": [
        "<|channel|>final<|message|>One.<|end|>",
        "<|channel|>final<|message|>Two.<|return|>",
    ],
    "harmony: empty": [
        "<|channel|>final<|message|><|end|>",
        "<|channel|>final<|message|>Two.<|return|>",
    ],
    "harmony: reasons": [
        "<|channel|>final<|message|>One.<|end|>",
        "<|channel|>analysis<|message|>hmm<|end|><|start|>assistant<|channel|>final<|message|>"
        "Two.<|return|>",
    ],
    "mistral: multi": [" One.<|end|>", " Two.<|end|>"],
    "mistral: empty": _NO_PROMPT,
    "mistral: system": _REFUSES,
    "promptless: multi": ["One.<|im_end|>", "Two.<|im_end|>"],
    "promptless: empty": _NO_PROMPT,
    # marks are taken as they stand
    "marked: opens": ["Welcome.<|im_end|>", "One.<|im_end|>"],
    "marked: multi": ["One.<|im_end|>", "Two.<|im_end|>"],
    "marked: empty": ["<|im_end|>", "Two.<|im_end|>"],
    "counting: one": f"{_REWRITES} 2",
    "counting: opens": f"{_REWRITES} 3",
}


@pytest.mark.worker
@pytest.mark.parametrize("case", _EXPECTED)
def test_answers_are_found_in_templates_of_every_shape(
    masked: dict[str, list[str] | str], case: str
) -> None:
    assert masked[case] == _EXPECTED[case]
