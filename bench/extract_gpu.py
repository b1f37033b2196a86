"""Measure extraction on a host: ``python -m bench.extract_gpu --model DIR --out DIR``.

Needs an interpreter with torch and vLLM, and ``PYTHONPATH=agent``; nothing else of this
repository's environment.  Each side is a process with one engine and a time limit, one
after the other; a side that fails is a line that says so, and the others still run.
Prints one JSON object a line: ``limits``, one a side, and ``table`` at the end.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from .extraction.models import Shape
from .extraction.spec import Spec, made_up, write_rows
from .extraction.turns import Running, SideFailed

SIDES = ("matmul", "disk", "plain", "vllm", "speculators", "library", "connector", "transformers")
#: Sides whose figure is a limit of the machine.
_LIMITS = ("matmul", "disk")
#: Sides that take several times as long, and are given a part of the samples.
_SLOW = ("library", "connector", "transformers")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.extract_gpu")
    made.add_argument("--model", type=Path, required=True, help="a checkpoint with weights")
    made.add_argument("--out", type=Path, required=True, help="a folder for the sample files")
    made.add_argument("--sides", default=",".join(SIDES), help="comma-separated (all)")
    made.add_argument("--samples", type=int, default=256)
    made.add_argument(
        "--slow-share", type=float, default=0.25, help=f"of the samples, for {', '.join(_SLOW)}"
    )
    made.add_argument("--length", type=int, default=2048, help="tokens of a sample")
    made.add_argument("--shortest", type=int, help="tokens of the shortest (all of one length)")
    made.add_argument("--layers", help="four of them, spread (default)")
    made.add_argument("--rounds", type=int, default=2, help="of each side, after one to warm up")
    made.add_argument("--tokens", type=int, default=8192, help="token budget of a step")
    made.add_argument("--sequences", type=int, default=256)
    made.add_argument("--memory", type=float, default=0.6, help="share of the GPU's memory")
    made.add_argument("--threads", type=int, help="writer threads (the product's choice)")
    made.add_argument("--buffer", type=int, help="bytes on their way (the product's choice)")
    made.add_argument("--format", default="speculators-pt")
    made.add_argument("--dtype", default="bfloat16")
    made.add_argument("--limit", type=float, default=120.0, help="seconds for a load or a round")
    made.add_argument("--no-warm-up", action="store_true")
    made.add_argument("--watch-memory", action="store_true", help="resident memory over a round")
    made.add_argument("--python", default=sys.executable)
    made.add_argument("--json", type=Path, help="append the lines there too")
    return made


class Report:
    """Lines on stdout and in a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def line(self, value: dict[str, Any]) -> None:
        text = json.dumps(value)
        print(text, flush=True)
        if self._path is not None:
            with self._path.open("a", encoding="ascii") as file:
                file.write(text + "\n")


def main(argv: list[str] | None = None) -> int:
    """0 when every side was measured, 1 when one was not."""
    asked = parser().parse_args(argv)
    shape = Shape.of(asked.model)
    data = made_up(asked.samples, asked.shortest or asked.length, asked.length, shape.vocab)
    asked.out.mkdir(parents=True, exist_ok=True)
    rows, fewer = asked.out / "rows.jsonl", asked.out / "fewer.jsonl"
    write_rows(rows, data)
    write_rows(fewer, data[: max(1, round(len(data) * asked.slow_share))])
    layers = tuple(map(int, asked.layers.split(","))) if asked.layers else spread(shape.layers)
    base = Spec(
        side="",
        model=str(asked.model),
        data=str(rows),
        out="",
        layers=layers,
        longest=max(map(len, data)),
        kind=asked.format,
        dtype=asked.dtype,
        tokens=asked.tokens,
        sequences=asked.sequences,
        memory=asked.memory,
        threads=asked.threads,
        buffer=asked.buffer,
        watch_memory=asked.watch_memory,
    )
    report = Report(asked.json)
    found: dict[str, list[dict[str, Any]]] = {}
    failed = False
    for side in asked.sides.split(","):
        spec = replace(
            base,
            side=side,
            data=str(fewer if side in _SLOW else rows),
            out=str(asked.out / f"files-{side}"),
        )
        told = measure(asked, spec)
        report.line({"side": side, **told})
        found[side] = told.get("rounds", [])
        failed = failed or "failed" in told
    tokens = sum(map(len, data))
    report.line({"table": table(found, shape.flops([len(row) for row in data]) / tokens)})
    return 1 if failed else 0


