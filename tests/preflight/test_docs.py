"""docs/preflight.md names exactly the checks that there are, in the order of a report."""

from __future__ import annotations

import re
from pathlib import Path

from eagle3_agent.preflight.catalogue import CHECKS
from eagle3_agent.preflight.check import Ask, always, only_deep
from eagle3_agent.preflight.gpus.gpu_facts import CLEAN_LIMIT
from eagle3_agent.preflight.libraries.engine_facts import DEEP_TIMEOUT, TIMEOUT
from eagle3_agent.server.launch import PASSING
from support.preflight import profile

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "preflight.md").read_text("utf-8")


def rows() -> list[list[str]]:
    """Cells of the tables of checks, header lines left out."""
    section = PAGE.partition("## Every check")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_tables_name_the_catalogues_checks_in_order() -> None:
    assert [row[0].strip("`") for row in rows()] == [check.id for check in CHECKS]
    assert all(len(row) == 6 for row in rows())


def test_what_silence_means_is_said_as_it_is() -> None:
    said = {row[0].strip("`"): row[4] for row in rows()}
    for check in CHECKS:
        assert re.search(rf"\b{check.silence}\b", said[check.id]), check.id


def test_the_deep_ones_stand_under_their_heading() -> None:
    deep = re.findall(r"^\| `([\w-]+)`", PAGE.partition("### Deep")[2], re.MULTILINE)
    assert deep == [check.id for check in CHECKS if check.applies is only_deep]
    quick = [check for check in CHECKS if check.applies(Ask(profile()))]
    assert all(check.applies is always for check in quick)


def test_figures_and_names_of_the_page_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split())
    assert f"{CLEAN_LIMIT >> 20} MiB are left to displays" in text
    assert f"no end within {TIMEOUT:.0f} s (`--deep`: {DEEP_TIMEOUT:.0f} s)" in text
    waits = re.search(r"waits for what the run before it holds \((.*?)\)", text)
    assert waits is not None
    assert set(re.findall(r"`([\w-]+)`", waits[1])) == PASSING
