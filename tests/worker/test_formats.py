"""The bytes of sample files, read back by the libraries that train from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support import tiny

pytestmark = pytest.mark.worker

#: What each test asks of the worker's interpreter; ``item`` and ``output`` make the inputs.
_COMMON = """
import io, json, sys, zipfile
import torch
from eagle3_agent.worker.engines.base import Output
from eagle3_agent.worker.writing import formats
from eagle3_agent.worker.writing.item import Item, States

def output(kind, dtype, layers=(5, 1, 5), hidden=16):
    return Output("/", kind, layers, dtype, hidden, {"dtype": dtype, "layers": "[5, 1, 5]"},
                  "/", 1, 1)

def item(states, tokens=7):
    ids = [3 * i for i in range(tokens)]
    return Item(4, ids, [int(i > 2) for i in range(tokens)], States.of(states), None, None)

def made(kind, dtype, tokens=7):
    torch.manual_seed(1)
    shape = (3, tokens, 16) if formats.layout(kind) == "LSH" else (tokens, 3, 16)
    return torch.randn(shape).to(getattr(torch, dtype))

def refusal(states, out):
    try:
        formats.save(item(states, 7), out, io.BytesIO())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
"""


@pytest.fixture(scope="module")
def ask(python: Path) -> Any:
    def run(code: str, *args: str) -> Any:
        return json.loads(tiny.run_python(python, _COMMON + code, *args, path=tiny.AGENT))

    return run


_PT = """
found = []
for dtype in ("float32", "bfloat16", "float16"):
    states = made("speculators-pt", dtype)
    path = f"{sys.argv[1]}/{dtype}.pt"
    with open(path, "wb") as file:
        formats.save(item(states), output("speculators-pt", dtype), file)
    same = {"input_ids": torch.tensor([3 * i for i in range(7)]),
            "hidden_states": [s.clone() for s in states],
            "loss_mask": torch.tensor([0, 0, 0, 1, 1, 1, 1])}
    for mapped in (True, False):
        body = torch.load(path, mmap=mapped, weights_only=True)
        assert list(body) == list(same)
        assert torch.equal(body["input_ids"], same["input_ids"])
        assert torch.equal(body["loss_mask"], same["loss_mask"])
        assert body["loss_mask"].dtype == body["input_ids"].dtype == torch.long
        assert all(map(torch.equal, body["hidden_states"], same["hidden_states"]))
        stores = [s.untyped_storage() for s in body["hidden_states"]]
        assert len({s.data_ptr() for s in stores}) == 3
        width = states.element_size()
        found.append([[s.nbytes() // width for s in stores], str(body["hidden_states"][0].dtype),
                      max(s.data_ptr() % 64 for s in stores) if mapped else 0])
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None  # every CRC-32
        theirs = io.BytesIO()
        torch.save(same, theirs)
        pickles = [a.read(n) for a in (archive, zipfile.ZipFile(theirs))
                   for n in a.namelist() if n.endswith("data.pkl")]
        # what torch unpickles is byte for byte what it would have pickled
        found[-1].append([pickles[0] == pickles[1], archive.read("archive/version").decode()])
print(json.dumps(found))
"""


def test_pt_files_load_as_torch_saved_ones_mapped_or_not(ask: Any, tmp_path: Path) -> None:
    found = ask(_PT, str(tmp_path))
    for place, dtype in enumerate(("float32", "bfloat16", "float16")):
        mapped, plain = found[2 * place], found[2 * place + 1]
        # a storage of exactly its own for each layer, where it can be mapped
        assert mapped == [[7 * 16] * 3, f"torch.{dtype}", 0]
        assert plain == [[7 * 16] * 3, f"torch.{dtype}", 0, [True, "3\n"]]


#: Sizes and offsets past 32 bits, of a file full of holes; the sink leaves holes too.
_LARGE = """
import mmap, os
from eagle3_agent.worker.writing import torchzip
class Sink:
    def __init__(self, file): self.file = file
    def write(self, data):
        if len(data) > 1 << 20: self.file.seek(len(data), 1)
        else: self.file.write(data)
size = (4 << 30) + (1 << 12)
zeros, path = sys.argv[1] + "/zeros", sys.argv[1] + "/large.pt"
with open(zeros, "wb") as file: file.truncate(size)
with open(zeros, "rb") as file:
    data = memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))
