"""A report in reading order, what a preflight knew, and what changed between two; all pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eagle3_agent.protocol.messages import Probing
from eagle3_agent.protocol.values import Problem, Report, RunDetail, Verdict
from eagle3_console import checks, render_diff, render_preflight, verdicts
from eagle3_console.analysis.diff import diff
from eagle3_console.checks import ActBegan, ActEnded, CheckBegan, CheckEnded, Checks, Deed, Probed
from support import thirty
from support import verdicts as scenes
from support.cli import detail, summary

NOW = 1000.0
MANY = scenes.many(NOW)


def test_offers_come_in_reading_order_and_of_the_named_checks() -> None:
    assert [o.key for o in verdicts.offers(MANY)] == [
        ("gpu-clean", "stop-vllm.service"),
        ("gpu-clean", "terminate-48213"),
        ("output", "move-aside-0"),
    ]
    assert [o.action for o in verdicts.offers(MANY, ["output", "disk"])] == [thirty.ASIDE]


def test_what_was_known_before_a_run_is_one_line() -> None:
    said = verdicts.already_known(MANY)
    assert said == (
        "25 of 30 checks were clean; blocked gpu-clean; warned of throttle, output, memlock; "
        "could not tell xid"
    )
    assert "started over gpu-clean" in verdicts.already_known(MANY, ["gpu-clean"])
    assert "blocked" not in verdicts.already_known(MANY, ["gpu-clean"])
    noisy = Report(tuple(Verdict(f"c{i}", "", "warn", "") for i in range(40)), 1.0, NOW)
    assert verdicts.already_known(noisy).endswith("c5 and 34 more")


@pytest.mark.parametrize(
    ("probing", "seconds", "words"),
    [
        (None, 2.0, "  ▶ asking the host, 2 s"),
        (Probing(1, 3, 9, ("nccl",)), 61.0, "  ▶ 3 of 9 probes, 1:01; waiting for nccl"),
        (Probing(1, 9, 9), 5.0, "  ▶ 9 of 9 probes, 5 s"),
    ],
)
def test_progress_in_words(probing: Probing | None, seconds: float, words: str) -> None:
    assert render_preflight.progress(probing, seconds) == words


# ------------------------------------------------------------------ the console's part of state


def test_an_action_changes_its_own_verdict_and_is_remembered_until_a_person_checks_again() -> None:
    state = checks.apply(Checks(), CheckBegan(NOW))
    state = checks.apply(state, CheckEnded(MANY))
    state = checks.apply(state, ActBegan(NOW, "Stop it"))
    assert (state.since, state.acting) == (NOW, "Stop it")
    deed = Deed("gpu-clean", "GPU memory free", thirty.STOP, ("done",), True)
    state = checks.apply(state, ActEnded(deed, thirty.CLEAN))
    assert (state.since, state.acting, state.deeds) == (None, "", (deed,))
    assert state.report is not None
    assert state.report.blocking == ()
    assert len(state.report.verdicts) == 30
    state = checks.apply(state, CheckBegan(NOW, after_deed=True))
    assert state.deeds == (deed,)
    assert checks.apply(state, CheckBegan(NOW)).deeds == ()


def test_a_refused_action_leaves_the_report() -> None:
    state = Checks(report=MANY, since=NOW)
    deed = Deed("gpu-clean", "", thirty.STOP, problem=Problem("No", "", ""))
    assert checks.apply(state, ActEnded(deed)).report is MANY
    for _ in range(20):
        state = checks.apply(state, ActEnded(deed))
    assert len(state.deeds) == checks.DEEDS


def test_progress_counts_only_while_a_check_goes_on() -> None:
    probing = Probing(1, 2, 3)
    state = checks.apply(Checks(), CheckBegan(NOW, deep=True))
    state = checks.apply(state, Probed(probing))
    assert state.probing == probing
    ended = checks.apply(state, CheckEnded(MANY))
    assert (ended.probing, ended.deep, ended.going_deep) == (None, True, False)
    assert checks.apply(ended, Probed(probing)).probing is None, "late news of an answered check"
    given_up = checks.apply(state, CheckEnded())
    assert (given_up.report, given_up.deep) == (None, False)


# ------------------------------------------------------------------ attempts


def attempt(run: str, report: Report | None, forced: tuple[str, ...] = ()) -> RunDetail:
    return detail(summary("failed", run=run), preflight=report, forced=forced)


def preflight_lines(before: RunDetail, after: RunDetail, *, unfolded: bool = False) -> list[str]:
    """The rows of section preflight; the whole diff where it has none."""
    told = [text for text, _ in render_diff.lines(diff(before, after), unfolded=unfolded)]
    named = [i for i, text in enumerate(told) if text[2:15].strip()]
    first = next((i for i in named if text_of(told[i]) == "preflight"), None)
    if first is None:
        return told
    last = next((i for i in named if i > first), len(told))
    return [text[15:] for text in told[first:last]]


def text_of(line: str) -> str:
    """The section that a row begins."""
    return line[2:15].strip()


def test_a_diff_tells_per_check_what_its_verdict_was_and_is() -> None:
    colder = replace(thirty.VERDICTS[4], saw="GPU 3: SW thermal slowdown now, 85 °C")
    after = tuple(
        thirty.CLEAN if v.check == "gpu-clean" else colder if v.check == "throttle" else v
        for v in thirty.VERDICTS
    )
    both = attempt("1", MANY, ("gpu-clean",)), attempt("2", Report(after, 1.0, NOW))
    said = preflight_lines(*both)
    assert said[0] == "~ gpu-clean   forced → pass"
    assert said[1].startswith("    was  8 of 8 GPUs hold 71.2 GiB")
    assert said[2] == "    now  8 GPUs, each with 79.3 GiB or more free"
    assert said[3:] == ["1 check says the same of other facts"]
    said = preflight_lines(*both, unfolded=True)
    assert said[3] == "~ throttle   the same verdict of other facts"
    assert said[5] == "    now  GPU 3: SW thermal slowdown now, 85 °C"
    assert len(said[6:]) == 28
    assert all(line.startswith("= ") for line in said[6:])


def test_a_diff_with_a_check_that_only_one_of_them_made() -> None:
    fewer = Report(MANY.verdicts[:-1], 1.0, NOW)
    said = preflight_lines(attempt("1", fewer), attempt("2", MANY))
    assert said[0] == "+ compat   pass"
    assert said[1] == "    now  6 of 14 needed, all of them known"
    assert preflight_lines(attempt("1", MANY), attempt("2", fewer))[0] == "- compat   pass"


def test_a_diff_of_two_that_say_the_same_is_one_line() -> None:
    again = replace(MANY, seconds=9.0, at=2000.0)
    said = preflight_lines(attempt("1", MANY), attempt("2", again))
    assert len(said) == 3
    assert "30 checks" in said[2]
    assert "check" not in "".join(preflight_lines(attempt("1", None), attempt("2", None)))
