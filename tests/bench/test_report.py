"""The table, the JSON and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as cli
from bench import measure, report

FAST = measure.Comparison("x.fast", "this", "that", "s", "lower", (1.0, 3.0), (2.0, 2.0))
MISSING = measure.LeftOut("x.ssh", "no server is installed")


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0, "0"), (0.00012, "1.2e-04"), (0.01234, "0.0123"), (12.345, "12.3"), (12345.6, "12,346")],
)
def test_a_figure_has_three_digits(value: float, words: str) -> None:
    assert report.figure(value) == words


def test_a_comparison_is_told_with_its_spread_and_its_peer() -> None:
    assert report.lines(FAST) == [
        "x.fast: ratio 1 (0.5 … 1.5), lower is better",
        "    ours  2 (1 … 3) s: this",
        "    peer  2 (2 … 2) s: that",
    ]
    assert report.lines(MISSING) == ["x.ssh: left out, no server is installed"]


def test_the_document_holds_every_value_and_what_was_left_out() -> None:
    body = json.loads(json.dumps(report.document([FAST, MISSING], {"cores": 2}, 0.0)))
    assert body["format"] == 1
    assert body["started"] == "1970-01-01T00:00:00Z"
    assert body["machine"] == {"cores": 2}
    (found,) = body["comparisons"]
    assert found["ours_values"] == [1.0, 3.0]
    assert found["peer_values"] == [2.0, 2.0]
    assert found["ratio"] == {"min": 0.5, "median": 1.0, "max": 1.5}
    assert body["left_out"] == [{"name": "x.ssh", "why": "no server is installed"}]


def test_the_machine_is_told_without_its_name() -> None:
    assert set(report.machine()) == {"cores", "load", "system", "python", "textual", "asyncssh"}


def test_the_list_names_every_benchmark_with_its_peer(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--list"]) == 0
    said = capsys.readouterr().out
    for name in ("stream", "attach", "capture", "writing", "extract", "log", "history"):
        assert f"\n{name}: " in f"\n{said}"
    assert said.count("    peer  ") == said.count("    why  ") == 7


@pytest.mark.parametrize("argv", [["--only", "nothing"], ["--rounds", "0"], ["--rounds", "x"]])
def test_wrong_usage_is_told(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    assert argv[0] in capsys.readouterr().err


def small(results: list[measure.Result] | Exception) -> measure.Benchmark:
    async def run(rounds: int, say: measure.Say) -> list[measure.Result]:
        if isinstance(results, Exception):
            raise results
        return results

    return measure.Benchmark("x", "", "", "", 1, run)


def test_one_failure_does_not_take_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {"bad": small(RuntimeError("3 of 4 lines")), "good": small([FAST])}
    monkeypatch.setattr(cli, "ALL", made)
    file = tmp_path / "out.json"

    assert cli.main(["--json", str(file)]) == 1

    said = capsys.readouterr()
    assert "bad failed: 3 of 4 lines" in said.err
    assert "x.fast: ratio 1" in said.out
    body: dict[str, Any] = json.loads(file.read_text())
    assert [c["name"] for c in body["comparisons"]] == ["x.fast"]
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_a_file_that_cannot_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "ALL", {"good": small([FAST])})
    assert cli.main(["--json", str(tmp_path / "none" / "out.json")]) == 1
    assert "out.json cannot be written: No such file" in capsys.readouterr().err