def spread(layers: int) -> tuple[int, ...]:
    """Early, middle, late and the last: what speculators takes by itself."""
    return tuple(sorted({min(2, layers - 1), layers // 2, max(0, layers - 3), layers - 1}))


def measure(asked: argparse.Namespace, spec: Spec) -> dict[str, Any]:
    """One side's rounds, or why there are none."""
    log = asked.out / f"{spec.side}.log"
    began = time.monotonic()
    told: dict[str, Any] = {"rounds": []}
    running = Running(asked.python, spec, log, {})
    try:
        told["about"] = running.ready(asked.limit)
        told["load"] = round(time.monotonic() - began, 1)
        if not asked.no_warm_up and spec.side not in _LIMITS:
            told["warm-up"] = running.round(asked.limit)
        for _ in range(asked.rounds):
            told["rounds"].append(running.round(asked.limit))
    except (SideFailed, OSError) as error:
        told["failed"] = str(error)
    finally:
        running.end()
    told["took"] = round(time.monotonic() - began, 1)
    return told


def table(found: dict[str, list[dict[str, Any]]], flops: float) -> dict[str, Any]:
    """Medians of each side: tokens a second, of plain, of the disk, and of the device's rate.

    ``flops``: floating-point operations of a token.
    """
    rate = _median([r["extra"]["flops"] for r in found.get("matmul", [])])
    disk = _median([r["bytes"] / r["durable"] for r in found.get("disk", [])])
    plain = _median([r["tokens"] / r["seconds"] for r in found.get("plain", [])])
    made: dict[str, Any] = {"matmul TFLOP/s": _scaled(rate, 1e12), "disk MB/s": _scaled(disk, 1e6)}
    for side, rounds in found.items():
        if side in _LIMITS or not rounds:
            continue
        speed = _median([r["tokens"] / r["seconds"] for r in rounds])
        line = {
            "tok/s": round(speed or 0, 1),
            "of plain": _ratio(speed, plain),
            "MFU": _ratio(_median([flops * r["tokens"] / r["seconds"] for r in rounds]), rate),
        }
        if any(r["opening"] for r in rounds):
            steady = _median([r["tokens"] / (r["seconds"] - r["opening"]) for r in rounds])
            line["of plain, once open"] = _ratio(steady, plain)
        if rounds[0]["durable"]:
            durable = _median([r["tokens"] / r["durable"] for r in rounds])
            written = _median([r["bytes"] / r["durable"] for r in rounds])
            line |= {
                "durable tok/s": round(durable or 0, 1),
                "durable of plain": _ratio(durable, plain),
                "durable MB/s": _scaled(written, 1e6),
                "of the disk": _ratio(written, disk),
            }
        extra = rounds[-1]["extra"]
        if extra.get("device, nothing kept"):
            held = extra["device"]["peak"] - extra["device, nothing kept"]
            line["device memory, in steps' states"] = _ratio(held, extra["step_states"])
        resident = extra.get("resident")
        if resident:
            line["resident, end over a tenth"] = _ratio(resident["end"], resident["after a tenth"])
        made[side] = line
    return made


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _ratio(value: float | None, of: float | None) -> float | None:
    return round(value / of, 3) if value is not None and of else None


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else round(value / unit, 1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a side does not outlive this
    sys.exit(main())
