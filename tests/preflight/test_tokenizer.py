"""The tokenizer: verdicts from facts, and real folders of each form, whole and broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.data.data_facts import PROBE as DATA
from eagle3_agent.preflight.data.data_facts import DataFacts
from eagle3_agent.preflight.model import tokenizer
from eagle3_agent.preflight.model.model_facts import PROBE as MODEL
from eagle3_agent.preflight.model.model_facts import ModelFacts
from eagle3_agent.preflight.model.tokenizer_facts import PROBE, TokenizerFacts, entries
from eagle3_agent.protocol.values import Verdict
from support import models
from support.preflight import gather, profile

WHOLE = TokenizerFacts(
    files=("tokenizer.json",), tokens=99, largest_id=98, largest_token="z", cls="LlamaTokenizer",
    template="tokenizer_config.json",
)  # fmt: skip


def verdict(talks: bool | None = True, model: ModelFacts | None = None, **changes: Any) -> Verdict:
    seen = TokenizerFacts(**{**WHOLE.__dict__, **changes})
    model = model or ModelFacts("/m", vocab=100)
    facts = known((PROBE, seen), (DATA, DataFacts("/d", talks=talks)), (MODEL, model))
    return tokenizer.CHECK.decide(facts, profile())


def test_a_whole_tokenizer_passes_and_says_how_answers_are_found() -> None:
    found = verdict()
    assert found.status == "pass"
    assert found.saw == (
        "tokenizer.json, 99 tokens; tokenizer_config.json has no generation marks, so answers "
        "are found by prefix"
    )
    assert "marks the answers itself" in verdict(marked=True).saw


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"files": ()}, "no tokenizer: none of tokenizer.json, tekken.json"),
        ({"problems": ("tokenizer.json is not JSON: x",)}, "tokenizer.json is not JSON"),
        ({"template": ""}, "no chat template"),
    ],
)
def test_what_blocks_conversations_and_warns_where_the_data_is_unknown(
    changes: dict[str, Any], words: str
) -> None:
    found = verdict(**changes)
    assert found.status == "block"
    assert words in found.saw
    unknown = verdict(None, **changes)
    assert unknown.status == "warn"
    assert "whether the data needs it is not known" in unknown.saw
    ids = verdict(False, **changes)
    assert ids.status == "pass"
    assert "not needed: the data holds token ids" in ids.saw


@pytest.mark.parametrize(
    ("changes", "model", "words"),
    [
        (
            {"largest_id": 100},
            ModelFacts("/m", vocab=100),
            "'z' has the id 100, the model 100 rows",
        ),
        ({}, ModelFacts("/m", vocab=128, embedding=(98, 16)), "id 98, the model 98 rows"),
        ({}, ModelFacts("/m", vocab=1000), "may be another model's tokenizer"),
        ({}, ModelFacts("/m", vocab=100, special_ids={"eos_token_id": 100}), "eos_token_id 100"),
        ({"special": {"eos_token": "</s>"}}, ModelFacts("/m"), "eos_token '</s>' is not in"),
    ],
)
def test_a_vocabulary_that_does_not_fit_warns(
    changes: dict[str, Any], model: ModelFacts, words: str
) -> None:
    found = verdict(model=model, **changes)
    assert found.status == "warn"
    assert words in found.saw


def test_what_cannot_be_told() -> None:
    found = verdict(tokens=None, largest_id=-1, files=("tiktoken.model",))
    assert found.status == "pass"
    assert "the vocabulary is not read here" in found.saw
    assert verdict(folder_problem="cannot be listed").status == "skip"
    assert verdict(model=ModelFacts("/m", "does not exist")).status == "skip"
    silent = Facts(silent={"tokenizer": "did not answer within 30 s"})
    assert tokenizer.CHECK.decide(silent, profile()).status == "warn"


# ------------------------------------------------------------------ real folders

BPE = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    "added_tokens": [{"id": 5, "content": "<|end|>"}],
}


def look(folder: Path) -> TokenizerFacts:
    return gather(PROBE, profile(model_path=str(folder))).get(PROBE)


def made(tmp_path: Path, **files: Any) -> Path:
    folder = models.make_checkpoint(tmp_path / "m")
    for name, body in files.items():
        text = body if isinstance(body, str) else json.dumps(body)
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_a_real_vocabulary_and_template(tmp_path: Path) -> None:
    config = {
        "tokenizer_class": "X",
        "chat_template": [
            {"name": "default", "template": "x"},
            {"name": "tool_use", "template": "{%- generation %}"},
        ],
        "eos_token": {"content": "<|end|>"},
        "pad_token": "<pad>",
    }
    seen = look(made(tmp_path, tokenizer__json=BPE, tokenizer_config__json=config))
    assert (seen.tokens, seen.largest_id, seen.largest_token) == (3, 5, "<|end|>")
    assert (seen.cls, seen.template, seen.marked) == ("X", "tokenizer_config.json", True)
    assert seen.special == {"pad_token": "<pad>"}
    assert seen.problems == ()


def test_where_a_template_may_be(tmp_path: Path) -> None:
    folder = made(tmp_path, tokenizer__json=BPE, chat_template__json={"chat_template": "{{ x }}"})
    assert look(folder).template == "chat_template.json"
    (folder / "chat_template.jinja").write_text("{% generation %}")
    assert (look(folder).template, look(folder).marked) == ("chat_template.jinja", True)
    (folder / "chat_template.jinja").write_text(" ")
    assert look(folder).template == "chat_template.json"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "tokenizer.json is not JSON"),
        ("[]", "not a JSON object"),
        ("", "is empty (0 bytes)"),
        ("{}", "holds no vocabulary"),
        ("version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("[" * 100_000, "tokenizer.json is not JSON"),
    ],
)
def test_a_tokenizer_that_is_none(tmp_path: Path, text: str, words: str) -> None:
    (problem,) = look(made(tmp_path, tokenizer__json=text)).problems
    assert words in problem


def test_a_link_to_nothing_is_told(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("../gone")
    assert "a symlink to ../gone, which is not there" in look(folder).problems[0]


def test_no_folder_is_no_crash(tmp_path: Path) -> None:
    assert "No such file" in look(tmp_path / "none").folder_problem


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (BPE, 3),
        ({"model": {"vocab": [["a", -1.0], ["b", -2.0], 5]}}, 2),
        ({"model": {"vocab": {"a": -1, "b": "x", "c": True}}}, 0),
        ({"model": [], "added_tokens": [5, {"id": -1}, {"id": 3}]}, 1),
        ({}, 0),
    ],
)
def test_entries_of_every_kind(body: dict[str, Any], count: int) -> None:
    assert len(entries(body)) == count
