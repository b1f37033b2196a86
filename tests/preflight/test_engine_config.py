"""The engine's configuration: verdicts from facts, and workers that answer, crash and hang."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.enginereport import Capture, EngineReport, Resolved
from eagle3_agent.preflight.check import Ask, Facts, known
from eagle3_agent.preflight.libraries import engine_advice, engine_config, engine_facts
from eagle3_agent.preflight.libraries.engine_facts import PROBE, EngineFacts
from eagle3_agent.protocol import dumps
from eagle3_agent.protocol.values import ErrorInfo, Verdict, Where
from support.preflight import gather, profile

MADE = Resolved(
    architecture="LlamaForCausalLM",
    dtype="bfloat16",
    quantization="gptq",
    max_model_len=2049,
    block_size=16,
    chunked_prefill=True,
    prefix_caching=False,
    max_num_batched_tokens=8192,
    max_num_seqs=256,
    tensor_parallel=8,
    executor="MultiprocExecutor",
)
WHOLE = EngineReport(
    step="done",
    engine="vllm",
    resolved=MADE,
    capture=Capture("LlamaForCausalLM", "LlamaDecoderLayer", 8, "forward hooks", "model"),
    cuda_touched=False,
)


def verdict(report: EngineReport | None = None, **facts: Any) -> Verdict:
    seen = EngineFacts(**{"engine": "vllm", "report": report, "seconds": 14.2, **facts})
    return engine_config.CHECK.decide(known((PROBE, seen)), profile())


def refused(message: str, kind: str = "pydantic_core._pydantic_core.ValidationError") -> Verdict:
    where = Where("/venv/vllm/config/model.py", 7, "check", "assert ranks")
    error = ErrorInfo(kind, message, where=where)
    return verdict(EngineReport(step="done", failed="config", error=error))


def test_what_was_resolved_passes_with_its_figures() -> None:
    found = verdict(WHOLE)
    assert found.status == "pass"
    for text in (
        "engine vllm: LlamaForCausalLM, bfloat16, gptq, 2 049 positions",
        "8 192 tokens and 256 samples a step at most, KV blocks of 16, chunked prefill on, "
        "prefix caching off, MultiprocExecutor over 8 ranks",
        "measured now, in 14 s; no weights read, CUDA not touched",
    ):
        assert text in found.saw


def test_what_was_remembered_says_when() -> None:
    assert "measured 12 min ago, nothing changed since" in verdict(WHOLE, age=741.0).saw
    assert "measured 3 d ago" in verdict(WHOLE, age=3 * 86400.0 + 5).saw


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    made = replace(MADE, block_size=None, chunked_prefill=None, quantization="")
    saw = verdict(replace(WHOLE, resolved=made, cuda_touched=True)).saw
    assert "not quantised" in saw
    assert "KV blocks" not in saw
    assert "chunked prefill unknown" in saw
    assert "CUDA initialised for its time" in saw


def test_vllms_own_warnings_are_shown_and_those_of_our_settings_are_not() -> None:
    told = ("Enforce eager set, disabling", *(f"odd {i}\x1b[31m" for i in range(5)))
    saw = verdict(replace(WHOLE, warnings=told, dropped=2)).saw
    assert "Enforce eager" not in saw
    assert "vLLM warns: odd 0\\x1b[31m" in saw
    assert "and 4 warnings more" in saw


def test_a_script_is_judged_as_the_profile_says() -> None:
    assert "the script's own arguments show when it runs" in verdict(WHOLE, engine="script").saw


@pytest.mark.parametrize(
    ("message", "sentence", "key"),
    [
        (
            "1 validation error for VllmConfig\n  Value error, Total number of attention heads "
            "(4) must be divisible by tensor parallel size (3). [type=value_error, "
            "input_value=ArgsKwargs((), {'a': 1}), input_type=ArgsKwargs]\n    For further",
            "vLLM refuses: Total number of attention heads (4) must be divisible by tensor "
            "parallel size (3).\n",
            "model.tensor_parallel_size (now 1) to a number that divides the 4 attention heads",
        ),
        (
            "Model architectures ['NoSuchForCausalLM'] are not supported for now. Supported "
            "architectures: dict_keys(['A', 'B', 'C', 'D', 'E', 'F', 'G'])",
            "are not supported for now. Supported architectures: (a list)\n",
            "knows NoSuchForCausalLM",
        ),
        (
            "Unknown quantization method: squeezed. Must be one of ['awq']",
            "squeezed",
            "config.json",
        ),
        (
            "The repository x contains custom code which must be executed to load the model.\n"
            "Please pass the argument `trust_remote_code=True` to allow it.",
            "The repository x contains custom code",
            "model.trust_remote_code = true",
        ),
        ("User-specified max_model_len (9) is greater than", "(9)", "Lower model.max_model_len"),
        ("Bfloat16 is only supported on GPUs with compute capability of 8", "8", '"float16"'),
        ("torch.float16 is not supported for quantization method mxfp4", "mxfp4", "model.dtype"),
        ("max_num_batched_tokens (1) is smaller than", "(1)", "engine.max_num_batched_tokens"),
        ("something that nobody foresaw", "nobody foresaw", "in the profile or"),
    ],
)
def test_vllms_sentence_and_the_key_to_change(message: str, sentence: str, key: str) -> None:
    found = refused(message)
    assert found.status == "block"
    assert sentence in found.saw
    assert "ValidationError at /venv/vllm/config/model.py:7" in found.saw
    assert "For further" not in found.saw
    assert key in found.todo


def test_an_empty_message_shows_its_type_and_line() -> None:
    found = refused("", "AssertionError")
    assert "vLLM refuses: AssertionError, raised by `assert ranks`" in found.saw
    bare = EngineReport(step="done", failed="config", error=ErrorInfo("RuntimeError", ""))
    assert "RuntimeError, raised without a message" in verdict(bare).saw


def test_the_engines_own_refusal_is_told_as_such() -> None:
    found = refused("model.max_model_len = 513, and x has 512 positions: set it", "EngineError")
    assert "the engine refuses: model.max_model_len = 513" in found.saw
    assert "Lower model.max_model_len (now 2048)" in found.todo


def test_an_import_that_fails_blocks_with_the_interpreters_command() -> None:
    error = ErrorInfo("ModuleNotFoundError", "No module named 'cbor2'")
    found = verdict(EngineReport(step="done", failed="import", error=error))
    assert (found.status, found.saw.startswith("importing vLLM fails: No module")) == (
        "block",
        True,
    )
    assert "-m pip check" in found.todo
    exited = verdict(EngineReport(step="done", failed="import", error=ErrorInfo("SystemExit", "3")))
    assert (exited.status, "SystemExit" in exited.saw) == ("block", True)


def test_a_crash_blocks_and_a_hang_cannot_be_told() -> None:
    words = 'Fatal Python error: Segmentation fault, File "/v/vllm/__init__.py", line 3'
    found = verdict(EngineReport(step="import"), end="SIGSEGV", words=words)
    assert found.status == "block"
    assert f"the process ended by SIGSEGV while importing vLLM: {words}" in found.saw
    found = verdict(EngineReport(step="import"), end="time", seconds=150.0)
    assert found.status == "warn"
    assert "cannot tell: importing vLLM did not end within 150 s" in found.saw
    assert found.todo.startswith("A deep preflight waits ten minutes for it. See by hand: ")


def test_no_report_warns_and_other_engines_skip() -> None:
    found = verdict(problem="vllm not installed there")
    assert (found.status, "vllm not installed there" in found.saw) == ("warn", True)
    assert verdict(engine="transformers").status == "skip"
    assert verdict(engine="auto").status == "skip"
    silent = Facts(silent={"engine": "did not answer within 162 s"})
    assert engine_config.CHECK.decide(silent, profile()).status == "warn"


def test_hostile_text_is_cut_and_escaped() -> None:
    found = refused("\x1b[2Jx" * 50_000, "Evil\x07")
    assert len(found.saw) < 1500
    assert "\x1b" not in found.saw
    assert "\x07" not in found.saw


def test_every_advice_can_be_given() -> None:
    error = ErrorInfo("ImportError", "{0} {p.host} %s")
    assert "pip check" in engine_advice.way_out(error, profile())


# ------------------------------------------------------------------ workers that behave and do not


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EAGLE3_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "state" / "measured"


class Interpreter:
    """Answers for its versions, and does ``code`` in the worker's place; counts its calls."""

    def __init__(self, folder: Path, code: str, versions: dict[str, str] | None = None) -> None:
        self.path = folder / "python"
        self._folder = folder
        self._calls = folder / "calls"
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text("{}")
        self.dists = versions or {"vllm": "0.32.0", "torch": "2.13.0"}
        self.stamp = "1"
        self.does(code)

    def does(self, code: str) -> None:
        stamps = {name: f"/site/{name}.dist-info/RECORD {self.stamp} 5" for name in self.dists}
        told = {"python": "3.11.7", "prefix": "/", "dists": self.dists, "stamps": stamps}
        told_text = json.dumps({**told, "executable": "/real/python3.11"})
        self.path.write_text(
            f"#!/bin/sh\nif [ \"$1\" = -c ]; then echo 'EAGLE3-VERSIONS {told_text}'; exit 0; fi\n"
            f"# $1=-m $2=eagle3_agent.worker $3=dry $4=--report\n"
            f"echo x >> {self._calls}; cat > {self._folder}/stdin\n{code}\n"
        )
        self.path.chmod(0o755)

    def reports(self, report: EngineReport) -> None:
        (self._folder / "answer.json").write_text(dumps(report))
        self.does(f'cp {self._folder}/answer.json "$5"')

    def ask(self, *, deep: bool = False, **changes: Any) -> EngineFacts:
        asked = profile(**{"host_python": str(self.path), "model_path": str(self.model), **changes})
        found: EngineFacts = gather(PROBE, asked, deep=deep).get(PROBE)
        return found

    @property
    def calls(self) -> int:
        return len(self._calls.read_text().split()) if self._calls.exists() else 0


