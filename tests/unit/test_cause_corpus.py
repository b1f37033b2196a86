"""The corpus of logs in ``tests/logs``: what happened first in each, and what holds for any."""

from __future__ import annotations

import json
import random
import re
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_agent.causes import CauseFinder
from eagle3_agent.causes.consequences import headline
from eagle3_agent.causes.known import KNOWN
from eagle3_agent.protocol import from_json
from eagle3_agent.protocol.values import Cause, ErrorInfo

LOGS = Path(__file__).parents[1] / "logs"
TABLE: dict[str, dict[str, Any]] = tomlkit.parse((LOGS / "expected.toml").read_text()).unwrap()

#: Logs of several processes whose every line names its process.
PREFIXED = (
    "oom-8-ranks-mixed",
    "oom-one-rank-then-nccl",
    "pp-and-tp-names",
    "empty-assert",
    "illegal-access-multi-line",
    "real-shape-tp2-016",
    "real-vocab-tp2-016",
)


@dataclass(frozen=True)
class Expected:
    type: str
    kind: str = ""
    message: str = ""
    ranks: tuple[int, ...] = ()
    where: str = ""
    line: int | None = None
    followed: tuple[str, ...] = ()
    before: str = ""
    hints: tuple[str, ...] = ()
    only_followed: bool = False


def expected(name: str) -> Expected:
    """The table's entry; its names are the fields of ``Expected``, others are an error."""
    entry = TABLE[name]
    fields: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()
    }
    return Expected(**fields)


def content(name: str) -> bytes:
    data = (LOGS / f"{name}.log").read_bytes()
    return re.sub(rb"@\{(.+?)\*(\d+)\}", lambda m: m[1] * int(m[2]), data, flags=re.DOTALL)


def told(name: str) -> ErrorInfo | None:
    path = LOGS / f"{name}.told.json"
    return from_json(ErrorInfo, json.loads(path.read_text())) if path.exists() else None


def begins(said: Sequence[str], want: Sequence[str]) -> bool:
    """Whether each text begins as the table has it."""
    return len(said) == len(want) and all(map(str.startswith, said, want))


def finder(data: bytes) -> CauseFinder:
    made = CauseFinder()
    made.add(data)
    return made


def found(name: str) -> Cause:
    cause = finder(content(name)).cause(told(name))
    assert cause is not None
    return cause


# ------------------------------------------------------------------ each log by itself


def test_the_table_and_the_folder_are_the_same() -> None:
    assert set(TABLE) == {path.stem for path in LOGS.glob("*.log")}
    assert len([name for name in TABLE if name.startswith("real-")]) >= 10
    assert len(TABLE) >= 35
    assert len({entry.get("kind", entry["type"]) for entry in TABLE.values()}) >= 25


def test_no_log_names_the_machine_that_made_it() -> None:
    for path in LOGS.iterdir():
        text = path.read_bytes()
        assert not re.search(rb"\.venvs/|/home/|\.pyenv", text), path.name


@pytest.mark.parametrize("name", TABLE)
def test_what_happened_first(name: str) -> None:
    one, want = found(name), expected(name)
    where = one.where and f"{'/'.join(one.where.file.split('/')[-2:])}:{one.where.line}"
    assert (one.kind, one.type, where or "") == (want.kind, want.type, want.where)
    assert headline(one.message).startswith(want.message)
    assert bool(one.message) == bool(want.message)
    ranks = one.ranks or (() if one.rank is None else (one.rank,))
    assert (ranks, one.line) == (want.ranks, want.line)
    assert begins([f.text for f in one.followed], want.followed)
    assert begins(one.hints, want.hints)
    assert begins(one.before[-1:], (want.before,) if want.before else ())
    assert one.only_followed == want.only_followed
    assert bool(one.kind) == bool(one.means) == bool(one.todo)
    assert one.sentence


@pytest.mark.parametrize("name", TABLE)
def test_the_line_shown_is_where_it_begins(name: str) -> None:
    one = found(name)
    if one.line is None:
        return
    line = content(name).split(b"\n")[one.line]
    signs = rb"Traceback|Fatal Python|terminate called|Killed|Bus error|Watchdog|watchdog|died|oom_"
    assert re.search(signs + rb"|failed \(exitcode", line)


@pytest.mark.parametrize("run", ["h200-one/0001", "h200-tp2/0001", "h200-tp2/0004"])
def test_a_run_that_failed_in_nothing_has_no_cause(run: str) -> None:
    log = LOGS.parent / "recorded" / run / "output.log"
    assert finder(log.read_bytes()).cause() is None


# ------------------------------------------------------------------ what holds for any log


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from([n for n in TABLE if "@{" not in n]), cuts=st.lists(st.floats(0, 1)))
def test_pieces_of_any_size_give_the_same(name: str, cuts: list[float]) -> None:
    data = content(name)
    places = sorted({int(cut * len(data)) for cut in cuts})
    pieces = CauseFinder()
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        pieces.add(data[start:end])
    assert pieces.cause(told(name)) == finder(data).cause(told(name))


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(PREFIXED), seed=st.integers(0, 2**32))
def test_however_the_processes_lines_are_mixed_the_cause_is_the_same(name: str, seed: int) -> None:
    """Each process's lines keep their order; which process comes when is anything."""
    whole: dict[bytes, list[bytes]] = {}
    for line in content(name).splitlines(keepends=True):
        process = re.match(rb"\((\S+) pid", line)
        whole.setdefault(process[1] if process else b"", []).append(line)
    rng = random.Random(seed)  # noqa: S311
    mixed, left = [], {who: lines[::-1] for who, lines in whole.items()}
    while left:
        who = rng.choice(list(left))
        mixed.append(left[who].pop())
        if not left[who]:
            del left[who]
    one, other = found(name), finder(b"".join(mixed)).cause()
    assert other is not None
    assert (other.type, other.kind, other.ranks, other.where) == (
        one.type,
        one.kind,
        one.ranks,
        one.where,
    )
    assert {f.text.split(":")[0] for f in other.followed} == {
        f.text.split(":")[0] for f in one.followed
    }


