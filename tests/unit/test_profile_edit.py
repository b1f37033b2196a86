"""Editing a profile: comments and order survive, one change comes back, nobody's file is lost."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from eagle3_console import profile as profiles
from eagle3_console import profile_edit as edit
from eagle3_console import profile_save
from eagle3_console.errors import ConsoleError
from eagle3_console.profile_settings import BY_KEY, check

KIMI = Path(__file__).parents[2] / "profiles" / "kimi-k2.5.toml"


def kimi() -> edit.Draft:
    return edit.of_text(KIMI, KIMI.read_text())


def differing(draft: edit.Draft) -> list[str]:
    """The lines that a save would take out and put in."""
    before, after = draft.text.splitlines(), edit.text(draft).splitlines()
    return [d for d in difflib.ndiff(before, after) if d[0] in "+-"]


def row(draft: edit.Draft, key: str) -> edit.Row:
    return next(r for r in edit.rows(draft) if r.key == key)


@contextlib.contextmanager
def refused(why: str) -> Iterator[None]:
    with pytest.raises(ConsoleError) as caught:
        yield
    assert why in caught.value.problem.happened


# ------------------------------------------------------------------------- the text


def test_a_change_touches_its_own_line_alone() -> None:
    draft = edit.put(kimi(), "data.max_samples", 10)
    assert differing(draft) == ["- max_samples = 1000", "+ max_samples = 10"]


def test_the_comment_behind_a_value_stays() -> None:
    draft = edit.put(kimi(), "model.trust_remote_code", False)
    assert differing(draft)[-1] == (
        "+ trust_remote_code = false     # the tokenizer is code in the checkpoint's folder"
    )


def test_a_new_setting_stands_in_its_section_before_the_empty_line() -> None:
    lines = edit.text(edit.put(kimi(), "data.too_long", "skip")).splitlines()
    at = lines.index('too_long = "skip"')
    assert lines[at - 1] == "seq_length = 2048"
    assert lines[at + 1 : at + 3] == ["", "[output]"]


def test_a_value_as_in_the_file_is_no_change() -> None:
    draft = edit.put(edit.put(kimi(), "data.max_samples", 10), "data.max_samples", 1000)
    assert draft.changes == {}
    assert edit.text(draft) == KIMI.read_text()


def test_one_is_not_true() -> None:
    assert edit.put(kimi(), "model.trust_remote_code", 1).changes == {"model.trust_remote_code": 1}


def test_every_sample_leaves_the_limit_out() -> None:
    draft = edit.put(kimi(), "data.max_samples", "all")
    assert edit.build(draft).data.max_samples is None
    assert differing(draft) == ["- max_samples = 1000"]


def test_revert_takes_one_change_back() -> None:
    draft = edit.put(edit.put(kimi(), "data.max_samples", 10), "model.dtype", None)
    draft = edit.revert(draft, "model.dtype")
    assert draft.changes == {"data.max_samples": 10}


VALUES: dict[str, some.SearchStrategy[Any]] = {
    "host.python": some.text(min_size=1),
    "host.env": some.dictionaries(some.from_regex(r"[A-Z_]{1,8}", fullmatch=True), some.text()),
    "model.tensor_parallel_size": some.integers(),
    "model.gpu_memory_utilization": some.integers(-50, 150).map(lambda n: n / 100),
    "model.trust_remote_code": some.booleans(),
    "capture.layers": some.lists(some.integers()),
    "engine.args": some.lists(some.text()),
    "output.buffer": some.text(),
}


@settings(deadline=None)
@given(some.lists(some.sampled_from(sorted(VALUES)), max_size=4), some.data())
def test_what_is_saved_is_read_back(keys: list[str], data: some.DataObject) -> None:
    draft = kimi()
    for key in keys:
        draft = edit.put(draft, key, data.draw(some.none() | VALUES[key]))
    again = edit.of_text(KIMI, edit.text(draft))
    assert [r.value for r in edit.rows(again)] == [r.value for r in edit.rows(draft)]
    kept = [line for line in KIMI.read_text().splitlines() if line.startswith("#")]
    assert [line for line in edit.text(draft).splitlines() if line.startswith("#")] == kept


# ------------------------------------------------------------------------- what is typed


@pytest.mark.parametrize(
    ("key", "words", "value"),
    [
        ("model.path", " /shared/my model ", "/shared/my model"),
        ("model.path", '"/a "', "/a "),
        ("data.max_samples", "10", 10),
        ("data.max_samples", "all", "all"),
        ("model.gpu_memory_utilization", "0.9", 0.9),
        ("model.trust_remote_code", "true", True),
        ("model.dtype", "bfloat16", "bfloat16"),
        ("capture.layers", "[2, 15]", [2, 15]),
        ("capture.layers", "2, 15", [2, 15]),
        ("output.buffer", "8 GiB", "8 GiB"),
        ("engine.args", '["--a", "b, c"]', ["--a", "b, c"]),
        ("host.env", '{ A = "b" }', {"A": "b"}),
        ("data.seq_length", "", None),
    ],
)
def test_a_field_takes_plain_words_and_toml(key: str, words: str, value: object) -> None:
    assert edit.typed(BY_KEY[key], words) == (value, [])


@pytest.mark.parametrize(
    ("key", "words", "what"),
    [
        ("data.max_samples", "0", "0 is out of range"),
        ("data.max_samples", "ten", 'expected a whole number or "all", found text: "ten"'),
        ("model.gpu_memory_utilization", "1.5", "1.5 is out of range"),
        ("model.dtype", "float23", '"float23" is not known'),
        ("capture.layers", "[2, x]", "expected a list of whole numbers"),
        ("host.env", "A=1", "expected a table of texts"),
        ("host.python", "  ", "is missing"),
        ("model.path", "\x1b]0;x\x07/m", "holds a control character"),
    ],
)
def test_a_field_says_what_is_wrong_and_the_way_out(key: str, words: str, what: str) -> None:
    _, faults = edit.typed(BY_KEY[key], words)
    assert what in faults[0].what
    assert faults[0].todo


@settings(deadline=None)
@given(some.sampled_from(sorted(BY_KEY)), some.text())
def test_any_text_in_any_field_is_a_value_or_a_fault(key: str, words: str) -> None:
    value, _ = edit.typed(BY_KEY[key], words)
    edit.rows(edit.put(kimi(), key, value))


@settings(deadline=None)
@given(some.sampled_from(sorted(VALUES)), some.data())
def test_a_shown_value_is_what_the_field_takes_back(key: str, data: some.DataObject) -> None:
    value = data.draw(VALUES[key])
    if check(BY_KEY[key], value) == []:
        assert edit.typed(BY_KEY[key], edit.shown(value)) == (value, [])


# ------------------------------------------------------------------------- rows


def test_rows_name_what_is_wrong_across_settings() -> None:
    found = row(edit.put(kimi(), "data.seq_length", 4096), "data.seq_length").findings
    assert "longer than model.max_model_len 2048" in found[0].what


def test_a_key_that_is_no_setting_is_a_row_that_can_be_removed() -> None:
    text = KIMI.read_text().replace("seq_length =", "seq_len =") + "\n[modle]\nx = 1\n"
    draft = edit.of_text(KIMI, text)
    strange = row(draft, "data.seq_len")
    assert strange.setting is None
    assert strange.findings[0].line == 27
    assert "did you mean data.seq_length?" in strange.findings[0].todo
    assert row(draft, "modle").findings[0].todo == "did you mean [model]?"
    draft = edit.put(edit.put(draft, "data.seq_len", None), "modle", None)
    assert edit.findings(draft) == ()
    assert edit.build(draft) == edit.build(kimi())


def test_broken_toml_is_refused_with_its_line() -> None:
    with pytest.raises(profiles.ProfileError) as caught:
        edit.of_text(KIMI, "[host]\npython = \n")
    assert caught.value.findings[0].line == 2


# ------------------------------------------------------------------------- from a run


def test_a_runs_profile_without_a_file_is_a_whole_one() -> None:
    resolved = edit.build(kimi())
    draft = edit.of_run(resolved, "0003", against=replace(resolved, name="loaded"))
    assert edit.build(draft) == replace(resolved, name=draft.name)
    assert not any(r.changed for r in edit.rows(draft))


def test_a_runs_profile_is_changes_on_its_file() -> None:
    resolved = edit.build(kimi())
    ran = replace(resolved, data=replace(resolved.data, max_samples=None, seq_length=512))
    draft = edit.of_run(ran, "0003", file=kimi())
    assert draft.changes == {"data.max_samples": None, "data.seq_length": 512}
    assert edit.build(draft) == ran


def test_a_default_that_is_written_out_is_no_difference() -> None:
    assert edit.of_run(edit.build(kimi()), "0003", file=kimi()).changes == {}


# ------------------------------------------------------------------------- the file


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "night.toml"
    path.write_text(KIMI.read_text())
    path.chmod(0o640)
    return path


def test_saving_keeps_mode_link_and_line_ends(mine: Path) -> None:
    mine.write_bytes(mine.read_bytes().replace(b"\n", b"\r\n"))
    link = mine.with_name("link.toml")
    link.symlink_to(mine)
    draft = edit.put(profile_save.opened(link), "data.max_samples", 10)
    saved = profile_save.save(draft)
    assert link.is_symlink()
    assert mine.stat().st_mode & 0o777 == 0o640
    assert b"max_samples = 10\r\n" in mine.read_bytes()
    assert mine.read_bytes().count(b"\n") == mine.read_bytes().count(b"\r\n")
    assert saved.changes == {}
    assert os.listdir(mine.parent) == unordered(mine.parent, "link.toml", "night.toml")


def unordered(folder: Path, *names: str) -> list[str]:
    """The names in the folder's own order."""
    return [name for name in os.listdir(folder) if name in names]