@pytest.fixture
def python(tmp_path: Path) -> Interpreter:
    made = Interpreter(tmp_path, "exit 9")
    made.reports(WHOLE)
    return made


def test_a_report_is_remembered_until_what_it_depends_on_changes(
    python: Interpreter, home: Path
) -> None:
    first = python.ask()
    assert (first.report, first.age, python.calls) == (WHOLE, None, 1)
    asked = json.loads((python.path.parent / "stdin").read_text())["profile"]
    assert asked["engine"]["name"] == "vllm"  # what auto became
    again = python.ask()
    assert (again.report, python.calls) == (WHOLE, 1)
    assert again.age is not None
    assert python.ask(deep=True).age is None
    assert python.calls == 2
    assert python.ask(data_path="/other", output_dir="/elsewhere").age is not None
    others: list[dict[str, Any]] = [
        {"model_dtype": "float16"},
        {"capture_layers": (2,)},
        {"host_env": {"VLLM_X": "1"}},
    ]
    for count, changes in enumerate(others, 3):
        assert python.ask(**changes).age is None
        assert python.calls == count
    python.stamp = "2"
    python.reports(WHOLE)
    assert python.ask().age is None
    (python.model / "config.json").write_text('{"a": 1}')
    assert python.ask().age is None
    assert python.calls == 7
    assert {stat.S_IMODE(f.stat().st_mode) for f in home.iterdir()} == {0o600}
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "report",
    [
        EngineReport(step="done", failed="config", error=ErrorInfo("ValueError", "no")),
        replace(WHOLE, capture=Capture("X", refusals=("prefix caching is on",))),
        replace(WHOLE, capture=Capture("X", problem="could not be laid out")),
        replace(WHOLE, step="layout"),
    ],
)
def test_what_stands_in_the_way_is_measured_each_time(
    python: Interpreter, report: EngineReport
) -> None:
    python.reports(report)
    assert python.ask().report == report
    assert python.ask().age is None
    assert python.calls == 2


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"key": 5}', b"\xff" * 99, b"null"])
def test_a_damaged_file_is_a_miss(python: Interpreter, home: Path, damage: bytes) -> None:
    python.ask()
    for file in home.iterdir():
        file.write_bytes(damage)
    assert python.ask().age is None
    assert python.ask().age is not None


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(
    python: Interpreter, home: Path
) -> None:
    home.parent.mkdir(parents=True)
    home.write_text("a file stands there")
    assert python.ask().report == WHOLE
    assert python.ask().age is None


