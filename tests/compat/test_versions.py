"""What the probes say of each release of vLLM with each generation of speculators.

The expectations were first seen on the releases' own sources; here stand-ins with the same
headers are probed, so that a probe that misreads one is found without thirteen downloads.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_agent.worker.compat import registry
from support.stand_ins import SPECULATORS, VLLM, sources

ALWAYS = {
    *("batch-limits", "own-dtype", "full-length", "remote-code", "config-class", "tokenizer"),
    *("cache-memory", "cache-config", "replaced-forward", "layer-order", "refuse-rows"),
    *("finished-requests", "sliding-window"),
}

#: Patch -> first release that needs it, and the first that does not any more.
BOTH = {
    "chunked-prefill": ("0.11.0", "0.12.0"),
    "async-scheduling": ("0.14.1", ""),
    "request-arguments": ("0.17.1", ""),
    "cache-block-size": ("0.18.1", ""),
    "model-runner": ("0.24.0", ""),
}
GENERATION = {
    "0.3.0": {
        "encoder-decoder-field": ("0.12.0", ""),
        "prefix-caching": ("0.11.0", ""),
        "scheduler-block-size": ("0.11.2", ""),
        "reply-shape": ("0.11.2", ""),
        "two-phase-step": ("0.11.2", ""),
        "whole-prompts": ("0.11.0", ""),
    },
    "0.4.0.1": {
        "moved-imports": ("0.11.0", "0.11.2"),
        "reply-shape": ("0.11.0", "0.11.2"),
        "two-phase-step": ("0.11.0", "0.11.2"),
        "held-requests": ("0.11.0", ""),
        "sample-order": ("0.11.0", ""),
    },
}


def _needed(vllm: str, speculators: str) -> set[str]:
    place = VLLM.index(vllm)
    spans = {**BOTH, **GENERATION[speculators]}
    found = {
        patch
        for patch, (first, end) in spans.items()
        if VLLM.index(first) <= place and (not end or place < VLLM.index(end))
    }
    if speculators == "0.4.0.1" and (vllm == "0.11.0" or place >= VLLM.index("0.18.1")):
        found.add("scheduler-block-size")  # an unknown argument, and later a size that is too early
    return found | ALWAYS | {"worker-errors"}


@pytest.mark.parametrize("speculators", SPECULATORS)
@pytest.mark.parametrize("vllm", VLLM)
def test_what_a_pair_needs(tmp_path: Path, vllm: str, speculators: str) -> None:
    found = registry.findings(sources(tmp_path, vllm, speculators))
    assert [f for f in found if f.status == "cannot-tell"] == []
    needed = {f.patch.partition("/")[2] for f in found if f.status == "needed"}
    assert needed == _needed(vllm, speculators)
    assert all(f.evidence for f in found)


@pytest.mark.parametrize("speculators", SPECULATORS)
@pytest.mark.parametrize(
    ("changes", "patch"),
    [
        ({"eos": ""}, "speculators/request-arguments"),
        ({"block_size": "block_size, hash_block_size, "}, "speculators/scheduler-block-size"),
        ({"kv_specs": "kv_cache_specs, "}, "speculators/cache-config"),
    ],
)
def test_a_nightly_build_is_judged_by_its_signatures(
    tmp_path: Path, speculators: str, changes: dict[str, str], patch: str
) -> None:
    found = registry.findings(sources(tmp_path, "0.15.1", speculators, vllm_changes=changes))
    assert registry.undecided(found) == []
    assert [f.status for f in found if f.patch == patch] == ["needed"]


@pytest.mark.parametrize(
    ("changes", "patch", "evidence"),
    [
        ({"block_size": "new_thing, "}, "speculators/scheduler-block-size", "new_thing is not"),
        ({"after_loop": "vocab_check()"}, "speculators/refuse-rows", "in a way this probe cannot"),
        ({"imports": "from vllm.gone import x"}, "speculators/moved-imports", "imports x of vllm."),
    ],
)
def test_what_no_release_has_cannot_be_told(
    tmp_path: Path, changes: dict[str, str], patch: str, evidence: str
) -> None:
    found = registry.findings(sources(tmp_path, "0.16.0", "0.3.0", changes, changes))
    assert [f.patch for f in registry.undecided(found)] == [patch]
    assert evidence in registry.undecided(found)[0].evidence


@pytest.mark.parametrize("vllm", ["0.16.0", "0.16.0+cu129", "0.32.0"])
@pytest.mark.parametrize("speculators", ["", *SPECULATORS])
def test_a_pair_that_tests_run_is_not_remarked_on(vllm: str, speculators: str) -> None:
    assert registry.untried(vllm, speculators) == ""


def test_a_release_that_ran_on_a_gpu_is_not_remarked_on_with_the_engine_that_ran() -> None:
    assert registry.untried("0.20.2", "") == ""
    assert registry.untried("0.20.2", "0.3.0") != ""


def test_a_pair_that_no_test_runs_is_told() -> None:
    told = registry.untried("0.13.0", "0.3.0")
    assert told.startswith("vllm 0.13.0 with speculators 0.3.0: never run with this release")
    assert registry.untried("0.13.0", "").startswith("vllm 0.13.0: never run")
    assert registry.untried("0.16.0", "0.4.0").startswith("vllm 0.16.0 with speculators 0.4.0:")
