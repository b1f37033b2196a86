"""What `verify` must not be fooled by: a run's files changed by hand, its manifest made to fit.

The checksums are mended after each change to a sample, since an engine that
captures wrong states writes right checksums of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import tiny

_LAYERS = (1, 3, 5)

#: Each is given ``files`` (index -> content, written back when changed), ``lines`` (the manifest's,
#: by index) and ``folder``; with what the report must say of it.
_TRICKS = {
    "nothing": ("", ""),
    "layers shifted by one": (
        "s = files[0]['hidden_states']; files[0]['hidden_states'] = s[1:] + s[:1]",
        "layer 1: median token error",
    ),
    "the states of two samples swapped": (
        "a, b = files[0], files[17]\n"
        "a['hidden_states'], b['hidden_states'] = b['hidden_states'], a['hidden_states']",
        "layer 1: median token error",
    ),
    "one token zeroed": (
        "files[0]['hidden_states'][1][5] = 0",
        "layer 3: 1 token has a state of zeros, NaN or infinity",
    ),
    "two tokens exchanged": (
        "s = files[0]['hidden_states'][1]; s[[5, 6]] = s[[6, 5]]",
        "layer 3: 2 tokens have the state of another token",
    ),
    "two tokens that are much alike exchanged": (
        "s = files[0]['hidden_states'][1]; d = torch.cdist(s.float(), s.float())\n"
        "i, j = divmod(int(d.fill_diagonal_(9e9).argmin()), len(s)); s[[i, j]] = s[[j, i]]",
        "layer 3: 2 tokens have the state of another token",
    ),
    "one layer a tenth too large": (
        "files[0]['hidden_states'][1] *= 1.1",
        "layer 3: median token error",
    ),
    "one layer a little too large": (
        "files[0]['hidden_states'][1] *= 1.03",
        "layer 3: its states are 1.0",
    ),
    "the last rows garbage": (
        "s = files[0]['hidden_states'][2]; s[-2:] = torch.randn(2, s.shape[1]).bfloat16()",
        "layer 5: ",
    ),
    "the last rows a little off": (
        "s = files[0]['hidden_states'][2]; t = s[-3:].float(); g = torch.randn_like(t)\n"
        "s[-3:] = t + 0.15 * g * (t.norm(dim=1) / g.norm(dim=1))[:, None]",
        "of its tokens are off by more than 0.1,",
    ),
    "another dtype": (
        "files[0]['hidden_states'] = [s.float() for s in files[0]['hidden_states']]",
        "data_0.pt: its states are float32, the manifest says bfloat16",
    ),
    "another mask": (
        "files[0]['loss_mask'] = 1 - files[0]['loss_mask']",
        "data_0.pt: its loss mask is not that of the data",
    ),
    "one byte flipped": (
        "p = folder / 'data_0.pt'; b = bytearray(p.read_bytes()); b[900] ^= 1; p.write_bytes(b)",
        "data_0.pt: its checksum differs",
    ),
    "a file gone": ("(folder / 'data_3.pt').unlink()", "data_3.pt: missing"),
    "a file gone with its line": (
        "(folder / 'data_3.pt').unlink(); del lines[3]",
        "data_3.pt: the run is complete, and this row has no sample",
    ),
    "a line gone": ("del lines[3]", "data_3.pt: no line of manifest.jsonl names it"),
    "a file that the trainer would take": (
        "(folder / 'notes.pt').write_text('x')",
        "notes.pt: no line of manifest.jsonl names it",
    ),
    "wrong tokens in the manifest": (
        "lines[0]['tokens'] += 1",
        "data_0.pt: the manifest says 25 tokens, its row has 24",
    ),
    "wrong layers in the manifest": ("lines[0]['layers'] = 2", "data_0.pt: its states have"),
    "another row in the manifest": (
        "lines[0]['row'] = '0' * 64",
        "data_0.pt: made from another row",
    ),
    "another row's file in the manifest": (
        "lines[0] = {**lines[17], 'index': 0, 'row': lines[0]['row'], 'mask': lines[0]['mask']}",
        "data_17.pt: the manifest has it as the file of row 0",
    ),
}

_PLAY = """
import copy, hashlib, json, shutil, sys
from dataclasses import replace
from pathlib import Path
import torch
from eagle3_agent.runs import RunFolder
from eagle3_agent.worker import verify
torch.manual_seed(0)
run, tricks = RunFolder(Path(sys.argv[1])), json.loads(sys.argv[2])
profile = run.record().profile
there = Path(profile.output.dir)
folder = there.with_name("tampered")
profile = replace(profile, output=replace(profile.output, dir=str(folder)))
told = {}
for name, trick in tricks.items():
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(there, folder)
    lines = {e["index"]: e for e in map(json.loads, (folder / "manifest.jsonl").open())}
    before = {i: torch.load(folder / e["file"]) for i, e in lines.items()}
    files = copy.deepcopy(before)
    exec(trick)
    for i, body in files.items():
        same = all(
            torch.equal(a, b) and a.dtype == b.dtype
            for a, b in zip(body["hidden_states"], before[i]["hidden_states"])
        ) and torch.equal(body["loss_mask"], before[i]["loss_mask"])
        if not same:
            path = folder / f"data_{i}.pt"
            torch.save(body, path)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            lines[i].update(bytes=path.stat().st_size, sha256=digest)
    (folder / "manifest.jsonl").write_text("".join(json.dumps(e) + "\\n" for e in lines.values()))
    made = verify.verify(profile, verify.Asked(18), complete=True)
    told[name] = [made.ok, [*made.bad_files, *(c.why for c in made.checked if not c.ok)]]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(
    python: Path, models: dict[tiny.Kind, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[bool, list[str]]]:
    """What verify said of each trick, played on one run of the bfloat16 model."""
    root = tmp_path_factory.mktemp("verify")
    data = tiny.write_jsonl(root / "data.jsonl", tiny.rows(18))
    asked = tiny.profile(python, models["llama-bf16"], data, root / "out", layers=_LAYERS)
    run = tiny.make_run(root / "run", asked)
    assert tiny.work(run) == 0, run.output.read_text()
    tricks = json.dumps({name: trick for name, (trick, _) in _TRICKS.items()})
    code = f"import sys; sys.path.insert(0, {str(tiny.AGENT)!r})\n{_PLAY}"
    answer: dict[str, tuple[bool, list[str]]] = json.loads(
        tiny.run_python(python, code, str(run.path), tricks)
    )
    return answer


def test_an_untouched_run_is_right(told: dict[str, tuple[bool, list[str]]]) -> None:
    ok, problems = told["nothing"]
    assert ok, problems
    assert not problems


@pytest.mark.parametrize("name", [name for name in _TRICKS if name != "nothing"])
def test_a_changed_run_is_not(name: str, told: dict[str, tuple[bool, list[str]]]) -> None:
    ok, problems = told[name]
    assert not ok
    assert any(_TRICKS[name][1] in problem for problem in problems), problems
