"""How a user's script is started and how its end is told; no torch is needed for that."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from eagle3_agent import processes
from eagle3_agent.protocol.values import Profile
from support import own_script, tiny

BEFORE = "import os, sys, signal\n"


@pytest.fixture
def asked(tmp_path: Path) -> Profile:
    """A profile whose model is a config and a header, run by the tests' own interpreter."""
    model = tmp_path / "model"
    model.mkdir()
    config = {"hidden_size": 8, "num_hidden_layers": 6, "vocab_size": tiny.VOCAB}
    (model / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32"}))
    (tmp_path / "mine").mkdir()
    data = tiny.write_jsonl(tmp_path / "mine" / "data.jsonl", tiny.rows(4))
    return tiny.profile(Path(sys.executable), model, data, tmp_path / "out")


def _script(
    asked: Profile, text: str, name: str = "extract.py", args: tuple[str, ...] = ()
) -> Profile:
    path = Path(asked.data.path).parent / name
    path.write_text(BEFORE + text)
    return own_script.with_script(asked, path, args)


@pytest.mark.parametrize(
    ("text", "kind", "message", "line"),
    [
        ("def f():\n    raise ValueError('bad row')\nf()\n", "ValueError", "bad row", 3),
        ("assert not 'said'\n", "AssertionError", "", 2),
        ("import no_such_module_1\n", "ModuleNotFoundError", "no_such_module_1", 2),
        ("import json\njson.loads('{')\n", "json.decoder.JSONDecodeError", "Expecting", 3),
        ("sys.exit('no data there')\n", "SystemExit", "exit status 1: no data there", 2),
        ("sys.exit(3)\n", "SystemExit", "exit status 3", 2),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt", "", 2),
    ],
)
def test_an_exception_is_told_with_the_users_own_line(
    asked: Profile, tmp_path: Path, text: str, kind: str, message: str, line: int
) -> None:
    run = own_script.make_run(tmp_path / "0001", _script(asked, text))
    assert tiny.work(run) == 1
    error = tiny.failure(run).error
    assert error.type == kind
    assert message in error.message
    assert error.where is not None
    assert error.where.file == str(tmp_path / "mine" / "extract.py")
    assert error.where.line == line
    assert error.where.source in text
    assert "bootstrap.py" not in error.traceback
    assert own_script.stages(run) == ["load!"]


def test_a_traceback_reads_as_the_scripts_own(asked: Profile, tmp_path: Path) -> None:
    (tmp_path / "mine" / "helper.py").write_text("def check(x):\n    raise RuntimeError(x)\n")
    run = own_script.make_run(
        tmp_path / "0001", _script(asked, "import helper\nhelper.check('7 rows')\n")
    )
    assert tiny.work(run) == 1
    error = tiny.failure(run).error
    assert error.where is not None
    assert error.where.file == str(tmp_path / "mine" / "helper.py")
    text = run.output.read_text()
    start = text.index("Traceback (most recent call last):\n")
    assert text[start:].splitlines()[1].endswith('extract.py", line 3, in <module>')
    assert "RuntimeError: 7 rows" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "print('gone')\nsys.stdout.flush()\nos._exit(4)\n",
            "exit status 4; the last line of output: gone",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)\n", "killed by SIGKILL (out of memory?)"),
        ("import ctypes\nctypes.string_at(0)\n", "killed by SIGSEGV"),
        ("import argparse\nargparse.ArgumentParser().parse_args(['--no'])\n", "exit status 2"),
        ("print('well')\n", "ended well and wrote no data_0.pt or the like into output.dir"),
    ],
)
def test_an_end_without_an_exception_is_told(
    asked: Profile, tmp_path: Path, text: str, message: str
) -> None:
    run = own_script.make_run(tmp_path / "0001", _script(asked, text))
    assert tiny.work(run) == 1
    assert message in tiny.failure(run).error.message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "cannot be read: No such file"),
        (lambda path: path.mkdir(), "is no file"),
        (os.mkfifo, "is no file"),
        (lambda path: path.write_text("def f(:\n"), "line 1: "),
        (lambda path: path.write_bytes(b"x = '\xff'\n"), "line 1: "),
        (lambda path: path.write_bytes(b"x = 1\0\n"), "null bytes"),
        (lambda path: path.write_bytes(b"#" * (5 << 20)), "larger than 4 MiB"),
    ],
)
def test_what_is_no_script_is_refused_before_anything_starts(
    asked: Profile, tmp_path: Path, make: object, message: str
) -> None:
    path = tmp_path / "mine" / "given.py"
    assert callable(make)
    make(path)
    run = own_script.make_run(tmp_path / "0001", own_script.with_script(asked, path))
    assert tiny.work(run) == 1
    error = tiny.failure(run).error
    assert message in error.message
    assert "Traceback" not in run.output.read_text()
    assert own_script.stages(run) == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("named", ["", "extract.py"])
