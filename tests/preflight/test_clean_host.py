"""All checks together: over a clean host, and over one whose GPUs somebody else holds."""

from __future__ import annotations

import pytest

from eagle3_agent.preflight.catalogue import CHECKS
from eagle3_agent.preflight.check import Check
from eagle3_agent.preflight.gpus import gpu_facts
from eagle3_agent.preflight.runner import probes_of
from eagle3_agent.server.launch import PASSING
from support import clean_host


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.id)
def test_a_clean_host_passes_every_check_in_one_short_line(check: Check) -> None:
    found = check.decide(clean_host.facts(), clean_host.profile())
    assert found.status == "pass", found.saw
    assert (found.why, found.todo, found.actions) == ("", "", ())
    assert len(found.saw.splitlines()[0]) <= 220


def test_titles_are_short_and_tell_checks_apart() -> None:
    titles = [check.title for check in CHECKS]
    assert len(set(titles)) == len(titles)
    assert all(len(title) <= 32 and not title.endswith(".") for title in titles)
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_every_probe_of_the_catalogue_has_facts_here() -> None:
    assert {p.name for p in probes_of(CHECKS)} == set(clean_host.facts().found)


def test_what_another_run_holds_blocks_only_checks_that_a_queued_run_waits_for() -> None:
    held = clean_host.gpu_state(clean_host.held_by_another())
    facts = clean_host.facts({gpu_facts.PROBE: held})
    verdicts = [check.decide(facts, clean_host.profile()) for check in CHECKS]
    blocking = {v.check for v in verdicts if v.status == "block"}
    assert {"gpu-clean", "gpu-memory"} == blocking <= PASSING
    memory = next(v for v in verdicts if v.check == "gpu-memory")
    assert memory.todo.startswith("Free GPU 0-1 (see gpu-clean): it fits then, or set model.gpu_")
