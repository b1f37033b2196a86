"""Whatever stands in a profile, reading it ends in a Profile or in a ProfileError."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from eagle3_console import profile
from eagle3_console.profile_settings import SECTIONS, SETTINGS

_SCALARS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.text(max_size=8)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)
_NAMES = st.one_of(st.sampled_from([s.name for s in SETTINGS]), st.text(max_size=6))
_TABLES = st.dictionaries(_NAMES, _VALUES, max_size=4)
_DOCUMENTS = st.dictionaries(
    st.one_of(st.sampled_from(SECTIONS), st.text(max_size=6)),
    st.one_of(_TABLES, _VALUES),
    max_size=5,
)


@given(_DOCUMENTS, st.booleans())
def test_any_document_ends_well(document: dict[str, Any], local: bool) -> None:
    try:
        text = tomlkit.dumps(document)
    except Exception:  # what cannot be written as TOML cannot be read either
        return
    _read(text, [], local)


@given(st.text(max_size=200), st.lists(st.text(max_size=30), max_size=3))
def test_any_text_ends_well(text: str, sets: list[str]) -> None:
    _read(text, sets, False)


@given(st.sampled_from([s.key for s in SETTINGS]), st.text(max_size=30))
def test_any_set_value_ends_well(key: str, value: str) -> None:
    _read(profile.template(), [f"{key}={value}"], False)


def _read(text: str, sets: list[str], local: bool) -> None:
    """Anything but a ProfileError passes through and fails the test."""
    findings = None
    try:
        source = profile.parse(text, Path("/profiles/p.toml"))
        profile.set_values(source, sets)
        profile.build(source, local=local)
    except profile.ProfileError as problem:
        findings = problem.findings
    assert findings is None or (findings and all(f.what and f.todo for f in findings))
