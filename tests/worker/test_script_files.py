"""What a script leaves in the output folder: proven file by file, told, set aside, filled in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.protocol.events import Plan
from eagle3_agent.protocol.values import EngineSection, Profile, VerifyReport
from eagle3_agent.runs import RunFolder, read_value
from support import own_script, tiny

pytestmark = pytest.mark.worker

COUNT = 16


@pytest.fixture
def asked(python: Path, models: dict[tiny.Kind, Path], tmp_path: Path) -> Profile:
    script = own_script.place(tmp_path / "mine")
    data = tiny.write_jsonl(tmp_path / "mine" / "data.jsonl", tiny.rows(COUNT))
    asked = tiny.profile(python, models["llama"], data, tmp_path / "out", layers=own_script.LAYERS)
    return own_script.with_script(asked, script, own_script.usual_args(asked))


def _verify(run: RunFolder, report: Path, *more: str) -> VerifyReport:
    assert tiny.work(run, "verify", str(run.path), "--report", str(report), *more) == 0
    return read_value(report, VerifyReport)


#: Runs the real script, then does to its files what bugs, crashes and careless hands do.
CARELESS = """
import os, runpy, sys, torch
runpy.run_path(os.path.join(os.path.dirname(__file__), "03_extract.py"), run_name="__main__")
out = sys.argv[sys.argv.index("--output-dir") + 1]

def change(index, edit):
    path = os.path.join(out, f"data_{index}.pt")
    body = torch.load(path)
    edit(body)
    torch.save(body, path)

def put(body, layer, token, value):
    body["hidden_states"][layer][token] = value

change(0, lambda b: put(b, 1, 5, float("nan")))
change(1, lambda b: put(b, 2, 3, 0.0))
change(2, lambda b: b["hidden_states"].pop())
change(3, lambda b: b.update(hidden_states=[s.bfloat16() for s in b["hidden_states"]]))
change(4, lambda b: b.update(loss_mask=None))
change(5, lambda b: b.update(loss_mask=1 - b["loss_mask"]))
change(6, lambda b: b.update(input_ids=b["input_ids"].flip(0)))
change(7, lambda b: b.update(input_ids=b["input_ids"][:-1]))
change(8, lambda b: b.update(hidden_states=[s[:-1] for s in b["hidden_states"]]))
with open(os.path.join(out, "data_9.pt"), "r+b") as file:
    file.truncate(3000)
os.unlink(os.path.join(out, "data_10.pt"))
os.rename(os.path.join(out, "data_11.pt"), os.path.join(out, "kept.pt"))
os.symlink("kept.pt", os.path.join(out, "data_11.pt"))
torch.save([1, 2], os.path.join(out, "data_12.pt"))
body = torch.load(os.path.join(out, "data_13.pt"))
torch.save(body, os.path.join(out, "data_13.pt"), _use_new_zipfile_serialization=False)
for name in ("data_99.pt", "data_007.pt", "token_freq.pt"):
    torch.save(body, os.path.join(out, name))
"""


def test_every_file_that_is_not_its_row_is_named_and_a_next_attempt_mends_it(
    asked: Profile, tmp_path: Path
) -> None:
    careless = tmp_path / "mine" / "careless.py"
    careless.write_text(CARELESS)
    run = own_script.make_run(
        tmp_path / "0001", own_script.with_script(asked, careless, asked.engine.args)
    )
    assert tiny.work(run) == 0, run.output.read_text()
    found = tiny.skipped(run)
    print(json.dumps(found, indent=1))
    expected = {
        0: "token 5 after layer 3 holds NaN",
        1: "token 3 after layer 4 is all zeros",
        2: "holds 2 layers, capture.layers names 3",
        3: "its states are bfloat16, the run's are float32",
        4: "has no loss_mask",
        5: "its loss_mask is not that of its row",
        6: "its token ids are not those of its row",
        7: "tokens, its row of the data has",
        8: "its states have the shapes",
        9: "cannot be loaded, is it cut off?",
        10: "the script wrote no file for it",
        11: "is no regular file",
        12: "holds a list",
        13: "zip format",
        99: "no usable row 99",
    }
    assert found.keys() == expected.keys()
    for index, text in expected.items():
        assert text in found[index]
        assert index == 10 or found[index].startswith(f"data_{index}.pt ")
    last = tiny.progress(run)
    assert (last.done, last.total, last.skipped) == (2, COUNT, 15)
    assert tiny.finished(run)
    told = own_script.warnings(run)[-1]
    assert all(name in told for name in ("data_007.pt", "token_freq.pt", "kept.pt"))

    # the script goes on after the highest number, so that only what follows row 15 is its own
    out = tmp_path / "out"
    for name in ("data_007.pt", "token_freq.pt", "kept.pt", "data_15.pt"):
        (out / name).unlink()
    again = own_script.make_run(tmp_path / "0002", asked)
    assert tiny.work(again) == 0, again.output.read_text()
    (planned,) = [e for e in tiny.events(again) if isinstance(e, Plan)]
    assert planned.reused == 1
    assert b"resuming at 15" in again.output.read_bytes()
    assert tiny.skipped(again) == dict.fromkeys(range(14), "the script wrote no file for it")
    moved = sorted(p.name for p in out.glob("*.aside"))
    assert moved == sorted(f"data_{i}.pt.aside" for i in [*range(10), 11, 12, 13, 99])
    assert any("never fills such holes" in text for text in own_script.warnings(again))

    # another engine fills them, in the same folder
    filled = tiny.make_run(tmp_path / "0003", replace(asked, engine=EngineSection("transformers")))
    assert tiny.work(filled) == 0, filled.output.read_text()
    assert tiny.progress(filled).done == COUNT
    report = _verify(filled, tmp_path / "report.json")
    assert (report.ok, report.files, report.bad_files) == (True, COUNT, ())


#: Dies while the third file is written: its pickle kills the process.
KILLED = """
import os, runpy, signal, sys, torch
class Deadly:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)
real = torch.save
def save(body, path):
    if str(path).endswith("data_2.pt"):
        # the states are on their way to the file when the end comes
        with open("began", "w"): pass
        body = {**body, "deadly": Deadly()}
    real(body, path)
