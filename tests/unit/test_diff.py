"""What a diff of two runs compares, what it folds, and what it never shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eagle3_agent.protocol.values import (
    Cause,
    EngineSection,
    Report,
    RunDetail,
    StageTime,
    Verdict,
)
from eagle3_console import render_diff
from eagle3_console.analysis.diff import Change, Diff, Section, diff
from support import scenes

RUNS = {r.number: r for r in scenes.history()}
OLD = scenes.detail(RUNS[3])
NEW = scenes.detail(RUNS[4])


def section(value: Diff, title: str) -> Section:
    return next(s for s in value.sections if s.title == title)


def changes(value: Diff, title: str) -> dict[str, tuple[Any, Any]]:
    return {c.key: (c.before, c.after) for c in section(value, title).changes}


def with_environment(detail: RunDetail, **changed: object) -> RunDetail:
    return replace(detail, environment={**detail.environment, **changed})


def text(value: Diff, **how: Any) -> str:
    rows = render_diff.rows(value, **how)
    return "\n".join("".join(part for part, _ in row) for row in rows)


def test_a_run_is_the_same_as_itself_and_all_of_it_is_folded_to_one_line() -> None:
    found = diff(NEW, NEW)
    assert found.same
    assert all(s.compared == len(s.folded) for s in found.sections)
    told = [line for line, _ in render_diff.lines(found)]
    assert told[1] == "  nothing differs between the two"
    assert len(told) == 3
    assert "4 packages, driver 580.95" in told[2]
    assert "host gpu-01" in told[2]
    assert "10 checks" in told[2]


def test_packages_driver_script_and_host_stand_apart() -> None:
    after = with_environment(
        NEW, vllm="0.17.0", driver="590.1", kernel="6.9", git_commit="b" * 40, git_dirty=2
    )
    found = diff(NEW, after)
    assert changes(found, "packages") == {"vllm": ("0.16.0", "0.17.0")}
    assert changes(found, "driver") == {"driver": ("580.95", "590.1")}
    assert changes(found, "host") == {"kernel": (None, "6.9")}
    assert changes(found, "script") == {"git_commit": (None, "b" * 40), "git_dirty": (None, 2)}
    assert "+ commit          bbbbbbbbbbbb\n" in text(found)


def test_secrets_are_compared_and_never_shown() -> None:
    def with_secrets(token: str) -> RunDetail:
        host = replace(NEW.resolved.host, env={"HF_TOKEN": token, "NCCL_DEBUG": "WARN"})
        engine = EngineSection("script", "/x.py", ("--api-key", token, "--n", "3"))
        return replace(NEW, resolved=replace(NEW.resolved, host=host, engine=engine))

    before, after = with_secrets("first-word"), with_secrets("second-word")
    found = diff(before, after)
    assert "HF_TOKEN" in changes(found, "environment")
    assert "engine.args" in changes(found, "profile")
    for said in (text(found, unfolded=True), repr(found)):
        assert "first-word" not in said
        assert "second-word" not in said
    assert "HF_TOKEN   •••••• → ••••••   another one" in text(found)
    assert not section(diff(before, before), "environment").changes


def test_durations_change_only_when_it_matters() -> None:
    def stages(load: float, warmup: float) -> tuple[StageTime, ...]:
        return (StageTime("load", 0, load), StageTime("warmup", load, load + warmup))

    before = replace(NEW, stages=stages(1000, 3.0))
    found = diff(before, replace(NEW, stages=stages(1030, 4.5)))
    assert changes(found, "stages") == {}
    slower = diff(before, replace(NEW, stages=stages(1500, 3.0)))
    assert changes(slower, "stages") == {"load": (1000, 1500)}
    assert "~ load   16:40 → 25:00   50 % longer" in text(slower)
    running = replace(NEW, stages=(StageTime("load", 0, None),))
    assert changes(diff(before, running), "stages")["load"] == (1000, None)


def test_what_happened_first_and_how_fast_it_was_are_compared() -> None:
    cause = Cause("CUDA ran out of memory on rank 3", "OutOfMemoryError", "")
    after = replace(NEW, cause=cause, summary=replace(NEW.summary, tokens_per_second=4528.0))
    found = diff(NEW, after)
    assert changes(found, "outcome")["first cause"] == (None, cause.sentence)
    assert "~ tok/s   2 264 tok/s → 4 528 tok/s   100 % faster" in text(found)


def test_checks_of_the_same_verdict_are_counted_and_shown_on_request() -> None:
    def report(disk: str, free: str) -> Report:
        return Report(
            (
                Verdict("disk", "disk", disk, free),  # type: ignore[arg-type]
                Verdict("gpu-clean", "gpus", "pass", free),
            ),
            1.0,
            1.0,
        )

    found = diff(
        replace(NEW, preflight=report("block", "1 GiB")),
        replace(NEW, preflight=report("pass", "9 GiB")),
    )
    told = text(found)
    assert "~ disk   block → pass" in told
    assert "now  9 GiB" in told
    assert "1 check says the same of other facts" in told
    assert "gpu-clean" not in told
    assert "gpu-clean   the same verdict of other facts" in text(found, unfolded=True)


def test_what_does_not_fit_a_row_stands_on_two_and_shows_where_it_differs() -> None:
    long = "/data/" + "deep/" * 30
    value = Diff(
        diff(OLD, NEW).before,
        diff(OLD, NEW).after,
        (Section("profile", (Change("output.dir", long + "one", long + "two"),), 1),),
    )
    for width in (40, 80, 120):
        rows = render_diff.rows(value, width)
        told = ["".join(part for part, _ in row) for row in rows]
        assert max(map(len, told)) <= width
        assert any("was" in line and line.endswith("one") for line in told)
        assert any("now" in line and line.endswith("two") for line in told)


def test_text_of_a_host_cannot_write_on_the_terminal() -> None:
    after = with_environment(NEW, **{"evil\x1b[2J": "\x1b]0;x\x07\n", "vllm": "1\r2"})
    for unfolded in (False, True):
        for line, _ in render_diff.lines(diff(NEW, after), unfolded=unfolded):
            assert not any(ord(char) < 32 or char == "\x9b" for char in line)
