"""The contract and the runner: bounded commands, silent probes, the whole preflight."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.preflight import bounded, catalogue, command, environment, runner, text, usable
from eagle3_agent.preflight.check import Ask, Check, Facts, Outcome, Probe, known
from eagle3_agent.preflight.gpus.gpu_facts import PROBE as GPUS
from eagle3_agent.preflight.gpus.gpu_facts import GpuFacts
from eagle3_agent.preflight.libraries.interpreter_facts import PROBE as INTERPRETER
from eagle3_agent.preflight.libraries.interpreter_facts import InterpreterFacts
from eagle3_agent.protocol import dumps, from_json, to_json
from eagle3_agent.protocol.values import Gpu, HostSample, Profile, Verdict
from support import models
from support.preflight import gone, profile, until

ROOT = Path(runner.__file__).parents[2]

IDS = (
    "interpreter", "gpu-count", "gpu-clean", "others", "leftovers", "gpu-health", "gpu-driver",
    "gpu-modes", "gpu-links", "gpu-kernel-log", "gpu-memory", "host-memory", "model", "layers",
    "dtype", "quantization", "trust-remote-code", "tokenizer", "data", "output", "filesystem",
    "disk", "disk-speed", "records", "compat", "engine-config", "capture", "stuck", "locks",
    "limits", "shm",
)  # fmt: skip


# ------------------------------------------------------------------ bounded commands


def sh(code: str, **options: Any) -> bounded.Answer:
    return bounded.run(["/bin/sh", "-c", code], **{"timeout": 10.0, **options})


def test_output_status_and_stdin_come_through() -> None:
    found = sh("cat; echo oops >&2; exit 3", stdin=b"hello")
    assert (found.status, found.stdout, found.stderr, found.cut) == (3, b"hello", b"oops\n", "")
    assert found.last_words() == "oops"
    assert sh("kill -9 $$").status == -9


def test_a_hung_command_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    began = time.monotonic()
    found = sh(f"trap '' TERM; sleep 600 & echo $! > {note}; wait", timeout=0.5)
    assert (found.status, found.cut) == (None, "time")
    assert time.monotonic() - began < 3.0
    until(lambda: gone(int(note.read_text())))


def test_a_hung_command_takes_a_session_that_it_began_along(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    found = sh(f"setsid sleep 600 & echo $! > {note}; exec sleep 600", timeout=0.5)
    assert found.cut == "time"
    until(lambda: gone(int(note.read_text())))


def test_what_a_finished_command_left_behind_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    began = time.monotonic()
    found = sh(f"sleep 600 & echo $! > {note}; echo done")
    assert (found.status, found.stdout) == (0, b"done\n")
    assert time.monotonic() - began < 3.0  # the child holds the pipes open
    until(lambda: gone(int(note.read_text())))


def test_a_flood_is_cut(tmp_path: Path) -> None:
    found = bounded.run(["/bin/cat", "/dev/zero"], timeout=10.0, limit=1_000_000)
    assert (found.cut, len(found.stdout)) == ("size", 1_000_000)
    loud = sh("head -c 3000000 /dev/zero >&2; echo end >&2")
    assert loud.last_words().endswith("end")
    assert len(loud.stderr) <= 64 * 1024


def test_a_large_request_does_not_block() -> None:
    assert len(sh("sleep 0.2; cat", stdin=b"x" * 1_000_000).stdout) == 1_000_000


def test_a_command_that_cannot_be_started_raises() -> None:
    with pytest.raises(OSError, match="No such file"):
        bounded.run(["/nonexistent"], timeout=1.0)


# ------------------------------------------------------------------ the contract


@dataclass(frozen=True)
class Simple:
    number: int


def _collect(ask: Ask) -> Simple:
    return Simple(1)


SIMPLE = Probe("simple", Simple, _collect, timeout=1.0)


def simple_check(judge: Any) -> Check:
    return Check("simple", "Simple", (SIMPLE,), judge, "block", "because", "do it")


def test_a_check_judges_facts_alone() -> None:
    def judge(facts: Facts, asked: Profile) -> Verdict:
        return check.verdict("pass", f"{asked.name} {facts.get(SIMPLE).number}")

    check = simple_check(judge)
    assert check.decide(known((SIMPLE, Simple(7))), profile()).saw == "test 7"


def test_a_silent_probe_gives_the_checks_own_verdict() -> None:
    check = simple_check(lambda f, p: pytest.fail("it was judged"))
    found = check.decide(Facts(silent={"simple": "did not answer within 1 s"}), profile())
    assert found == Verdict(
        "simple", "Simple", "block", "did not answer within 1 s", "because", "do it"
    )
    assert "was not run" in check.decide(Facts(), profile()).saw


def test_a_judge_that_fails_is_a_warning() -> None:
    found = simple_check(lambda f, p: 1 / 0).decide(known((SIMPLE, Simple(1))), profile())
    assert found.status == "warn"
    assert "ZeroDivisionError" in found.saw


def test_a_judge_that_fails_on_a_hosts_text_shows_it_harmless() -> None:
    def judge(facts: Facts, asked: Profile) -> Verdict:
        raise KeyError("\x1b[31m" + "x" * 5000)

    found = simple_check(judge).decide(known((SIMPLE, Simple(1))), profile())
    assert found.saw.isprintable()
    assert len(found.saw) < 400


def test_every_check_is_in_the_catalogue_once_and_says_what_silence_means() -> None:
    assert tuple(c.id for c in catalogue.for_ask(Ask(profile()))) == IDS
    asked = profile(engine_name="script", engine_script="/s.py")
    assert [c.id for c in catalogue.for_ask(Ask(asked))] == [IDS[0], "script", *IDS[1:]]
    for check in catalogue.CHECKS:
        assert check.title
        assert check.needs
        assert check.silence_why
        assert check.silence_todo


def test_every_probes_facts_travel_as_json() -> None:
    for probe in runner.probes_of(catalogue.CHECKS):
        value = runner.gather((probe,), Ask(profile()))[0].get(probe)
        assert from_json(probe.facts, json.loads(dumps(value))) == value


# ------------------------------------------------------------------ probes that misbehave


def run_with(monkeypatch: pytest.MonkeyPatch, code: str, timeout: float = 5.0) -> str:
    monkeypatch.setattr(runner, "_CHILD", code)
    facts, seconds = runner.gather((replace(SIMPLE, timeout=timeout),), Ask(profile()))
    assert facts.found == {}
    assert seconds["simple"] < timeout + 2
    return facts.silent["simple"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ValueError('broken')", "status 1: ValueError: broken"),
        ("import os; os.kill(os.getpid(), 11)", "status -11: without a word"),
        ("print('noise')", "cannot be read"),
        ('print(\'{"number": "x"}\')', "expected int"),
        ("print('[' * 100000)", "cannot be read"),
        ("import sys\nwhile True: sys.stdout.write('x' * 65536)", "wrote more than"),
    ],
)
def test_a_probe_that_misbehaves_is_silent_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    assert words in run_with(monkeypatch, code)


def test_what_a_library_prints_beside_a_probes_answer_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import ctypes\n"
        "from eagle3_agent.preflight.check import Probe\n"
        "from eagle3_agent.protocol.values import ProcessRef\n"
        "def collect(ask):\n"
        "    print('a banner')\n"
        "    ctypes.CDLL(None).puts(b'a library speaks')\n"
        "    return ProcessRef(1, 2)\n"
        "PROBE = Probe('loud', ProcessRef, collect, timeout=5.0)\n"
    )
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]; "
        "from eagle3_agent.preflight.probing import child; child('loud', 'loud')"
    )
    argv = [sys.executable, "-I", "-c", code, str(ROOT), str(tmp_path)]
    found = bounded.run(argv, timeout=10.0, stdin=dumps(Ask(profile())).encode())
    assert json.loads(found.stdout) == {"pid": 1, "start_time": 2}
    assert b"a banner" in found.stderr


def test_a_probe_imports_neither_messages_nor_events() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import eagle3_agent.preflight.probing; "
        "print([m for m in sys.modules if m.endswith(('.messages', '.events'))])"
    )
    found = bounded.run([sys.executable, "-I", "-c", code, str(ROOT)], timeout=10.0)
    assert found.stdout == b"[]\n"


def test_a_probe_that_hangs_is_silent_at_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    saw = run_with(monkeypatch, "import time; time.sleep(600)", timeout=0.5)
    assert saw == "did not answer within 0.5 s"
    assert time.monotonic() - began < 3.0


def test_a_deep_preflight_gives_a_probe_the_time_that_it_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "_CHILD", "import time; time.sleep(1); print('{\"number\": 2}')")
    probe = replace(SIMPLE, timeout=0.3, deep_timeout=20.0)
    quick, _ = runner.gather((probe,), Ask(profile()))
    deep, _ = runner.gather((probe,), Ask(profile(), deep=True))
    assert quick.silent == {"simple": "did not answer within 0.3 s"}
    assert deep.get(SIMPLE) == Simple(2)


def test_a_probe_that_cannot_be_started_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    facts, _ = runner.gather((SIMPLE,), Ask(profile()))
    assert "could not be run" in facts.silent["simple"]


def test_a_hung_interpreter_costs_its_own_checks_only(tmp_path: Path) -> None:
    hung = tmp_path / "python"
    hung.write_text("#!/bin/sh\nexec sleep 600\n")
    hung.chmod(0o755)
    asked = ready(tmp_path, host_python=str(hung))
    asking = Ask(asked)
    checks = catalogue.for_ask(asking)
    probes = [replace(p, timeout=min(p.timeout, 8.0)) for p in runner.probes_of(checks)]
    facts, _ = runner.gather(probes, asking)
    assert set(facts.silent) == {"interpreter", "compat", "engine"}
    verdicts = {v.check: v for v in runner.judge(catalogue.CHECKS, facts, asked, {})}
    assert verdicts["interpreter"].status == "block"
    assert verdicts["compat"].status == "warn"
    for name in ("model", "layers", "data", "output", "disk"):
        assert verdicts[name].status == "pass", verdicts[name]


# ------------------------------------------------------------------ the whole of it


def venv(folder: Path, **dists: str) -> dict[str, str]:
    """Variables under which this interpreter holds these distributions, by their metadata."""
    for name, version in dists.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return {"PYTHONPATH": str(folder)}


def ready(tmp_path: Path, **changes: Any) -> Profile:
    """A profile that nothing blocks: real files, and an interpreter that claims transformers."""
    models.make_checkpoint(tmp_path / "model")
    (tmp_path / "d.jsonl").write_text(json.dumps({"input_ids": [1, 2, 3]}) + "\n")
    env = venv(tmp_path / "site", torch="2.10.0", transformers="4.57.6", safetensors="0.6.2")
    return profile(
        **{
            "host_env": env,
            "model_path": str(tmp_path / "model"),
            "data_path": str(tmp_path / "d.jsonl"),
            "output_dir": str(tmp_path / "out"),
            **changes,
        }
    )


def test_a_ready_host_passes_in_under_three_seconds(tmp_path: Path) -> None:
    asked = ready(tmp_path)
    outcome = runner.run(asked)
    assert [v.check for v in outcome.report.verdicts] == list(IDS)
    assert [v for v in outcome.report.blocking if v.check != "leftovers"] == []  # others test too
    assert outcome.engine == "transformers"
    assert outcome.report.seconds < 3.0
    assert all(0.0 < v.seconds <= outcome.report.seconds for v in outcome.report.verdicts)
    assert abs(outcome.report.at - time.time()) < 60
    assert not (tmp_path / "out").exists()


def test_everything_wrong_at_once_is_told_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data.jsonl")
    (tmp_path / "file").write_text("x")
    asked = profile(
        host_python=str(tmp_path / "none"),
        model_path=str(tmp_path / "none"),
        data_path=str(tmp_path / "data.jsonl"),
        output_dir=str(tmp_path / "file" / "out"),
    )
    report = runner.run(asked).report
    blocking = {v.check for v in report.blocking}
    assert {"interpreter", "model", "data", "output"} <= blocking
    for verdict in report.verdicts:
        assert "Traceback" not in verdict.saw
        if verdict.status in ("warn", "block"):
            assert verdict.saw
            assert verdict.why
            assert verdict.todo


def test_the_environment_is_flat_and_names_what_a_diff_compares(tmp_path: Path) -> None:
    known_ = runner.run(ready(tmp_path)).environment
    assert known_["torch"] == "2.10.0"
    assert known_["python"] == ".".join(map(str, sys.version_info[:3]))
    assert known_["host"] == os.uname().nodename
    for value in known_.values():
        assert isinstance(value, (str, int)) or all(isinstance(v, str) for v in value)


def test_gpus_are_part_of_the_environment() -> None:
    sample = HostSample(t=0.0, gpus=(Gpu(0, "GPU-1", "NVIDIA H200"),), driver="580", cuda="13.0")
    facts = known(
        (GPUS, GpuFacts(sample, "0")), (INTERPRETER, InterpreterFacts("/p", "does not exist"))
    )
    found = environment.fingerprint(facts)
    assert (found["gpus"], found["gpu_uuids"]) == (["NVIDIA H200"], ["GPU-1"])
    assert (found["driver"], found["cuda"], found["cuda_visible_devices"]) == ("580", "13.0", "0")
    assert "python" not in found
    assert "gpus" not in environment.fingerprint(Facts())


# ------------------------------------------------------------------ the command


def on_the_line(request: bytes) -> tuple[int, Any]:
    stdout = io.BytesIO()
    status = command.main(io.BytesIO(request), stdout)
    return status, json.loads(stdout.getvalue().splitlines()[-1])


def test_the_command_prints_an_outcome_and_its_status_says_whether_it_blocks(
    tmp_path: Path,
) -> None:
    status, body = on_the_line(dumps({"profile": to_json(ready(tmp_path)), "deep": False}).encode())
    outcome = from_json(Outcome, body)
    assert status == int(bool(outcome.report.blocking))
    assert outcome.engine == "transformers"
    status, body = on_the_line(dumps({"profile": to_json(profile())}).encode())
    assert status == 1
    assert from_json(Outcome, body).report.blocking


@pytest.mark.parametrize("request_", [b"", b"{", b"[]", b'{"profile": {}}', b"[" * 100_000])
def test_a_request_that_cannot_be_read_is_told(request_: bytes) -> None:
    status, body = on_the_line(request_)
    assert status == 2
    assert "cannot be read" in body["error"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_path": "/x\0"}, "profile.model.path holds a NUL"),
        ({"output_dir": "/\ud800"}, "profile.output.dir holds a character that no file name"),
        ({"host_env": {"HOME": "/x\0"}}, "profile.host.env.HOME holds a NUL"),
        ({"host_env": {"A\0": "b"}}, "a key of profile.host.env holds a NUL"),
    ],
)
def test_a_profile_that_no_system_call_takes_is_refused_by_its_key(
    changes: dict[str, Any], words: str
) -> None:
    out = io.BytesIO()
    asked = io.BytesIO(dumps(Ask(profile(**changes))).encode())
    assert command.main(asked, out) == 2
    assert words in json.loads(out.getvalue())["error"]


def test_a_path_in_bytes_that_are_no_utf_8_is_a_path() -> None:
    usable.demand(profile(model_path=os.fsdecode(b"/m\xff")))


def test_the_agents_command_line_runs_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-E", "-s", str(ROOT), "preflight"],
        input=dumps({"profile": to_json(ready(tmp_path))}).encode(),
        capture_output=True,
        cwd="/",
        timeout=60,
    )
    assert done.stderr == b""
    last = done.stdout.splitlines()[-1]
    assert from_json(Outcome, json.loads(last)).engine == "transformers"


# ------------------------------------------------------------------ figures and text


def test_sizes_and_numbers() -> None:
    assert [text.size(n) for n in (0, 1023, 1024, 62_700_000_000)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "58.4 GiB",
    ]
    assert text.number(5_003_411_456) == "5 003 411 456"
    assert (text.plural(1, "shard"), text.plural(2, "shard")) == ("1 shard", "2 shards")
    assert text.listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert text.when(None) == text.when(1e300) == "an unknown time"


def test_host_text_is_made_printable() -> None:
    assert text.show("a\x1b[2J\n\u202eb") == r"a\x1b[2J\n\u202eb"
    assert text.show(os.fsdecode(b"x\xff")) == r"x\xff"
    assert text.show("ü 漢") == "ü 漢"
    assert len(text.show("x" * 10_000)) == 200
