"""Bytes from strangers: no file of data makes its probe or its judge fail."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_agent.preflight.check import Ask, known
from eagle3_agent.preflight.data import arrow, data_facts, values
from eagle3_agent.preflight.data import rows as data
from eagle3_agent.preflight.data.data_facts import PROBE
from eagle3_agent.preflight.data.tally import Limits
from eagle3_agent.protocol import dumps, from_json
from support.preflight import profile

SAVED = Path(__file__).with_name("data")
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.sampled_from(["user", "assistant", "\ud800", "\x1b[2J"]),
)  # fmt: skip
JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["role", "from", "content", "value", "text", "type"]), inner
        ),
    ),
    max_leaves=10,
)
ROWS = st.dictionaries(
    st.sampled_from(["input_ids", "loss_mask", "messages", "conversations", "tools"]),
    st.one_of(JSON, st.lists(st.integers(0, 5), max_size=5)),
)
LINES = st.one_of(
    st.one_of(ROWS, JSON).map(lambda row: json.dumps(row).encode("ascii")), st.binary(max_size=40)
)


def judged(path: Path, **changes: Any) -> None:
    for deep in (False, True):
        asked = profile(data_path=str(path), **changes)
        seen = PROBE.collect(Ask(asked, deep))
        assert from_json(PROBE.facts, json.loads(dumps(seen))) == seen
        verdict = data.CHECK.decide(known((PROBE, seen)), asked)
        assert "failed by itself" not in verdict.saw, verdict.saw
        assert "\x1b" not in verdict.saw + verdict.todo
        (verdict.saw + verdict.todo).encode("utf-8")


@FUZZ
@given(st.lists(LINES, max_size=6), st.sampled_from([b"\n", b"\r\n"]), st.integers(1, 4))
def test_any_lines(lines: list[bytes], end: bytes, most: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "d.jsonl"
        path.write_bytes(end.join(lines))
        judged(path, data_max_samples=most, data_seq_length=most)


@FUZZ
@given(st.lists(LINES, min_size=30, max_size=60), st.integers(16, 200))
def test_any_lines_of_a_file_that_is_sampled(lines: list[bytes], quick: int) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as place:
        patch.setattr(data_facts, "QUICK_BYTES", quick)
        path = Path(place) / "d.jsonl"
        path.write_bytes(b"\n".join(lines))
        judged(path)


def test_damage_to_a_saved_dataset_is_told_or_does_not_matter(tmp_path: Path) -> None:
    """Its headers and its values alike; what they claim costs no more memory than the file."""
    folder = tmp_path / "saved"
    shutil.copytree(SAVED / "arrow_ids", folder)
    file = folder / "data-00000-of-00001.arrow"
    whole = file.read_bytes()
    chance = random.Random(5)  # noqa: S311
    for _ in range(1500):
        damaged = bytearray(whole[: chance.randrange(len(whole)) or None])
        for _ in range(chance.randrange(6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        file.write_bytes(damaged)
        try:
            table = arrow.read(str(file))
        except arrow.BadFile:
            continue
        limits = Limits(seq_length=2048, max_samples=None)
        found, why = values.look([(str(file), table.batches)], None, limits, masked=True)
        assert (found is None) == bool(why)
        if found is not None:
            assert found.bytes <= 2 * len(whole)
    judged(folder)
