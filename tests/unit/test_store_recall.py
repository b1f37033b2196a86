"""What is read of the past: telemetry before the console looked, the log's first errors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eagle3_agent.protocol import dumps
from eagle3_agent.protocol.events import Event, Note, Wrote
from eagle3_console import store
from eagle3_console.recall import recall
from eagle3_console.store import State, apply
from eagle3_console.widgets.events import newest
from support import scenes
from support.fakelink import FakeLink

NOW = scenes.NOW


def telemetry(seconds: int, every: int = 2) -> bytes:
    """``gpu.jsonl`` of a run that has gone on for so long."""
    samples = (scenes.sample(NOW - ago, 2) for ago in range(seconds, -1, -every))
    return b"".join(dumps(sample).encode() + b"\n" for sample in samples)


# ------------------------------------------------------------------------- telemetry


async def test_a_young_run_is_recalled_from_its_beginning() -> None:
    link = FakeLink(now=NOW)
    link.write("0001", "gpu", telemetry(120))
    samples = await recall(link, "0001", NOW - store.HISTORY)
    assert [s.t for s in samples] == [NOW - ago for ago in range(120, -1, -2)]


@pytest.mark.parametrize("hours", [1, 10])
async def test_of_a_long_run_only_about_the_wanted_end_is_read(hours: int) -> None:
    link = FakeLink(now=NOW)
    data = telemetry(hours * 3600, every=10)
    link.write("0001", "gpu", data)
    since = NOW - store.HISTORY
    asked: list[int] = []
    stream = link.stream

    def spy(run: str, name: str, offset: int = 0) -> object:
        asked.append(offset)
        return stream(run, "gpu", offset)

    link.stream = spy  # type: ignore[method-assign, assignment]
    samples = await recall(link, "0001", since)
    assert samples[-1].t == NOW
    assert sum(s.t >= since for s in samples) >= 180
    if hours == 10:
        assert len(samples) < 360, "a tenth of the file"
        assert len(asked) == 2, "one look at the beginning, one jump"


async def test_lines_that_cannot_be_read_are_left_out() -> None:
    link = FakeLink(now=NOW)
    good = telemetry(4)
    link.write("0001", "gpu", b'{"t": "x"}\n\xff\xfe\n[]\n' + good + b'{"t": 12')
    samples = await recall(link, "0001", 0.0)
    assert len(samples) == 3


async def test_a_jump_past_the_end_is_taken_back() -> None:
    """Lines were long at first (many processes), then short: the first guess is too far."""
    link = FakeLink(now=NOW)
    long = replace(scenes.sample(NOW, 2), gpu_problem="x" * 3000)
    lines = [replace(long, t=NOW - ago) for ago in range(4000, 3700, -1)]
    lines += [replace(scenes.sample(NOW, 0), t=NOW - ago) for ago in range(3700, -1, -10)]
    link.write("0001", "gpu", b"".join(dumps(s).encode() + b"\n" for s in lines))
    samples = await recall(link, "0001", NOW - 60)
    assert samples
    assert samples[-1].t == NOW


def test_recalled_points_go_before_those_that_came_live() -> None:
    state = apply(State(now=NOW), store.RunsCame(scenes.history()))
    state = apply(state, store.Followed("0004"))
    state = apply(state, store.Sampled(scenes.sample(NOW, 1), NOW))
    past = tuple(scenes.sample(NOW - ago, 1) for ago in (5000, 40, 20, 0))
    state = apply(state, store.Recalled("0004", past))
    assert [p.t for p in state.history["gpu:0"]] == [NOW - 40, NOW - 20, NOW]
    again = apply(state, store.Recalled("0003", past))
    assert again is state, "another run's"


# ------------------------------------------------------------------------- events


def test_sample_files_do_not_push_out_what_is_said_once() -> None:
    first = Note(0.0, "warning", "prefix caching is off")
    files = tuple(Wrote(float(i), i, f"data_{i}.pt", 1, 1) for i in range(2000))
    tail = store.kept_tail((first,), files)
    assert tail[0] == first
    assert tail[1:] == files[-store.WROTE :]
    rest: tuple[Event, ...] = (Note(3000.0, "info", "done"),)
    assert store.kept_tail(tail, rest)[-1] == rest[0]


def test_on_a_screen_sample_files_take_half_of_the_rows_when_others_want_them() -> None:
    notes = tuple(Note(float(i), "info", str(i)) for i in range(20))
    files = tuple(Wrote(20.0 + i, i, f"data_{i}.pt", 1, 1) for i in range(20))
    shown = newest((*notes, *files), 10)
    assert shown == [*notes[-5:], *files[-5:]]
    assert newest(files, 10) == list(files[-10:])
    assert newest((*notes[:2], *files), 10) == [*notes[:2], *files[-8:]]
    assert newest((*notes, *files), 0) == []
