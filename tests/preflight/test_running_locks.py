"""Lock files that block a load: verdicts from facts, real files, real holders."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.preflight.actions import perform
from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.running import lock_facts, locks
from eagle3_agent.preflight.running.lock_facts import PROBE, Baton, Held, LockFacts
from eagle3_agent.protocol.values import Profile, Verdict
from support.preflight import gather, profile, until
from support.real_processes import Start, starting

HOUR = 3600.0
PATH = "/root/.cache/torch_extensions/py312_cu128/fused_adam/lock"
STALE = Baton(PATH, 7, 8, modified=1_700_000_000.0, age=5 * HOUR)


def verdict(*batons: Baton, held: tuple[Held, ...] = (), cut: bool = False) -> Verdict:
    facts = LockFacts(batons, held, ("/root/.cache/torch_extensions",), cut)
    return locks.CHECK.decide(known((PROBE, facts)), profile())


def test_no_lock_passes_and_says_where_was_looked() -> None:
    found = verdict()
    assert found.status == "pass"
    assert found.saw == "none in /root/.cache/torch_extensions"
    nowhere = locks.CHECK.decide(known((PROBE, LockFacts((), (), ()))), profile())
    assert (nowhere.status, nowhere.saw) == ("pass", "no cache here keeps lock files")


def test_an_old_baton_that_nobody_has_open_warns_and_can_be_removed() -> None:
    found = verdict(STALE)
    assert found.status == "warn"
    assert PATH in found.saw
    assert found.todo == f"Remove it: {PATH}"
    (action,) = found.actions
    assert (action.kind, action.path, action.device, action.inode) == ("remove-lock", PATH, 7, 8)
    assert f"the same as: rm -- {PATH}" in action.effect


@pytest.mark.parametrize(
    "baton",
    [
        replace(STALE, age=60.0),
        replace(STALE, network="nfs4"),
        replace(STALE, unseen=12),
    ],
)
def test_a_baton_whose_maker_may_still_compile_warns_without_an_offer(baton: Baton) -> None:
    found = verdict(baton)
    assert found.status == "warn"
    assert "cannot be told from here" in found.why
    assert found.actions == ()


@pytest.mark.parametrize("baton", [replace(STALE, network="nfs4"), replace(STALE, unseen=12)])
def test_after_a_day_nobody_compiles_any_more(baton: Baton) -> None:
    assert verdict(replace(baton, age=25 * HOUR)).actions


def test_another_users_baton_is_told_and_not_offered() -> None:
    found = verdict(replace(STALE, ours=False))
    assert (found.status, found.actions) == ("warn", ())


def test_a_baton_in_use_is_no_blocker() -> None:
    found = verdict(replace(STALE, holder=4711))
    assert found.status == "pass"
    assert "is in use by pid 4711" in found.saw


def test_a_lock_that_a_living_process_holds_is_told_with_its_holder() -> None:
    found = verdict(held=(Held("/hub/.locks/models--a/x.lock", 4711, "eve", "hf download"),))
    assert found.status == "warn"
    assert "x.lock is held by pid 4711 eve hf download" in found.saw
    assert found.actions == ()


def test_a_cache_too_large_to_look_at_is_no_pass() -> None:
    assert verdict(cut=True).status == "warn"


def test_hostile_names_come_out_printable() -> None:
    found = verdict(replace(STALE, path="/x/\x1b[2J\n/lock"))
    assert "\x1b" not in found.saw + found.todo + "".join(found.actions[0].effect)


def test_a_cache_that_hangs_warns() -> None:
    silent = Facts(silent={"locks": "did not answer within 6 s"})
    assert locks.CHECK.decide(silent, profile()).status == "warn"


@pytest.mark.parametrize(
    ("environ", "extensions", "hub"),
    [
        ({"HOME": "/h"}, "/h/.cache/torch_extensions", "/h/.cache/huggingface/hub/.locks"),
        (
            {"HOME": "/h", "XDG_CACHE_HOME": "/c"},
            "/c/torch_extensions",
            "/c/huggingface/hub/.locks",
        ),
        ({"HOME": "/h", "TORCH_EXTENSIONS_DIR": "/t"}, "/t", "/h/.cache/huggingface/hub/.locks"),
        ({"HOME": "/h", "HF_HOME": "/hf"}, "/h/.cache/torch_extensions", "/hf/hub/.locks"),
        ({"HOME": "/h", "HF_HUB_CACHE": "/b"}, "/h/.cache/torch_extensions", "/b/.locks"),
    ],
)
def test_where_the_caches_are(environ: dict[str, str], extensions: str, hub: str) -> None:
    assert lock_facts.torch_extensions(environ) == extensions
    assert lock_facts.hub_locks(environ) == hub


def test_the_kernels_list_of_locks() -> None:
    lines = [
        "1: FLOCK  ADVISORY  WRITE 4711 fd:01:525093 0 EOF",
        "1: -> FLOCK  ADVISORY  WRITE 4712 fd:01:525093 0 EOF",
        "2: POSIX  ADVISORY  READ  17 00:2d:99 128 128",
        "3: OFDLCK ADVISORY  READ  -1 00:06:1061 0 EOF",
        "garbage",
        "",
    ]
    assert list(lock_facts.parse_locks(lines)) == [
        (4711, (0xFD, 1), 525093),
        (17, (0, 0x2D), 99),
    ]


# ------------------------------------------------------------------ real files


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as begin:
        yield begin


@pytest.fixture
def cached(tmp_path: Path) -> tuple[Path, Profile]:
    """A cache folder, and a profile whose worker will use it."""
    root = tmp_path.resolve() / "cache"
    root.mkdir()
    return root, profile(host_env={"XDG_CACHE_HOME": str(root)})


def baton(root: Path, *, old: bool = True, name: str = "py312_cu128/fused_adam") -> Path:
    lock = root / "torch_extensions" / name / "lock"
    lock.parent.mkdir(parents=True)
    os.close(os.open(lock, os.O_CREAT | os.O_EXCL))  # as torch's FileBaton makes it
    if old:
        os.utime(lock, (time.time() - 5 * HOUR,) * 2)
    return lock


HOLD = (
    "import fcntl, os, signal, sys; fd = os.open(sys.argv[1], os.O_RDWR); "
    "fcntl.flock(fd, fcntl.LOCK_EX); open(sys.argv[2], 'w').close(); signal.pause()"
)


def look(asked: Profile) -> tuple[LockFacts, Verdict]:
    facts = gather(PROBE, asked)
    return facts.get(PROBE), locks.CHECK.decide(facts, asked)


@pytest.mark.parametrize("name", ["py312_cu128/fused_adam", "fused_adam"])
def test_a_baton_that_a_killed_compile_left_is_found_and_removed(
    cached: tuple[Path, Profile], name: str
) -> None:
    root, asked = cached
    lock = baton(root, name=name)
    seen, found = look(asked)
    (one,) = seen.batons
    assert (one.path, one.holder, one.ours) == (str(lock), 0, True)
    assert one.age == pytest.approx(5 * HOUR, abs=60)
    if one.network or one.unseen:
        pytest.skip("this host hides open files or has /tmp on a network; not on this machine")
    result = perform.perform(perform.Request(asked, "locks", found.actions[0]))
    assert result.refusal is None
    assert result.helped
    assert result.verdict is not None
    assert result.verdict.status == "pass"
    assert not lock.exists()


def test_a_baton_that_a_living_compile_holds_is_left(
    cached: tuple[Path, Profile], start: Start, tmp_path: Path
) -> None:
    root, asked = cached
    lock, ready = baton(root), tmp_path / "ready"
    holder = start([sys.executable, "-c", HOLD, str(lock), str(ready)])
    until(ready.exists)
    seen, found = look(asked)
    assert seen.batons[0].holder == holder
    assert (found.status, found.actions) == ("pass", ())


def test_a_download_that_goes_on_is_named_and_a_lock_file_that_stayed_is_nothing(
    cached: tuple[Path, Profile], start: Start, tmp_path: Path
) -> None:
    root, asked = cached
    folder = root / "huggingface" / "hub" / ".locks" / "models--a--b"
    folder.mkdir(parents=True)
    (folder / "left.lock").touch()
    assert look(asked)[1].status == "pass"
    held, ready = folder / "held.lock", tmp_path / "ready"
    held.touch()
    holder = start([sys.executable, "-c", HOLD, str(held), str(ready)])
    until(ready.exists)
    seen, found = look(asked)
    if not seen.held:
        pytest.skip("/proc/locks does not name this file's device; not on this machine")
    assert [(h.path, h.pid) for h in seen.held] == [(str(held), holder)]
    assert found.status == "warn"


def test_links_in_the_cache_are_not_followed(cached: tuple[Path, Profile], tmp_path: Path) -> None:
    root, asked = cached
    real = tmp_path / "real"
    real.mkdir()
    (real / "lock").touch()
    (root / "torch_extensions").mkdir()
    (root / "torch_extensions" / "linked").symlink_to(real)
    (root / "torch_extensions" / "own").mkdir()
    (root / "torch_extensions" / "own" / "lock").symlink_to(real / "lock")
    assert look(asked)[0].batons == ()


def test_this_hosts_mounts_are_read() -> None:
    assert lock_facts.network("/proc") == ""
