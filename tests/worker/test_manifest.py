"""The output folder's own files: whose samples, which samples, and who may write."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.worker import manifest
from eagle3_agent.worker.errors import OutputError
from eagle3_agent.worker.manifest import Entry, Marker

MARKER = Marker(
    format=1,
    run="0001",
    model="/m",
    model_fingerprint="a",
    data="/d",
    data_fingerprint="b",
    layers=(1, 2),
    convention=manifest.CONVENTION,
    dtype="bfloat16",
    hidden=8,
    output_format="speculators-pt",
)


def entry(index: int, body: bytes = b"body") -> Entry:
    return Entry(
        index=index,
        file=f"data_{index}.pt",
        tokens=3,
        bytes=len(body),
        sha256=hashlib.sha256(body).hexdigest(),
        dtype="bfloat16",
        layers=2,
        hidden=8,
        row="r",
        mask="m",
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"dtype": "float32"}, "dtype (bfloat16 there, float32 asked)"),
        ({"layers": (2, 1)}, "layers ([1, 2] there, [2, 1] asked)"),
        ({"model": "/n", "model_fingerprint": "x"}, "model (/m there, /n asked)"),
        ({"data_fingerprint": "x"}, "data (before there, changed since asked)"),
        ({"hidden": 9}, "hidden size (8 there, 9 asked)"),
        ({"output_format": "safetensors"}, "format (speculators-pt there, safetensors asked)"),
    ],
)
def test_a_folder_with_other_samples_is_refused(
    tmp_path: Path, change: dict[str, object], text: str
) -> None:
    manifest.claim(tmp_path, MARKER)
    assert manifest.examine(tmp_path, replace(MARKER, run="0002")) == MARKER
    # a moved model or data file with the same content is the same
    assert manifest.examine(tmp_path, replace(MARKER, model="/elsewhere")) == MARKER
    with pytest.raises(OutputError) as caught:
        manifest.examine(tmp_path, replace(MARKER, **change))  # type: ignore[arg-type]
    assert text in str(caught.value)


@pytest.mark.parametrize("name", ["data_3.pt", "hs_1.safetensors", "manifest.jsonl"])
def test_samples_without_a_marker_belong_to_nobody(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(OutputError, match=f"holds {name} but no eagle3.json"):
        manifest.examine(tmp_path, MARKER)


def test_other_files_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert manifest.examine(tmp_path, MARKER) is None
    assert manifest.examine(tmp_path / "not there", MARKER) is None


def test_a_marker_nobody_understands_is_refused(tmp_path: Path) -> None:
    (tmp_path / "eagle3.json").write_text("{")
    with pytest.raises(OutputError, match="cannot be understood"):
        manifest.examine(tmp_path, MARKER)


def test_a_claim_removes_partials_and_only_those(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.write_text("x")
    for name in (".data_1.pt.77.partial", ".hs_2.safetensors.77.partial"):
        (tmp_path / name).write_text("half")
    others = [".data_1.pt.partial", ".x.77.partial", "data_1.pt.77.partial"]
    for name in others:
        (tmp_path / name).write_text("other")
    (tmp_path / ".data_9.pt.1.partial").symlink_to(keep)
    manifest.claim(tmp_path, MARKER)
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {"keep", "eagle3.json", ".data_9.pt.1.partial", *others}


def test_two_cannot_claim_one_folder(tmp_path: Path) -> None:
    manifest.claim(tmp_path / "out", MARKER)
    with pytest.raises(OutputError, match="another process writes into"):
        manifest.claim(tmp_path / "out", MARKER)


def test_the_newest_line_counts_and_torn_or_foreign_lines_do_not(tmp_path: Path) -> None:
    manifest.append(tmp_path, entry(1, b"old"))
    manifest.append(tmp_path, entry(1, b"new"))
    manifest.append(tmp_path, replace(entry(2), file="../data_2.pt"))
    path = tmp_path / "manifest.jsonl"
    with path.open("ab") as file:
        file.write(b'\xff\n[]\n{"index": 3}\n' + b'{"index": 4')
    assert manifest.entries(tmp_path) == {1: entry(1, b"new")}
    # the next claim ends the torn line, so that what follows is read
    manifest.claim(tmp_path, MARKER)
    manifest.append(tmp_path, entry(5))
    assert sorted(manifest.entries(tmp_path)) == [1, 5]


def test_a_file_is_intact_only_byte_for_byte(tmp_path: Path) -> None:
    file = tmp_path / "data_1.pt"
    assert manifest.intact(tmp_path, entry(1)) == "missing"
    file.write_bytes(b"body")
    assert manifest.intact(tmp_path, entry(1)) == ""
    file.write_bytes(b"bodx")
    assert manifest.intact(tmp_path, entry(1)) == "its checksum differs"
    file.write_bytes(b"bod")
    assert manifest.intact(tmp_path, entry(1)) == "3 bytes, the manifest says 4"
    (tmp_path / "real").write_bytes(b"body")
    file.unlink()
    file.symlink_to(tmp_path / "real")
    assert manifest.intact(tmp_path, entry(1)) == "missing"
