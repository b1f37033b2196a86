"""Profiles: all findings at once with their places, edits that keep comments, names found."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_agent.protocol.values import EngineSection, Profile
from eagle3_console import profile
from eagle3_console.errors import ConsoleError, ExitCode
from eagle3_console.profile_settings import SETTINGS
from support.cli import PROFILE_TEXT

HERE = Path("/profiles/p.toml")


def _findings(text: str, sets: tuple[str, ...] = (), *, local: bool = False) -> list[str]:
    with pytest.raises(profile.ProfileError) as caught:
        _build(text, sets, local=local)
    assert caught.value.exit_code == ExitCode.USAGE
    return [str(finding) for finding in caught.value.findings]


def _build(text: str, sets: tuple[str, ...], *, local: bool) -> Profile:
    source = profile.parse(text, HERE)
    profile.set_values(source, sets)
    return profile.build(source, local=local)


def test_a_small_profile_gets_the_defaults() -> None:
    made = profile.build(profile.parse(PROFILE_TEXT, HERE))
    assert made.name == "p"
    assert made.capture.layers == (2, 30, 58, 60)
    assert made.data.max_samples is None
    assert made.model.tensor_parallel_size == 1
    assert made.engine.name == "auto"


def test_every_problem_of_a_file_is_reported_at_once() -> None:
    text = """\
name = "x"
[host]
pyton = "/venv/bin/python"
env = { A = 1, "b-c" = "x" }
[modell]
path = "/m"
[capture]
layers = [2, -1, 2]
[data]
path = "~/data"
max_samples = "ten"
seq_length = 4096
[output]
dir = "hidden"
format = "safetensor"
buffer = "8G"
[engine]
name = "vlm"
"""
    assert _findings(text) == [
        "/profiles/p.toml:1: name: no such key at the top level; did you mean engine.name?",
        "/profiles/p.toml:2: host.python: is missing; "
        'write python = "/root/venv/bin/python" in [host]',
        "/profiles/p.toml:3: host.pyton: no such key; did you mean host.python?",
        '/profiles/p.toml:4: host.env: A is a whole number; write it in quotes: A = "1"',
        '/profiles/p.toml:4: host.env: "b-c" is no name of a variable; use letters, digits and _',
        "/profiles/p.toml:5: modell: no such section; did you mean [model]?",
        "/profiles/p.toml:8: capture.layers: -1 is no layer; layers count from 0",
        '/profiles/p.toml:10: data.path: "~/data" starts at a home folder, and the host\'s is not '
        "known here; write the whole path, as `echo ~` prints it on the host",
        '/profiles/p.toml:11: data.max_samples: expected a whole number or "all", found text: '
        '"ten"; write a whole number or "all", such as max_samples = 1000',
        "/profiles/p.toml:12: data.seq_length: data.seq_length 4096 is longer than "
        "model.max_model_len 2048, so the engine would cut samples without a word; "
        "raise model.max_model_len or lower data.seq_length",
        '/profiles/p.toml:14: output.dir: "hidden" is relative, and a path on the host has nothing '
        "to start from; write the whole path, from /",
        '/profiles/p.toml:15: output.format: "safetensor" is not known; '
        'did you mean "safetensors"? (one of speculators-pt, safetensors)',
        '/profiles/p.toml:16: output.buffer: "8G" is no size; write a number with KiB, MiB, GiB or '
        'TiB, such as "8GiB", or a whole number of bytes',
        '/profiles/p.toml:18: engine.name: "vlm" is not known; did you mean "vllm"? '
        "(one of auto, speculators, transformers, script, vllm)",
        '/profiles/p.toml: model.path: is missing; write path = "/shared/my-model" in [model]',
    ]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("model.tensor_parallel_size", "0", "0 is out of range; write a whole number from 1"),
        ("model.tensor_parallel_size", "true", "found text"),
        ("model.gpu_memory_utilization", "1.5", "1.5 is out of range"),
        ("model.gpu_memory_utilization", "0", "above 0 and up to 1"),
        ("model.dtype", "bf16", '"bf16" is not known; did you mean "bfloat16"?'),
        ("model.trust_remote_code", "yes", "expected true or false"),
        ("capture.layers", "[]", "name at least one layer"),
        ("capture.layers", "[5, -2]", "-2 is no layer"),
        ("capture.layers", "[2, x]", "expected a list of whole numbers, found text"),
        ("data.max_samples", "0", "out of range"),
        ("data.max_samples", "99999999999", "out of range"),
        ("output.dir", "/", "is the root of the file system"),
        ("output.dir", "/data/train.jsonl", "is the data's own path"),
        ("data.too_long", "cut", '"cut" is not known; write one of truncate, skip'),
        ("output.writer_threads", "0", "write a whole number from 1 to 256"),
        ("output.writer_threads", "257", "257 is out of range"),
        ("output.buffer", "8G", '"8G" is no size'),
        ("output.buffer", "-5GiB", '"-5GiB" is no size'),
        ("output.buffer", "2MiBs", '"2MiBs" is no size'),
        ("output.buffer", "1KiB", '"1KiB" is out of range; write a size from 1MiB to 1024TiB'),
        ("output.buffer", "2000TiB", "is out of range"),
        ("output.buffer", "1048575", "1048575 is out of range"),
        ("engine.max_num_batched_tokens", "0", "0 is out of range"),
        ("engine.max_num_seqs", "many", "expected a whole number"),
        ("engine.script", "/x.py", "belongs to engine script"),
        ("engine.args", "[-v]", "belongs to engine script"),
        ("model.path", "", "is empty"),
        ("model.path", "/a\x1b[31m", "control character"),
    ],
)
def test_an_impossible_value_is_named_with_its_way_out(key: str, value: str, says: str) -> None:
    (finding,) = _findings(PROFILE_TEXT, (f"{key}={value}",))
    assert finding.startswith(f"--set: {key}: ")
    assert says in finding


def test_booleans_are_no_numbers_and_dates_no_text() -> None:
    text = PROFILE_TEXT.replace('path = "/models/kimi"', "path = 2026-01-01") + (
        "[engine]\nname = 7\n"
    )
    text = text.replace("[data]", "[data]\nmax_samples = true")
    assert [finding.split(": ")[1] for finding in _findings(text)] == [
        "model.path",
        "data.max_samples",
        "engine.name",
    ]


def test_broken_toml_names_line_and_column() -> None:
    (finding,) = _findings("[host]\npython = /x\n")
    assert finding.startswith("/profiles/p.toml:2:9: broken TOML: Unexpected character")


def test_a_key_given_twice_is_one_finding() -> None:
    (finding,) = _findings("[host]\npython = '/x'\npython = '/y'\n")
    assert "broken TOML" in finding
    assert "python" in finding


def test_set_keeps_comments_and_order() -> None:
    text = """\
