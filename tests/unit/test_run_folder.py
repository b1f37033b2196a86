"""The run folder: made whole or not at all, written once where it says so, read by any version."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from eagle3_agent import journal, paths, runs
from eagle3_agent.protocol import ProtocolError
from eagle3_agent.protocol.events import Note, Stage
from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    HostSection,
    ModelSection,
    OutputSection,
    Profile,
)

PROFILE = Profile(
    name="tiny",
    host=HostSection("/venv/bin/python"),
    model=ModelSection("/models/tiny"),
    capture=CaptureSection((1, 2)),
    data=DataSection("/data/x.jsonl"),
    output=OutputSection("/out"),
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3_HOME", str(tmp_path / "home"))


def test_a_run_is_numbered_and_read_back_as_it_was_written() -> None:
    first = runs.create(PROFILE, "transformers", attempt=1, environment={"torch": "2.13.0"})
    second = runs.create(PROFILE, "transformers", attempt=2)
    assert (first.run, second.run) == ("0001", "0002")
    record = first.record()
    assert record.profile == PROFILE
    assert record.environment == {"torch": "2.13.0"}
    assert [f.run for f in runs.list_folders()] == ["0001", "0002"]
    assert stat.S_IMODE(os.stat(first.path).st_mode) == 0o700


@pytest.mark.parametrize("name", ["2", "0002", "last"])
def test_a_run_is_found_by_number_id_and_last(name: str) -> None:
    runs.create(PROFILE, "transformers", attempt=1)
    runs.create(PROFILE, "transformers", attempt=2)
    found = runs.find(name)
    assert found is not None
    assert found.run == "0002"


@pytest.mark.parametrize("name", ["3", "../0001", "", "²", "0001/..", "-1"])
def test_no_run_is_found_under_a_name_that_is_none(name: str) -> None:
    runs.create(PROFILE, "transformers", attempt=1)
    assert runs.find(name) is None


def test_runs_created_side_by_side_get_numbers_of_their_own() -> None:
    made: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: made.append(runs.create(PROFILE, "transformers", attempt=1).run)
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [f"{n:04d}" for n in range(1, 9)]
    assert not [n for n in os.listdir(paths.runs_dir()) if n.startswith(".")]


def test_the_end_of_a_run_is_written_once() -> None:
    folder = runs.create(PROFILE, "transformers", attempt=1)
    folder.write_exit(runs.Exit("aborted", 5.0))
    with pytest.raises(FileExistsError):
        folder.write_exit(runs.Exit("completed", 6.0))
    end = folder.exit()
    assert end is not None
    assert end.state == "aborted"
    assert [n for n in os.listdir(folder.path) if n.startswith(".")] == []


def test_an_older_reader_drops_fields_and_events_it_does_not_know() -> None:
    folder = runs.create(PROFILE, "transformers", attempt=1)
    body = json.loads((folder.path / "run.json").read_text())
    body["from_the_future"] = {"x": 1}
    (folder.path / "run.json").write_text(json.dumps(body))
    assert folder.record().profile == PROFILE
    folder.append(Stage(1.0, "load", "start"))
    journal.append_bytes(folder.events, b'{"type":"Levitated","t":2}\n')
    journal.append_bytes(folder.events, b"\xff\xfe not json\n")
    folder.append(Note(3.0, "info", "on"))
    assert [type(e).__name__ for _, e in folder.read_events()] == ["Stage", "Note"]


def test_a_broken_record_names_itself() -> None:
    folder = runs.create(PROFILE, "transformers", attempt=1)
    (folder.path / "run.json").write_text('{"format": 1')
    with pytest.raises(ProtocolError, match=r"run\.json is not JSON"):
        folder.record()


def test_lines_leave_a_torn_tail_for_later(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b"one\ntwo\nthr")
    got = list(journal.lines(path))
    assert got == [(4, b"one"), (8, b"two")]
    with path.open("ab") as file:
        file.write(b"ee\n")
    assert list(journal.lines(path, 8)) == [(14, b"three")]


def test_a_line_longer_than_a_chunk_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    long = b"x" * (3 * journal.CHUNK + 7)
    path.write_bytes(long + b"\nend\n")
    assert [line for _, line in journal.lines(path)] == [long, b"end"]


def test_appends_of_many_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"

    def write(tag: int) -> None:
        for i in range(200):
            journal.append(path, Note(float(i), "info", f"{tag}" * 50))

    threads = [threading.Thread(target=write, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = [json.loads(line)["text"] for _, line in journal.lines(path)]
    assert len(texts) == 800
    assert all(len(set(text)) == 1 for text in texts)


def test_a_private_folder_is_closed_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        made = paths.private_dir(tmp_path / "a" / "b")
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(made).st_mode) == 0o700
    os.chmod(made, 0o777)
    paths.private_dir(made)
    assert stat.S_IMODE(os.stat(made).st_mode) == 0o700


def test_a_symlink_in_place_of_a_private_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(PermissionError, match="symlink"):
        paths.private_dir(tmp_path / "link")


def test_a_long_home_gets_a_short_socket_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE3_HOME", str(tmp_path / ("h" * 120)))
    assert len(os.fsencode(paths.socket_path())) < 108
