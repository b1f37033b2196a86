"""A verification in words: the sentence first, the table, the faults, and what it rests on."""

from __future__ import annotations

from dataclasses import replace

from eagle3_agent.protocol.values import (
    Fault,
    LayerCheck,
    SampleCheck,
    Substitute,
    VerifyReport,
)
from eagle3_console import render_verify


def _sample(index: int, *, ok: bool = True, role: str = "drawn") -> SampleCheck:
    layers = (
        LayerCheck(2, True, 0.004, 0.03),
        LayerCheck(29, ok, 0.012 if ok else 0.61, 0.9, "" if ok else "median token error 0.61"),
    )
    fault = Fault("wrong-layer", "holds the state after layer 28", (29,))
    why = "" if ok else "layer 29: median token error 0.61"
    return SampleCheck(index, ok, 120, 0.61, why, role, layers, () if ok else (fault,))


_REPORT = VerifyReport(
    ok=True,
    checked=(_sample(0, role="longest"), _sample(7), _sample(12, role="shortest")),
    files=56,
    bad_files=(),
    tolerance=0.04,
    dtype="bfloat16",
    seconds=9.04,
    reference="transformers 4.57.6, float32, cpu",
    reference_dtype="float32",
    seed=77,
    verdict="all 3 recomputed samples agree in every layer",
    why_tolerance="bfloat16 rounding",
)


def _text(report: VerifyReport) -> list[str]:
    return [line for line, _ in render_verify.lines(report)]


def test_a_good_report_is_a_sentence_a_table_and_its_basis() -> None:
    told = _text(_REPORT)
    assert told[0] == (
        "verified: all 3 recomputed samples agree in every layer (56 files checked, 0 bad; 9.0 s)"
    )
    assert told[1].split() == ["sample", "tokens", "layer", "2", "layer", "29"]
    assert told[2].split() == ["✓", "0", "120", "4.00e-03", "1.20e-02", "longest"]
    assert len(told) == 8
    assert "transformers 4.57.6, float32, cpu" in told[5]
    assert "at most 0.04 in long samples; bfloat16 rounding" in told[6]
    assert "--seed 77 draws the same samples" in told[7]


def test_a_wrong_layer_is_marked_in_the_table_and_named_below() -> None:
    wrong = replace(_REPORT, ok=False, checked=(_sample(0), _sample(7, ok=False)), verdict="1 of 2")
    told = _text(wrong)
    assert told[0].startswith("NOT verified: 1 of 2 (56 files checked")
    assert told[3].split() == ["✗", "7", "120", "4.00e-03", "✗", "6.10e-01", "drawn"]
    assert told[4] == "  sample 7, layer 29: holds the state after layer 28 [wrong-layer]"


def test_a_wrong_sample_is_listed_however_many_agree() -> None:
    checks = (*(_sample(i) for i in range(40)), _sample(99, ok=False))
    told = _text(replace(_REPORT, ok=False, checked=checks))
    rows = [line for line in told if line.startswith(("✓", "✗"))]
    assert len(rows) == 20
    assert rows[-1].split()[:2] == ["✗", "99"]
    assert "  and 21 more that agree" in told


def test_what_was_not_recomputed_is_said_with_what_was_checked_instead() -> None:
    checks = (
        Substitute("next-token", "holds", "loss 3.43", "of these tokens"),
        Substitute("same-prefix", "cannot-tell", "no two samples begin alike", "their own tokens"),
    )
    report = replace(
        _REPORT, checked=(), instead=checks, not_recomputed="it needs 560 GiB", verdict="not"
    )
    lines = render_verify.lines(report)
    assert lines[0] == ("plausible: not (56 files checked, 0 bad; 9.0 s)", "amber")
    told = [line for line, _ in lines]
    assert told[1] == "  ✓ next-token   loss 3.43"
    assert told[2] == "      of these tokens"
    assert told[3] == "  ? same-prefix  no two samples begin alike"
    assert told[5] == "  not recomputed: it needs 560 GiB"


def test_a_report_of_an_older_agent_is_shown_too() -> None:
    old = VerifyReport(False, (SampleCheck(3, False, 9, 0.5, "bad"),), 2, (), 0.04, "bfloat16", 1.0)
    told = _text(old)
    assert (
        told[0] == "NOT verified: 1 of 1 recomputed samples wrong (2 files checked, 0 bad; 1.0 s)"
    )
    assert "  sample 3: bad" in told


def test_no_more_than_some_bad_files_are_named() -> None:
    names = tuple(f"data_{i}.pt: missing" for i in range(30))
    told = _text(replace(_REPORT, ok=False, bad_files=names))
    assert "  ✗ data_19.pt: missing" in told
    assert "  ✗ data_20.pt: missing" not in told
    assert "  and 10 more bad files" in told