_PIECES = b"""\
Traceback (most recent call last):
  File "a.py", line 1, in f
    x
ValueError:
(Worker_TP1 pid=2)
[rank3]:
  + Exception Group
Fatal Python error: x
Killed
| 1/2 [00:00<00:01, 2.0it/s]
Watchdog caught collective operation timeout
The above exception was the direct cause of the following exception:
terminate called after throwing an instance of 'X'
  what():  y
^^^"""
_SHARDS = st.sampled_from([*_PIECES.split(b"\n"), b"\n", b"\r", b" ", b"\xff\x00", b"\x1b[0m"])


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.one_of(_SHARDS, st.binary(max_size=40)), max_size=80))
def test_no_bytes_are_too_broken(parts: list[bytes]) -> None:
    made = CauseFinder()
    for part in parts:
        made.add(part)
        made.cause(ErrorInfo("ValueError", "x"))
    cause = finder(b"".join(parts)).cause()
    assert cause == made.cause()
    assert cause is None or cause.sentence


def test_memory_is_bounded_and_the_first_stays() -> None:
    """Errors that all differ, each with many frames, after the one that counts."""
    first = content("oom-one-rank-then-nccl")
    frames = "".join(
        f'  File "/a/{"b" * 200}{i}.py", line {i}, in f\n    x{i}\n' for i in range(60)
    )
    made = finder(first)
    tracemalloc.start()
    for turn in range(40):
        made.add(
            "".join(
                f"(Worker_TP{i % 8} pid={i % 8}) Traceback (most recent call last):\n{frames}"
                f"E{chr(65 + turn)}{chr(65 + i)}Error: EngineDeadError {'y' * 900}\n"
                for i in range(26)
            ).encode()
        )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert made.lines > 120_000
    assert peak < 50e6
    cause = made.cause()
    assert cause is not None
    assert (cause.kind, cause.rank) == ("cuda-oom", 2)


# ------------------------------------------------------------------ which of several errors


SURVIVED = """\
ERROR 11-30 10:00:00 [rows.py:16] could not read a row
ERROR 11-30 10:00:00 [rows.py:16] Traceback (most recent call last):
ERROR 11-30 10:00:00 [rows.py:16]   File "/work/rows.py", line 14, in row
ERROR 11-30 10:00:00 [rows.py:16] ValueError: no messages
"""
DIED = ErrorInfo("WorkerDiedError", "vLLM's worker of rank 1 died: killed by SIGKILL", 1)


def test_an_error_long_before_a_silent_end_is_not_the_cause() -> None:
    data = (SURVIVED + "some row\n" * 500).encode()
    cause = finder(data).cause(DIED)
    assert cause is not None
    assert (cause.type, cause.followed) == ("WorkerDiedError", ())


@pytest.mark.parametrize(
    "work", ["INFO 11-30 10:00:01 [rows.py:20] row {}\n", "{}: 3 [00:01<00:02, 1.0it/s]\n"]
)
def test_an_error_that_its_process_worked_on_after_is_not_the_cause(work: str) -> None:
    data = (SURVIVED + "".join(work.format(i) for i in range(40))).encode()
    cause = finder(data + b"Killed\n").cause()
    assert cause is not None
    assert (cause.type, cause.followed) == ("Killed", ())


def test_words_of_the_end_are_no_work() -> None:
    closing = "INFO 11-30 10:00:01 [a.py:1] shutting down writer {}\n"
    data = (SURVIVED + "".join(closing.format(i) for i in range(40))).encode()
    cause = finder(data + b"Killed\n").cause()
    assert cause is not None
    assert (cause.type, [f.text for f in cause.followed]) == ("ValueError", ["Killed"])


def test_what_the_run_names_goes_before_an_unrelated_error_of_its_process() -> None:
    name = "told-after-an-unrelated-one"
    assert finder(content(name)).cause() != found(name)
    assert found(name).kind == "read-only"


def test_what_the_parent_passes_on_does_not_go_before_its_worker() -> None:
    text = content("oom-one-rank-then-nccl")
    end = b'Traceback (most recent call last):\n  File "/a.py", line 3, in main\nE1Error: broken\n'
    cause = finder(text + end).cause(ErrorInfo("E1Error", "broken"))
    assert cause is not None
    assert cause.kind == "cuda-oom"
    named = finder(text + end).cause(ErrorInfo("E1Error", "broken", 0))
    assert named is not None
    assert named.type == "E1Error"


def test_known_kinds_are_told_apart_and_short() -> None:
    assert len({known.id for known in KNOWN}) == len(KNOWN)
    for known in KNOWN:
        assert re.fullmatch(r"[a-z0-9-]+", known.id)
        assert len(known.means) < 130, known.id
        assert len(known.todo) < 170, known.id
        assert known.means.endswith("."), known.id
        assert known.todo.endswith("."), known.id


def test_asking_leaves_no_trace() -> None:
    made = finder(content("exception-group")[:400])
    before = made.cause()
    assert made.cause() == before
    assert before is None or replace(before) == before