# mine
[data]   # the data
path = "/d"      # there
max_samples = 1000     # a night
seq_length = 2048
[host]
python = "/p"
"""
    source = profile.parse(text, HERE)
    profile.set_values(source, ["data.max_samples=10", "host.env.A=b=c", "host.env.D=e"])
    assert source.text() == text.replace("1000 ", "10 ") + 'env = {A = "b=c", D = "e"}\n'


def test_set_all_takes_the_limit_away() -> None:
    source = profile.parse(PROFILE_TEXT.replace("[data]", "[data]\nmax_samples = 5"), HERE)
    profile.set_values(source, ["data.max_samples=all"])
    assert profile.build(source).data.max_samples is None


def test_set_makes_missing_sections_and_types_values() -> None:
    source = profile.parse(PROFILE_TEXT, HERE)
    profile.set_values(
        source,
        [
            "engine.name=transformers",
            "capture.layers=2,15",
            "model.trust_remote_code=true",
            "model.gpu_memory_utilization=1",
            "output.dir=/data/3",
        ],
    )
    made = profile.build(source)
    assert made.engine.name == "transformers"
    assert made.capture.layers == (2, 15)
    assert made.model.trust_remote_code is True
    assert made.model.gpu_memory_utilization == 1.0
    assert made.output.dir == "/data/3"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8GiB", 8 * 1024**3),
        ("1.5 gb", 1_500_000_000),
        ("512MiB", 512 * 1024**2),
        ("1048576", 1024**2),
        ("2000000 B", 2_000_000),
    ],
)
def test_a_size_is_a_number_with_its_unit(text: str, count: int) -> None:
    source = profile.parse(PROFILE_TEXT, HERE)
    profile.set_values(source, [f"output.buffer={text}"])
    assert profile.build(source).output.buffer_bytes == count
    assert source.plain()["output"]["buffer"] in (text, count)


def test_the_knobs_of_an_extraction_reach_the_profile() -> None:
    text = PROFILE_TEXT.replace("[data]", '[data]\ntoo_long = "skip"').replace(
        "[output]", "[output]\nwriter_threads = 4\nbuffer = 2147483648"
    )
    text += '[engine]\nname = "vllm"\nmax_num_batched_tokens = 16384\nmax_num_seqs = 64\n'
    made = profile.build(profile.parse(text, HERE))
    assert made.data.too_long == "skip"
    assert (made.output.writer_threads, made.output.buffer_bytes) == (4, 2 * 1024**3)
    assert made.engine == EngineSection("vllm", None, (), 16384, 64)
    plain = profile.build(profile.parse(PROFILE_TEXT, HERE))
    assert plain.data.too_long == "truncate"
    assert (plain.output.writer_threads, plain.output.buffer_bytes) == (None, None)
    assert plain.engine == EngineSection()


def test_a_script_is_named_by_a_whole_path_and_takes_arguments() -> None:
    sets = ("engine.name=script", "engine.script=/s/02.py", "engine.args=[--batch-size, 8]")
    made = _build(PROFILE_TEXT, sets, local=False)
    assert made.engine == EngineSection("script", "/s/02.py", ("--batch-size", "8"))
    assert _findings(PROFILE_TEXT, ("engine.name=script",)) == [
        "/profiles/p.toml: engine.script: is missing, and engine script runs it; "
        'write script = "/root/02_extract_hidden_states.py" in [engine]'
    ]
    (finding,) = _findings(PROFILE_TEXT, ("engine.name=script", "engine.script=02.py"))
    assert 'engine.script: "02.py" is relative' in finding
    (finding,) = _findings(PROFILE_TEXT, ("engine.name=script", "engine.script="))
    assert "engine.script: is empty" in finding


def test_a_step_holds_a_token_of_each_sample() -> None:
    (finding,) = _findings(
        PROFILE_TEXT, ("engine.max_num_batched_tokens=10", "engine.max_num_seqs=11")
    )
    assert "10 is less than engine.max_num_seqs 11" in finding


def test_wrong_assignments_are_reported_together() -> None:
    assert _findings(PROFILE_TEXT, ("data.max_sample=3", "oops", "=4", "modle.path=/x")) == [
        "--set: data.max_sample: no such key; did you mean data.max_samples?",
        '--set: "oops" sets nothing; write section.key=value',
        '--set: "=4" sets nothing; write section.key=value',
        "--set: modle.path: no such section; did you mean [model]?",
    ]


def test_local_paths_start_at_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = PROFILE_TEXT.replace("/venv/bin/python", "~/venv/bin/python").replace(
        "/data/hidden", "../out/./hidden"
    )
    made = profile.build(profile.parse(text, HERE), local=True)
    assert made.host.python == "/home/me/venv/bin/python"
    assert made.output.dir == "/out/hidden"
    assert made.model.path == "/models/kimi"


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(b"[host]\npython = '\xff'\n")
    with pytest.raises(ConsoleError) as caught:
        profile.load(path)
    assert "line 2 is not UTF-8" in caught.value.problem.happened
    path.write_bytes(b"#" * (2 * 1024 * 1024))
    with pytest.raises(ConsoleError, match="cannot be read"):
        profile.load(path)


def test_names_are_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    users = tmp_path / "home" / "config" / "profiles"
    users.mkdir(parents=True)
    (users / "mine.toml").write_text(PROFILE_TEXT)
    assert profile.resolve("mine") == users / "mine.toml"
    own = tmp_path / "profiles"
    own.mkdir()
    (own / "mine.toml").write_text(PROFILE_TEXT)
    assert profile.resolve("mine") == own / "mine.toml"
    assert profile.resolve("mine.toml") == own / "mine.toml"
    assert dict(profile.available())["mine"] == own / "mine.toml"
    assert profile.resolve(str(users / "mine.toml")) == users / "mine.toml"
    with pytest.raises(ConsoleError) as caught:
        profile.resolve("mime")
    assert caught.value.problem.todo == "Did you mean mine?"
    (tmp_path / "here.toml").write_text(PROFILE_TEXT)
    with pytest.raises(ConsoleError) as caught:
        profile.resolve("here")
    assert caught.value.problem.todo == "here.toml lies in this folder: name it with its ending."
    with pytest.raises(ConsoleError) as caught:
        profile.resolve(str(tmp_path))
    assert "it is a folder" in caught.value.problem.happened


@pytest.mark.parametrize("name", ["kimi-k2.5", "llama-8b"])
def test_the_shipped_profiles_are_right(name: str) -> None:
    assert profile.load(profile.resolve(name)).name == name


def test_the_template_is_a_right_profile_with_every_setting() -> None:
    text = profile.template()
    assert profile.build(profile.parse(text, HERE)).capture.layers == (2, 15, 27, 29)
    for setting in SETTINGS:
        assert not setting.example or f"{setting.name} = " in text
    every = text.replace("\n# ", "\n")
    uncommented = "\n".join(
        line for line in every.split("\n") if line.startswith("[") or " = " in line
    )
    _build(uncommented, ("engine.name=script",), local=False)


def test_saving_replaces_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(PROFILE_TEXT)
    source = profile.read(path)
    profile.set_values(source, ["data.max_samples=7"])
    source.save()
    assert profile.load(path).data.max_samples == 7
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.toml"]


def test_a_relative_path_of_a_file_lies_beside_it_and_one_of_a_call_where_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "here").mkdir()
    path = tmp_path / "profiles" / "p.toml"
    path.write_text(PROFILE_TEXT.replace("/data/train.jsonl", "train.jsonl"))
    monkeypatch.chdir(tmp_path / "here")
    made = profile.load(path, ["output.dir=out"], local=True)
    assert made.data.path == str(tmp_path / "profiles" / "train.jsonl")
    assert made.output.dir == str(tmp_path / "here" / "out")
