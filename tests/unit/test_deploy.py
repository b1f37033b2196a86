"""The archive: the same bytes everywhere, whole, and unpacked with care."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from eagle3_console.archive import agent_archive, build_archive
from eagle3_console.deploy import script_text
from eagle3_console.remote import unpack


def names(tar: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return archive.getnames()


def test_the_archive_is_the_same_in_every_process() -> None:
    code = "from eagle3_console.archive import agent_archive as a; print(a().name)"
    env = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    other = subprocess.check_output([sys.executable, "-c", code], env=env, text=True).strip()
    agent_archive.cache_clear()
    archive = agent_archive()
    assert other == archive.name == hashlib.sha256(archive.tar).hexdigest()[:16]


def test_the_archive_holds_the_agent_and_pynvml_alone() -> None:
    inside = names(agent_archive().tar)
    assert inside == sorted(inside)
    assert {"__main__.py", "vendor/pynvml.py", "eagle3_agent/__main__.py"} <= set(inside)
    assert all(name.endswith(".py") for name in inside)
    assert len(agent_archive().packed) < 600_000


def test_order_and_times_of_the_source_do_not_matter() -> None:
    one = build_archive({"b.py": b"1", "a.py": b"2"})
    assert one == build_archive({"a.py": b"2", "b.py": b"1"})
    assert one.name != build_archive({"a.py": b"2", "b.py": b"3"}).name


def test_the_unpacked_agent_runs_without_this_console(tmp_path: Path) -> None:
    unpack.install(agent_archive().tar, str(tmp_path / "a"), agent_archive().name, False)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path / "a"), "version"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr


def test_installing_twice_keeps_the_first_and_repair_replaces_it(tmp_path: Path) -> None:
    tar = build_archive({"x/y.py": b"new"}).tar
    target = tmp_path / "agent" / "abc"
    unpack.install(tar, str(target), "abc", False)
    (target / "x" / "y.py").write_text("damaged")
    unpack.install(tar, str(target), "abc", False)
    assert (target / "x" / "y.py").read_text() == "damaged"
    unpack.install(tar, str(target), "abc", True)
    assert (target / "x" / "y.py").read_text() == "new"
    assert (target / "ARCHIVE").read_text() == "abc\n"
    assert [path.name for path in target.parent.iterdir()] == ["abc"]


@pytest.mark.parametrize("name", ["../out.py", "/etc/out.py", "a//b.py"])
def test_a_path_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    tar = build_archive({name: b"x"}).tar
    with pytest.raises(ValueError, match="no plain file"):
        unpack.install(tar, str(tmp_path / "agent" / "abc"), "abc", False)
    assert list((tmp_path / "agent").iterdir()) == []


def test_a_link_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:") as tar:
        info = tarfile.TarInfo("link.py")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(ValueError, match="no plain file"):
        unpack.install(out.getvalue(), str(tmp_path / "abc"), "abc", False)


def test_the_script_is_posix_shell_whatever_it_is_filled_with() -> None:
    odd = "/opt/it's $(here)/python `x` @NONCE@"
    text = script_text("install", "00ff", agent_archive(), odd)
    done = subprocess.run(["sh", "-n"], input=text, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert odd.replace("'", "'\"'\"'").encode() in text
    for word in (b"@ARCHIVE@", b"@MODE@", b"@UNPACK@", b"@SIZE@", b"@FIRST@"):
        assert word not in text
