"""Host memory that may be taken, and the bounds that follow from it."""

from __future__ import annotations

from pathlib import Path

from eagle3_agent.worker import memory
from eagle3_agent.worker.writing import bounds

GIB = 2**30


def _host(root: Path, free: int) -> tuple[Path, Path, Path]:
    """meminfo, the process's cgroup file, and the cgroup mount with one group in another."""
    (root / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:    {free // 1024} kB\n")
    (root / "cgroup").write_text("0::/pod/box\n")
    (root / "mount" / "pod" / "box").mkdir(parents=True)
    return root / "meminfo", root / "cgroup", root / "mount"


def _limit(group: Path, limit: str, anonymous: int, shared: str = "") -> None:
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.stat").write_text(f"anon {anonymous}\nanon_thp 7\nfile {9 * GIB}\n{shared}")


def test_without_a_limit_it_is_the_machine_s(tmp_path: Path) -> None:
    host = _host(tmp_path, 20 * GIB)
    assert memory.available(*host) == 20 * GIB
    _limit(host[2] / "pod", "max", GIB)
    assert memory.available(*host) == 20 * GIB


def test_the_narrowest_limit_above_the_process_counts(tmp_path: Path) -> None:
    host = _host(tmp_path, 20 * GIB)
    _limit(host[2] / "pod", str(10 * GIB), 4 * GIB)
    _limit(host[2] / "pod" / "box", str(9 * GIB), GIB)
    # the page cache can be dropped, so that it takes nothing away
    assert memory.available(*host) == 6 * GIB
    _limit(host[2] / "pod" / "box", str(2 * GIB), 3 * GIB)
    assert memory.available(*host) == 0


def test_shared_memory_cannot_be_dropped_either(tmp_path: Path) -> None:
    host = _host(tmp_path, 20 * GIB)
    _limit(host[2] / "pod", str(10 * GIB), 4 * GIB, f"shmem {3 * GIB}\nshmem_thp 7\n")
    assert memory.available(*host) == 3 * GIB


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    meminfo, cgroup, mount = _host(tmp_path, 20 * GIB)
    cgroup.write_text("0::/\n")
    _limit(mount, str(8 * GIB), GIB)
    assert memory.available(meminfo, cgroup, mount) == 7 * GIB


def test_nobody_says(tmp_path: Path) -> None:
    assert memory.available(tmp_path / "x", tmp_path / "y", tmp_path / "z") is None


def test_this_machine_says() -> None:
    assert (memory.available() or 0) > 0


def test_the_buffer_is_a_share_of_what_is_free_and_two_samples_at_least() -> None:
    assert bounds.buffer_bytes(GIB // 16, 16 * GIB) == 2 * GIB
    assert bounds.buffer_bytes(GIB // 16, 512 * GIB) == 8 * GIB
    assert bounds.buffer_bytes(3 * GIB, 16 * GIB) == 6 * GIB


def test_threads_are_half_of_the_cores_within_reason() -> None:
    assert [bounds.threads(n) for n in (1, 2, 8, 32, 256)] == [2, 2, 4, 16, 16]
