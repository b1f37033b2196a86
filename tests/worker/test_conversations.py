"""Where the loss mask falls, for templates that render turns in different ways."""

from __future__ import annotations

from typing import Any

import pytest

from eagle3_agent.rowrules import RowError, messages_of
from eagle3_agent.worker.conversations import ChatEncoder, Encoded
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
        ([answer("a"), user("b")], "the first message is the assistant's"),
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
