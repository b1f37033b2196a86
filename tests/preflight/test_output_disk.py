"""The output's disk: kind of filesystem, quota, speed, and the room for a run's own records."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.data.data_facts import PROBE as DATA
from eagle3_agent.preflight.data.data_facts import DataFacts
from eagle3_agent.preflight.model.model_facts import PROBE as MODEL
from eagle3_agent.preflight.model.model_facts import ModelFacts
from eagle3_agent.preflight.output import disk, filesystem, mounts, quota, records, speed
from eagle3_agent.preflight.output.inside import Inside
from eagle3_agent.preflight.output.mounts import Mount
from eagle3_agent.preflight.output.output_facts import PROBE as OUTPUT
from eagle3_agent.preflight.output.output_facts import OutputFacts
from eagle3_agent.preflight.output.quota import Quota
from eagle3_agent.preflight.output.records import RecordsFacts
from eagle3_agent.preflight.output.speed import SpeedFacts
from eagle3_agent.protocol.values import Status, Verdict
from support.preflight import gather, profile

GIB = 1024**3
MODEL_FACTS = ModelFacts("/models/tiny", layers=4, hidden=7168, dtype="bfloat16", shards=1)
DATA_FACTS = DataFacts("/data/train.jsonl", kind="ids", rows=10, tokens=1_000_000)

TABLE = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /mnt/a\\040b rw - nfs4 server:/export/a rw,soft,vers=4.2
31 22 0:27 / /mnt ro,noexec - tmpfs tmpfs rw,size=100k
32 22 8:2 / /data rw master:1 propagate_from:2 - xfs /dev/sdb ro
33 22 8:3 / /data rw - btrfs /dev/sdc rw
broken line
34 22 8:3 /x /short
"""


# ------------------------------------------------------------------ which mount


@pytest.mark.parametrize(
    ("path", "kind", "point"),
    [
        ("/", "ext4", "/"),
        ("/home/x", "ext4", "/"),
        ("/mnt", "tmpfs", "/mnt"),
        ("/mnt/a b/c", "nfs4", "/mnt/a b"),
        ("/mnt/a", "tmpfs", "/mnt"),
        ("/data/x", "btrfs", "/data"),
        ("/database", "ext4", "/"),
        ("/short", "ext4", "/"),
    ],
)
def test_the_longest_and_last_mount_above_a_path_holds_it(path: str, kind: str, point: str) -> None:
    found = mounts.find(path, TABLE)
    assert (found.kind, found.point) == (kind, point)


def test_read_only_counts_on_either_side() -> None:
    assert mounts.find("/mnt", TABLE).read_only
    assert not mounts.find("/mnt/a b", TABLE).read_only
    assert mounts.find("/nowhere", "") == Mount()


