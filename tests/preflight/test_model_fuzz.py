"""Bytes from strangers: no header, index, config or tokenizer makes a probe or a judge fail."""

from __future__ import annotations

import json
import random
import struct
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_agent.preflight.check import Ask, known
from eagle3_agent.preflight.model import (
    config,
    dtype,
    folder,
    layers,
    model_facts,
    natives,
    quantization,
    remote_code,
    safetensors,
    tokenizer,
    tokenizer_facts,
)
from eagle3_agent.protocol import dumps, from_json
from support import models
from support.preflight import profile

FUZZ = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))

#: Values that JSON can hold, with what its readers trip over.
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=20),
    st.sampled_from(["\ud800", "\0", "../x", "a\x1b[2J", "bfloat16", "compressed-tensors", "F32"]),
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def keyed(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects whose keys mean something to the reader and whose values are anything."""
    return st.dictionaries(st.one_of(st.sampled_from(names), st.text(max_size=6)), JSON, max_size=6)


CONFIGS = keyed(
    "model_type", "architectures", "num_hidden_layers", "hidden_size", "vocab_size", "torch_dtype",
    "dtype", "quantization_config", "compression_config", "auto_map", "text_config",
    "eos_token_id", "routed_scaling_factor", "num_nextn_predict_layers",
)  # fmt: skip
QUANT = keyed(
    "quant_method", "config_groups", "format", "bits", "group_size", "quant_algo", "quantization",
    "load_in_4bit", "weight_block_size", "activation_scheme", "sparsity_config",
)  # fmt: skip
TENSOR = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.one_of(st.sampled_from(["F32", "BF16", "I64"]), JSON),
        "shape": st.one_of(st.lists(st.integers(-2, 2**66), max_size=4), JSON),
        "data_offsets": st.one_of(st.lists(st.integers(-8, 2**66), max_size=3), JSON),
    },
)
HEADERS = st.dictionaries(st.text(max_size=10), st.one_of(TENSOR, JSON), max_size=6)


def judged(path: Path) -> None:
    """Every probe of the model answers, its facts travel, and every judge comes to a verdict."""
    asked = profile(model_path=str(path))
    pairs = []
    for probe in (model_facts.PROBE, natives.PROBE, tokenizer_facts.PROBE):
        value = probe.collect(Ask(asked))
        assert from_json(probe.facts, json.loads(dumps(value))) == value
        pairs.append((probe, value))
    facts = known(*pairs)
    for module in (folder, layers, dtype, quantization, remote_code, tokenizer):
        verdict = module.CHECK.decide(facts, asked)
        assert "failed by itself" not in verdict.saw, verdict.saw
        text = verdict.saw + verdict.todo
        assert "\x1b" not in text
        text.encode("utf-8")


def wrote(name: str, data: bytes, shards: int = 2) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = models.make_checkpoint(Path(place) / "m", shards=shards)
        (path / name).write_bytes(data)
        judged(path)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode("ascii")


@FUZZ
@given(st.one_of(CONFIGS, JSON))
def test_any_config(body: Any) -> None:
    wrote("config.json", as_json(body))


@FUZZ
@given(QUANT)
def test_any_quantization_config(body: Any) -> None:
    wrote("config.json", as_json({**models.config(), "quantization_config": body}))


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes_in_place_of_a_file(data: bytes) -> None:
    for name in ("config.json", "model.safetensors.index.json", "tokenizer.json"):
        wrote(name, data)
    wrote("model.safetensors", data, shards=1)


@FUZZ
@given(
    st.fixed_dictionaries(
        {
            "weight_map": st.one_of(
                JSON, st.dictionaries(st.text(max_size=8), st.one_of(st.text(max_size=8), JSON))
            )
        },
        optional={"metadata": JSON},
    )
)
def test_any_index(body: Any) -> None:
    wrote("model.safetensors.index.json", as_json(body))


@FUZZ
@given(HEADERS, st.integers(0, 64))
def test_any_header(body: Any, data: int) -> None:
    text = as_json(body)
    wrote("model.safetensors", struct.pack("<Q", len(text)) + text + bytes(data), shards=1)


@FUZZ
@given(
    keyed("model", "added_tokens"), keyed("chat_template", "auto_map", "tokenizer_class"), CONFIGS
)
def test_any_tokenizer(body: Any, options: Any, settings_: Any) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = models.make_checkpoint(Path(place) / "m", shards=1)
        (path / "tokenizer.json").write_bytes(as_json(body))
        (path / "tokenizer_config.json").write_bytes(as_json(options))
        (path / "chat_template.json").write_bytes(as_json(options))
        (path / "config.json").write_bytes(as_json(settings_))
        judged(path)


@FUZZ
@given(CONFIGS)
def test_what_is_read_of_a_config_is_small(body: Any) -> None:
    big = {**body, "model_type": "x" * 10**6, "architectures": ["y" * 10**6] * 50,
           "auto_map": {f"k{i}": "z" * 10**5 for i in range(100)}}  # fmt: skip
    assert len(dumps(config.interpret(big))) < 20_000


def test_damage_to_a_real_header_is_a_bad_file_or_none(tmp_path: Path) -> None:
    whole = (models.make_checkpoint(tmp_path / "m", shards=1) / "model.safetensors").read_bytes()
    chance = random.Random(11)  # noqa: S311
    path = tmp_path / "x"
    for _ in range(1500):
        damaged = bytearray(whole[: chance.randrange(len(whole)) or None])
        for _ in range(chance.randrange(5)):
            damaged[chance.randrange(min(len(damaged), 600))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            safetensors.read(str(path))
        except safetensors.BadFile:
            pass


def test_a_header_that_claims_more_than_there_is_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 2**40))
        file.truncate(2**41)  # sparse: a header of a tebibyte would fit
    tracemalloc.start()
    with pytest.raises(safetensors.BadFile, match="does not begin like safetensors"):
        safetensors.read(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