half = torchzip.Tensor("bfloat16", (2, 3), bytes([0, 63]) * 6)
with open(path, "wb") as file:
    torchzip.save([torchzip.Tensor("bfloat16", (size // 32, 16), data), half], Sink(file))
large, small = torch.load(path, mmap=True, weights_only=True)
with zipfile.ZipFile(path) as archive:
    names = [(i.filename, i.file_size) for i in archive.infolist()]
print(json.dumps([list(large.shape), small.tolist(), names[2:4], os.path.getsize(path) > size]))
"""


def test_a_storage_past_four_gigabytes_and_what_lies_behind_it(ask: Any, tmp_path: Path) -> None:
    size = (4 << 30) + (1 << 12)
    assert ask(_LARGE, str(tmp_path)) == [
        [size // 32, 16],
        [[0.5] * 3] * 2,
        [["archive/data/0", size], ["archive/data/1", 12]],
        True,
    ]


_SAFE = """
from safetensors import safe_open
found = []
for dtype in ("float32", "bfloat16", "float16"):
    states = made("safetensors", dtype)
    path = f"{sys.argv[1]}/{dtype}.safetensors"
    with open(path, "wb") as file:
        formats.save(item(states), output("safetensors", dtype), file)
    with safe_open(path, "pt") as body:
        assert torch.equal(body.get_tensor("hidden_states"), states)
        assert body.get_tensor("token_ids").tolist() == [3 * i for i in range(7)]
        found.append([sorted(body.keys()), body.metadata()])
print(json.dumps(found))
"""


def test_safetensors_files_hold_states_ids_and_what_they_are(ask: Any, tmp_path: Path) -> None:
    for dtype, found in zip(("float32", "bfloat16", "float16"), ask(_SAFE, str(tmp_path))):
        metadata = {"dtype": dtype, "layers": "[5, 1, 5]"}
        assert found == [["hidden_states", "token_ids"], metadata]


#: Every dtype and layout, with one number or one row changed somewhere.
_BROKEN = """
found = {}
for kind in ("speculators-pt", "safetensors"):
    for dtype in ("float32", "bfloat16", "float16"):
        out = output(kind, dtype)
        whole = made(kind, dtype)
        assert refusal(whole, out) == ""
        whole.view(-1)[0], whole.view(-1)[1] = 0.0, -0.0  # zeros among others are nothing special
        whole.view(-1)[2] = torch.finfo(whole.dtype).max
        whole.view(-1)[3] = torch.finfo(whole.dtype).smallest_normal / 2
        assert refusal(whole, out) == ""
        told = []
        for value in (float("nan"), float("inf"), -float("inf")):
            broken = whole.clone()
            (broken[1, 6] if kind == "speculators-pt" else broken[6, 1])[15] = value
            told.append(refusal(broken, out))
        for zero in (0.0, -0.0):
            broken = whole.clone()
            (broken[2, 3] if kind == "speculators-pt" else broken[3, 2])[:] = zero
            told.append(refusal(broken, out))
        found[f"{kind} {dtype}"] = told
print(json.dumps(found))
"""


def test_broken_states_are_refused_with_their_place(ask: Any) -> None:
    found = ask(_BROKEN)
    assert len(found) == 6
    for told in found.values():
        assert told == [
            *["Unfit: the state of token 6 after layer 1 holds NaN or infinity"] * 3,
            *["Unfit: the state of token 3 after layer 5 is all zeros"] * 2,
        ]


_MANY = """
whole = torch.ones(3, 5000, 16, dtype=torch.bfloat16)
broken = whole.clone()
broken[2, 4999, 7] = float("nan")
out = output("speculators-pt", "bfloat16")
told = []
for states in (whole, broken):
    try:
        formats.save(item(states, 5000), out, io.BytesIO())
        told.append("")
    except formats.Unfit as error:
        told.append(str(error))
print(json.dumps(told))
"""


def test_the_last_row_of_many_blocks_is_looked_at_too(ask: Any) -> None:
    assert ask(_MANY) == ["", "the state of token 4999 after layer 5 holds NaN or infinity"]


_SHAPES = """
out = output("speculators-pt", "bfloat16")
good = made("speculators-pt", "bfloat16")
print(json.dumps([refusal(s, out) for s in (good[:, :6].contiguous(), good[:2], good.float())]))
"""


def test_states_of_another_shape_or_dtype_are_the_engine_s_fault(ask: Any) -> None:
    told = ask(_SHAPES)
    asked = "and 7 mask entries, asked were bfloat16 of [3, 7, 16]"
    assert told == [
        f"Misshapen: sample 4: the engine returned bfloat16 states of shape [3, 6, 16] {asked}",
        f"Misshapen: sample 4: the engine returned bfloat16 states of shape [2, 7, 16] {asked}",
        f"Misshapen: sample 4: the engine returned float32 states of shape [3, 7, 16] {asked}",
    ]
