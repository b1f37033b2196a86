"""Which lines of a log are shown."""

from __future__ import annotations

import pytest

from eagle3_console.logbuffer import LineBuffer
from eagle3_console.logfilter import Level, LogFilter, Wanted

LOG = """\
plain words
INFO 11-30 12:00:00 [a.py:1] starting
(Worker_TP0 pid=7) INFO 11-30 12:00:00 [a.py:1] loading
(Worker_TP1 pid=8) WARNING 11-30 12:00:00 [a.py:1] slow
(Worker_TP1 pid=8)   more of it
(Worker_TP0 pid=7) ERROR 11-30 12:00:00 [a.py:1] Traceback (most recent call last):
(Worker_TP0 pid=7) ERROR 11-30 12:00:00 [a.py:1] ValueError: no
Traceback (most recent call last):
  File "x.py", line 1, in f
    g()
RuntimeError: cancelled
INFO 11-30 12:00:01 [a.py:1] leaving
/env/x.py:3: UserWarning: old
  warnings.warn(
""".splitlines()


def shown(log: LogFilter) -> list[int]:
    found = [log.line(row) for row in range(len(log))]
    assert log.line(len(log)) is None
    return [n for n in found if n is not None]


def filtered(wanted: Wanted, *, step: int = 4) -> LogFilter:
    buffer = LineBuffer()
    log = LogFilter(buffer)
    log.choose(wanted)
    for line in LOG:
        buffer.add(line.encode() + b"\n")
        while log.judge(step):
            pass
    return log


@pytest.mark.parametrize(
    ("level", "process", "lines"),
    [
        ("all", None, list(range(14))),
        ("warnings", None, [3, 4, 5, 6, 7, 8, 9, 10, 12, 13]),
        ("errors", None, [5, 6, 7, 8, 9, 10]),
        ("all", "Worker_TP1", [3, 4]),
        ("errors", "Worker_TP0", [5, 6]),
        ("errors", "Worker_TP1", []),
        ("errors", "", [7, 8, 9, 10]),
        ("all", "nobody", []),
    ],
)
def test_what_is_shown(level: Level, process: str | None, lines: list[int]) -> None:
    assert shown(filtered(Wanted(level, process))) == lines


def test_processes_are_told_in_their_order() -> None:
    assert filtered(Wanted()).processes == ("", "Worker_TP0", "Worker_TP1")


def test_choosing_anew_judges_what_is_kept() -> None:
    log = filtered(Wanted())
    log.choose(Wanted("errors"))
    assert len(log) == 0
    log.judge()
    assert shown(log) == [5, 6, 7, 8, 9, 10]
    log.choose(Wanted())
    assert len(log) == 14


def test_rows_and_lines_answer_each_other() -> None:
    log = filtered(Wanted("errors"))
    assert [log.row(n) for n in (5, 6, 7)] == [0, 1, 2]
    assert log.row(0) == 0
    assert log.row(11) == 6
    assert log.shows(6)
    assert not log.shows(4)


def test_lines_that_the_buffer_let_go_are_gone_here_too() -> None:
    buffer = LineBuffer(budget=100_000)
    log = LogFilter(buffer)
    log.choose(Wanted("errors"))
    for i in range(20_000):
        word = b"ERROR" if i % 2 else b"INFO"
        buffer.add(word + b" 11-30 12:00:00 [a.py:1] line %d\n" % i)
        if i % 100 == 0:
            log.judge()
    log.judge()
    assert buffer.first > 10_000
    found = shown(log)
    assert found == [n for n in range(buffer.first, 20_000) if n % 2]
    assert log.line(0) is not None
    assert log.row(found[10]) == 10


def test_names_made_up_by_a_log_do_not_fill_memory() -> None:
    buffer = LineBuffer()
    log = LogFilter(buffer)
    log.choose(Wanted("errors"))
    buffer.add(
        b"".join(b"(P%d pid=%d) ERROR 11-30 12:00:00 [a.py:1] x\n" % (i, i) for i in range(5000))
    )
    while log.judge():
        pass
    assert len(log.processes) <= 64
    assert len(log) == 5000
