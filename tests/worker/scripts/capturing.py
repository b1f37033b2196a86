# mypy: disable-error-code="misc"
"""capturing.py REPORT FOLDER: the capture core over a fake runner; what each case found.

Needs torch and no vLLM; EAGLE3_TEST_DEVICE=cuda runs it on a GPU.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from eagle3_agent.worker.capture import device, source
from eagle3_agent.worker.capture.core import Capture
from eagle3_agent.worker.capture.refusals import CaptureRefused
from eagle3_agent.worker.capture.staging import Arena
from eagle3_agent.worker.engines.base import Output
from eagle3_agent.worker.writing import formats
from eagle3_agent.worker.writing import pool as pools
from eagle3_agent.worker.writing.ledger import Follower, Measured, Written
from support import fake_runner as fake

_RANDOM = torch.Generator().manual_seed(5)
IDS = [torch.randint(0, 500, (n,), generator=_RANDOM).tolist() for n in (10, 20, 30, 5)]


def capturing(layers: Sequence[int], layout: Any = "LSH", **runner: Any) -> Any:
    made = fake.Runner(**runner)
    return made, Capture(made, layers, layout, keep=True)


def right(rows: Any, layers: Sequence[int], ids: Sequence[int]) -> bool:
    return all(
        torch.equal(torch.from_numpy(found), fake.state(layer, ids))
        for layer, found in zip(layers, rows.layers, strict=True)
    )


def told(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# ------------------------------------------------------------------ cutting


def by_value(folder: Path) -> dict[str, Any]:
    """Split over steps, in changing orders, with rows decoded beside and one preempted."""
    found = {}
    for kind, model in (("hooks", fake.Model), ("interface", fake.NamedModel)):
        for layout in ("LSH", "SLH"):
            layers = (3, 1, 5, 1)
            runner, capture = capturing(layers, layout, model=model(), padded=3)
            for name, ids in zip("abcd", IDS):
                runner.add(name, ids)
            rows = {}
            for step in (
                [("a", 0, 10), ("b", 0, 15)],
                [("b", 15, 5), ("c", 0, 9), ("a", 10, 1)],
                [("c", 9, 5), ("a", 11, 1)],
                [("c", 0, 20), ("d", 0, 5)],
                [("d", 0, 5), ("c", 20, 10)],
            ):
                runner.step(*step)
                rows.update(capture.take())
            good = [right(rows[name], layers, ids) for name, ids in zip("abcd", IDS)]
            found[f"{kind} {layout}"] = good
            found[f"{kind} source"] = capture.source
    return found


def whole_first(folder: Path) -> bool:
    """A model whose layers give their whole state first: the second output is not added."""
    runner, capture = capturing((0, 5), model=fake.Model(whole=True))
    runner.add("a", IDS[0])
    runner.step(("a", 0, 10))
    return right(capture.take()["a"], (0, 5), IDS[0])


def detached(folder: Path) -> dict[str, Any]:
    runner, capture = capturing((1, 5), model=fake.NamedModel())
    runner.add("a", IDS[0])
    capture.detach()
    capture.detach()  # nothing more to take back
    again = Capture(runner, (2, 2), "SLH", keep=True)
    runner.step(("a", 0, 10))
    rows = again.take()["a"]
    again.detach()
    runner.step(("a", 10, 1))
    return {
        "right": right(rows, (2, 2), IDS[0]),
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in
                  (runner.model, runner.model.model.norm)],
        "asked": runner.model.model.asked,
        "output": isinstance(runner.output, torch.Tensor),
        "own": "execute_model" in vars(runner),
    }  # fmt: skip


def others(folder: Path) -> dict[str, Any]:
    """A rank that does not speak captures nothing and leaves its model alone."""
    runner = fake.Runner(fake.NamedModel())
    capture = Capture(runner, (1,), "LSH", keep=False)
    runner.add("a", IDS[0])
    runner.step(("a", 0, 10))
    return {"rows": capture.take(), "asked": runner.model.model.asked}


# ------------------------------------------------------------------ what is wrong


def wrong(folder: Path) -> dict[str, str]:
    def run(change: Callable[[Any], None], *steps: Any) -> str:
        runner, capture = capturing((1, 3))
        runner.add("a", IDS[1])
        change(runner)

        def go() -> None:
            for step in steps or ([("a", 0, 20)],):
                runner.step(*step)

        text = told(go)
        # what failed is forgotten, and the step was ended: the next one runs
        capture.reset()
        runner.cut, runner.model.model.skip = 0, set()
        runner.end("a")
        runner.step()
        runner.add("b", IDS[0])
        runner.step(("b", 0, 10))
        good = right(capture.take()["b"], (1, 3), IDS[0])
        return text + ("" if good else ", and the next step is wrong")

    class Short(fake.NamedModel):
        def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
            self.model.asked = layers[:1]

    class Silent(fake.NamedModel):
        def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
            self.model.asked = ()

    def keep(runner: Any) -> None:
        pass

    def skip(runner: Any) -> None:
        runner.model.model.skip = {3}

    def cut(runner: Any) -> None:
        runner.cut = 1

    return {
        "cached prefix": run(keep, [("a", 16, 4)]),
        "a hole": run(keep, [("a", 0, 4)], [("a", 8, 4)]),
        "not a module": run(skip),
        "too few rows": run(cut),
        "too few states": told_first(Short()),
        "no states": told_first(Silent()),
    }


def told_first(model: Any) -> str:
    runner, _ = capturing((1, 3), model=model)
    runner.add("a", IDS[0])
    return told(lambda: runner.step(("a", 0, 10)))


def decoders(folder: Path) -> dict[str, Any]:
    """A wrapper with a vision tower of as many layers."""

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vision_tower = fake.Decoder()
            self.language_model = fake.Model()

    wrapper = Wrapper()
    found, layers = source.find_decoder(wrapper, fake.LAYERS)
    return {
        "language": found is wrapper.language_model.model,
        "layers": len(layers),
        "none": told(lambda: source.find_decoder(wrapper, 3)),
    }


# ------------------------------------------------------------------ memory


def arena(folder: Path) -> dict[str, Any]:
    """Threads take, fill, check and free regions: none overlaps another, and all comes free."""
    made = Arena(device.of(torch.device(fake.DEVICE)), 1 << 16)
    broken: list[str] = []

    def work(seed: int) -> None:
        sizes = torch.randint(1, 3 << 12, (200,), generator=torch.Generator().manual_seed(seed))
        for turn, size in enumerate(sizes.tolist()):
            region = made.take(size)
            made.leave(region)
            mark = (seed * 31 + turn) % 251
            region.data.fill_(mark)
            if not bool((region.data == mark).all()):
                broken.append(f"{seed} {turn}")
            made.give_back(region)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    whole = made.take(1 << 16)
    return {"broken": broken, "used": made.used, "whole": whole.start, "peak": made.peak}


class Gate(pools.Pool):
    """A pool whose files are written once the gate is open."""

    open = threading.Event()

    def __init__(self, output: Output, memory: Any = None) -> None:
        def save(item: Any, output: Output, sink: Any) -> None:
            Gate.open.wait(60)
            formats.save(item, output, sink)

        super().__init__(output, save)


def output(folder: Path, layers: Sequence[int], size: int) -> Output:
    (folder / "out").mkdir(parents=True)
    return Output(
        folder=str(folder / "out"), kind="speculators-pt", layers=tuple(layers), dtype="float32",
        hidden=fake.HIDDEN, metadata={}, ledger=str(folder / "samples.jsonl"), threads=2,
        buffer_bytes=size,
    )  # fmt: skip


def written(folder: Path, layers: Sequence[int], ids: Sequence[Sequence[int]]) -> list[bool]:
    good = []
    for index, row in enumerate(ids):
        saved = torch.load(folder / "out" / f"data_{index}.pt", weights_only=True)
        states = [fake.state(layer, row) for layer in layers]
        same = all(map(torch.equal, saved["hidden_states"], states))
        good.append(same and saved["input_ids"].tolist() == row)
    return good


def one_sample_arena(folder: Path) -> dict[str, Any]:
    """Samples of which the arena holds barely one, two of them split over steps at once."""
    layers = (1, 3, 5, 0)
    runner, capture = capturing(layers, padded=2)
    size = 30 * 4 * fake.HIDDEN * 4
    capture.open(output(folder, layers, size))
    names = [(f"s{i}-1a2b3c4d", ids) for i, ids in enumerate(IDS)]
    capture.expect([(f"s{i}", i, bytes(len(ids))) for i, ids in enumerate(IDS)])
    for name, ids in names:
        runner.add(name, ids)
    a, b, c, d = (name for name, _ in names)
    for step in (
        [(a, 0, 4), (b, 0, 10), (c, 0, 10)],
        [(c, 10, 10), (b, 10, 10), (a, 4, 6)],
        [(d, 0, 5), (c, 20, 10)],
    ):
        runner.step(*step)
    arena = capture._arena
    capture.finish()
    lines = Follower(folder / "samples.jsonl").read()
    measured = [line for line in lines if isinstance(line, Measured)][-1]
    return {
        "good": written(folder, layers, IDS),
        "lines": sorted(line.entry.index for line in lines if isinstance(line, Written)),
        "used": arena.used,
        "beyond": arena.peak - size,
        "tokens": measured.tokens,
        "steps": measured.steps,
        "padding": round(measured.padding, 4),
        "fill": round(measured.fill, 4),
    }


class Refusing(device.Cpu):
    """Refuses the first pieces of memory."""

    def __init__(self, refused: int) -> None:
        self.refused = refused
        self.pinned: list[int] = []

    def pin(self, memory: Any) -> None:
        if self.refused:
            self.refused -= 1
            raise CaptureRefused("not this one")
        self.pinned.append(memory.nbytes)


def unshared(folder: Path) -> dict[str, Any]:
    """Memory that the device will not share is not shared, and what it will not have is refused."""
    found: dict[str, Any] = {}
    for refused in (0, 1, 2):
        made = Refusing(refused)
        text = told(lambda made=made: found.update(arena=Arena(made, 1 << 16)))
        arena = found.pop("arena", None)
        region = None if arena is None else arena.take(100)
        place = None if region is None else arena.offset(region)
        found[str(refused)] = [text, made.pinned, arena is None or arena.shared is None, place]
    return found


def slow_writers(folder: Path) -> dict[str, Any]:
    """Nothing is written until the model stands still: what is held then is bounded."""
    pools.Pool = Gate  # type: ignore[assignment]
    layers = (1, 3)
    runner, capture = capturing(layers)
    size = 64 << 10
    capture.open(output(folder, layers, size))
    rows = [list(range(seed, seed + 32)) for seed in range(100)]
    capture.expect([(f"s{i}", i, bytes(32)) for i in range(len(rows))])
    done = []

    def go() -> None:
        for i, ids in enumerate(rows):
            runner.add(f"s{i}", ids)
            runner.step((f"s{i}", 0, 32))
            done.append(i)

    thread = threading.Thread(target=go)
    thread.start()
    arena = capture._arena
    while thread.is_alive() and not arena._changed._waiters:
        thread.join(0.01)
    stuck, held = len(done), arena.used
    Gate.open.set()
    thread.join(60)
    capture.finish()
    return {
        "stuck": stuck,
        "held": held,
        "peak": arena.peak,
        "size": size,
        "good": all(written(folder, layers, rows)),
        "wait": [m for m in Follower(folder / "samples.jsonl").read() if isinstance(m, Measured)][
            -1
        ].wait
        > 0,
    }


def stopped(folder: Path) -> dict[str, Any]:
    """A reset in the middle gives back what was held, and by-value capture goes on."""
    layers = (1,)
    runner, capture = capturing(layers)
    capture.open(output(folder, layers, 1 << 20))
    capture.expect([("a", 0, bytes(20))])
    runner.add("a", IDS[1])
    runner.step(("a", 0, 8))
    arena = capture._arena
    before = arena.used
    capture.reset()
    runner.end("a")
    runner.add("b", IDS[0])
    runner.step(("b", 0, 10))
    return {
        "before": before > 0,
        "after": arena.used,
        "files": [p.name for p in (folder / "out").iterdir()],
        "right": right(capture.take()["b"], layers, IDS[0]),
    }


def unannounced(folder: Path) -> str:
    runner, capture = capturing((1,))
    capture.open(output(folder, (1,), 1 << 20))
    runner.add("a", IDS[0])
    text = told(lambda: runner.step(("a", 0, 10)))
    capture.reset()
    return text


CASES = (
    by_value, whole_first, detached, others, wrong, decoders, arena, one_sample_arena, stopped,
    unannounced, unshared, slow_writers,
)  # fmt: skip


def main(report: str, folder: str) -> None:
    found = {}
    for case in CASES:
        place = Path(folder) / case.__name__
        place.mkdir()
        try:
            found[case.__name__] = case(place)
        except Exception:
            found[case.__name__] = traceback.format_exc()
    Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