torch.save = save
runpy.run_path(os.path.join(os.path.dirname(__file__), "03_extract.py"), run_name="__main__")
"""


def test_a_script_killed_while_it_saves_leaves_no_short_file(
    asked: Profile, python: Path, tmp_path: Path
) -> None:
    killed = tmp_path / "mine" / "killed.py"
    killed.write_text(KILLED)
    out = tmp_path / "out"
    args = " ".join(asked.engine.args)
    # by itself it leaves one, which its next start would take for done
    assert os.system(f"cd {tmp_path / 'mine'} && {python} killed.py {args} 2>/dev/null") != 0  # noqa: S605
    assert (out / "data_2.pt").exists()
    shutil.rmtree(out)

    run = own_script.make_run(
        tmp_path / "0001", own_script.with_script(asked, killed, asked.engine.args)
    )
    assert tiny.work(run) == 1
    assert "killed by SIGKILL" in tiny.failure(run).error.message
    assert sorted(p.name for p in out.glob("*.pt")) == ["data_0.pt", "data_1.pt"]
    assert list(out.glob(".*")) == []

    again = own_script.make_run(tmp_path / "0002", asked)
    assert tiny.work(again) == 0, again.output.read_text()
    (planned,) = [e for e in tiny.events(again) if isinstance(e, Plan)]
    assert planned.reused == 2
    assert tiny.progress(again).done == COUNT
    assert tiny.skipped(again) == {}


EMPTYING = """
import os, runpy, shutil, sys
out = sys.argv[sys.argv.index("--output-dir") + 1]
shutil.rmtree(out)
runpy.run_path(os.path.join(os.path.dirname(__file__), "03_extract.py"), run_name="__main__")
"""


def test_a_script_that_empties_its_folder_first_is_accounted_for_all_the_same(
    asked: Profile, tmp_path: Path
) -> None:
    emptying = tmp_path / "mine" / "emptying.py"
    emptying.write_text(EMPTYING)
    run = own_script.make_run(
        tmp_path / "0001", own_script.with_script(asked, emptying, asked.engine.args)
    )
    assert tiny.work(run) == 0, run.output.read_text()
    assert tiny.progress(run).done == COUNT
    assert own_script.warnings(run) == [
        f"the script has emptied {tmp_path / 'out'} before it wrote into it"
    ]
    report = _verify(run, tmp_path / "report.json", "--samples", "0")
    assert (report.ok, report.files, report.bad_files) == (True, COUNT, ())


def test_a_folder_of_somebody_elses_samples_is_refused(asked: Profile, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "data_0.pt").write_bytes(b"theirs")
    run = own_script.make_run(tmp_path / "0001", asked)
    assert tiny.work(run) == 1
    assert "holds data_0.pt but no eagle3.json" in tiny.failure(run).error.message
    assert (tmp_path / "out" / "data_0.pt").read_bytes() == b"theirs"


#: A file that grows while it is looked at, one that is written over, and one that goes.
_GROWING = """
import json, sys, time
from pathlib import Path
import torch
from eagle3_agent.worker.manifest import digest
from eagle3_agent.worker.script import samples
from eagle3_agent.worker.script.folder import Folder
from eagle3_agent.worker.script.samples import Row, Wanted

root = Path(sys.argv[1])
ids, mask = list(range(50)), [1] * 50
row = Row(bytes.fromhex(digest(ids)), bytes.fromhex(digest(mask)), 50)
wanted = Wanted("speculators-pt", "float32", (0, 1), 8)
folder = Folder(root, {0: row, 1: row}, wanted, kept={})

def body(scale):
    states = [torch.full((50, 8), scale), torch.full((50, 8), scale + 1)]
    numbers = {"input_ids": torch.tensor(ids), "loss_mask": torch.tensor(mask)}
    return {**numbers, "hidden_states": states}

