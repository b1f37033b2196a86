"""Faults of a buggy engine, played on a run's files: what is done to a sample, what must be said.

Each is code over ``s`` (the captured states, one ``[S, H]`` per asked layer), ``hs`` (transformers'
own hidden states of the sample, computed apart from the worker: ``hs[i + 1]`` after layer i, the
last one after the final norm), ``other`` (those of the nearest sample that is as long), ``asked``
and ``torch``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3_agent.protocol import from_json
from eagle3_agent.protocol.values import VerifyReport

from . import tiny


@dataclass(frozen=True)
class Bug:
    """One fault."""

    code: str
    kind: str
    says: str
    """Regular expression that the fault's sentence must match."""
    layers: tuple[int, ...]
    """Of ``asked``, by position."""
    least: int = 1
    """Tokens that a sample needs for the fault to be one."""


#: Writes the faults into the files, mends the checksums (an engine that captures wrong states
#: writes right checksums of them), and verifies.
_PLAY = """
import hashlib, json, shutil, sys
from dataclasses import replace
from pathlib import Path
import torch, transformers
from eagle3_agent.protocol import dumps
from eagle3_agent.runs import RunFolder
from eagle3_agent.worker import verify
torch.manual_seed(0)
run, bugs, dtype = RunFolder(Path(sys.argv[1])), json.loads(sys.argv[2]), sys.argv[3]
profile = run.record().profile
there = Path(profile.output.dir)
folder = there.with_name("broken")
broken = replace(profile, output=replace(profile.output, dir=str(folder)))
lines = {e["index"]: e for e in map(json.loads, (there / "manifest.jsonl").open())}
count = len(lines)
right = verify.verify(profile, verify.Asked(12, 0, dtype), complete=True)
shutil.copytree(there, folder)
model = transformers.AutoModelForCausalLM.from_pretrained(profile.model.path, dtype=torch.bfloat16)
asked = list(profile.capture.layers)
def states(index):
    ids = torch.load(there / lines[index]["file"])["input_ids"]
    with torch.inference_mode():
        out = model.model(input_ids=ids[None], output_hidden_states=True)
    return [h[0].clone() for h in out.hidden_states]
def beside(index):
    fit = [i for i in lines if i != index and lines[i]["tokens"] >= lines[index]["tokens"]]
    return min(fit, key=lambda i: (abs(i - index), i))
for index, code in bugs.items():
    path = folder / lines[int(index)]["file"]
    body = torch.load(path)
    s, hs, other = body["hidden_states"], states(int(index)), states(beside(int(index)))
    scope = dict(s=s, hs=hs, other=other, asked=asked, torch=torch, S=len(s[0]))
    exec(code, scope)
    body["hidden_states"] = [x.bfloat16().contiguous().clone() for x in scope["s"]]
    torch.save(body, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    lines[int(index)].update(bytes=path.stat().st_size, sha256=digest)
(folder / "manifest.jsonl").write_text("".join(json.dumps(e) + "\\n" for e in lines.values()))
wrong = verify.verify(broken, verify.Asked(count, 0, dtype), complete=True)
print(dumps({"right": right, "wrong": wrong}))
"""


@dataclass(frozen=True)
class Played:
    """Reports before and after, and which sample carries which fault."""

    right: VerifyReport
    wrong: VerifyReport
    samples: dict[str, list[int]]
    """Indexes by the fault's name."""


def play(
    python: Path,
    model: Path,
    root: Path,
    bugs: dict[str, Bug],
    texts: Sequence[Sequence[int]],
    layers: tuple[int, ...],
    dtype: str = "auto",
) -> Played:
    """Run the worker over ``texts`` (token ids) once for each fault, and break each sample.

    Every fault is played on each text that is long enough; the last sample of each text is sound.
    """
    rows: list[dict[str, Any]] = []
    samples: dict[str, list[int]] = {name: [] for name in bugs}
    codes: dict[int, str] = {}
    for turn, (name, bug) in enumerate(bugs.items()):
        for ids in texts:
            if len(ids) >= bug.least:
                samples[name].append(len(rows))
                codes[len(rows)] = bug.code
                rows.append(_row(ids, turn))
    rows += [_row(ids, len(bugs)) for ids in texts]
    root.mkdir()
    data = tiny.write_jsonl(root / "data.jsonl", rows)
    asked = tiny.profile(python, model, data, root / "out", layers=layers)
    run = tiny.make_run(root / "run", asked)
    assert tiny.work(run) == 0, run.output.read_text()
    code = f"import sys; sys.path.insert(0, {str(tiny.AGENT)!r})\n{_PLAY}"
    out = tiny.run_python(python, code, str(run.path), json.dumps(codes), dtype)
    made = json.loads(out.splitlines()[-1])
    right, wrong = (from_json(VerifyReport, made[key]) for key in ("right", "wrong"))
    return Played(right, wrong, samples)


def _row(ids: Sequence[int], turn: int) -> dict[str, Any]:
    """The text turned by some tokens, so that no two rows begin alike."""
    if len(ids) == 1:
        return {"input_ids": [32 + (ids[0] + 7 * turn) % 280], "loss_mask": [1]}
    turn %= len(ids)
    turned = [*ids[turn:], *ids[:turn]]
    return {"input_ids": turned, "loss_mask": [1] * len(turned)}


def told(played: Played, name: str) -> list[dict[str, Any]]:
    """For each broken sample of a fault, what the report says of it."""
    by = {check.index: check for check in played.wrong.checked}
    return [asdict(by[index]) for index in played.samples[name]]