def test_a_file_that_changed_meanwhile_is_not_overwritten(mine: Path) -> None:
    draft = edit.put(profile_save.opened(mine), "data.max_samples", 10)
    mine.write_text(mine.read_text().replace("2048", "1024") + "# theirs\n")
    with refused("changed since it was read"):
        profile_save.save(draft)
    now = profile_save.held_now(draft)
    assert now is not None
    merged = profile_save.save(edit.onto(draft, now))
    assert "# theirs" in merged.text
    assert "max_samples = 10" in merged.text
    assert "max_model_len = 1024" in mine.read_text()


def test_a_file_that_is_gone_is_said(mine: Path) -> None:
    draft = edit.put(profile_save.opened(mine), "data.max_samples", 10)
    mine.unlink()
    with refused("gone since it was read"):
        profile_save.save(draft)


def test_a_copy_never_goes_over_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mine: Path
) -> None:
    monkeypatch.setenv("EAGLE3_HOME", str(tmp_path / "home"))
    path = profile_save.own_path("copy")
    saved = profile_save.save_new(edit.put(kimi(), "data.max_samples", 10), path)
    assert profile_save.opened(path) == saved
    with refused("is there already"):
        profile_save.own_path("copy.toml")
    with pytest.raises(ConsoleError):
        profile_save.save_new(kimi(), path)
    for name in ("", "../x", "a/b", ".hidden", "a b"):
        with refused("other characters"):
            profile_save.own_path(name)


def test_the_shipped_profiles_are_known() -> None:
    assert profile_save.is_shipped(KIMI)


def test_a_shipped_profile_elsewhere_is_the_users(mine: Path) -> None:
    assert not profile_save.is_shipped(mine)