def test_a_real_mount_is_found(tmp_path: Path) -> None:
    found = mounts.of(str(tmp_path))
    shown = subprocess.run(
        ["stat", "--file-system", "--format", "%T", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert found.point
    assert found.kind.split(".")[0][:3] == shown.split("/")[0][:3], (found, shown)


# ------------------------------------------------------------------ filesystem


def kind(name: str, *options: str) -> Verdict:
    mount = Mount("/mnt", name, "/dev/x", ("rw", *options))
    return filesystem.CHECK.decide(known((OUTPUT, OutputFacts("/mnt/o", mount=mount))), profile())


@pytest.mark.parametrize(
    ("name", "options", "status", "words"),
    [
        ("ext4", (), "pass", ""),
        ("lustre", (), "pass", "(over the network)"),
        ("nfs4", ("hard",), "pass", "(over the network)"),
        ("nfs4", ("soft",), "warn", "write errors"),
        ("tmpfs", (), "warn", "gone at a reboot"),
        ("overlay", (), "warn", "container is removed"),
        ("fuse.sshfs", (), "warn", "sync returns"),
        ("vfat", (), "warn", "4.0 GiB"),
        ("ext4", ("ro",), "block", "remounted"),
        ("somethingfs", (), "pass", "somethingfs at /mnt"),
        ("", (), "skip", "does not say"),
    ],
)
def test_what_a_filesystem_costs(
    name: str, options: tuple[str, ...], status: Status, words: str
) -> None:
    found = kind(name, *options)
    assert found.status == status
    assert words in found.saw + found.why


def test_names_of_mounts_are_shown_plain() -> None:
    assert "\x1b" not in kind("ext4\x1b]0;x\a").saw


# ------------------------------------------------------------------ quota


def dqblk(hard: int = 0, soft: int = 0, used: int = 0, files: int = 0, has: int = 0) -> bytes:
    """``struct if_dqblk``: limits in KiB, use in bytes."""
    return struct.pack("=8QI4x", hard, soft, used, files, 0, has, 0, 0, 0x3F)


def test_a_quota_is_read_in_bytes() -> None:
    found = quota.parse("user", 1000, dqblk(hard=1024, used=1024 * 1000))
    assert (found.limit, found.used, found.left) == (1024**2, 1_024_000, 1024**2 - 1_024_000)
    assert found.files_left is None
    assert quota.parse("user", 1, dqblk(soft=2)).limit == 2048
    over = quota.parse("group", 1, dqblk(hard=1, used=9999, files=5, has=9))
    assert (over.left, over.files_left) == (0, 0)
    assert quota.parse("user", 1, dqblk(used=5)).limit is None


def test_the_kernel_answers_or_says_that_it_keeps_none(tmp_path: Path) -> None:
    found = quota.read(str(tmp_path))
    assert all(q.limit or q.files_limit for q in found)
    assert quota.read(str(tmp_path / "not there")) == ()


def room(*quotas: Quota, free: int = 10**12) -> Verdict:
    seen = OutputFacts("/o", place="/o", exists=True, free=free, quotas=quotas)
    return disk.CHECK.decide(
        known((OUTPUT, seen), (MODEL, MODEL_FACTS), (DATA, DATA_FACTS)), profile()
    )


def test_a_quota_is_the_room_where_it_is_smaller() -> None:
    assert room().status == "pass"
    small = Quota("user", 0, limit=20 * GIB, used=19 * GIB)
    found = room(small)
    assert found.status == "block"
    assert "1.0 GiB left of the user quota of 20.0 GiB" in found.saw
    assert room(Quota("project", 7, limit=10**13)).status == "pass"
    assert room(Quota("user", 0, files_limit=12, files_used=4)).status == "block"


# ------------------------------------------------------------------ speed


def at(rate: float, **inside: Any) -> Verdict:
    output = OutputFacts("/o", inside=Inside(**inside))
    facts = known(
        (speed.PROBE, SpeedFacts(int(rate), 1.0)),
        (OUTPUT, output),
        (MODEL, MODEL_FACTS),
        (DATA, DATA_FACTS),
    )
    return speed.CHECK.decide(facts, profile())


NEED = 1_000_000 * (2 * 7168 * 2 + 16)


def test_the_speed_is_told_in_hours_of_this_run() -> None:
    found = at(1e9)
    assert found.status == "pass"
    assert "26.7 GiB take less than a minute" in found.saw
    assert "take 48 min" in at(NEED / 2880).saw


def test_a_disk_that_takes_hours_warns_and_what_is_there_is_not_written_again() -> None:
    rate = NEED / (5 * 3600)
    assert at(rate).status == "warn"
    assert "5.0 h" in at(rate).saw
    assert at(rate, kept=8, kept_bytes=NEED // 2).status == "pass"


def test_without_a_prediction_only_a_slow_disk_warns() -> None:
    def alone(rate: float) -> Facts:
        return known((speed.PROBE, SpeedFacts(int(rate), 1.0)))

    assert speed.CHECK.decide(alone(10e6), profile()).status == "warn"
    assert speed.CHECK.decide(alone(500e6), profile()).status == "pass"


def test_no_measurement_is_no_verdict() -> None:
    facts = known((speed.PROBE, SpeedFacts(problem="Permission denied")))
    found = speed.CHECK.decide(facts, profile())
    assert (found.status, "Permission denied" in found.saw) == ("skip", True)
    assert speed.CHECK.decide(Facts(silent={"disk-speed": "late"}), profile()).status == "warn"


def test_the_speed_probe_writes_for_real_and_leaves_nothing(tmp_path: Path) -> None:
    facts = gather(speed.PROBE, profile(output_dir=str(tmp_path / "new" / "out")))
    seen = facts.get(speed.PROBE)
    assert not seen.problem
    assert 2 * 1024**2 <= seen.bytes <= 128 * 1024**2
    assert 0 < seen.seconds < 12
    assert os.listdir(tmp_path) == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 1 MiB: less than one part of the speed probe."""
    place = tmp_path / "tiny"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True
    )
    if done.returncode != 0:
        pytest.skip(f"no filesystem can be mounted here: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_too_small_to_measure_is_said_and_left_clean(tiny_disk: Path) -> None:
    asked = profile(output_dir=str(tiny_disk))
    found = speed.CHECK.decide(gather(speed.PROBE, asked), asked)
    assert (found.status, "No space left" in found.saw) == ("skip", True)
    assert os.listdir(tiny_disk) == []
    assert os.statvfs(tiny_disk).f_bavail > 200, "what was written is still there"
    kind_of = filesystem.CHECK.decide(gather(OUTPUT, asked), asked)
    assert (kind_of.status, "tmpfs at" in kind_of.saw) == ("warn", True)


# ------------------------------------------------------------------ records


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        (RecordsFacts("/s", free=100 * GIB), "pass"),
        (RecordsFacts("/s", free=GIB // 2), "warn"),
        (RecordsFacts("/s", free=1024**2), "block"),
        (RecordsFacts("/s", free=100 * GIB, inodes=3), "block"),
        (RecordsFacts("/s", problem="cannot be written: Read-only file system"), "block"),
        (RecordsFacts("/s"), "skip"),
    ],
)
def test_the_run_needs_room_for_its_own_records(seen: RecordsFacts, status: Status) -> None:
    assert records.CHECK.decide(known((records.PROBE, seen)), profile()).status == status


def test_the_state_folder_of_this_home_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("EAGLE3_HOME", str(home))
    seen = gather(records.PROBE, profile()).get(records.PROBE)
    assert (seen.path, seen.problem) == (str(home / "state"), "")
    assert seen.free
    assert not home.exists(), "a look makes no folder"
    home.write_text("a file in the way")
    assert "is a file" in gather(records.PROBE, profile()).get(records.PROBE).problem