def test_a_script_must_be_named_whole(asked: Profile, tmp_path: Path, named: str) -> None:
    run = own_script.make_run(tmp_path / "0001", own_script.with_script(asked, named))
    assert tiny.work(run) == 1
    assert "whole path" in tiny.failure(run).error.message


SEEN = """
import json, multiprocessing, pickle
class Point: pass
def double(x):
    return 2 * x, __name__, sys.argv
if __name__ == "__main__":
    import beside_me
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(double, (21,))
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        forked = pool.apply(double, (21,))
    found = {
        "argv": sys.argv, "path": sys.path[0], "file": __file__, "cwd": os.getcwd(),
        "main": sys.modules["__main__"].double is double, "spec": repr(__spec__),
        "again": type(pickle.loads(pickle.dumps(Point()))).__name__,
        "offline": os.environ.get("HF_HUB_OFFLINE"), "mine": os.environ.get("MINE"),
        "spawned": there, "forked": forked, "stdin": sys.stdin.read(),
    }
    with open("seen.json", "w") as file:
        json.dump(found, file)
"""


def test_the_script_sees_what_it_would_see_by_itself(
    asked: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("MINE", "kept")
    (tmp_path / "mine" / "beside_me.py").touch()
    args = ("--name", "two words", "", "-x", "größe\n")
    name = "02 extract'größe.py"
    run = own_script.make_run(tmp_path / "0001", _script(asked, SEEN, name, args))
    assert tiny.work(run) == 1  # it wrote no sample
    seen = json.loads((tmp_path / "mine" / "seen.json").read_text())
    script = str(tmp_path / "mine" / name)
    assert seen == {
        "argv": [script, *args],
        "path": str(tmp_path / "mine"),
        "file": script,
        "cwd": str(tmp_path / "mine"),
        "main": True,
        "spec": "None",
        "again": "Point",
        "offline": None,
        "mine": "kept",
        "spawned": [42, "__mp_main__", [script, *args]],
        "forked": [42, "__mp_main__", [script, *args]],
        "stdin": "",
    }


STUBBORN = """
import subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", '''
import signal, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(300)
'''], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
with open("pids.part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.makedirs(sys.argv[1] , exist_ok=True)
open(os.path.join(sys.argv[1], ".data_3.pt.77.partial"), "w").close()
os.rename("pids.part", "pids")
time.sleep(300)
"""


def test_an_abort_ends_the_script_and_everything_below_it(asked: Profile, tmp_path: Path) -> None:
    run = own_script.make_run(tmp_path / "0001", _script(asked, STUBBORN, args=(asked.output.dir,)))
    pids = tmp_path / "mine" / "pids"
    with tiny.spawn(run) as process:
        tiny.wait_for(pids.exists, process)
        found = [processes.identity(int(pid)) for pid in pids.read_text().split()]
        process.terminate()
        process.wait(timeout=30)
    assert process.returncode == -signal.SIGTERM
    assert len(found) == 2
    assert all(who is not None and not processes.alive(who) for who in found)
    assert list((tmp_path / "out").glob(".*.partial")) == []
    assert run.output.read_bytes().endswith(b"stopped by SIGTERM\n")


NOISY = r"""
out = sys.stdout.buffer
for i in range(5):
    out.write(b"\rGenerating: %d%%|###  | %d/4 [00:01<00:01,  2.1it/s]" % (25 * i, i))
out.write(b"\n" + b"\xff%|1" * (5 << 20) + b"1/1 [")
out.flush()
sys.exit("enough")
"""


def test_output_without_line_ends_holds_nothing_up(asked: Profile, tmp_path: Path) -> None:
    run = own_script.make_run(tmp_path / "0001", _script(asked, NOISY))
    assert tiny.work(run) == 1
    assert tiny.failure(run).error.message.endswith("exit status 1: enough")
    assert run.output.stat().st_size > 20 << 20


def test_a_worker_killed_outright_takes_its_script_with_it(asked: Profile, tmp_path: Path) -> None:
    text = "import time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(300)\n"
    run = own_script.make_run(tmp_path / "0001", _script(asked, text))
    pid = tmp_path / "mine" / "pid"
    with tiny.spawn(run) as process:
        tiny.wait_for(lambda: pid.exists() and pid.read_text() != "", process)
        who = processes.identity(int(pid.read_text()))
        assert who is not None
        process.kill()
    own_script.wait_until(lambda: not processes.alive(who))