def until(condition):
    found, deadline = [], time.monotonic() + 60
    while not condition(found):
        assert time.monotonic() < deadline, found
        found += folder.look()
        time.sleep(0.01)
    return found

looked = []
real = samples.examine
def examine(path, *rest):
    looked.append(path.name)
    return real(path, *rest)
samples.examine = examine

torch.save(body(1.0), root / "whole")
data = (root / "whole").read_bytes()
growing = (root / "data_0.pt").open("wb")
growing.write(data[:700])
growing.flush()
until(lambda found: looked.count("data_0.pt") == 1)
assert folder.samples() == {} and 0 not in folder.unfit() or "cut off" in folder.unfit()[0].reason
growing.write(data[700:])
growing.close()
(first,) = until(lambda found: found)
assert first.entry is not None and first.entry.bytes == len(data), first
torch.save(body(2.0), root / "data_0.pt")   # the same size, other states
torch.save(body(1.0), root / "data_1.pt")
(second,) = until(lambda found: found)
assert (second.index, sorted(folder.samples())) == (1, [0, 1])
(again,) = folder.settle()
assert again.index == 0 and again.entry.sha256 != first.entry.sha256
(root / "data_1.pt").unlink()
assert folder.settle() == [] and sorted(folder.samples()) == [0]
folder.close()
print(len(looked))
"""


def test_a_file_is_judged_when_it_is_whole_and_again_when_it_changes(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tiny.AGENT))
    looked = int(tiny.run_python(python, _GROWING, str(tmp_path)))
    assert looked <= 6  # each state of each file once, however often the folder was looked at


#: In a mount of its own, which is gone with it: 256 KiB for what torch.save writes.
_SMALL = 'mount -t tmpfs -o size=256k tmpfs "$1" && exec "$2" -c "$3" "$1"'

_SAVING = """
import errno, os, sys, torch
from pathlib import Path
from eagle3_agent.worker.script import saving

out = Path(sys.argv[1])
saving.apply(out)
saving.apply(out)
try:
    torch.save({"x": torch.zeros(1 << 20)}, out / "data_0.pt")
except OSError as error:
    print(error.errno == errno.ENOSPC, error.filename == str(out / "data_0.pt"), os.listdir(out))
seen = []
os.replace = lambda old, new, real=os.replace: (seen.append(os.path.basename(new)), real(old, new))
os.chdir(out)
for path in (out / "data_1.pt", "data_2.pt", "data_03x.pt", out / "notes.pt"):
    torch.save({"x": 1}, path)
with open("data_4.pt", "wb") as file:
    torch.save({"x": 1}, file)
print(seen, sorted(os.listdir(out)))
"""


def test_a_sample_is_saved_whole_or_not_at_all_and_other_files_as_ever(
    python: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            *("unshare", "--mount", "--map-root-user", "sh", "-c", _SMALL, "sh"),
            *(str(tmp_path), str(python), _SAVING),
        ],
        env={**os.environ, "PYTHONPATH": str(tiny.AGENT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    full, usual = done.stdout.splitlines()
    assert full == "True True []"
    assert usual == (
        "['data_1.pt', 'data_2.pt'] "
        "['data_03x.pt', 'data_1.pt', 'data_2.pt', 'data_4.pt', 'notes.pt']"
    )


#: The other format: a good file, one that is cut off, one with a layer too few, other tokens.
_SAFETENSORS = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from eagle3_agent.worker.manifest import digest
from eagle3_agent.worker.script.samples import Row, Unfit, Wanted, examine

root = Path(sys.argv[1])
ids, mask = list(range(50)), [0, 1] * 25
row = Row(bytes.fromhex(digest(ids)), bytes.fromhex(digest(mask)), 50)
wanted = Wanted("safetensors", "bfloat16", (0, 1, 1), 8)
states = torch.arange(1, 50 * 3 * 8 + 1).reshape(50, 3, 8).bfloat16()

def look(name, states, ids, cut=None):
    path = root / name
    save_file({"hidden_states": states.contiguous(), "token_ids": torch.tensor(ids)}, path)
    path.write_bytes(path.read_bytes()[:cut])
    try:
        print(examine(path, 0, row, wanted).row == digest(ids))
    except Unfit as why:
        print(why)

look("hs_0.safetensors", states, ids)
look("hs_0.safetensors", states, ids, -1)
look("hs_0.safetensors", states[:, :2], ids)
look("hs_0.safetensors", states, ids[::-1])
look("hs_0.safetensors", states.transpose(0, 1), ids)
"""


def test_files_of_the_other_format_are_judged_alike(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tiny.AGENT))
    told = tiny.run_python(python, _SAFETENSORS, str(tmp_path)).splitlines()
    assert told[0] == "True"
    assert told[1].startswith("cannot be loaded, is it cut off?")
    assert told[2] == "holds 2 layers, capture.layers names 3"
    assert told[3] == "its token ids are not those of its row of the data"
    assert told[4] == "holds 50 layers, capture.layers names 3"
