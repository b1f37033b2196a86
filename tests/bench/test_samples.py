"""What benchmarks feed is what they say it is."""

from __future__ import annotations

from bench import capture, log, samples
from eagle3_agent.protocol import decode_event
from eagle3_agent.protocol.fold import Standing, fold


def test_log_bytes_have_the_size_asked_for() -> None:
    for size in (0, 1, 3_000_001):
        assert len(samples.log_bytes(size)) == size


def test_log_lines_are_lines() -> None:
    lines = list(samples.log_lines(1_000))
    assert len(lines) == 1_000
    assert not any(b"\n" in line or b"\r" in line for line in lines)


def test_event_lines_fold_into_a_finished_run() -> None:
    lines = samples.event_lines(60)
    assert len(lines) == 60
    standing = Standing()
    for line in lines:
        event = decode_event(line)
        assert event is not None
        standing = fold(standing, event)
    assert [stage.name for stage in standing.stages] == ["load", "extract", "done"]
    assert standing.total == 60
    assert standing.tokens > 0


def test_pieces_lose_and_repeat_nothing() -> None:
    data = samples.log_bytes(200_001)
    pieces = log.cut(data, log.PIECE)
    assert b"".join(pieces) == data
    assert {len(piece) for piece in pieces[:-1]} == {log.PIECE}


def test_token_rows_stay_within_the_vocabulary_and_differ() -> None:
    rows = capture.rows(16)
    assert len({tuple(row) for row in rows}) == 16
    assert all(128 <= len(row) < 384 for row in rows)
    assert all(0 <= token < 49_152 for row in rows for token in row)