def test_a_crash_on_import_is_told_with_its_last_words_and_not_kept(python: Interpreter) -> None:
    began = dumps(EngineReport(step="import"))
    fatal = 'Fatal Python error: Segmentation fault\\n\\n  File "/v/x.so", line 1 in <module>\\n'
    python.does(f"echo '{began}' > \"$5\"; printf '{fatal}' >&2; kill -SEGV $$")
    found = python.ask()
    assert (found.end, found.report) == ("SIGSEGV", EngineReport(step="import"))
    assert (
        found.words == 'Fatal Python error: Segmentation fault, File "/v/x.so", line 1 in <module>'
    )
    assert python.ask().age is None
    python.does("echo gone >&2; exit 3")
    found = python.ask()
    assert (found.report, found.end, found.problem) == (None, "status 3", "the worker gone")


def test_an_import_without_an_end_is_killed(
    python: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = dumps(EngineReport(step="import"))
    python.does(f"echo '{began}' > \"$5\"; echo still here >&2; exec sleep 600")
    monkeypatch.setattr(engine_facts, "TIMEOUT", 1.0)
    asked = profile(host_python=str(python.path), model_path=str(python.model))
    found = engine_facts._collect(Ask(asked))
    assert (found.end, found.words, found.report) == (
        "time",
        "still here",
        EngineReport(step="import"),
    )


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("exit 0", "left no report"),
        ("echo '{' > \"$5\"", "cannot be read"),
        ('echo \'{"step": 5}\' > "$5"', "cannot be read"),
        ('head -c 5000000 /dev/zero > "$5"', "5000000 bytes"),
    ],
)
def test_a_report_that_is_none_is_a_reason(python: Interpreter, code: str, words: str) -> None:
    python.does(code)
    found = python.ask()
    assert found.report is None
    assert words in found.problem


def test_engines_without_vllm_start_no_worker(tmp_path: Path) -> None:
    only = Interpreter(tmp_path, "exit 9", {"transformers": "5.0", "torch": "2.13.0"})
    assert only.ask() == EngineFacts("transformers")
    found = only.ask(engine_name="speculators")
    assert found.problem == "vllm and speculators not installed there"
    assert only.calls == 0
