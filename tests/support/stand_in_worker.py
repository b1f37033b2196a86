"""Speaks the worker's part without torch: run by the ``python`` that ``support.daemon`` makes.

Called as ``python -m eagle3_agent.worker run RUNFOLDER`` (or ``probe``,
``verify``); the profile's environment variable TEST_WORKER names what it does.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

SAMPLES = 3


def say(folder: Path, kind: str, **fields: Any) -> None:
    line = json.dumps({"type": kind, "t": time.time(), **fields}).encode() + b"\n"
    with open(folder / "events.jsonl", "ab", buffering=0) as file:
        file.write(line)


def stage(folder: Path, name: str, status: str) -> None:
    say(folder, "Stage", name=name, status=status)


def progress(folder: Path, done: int, skipped: int = 0) -> None:
    say(
        folder,
        "Progress",
        done=done,
        total=SAMPLES,
        skipped=skipped,
        tokens=100 * done,
        bytes=1000 * done,
        tokens_per_second=50.0,
        window=2.0,
        eta=0.0,
    )


def load(folder: Path) -> None:
    stage(folder, "load", "start")
    for done in (0, 1, 2):
        bar = f"Loading safetensors checkpoint shards: {50 * done:3d}% Completed | {done}/2 [00:00"
        os.write(1, f"\r(EngineCore_DP0 pid=7) {bar}<00:00,  2.31it/s]".encode())
    os.write(1, b"\nnot utf-8: \xff\xfe, an escape: \x1b[31mred\n")
    stage(folder, "load", "done")
    stage(folder, "extract", "start")
    say(folder, "Plan", total=SAMPLES, tokens=100 * SAMPLES, bytes=1000 * SAMPLES)


def write_samples(folder: Path, count: int) -> None:
    record = json.loads((folder / "run.json").read_bytes())
    output = Path(record["profile"]["output"]["dir"])
    output.mkdir(parents=True, exist_ok=True)
    (output / "eagle3.json").write_text(json.dumps({"format": 1, "run": record["run"]}))
    with open(output / "manifest.jsonl", "a") as manifest:
        for index in range(count):
            data = os.urandom(1000)
            (output / f"data_{index}.pt").write_bytes(data)
            digest = hashlib.sha256(data).hexdigest()
            line = {"index": index, "file": f"data_{index}.pt", "bytes": 1000, "sha256": digest}
            manifest.write(json.dumps(line) + "\n")
    (output / ".data_7.pt.123.partial").write_bytes(b"half")


def complete(folder: Path, skipped: int = 0) -> None:
    write_samples(folder, SAMPLES - skipped)
    progress(folder, SAMPLES - skipped, skipped)
    stage(folder, "extract", "done")
    stage(folder, "done", "start")
    stage(folder, "done", "done")


def hold(folder: Path) -> None:
    """Go on until the file ``go`` appears in the run's folder."""
    progress(folder, 1)
    while not (folder / "go").exists():
        time.sleep(0.02)


def child_that_stays(folder: Path, name: str) -> None:
    """A grandchild in its own session that ignores all it can; its pid goes to file ``name``."""
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    (folder / f"{name}.new").write_text(str(os.getpid()))
    os.rename(folder / f"{name}.new", folder / name)
    while True:
        time.sleep(60)


def fail(folder: Path) -> None:
    error = {
        "type": "KeyError",
        "message": "",
        "rank": 3,
        "where": {"file": "/x/worker.py", "line": 12, "function": "f", "source": "a[b]"},
        "traceback": "Traceback (most recent call last):\n  ...\nKeyError",
    }
    say(folder, "Failure", error=error)
    stage(folder, "extract", "failed")
    sys.exit(1)


def run(folder: Path, scenario: str) -> None:
    load(folder)
    if scenario == "incomplete":
        say(folder, "Skipped", index=2, reason="empty")
        complete(folder, skipped=1)
    elif scenario == "failed":
        fail(folder)
    elif scenario == "crashed":
        raise RuntimeError("CUDA driver version is insufficient")
    elif scenario == "silent":
        pass
    elif scenario == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif scenario == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif scenario == "hold":
        hold(folder)
        complete(folder)
    elif scenario == "family":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        child_that_stays(folder, "stays-1")
        child_that_stays(folder, "stays-2")
        hold(folder)
    elif scenario == "leaver":
        child_that_stays(folder, "stays-1")
        complete(folder)
    elif scenario == "chatty":
        line = bytes(range(256)) * 64
        for _ in range(256):  # 4 MiB
            os.write(1, line)
        hold(folder)
        complete(folder)
    else:
        complete(folder)


def report(file: str, body: dict[str, Any]) -> None:
    Path(file).write_text(json.dumps(body))


def main(arguments: list[str]) -> None:
    scenario = os.environ.get("TEST_WORKER", "completed")
    if arguments[:2] == ["-c", "pass"]:
        return
    command, *rest = arguments[2:]  # after -m eagle3_agent.worker
    if command == "run":
        run(Path(rest[0]), scenario)
    elif scenario == "endless":
        Path(os.environ["TEST_PID_FILE"]).write_text(str(os.getpid()))
        time.sleep(600)
    elif scenario == "no-report":
        sys.exit("ImportError: libcudart.so.12")
    elif command == "probe":
        json.load(sys.stdin)
        finding = {
            "patch": "speculators/reply-shape",
            "title": "the reply's shape",
            "status": "needed",
            "evidence": "signature",
        }
        probed = {
            "versions": {"vllm": "0.16.0", "speculators": "0.3.0"},
            "python": "3.11.7",
            "findings": [finding],
        }
        report(rest[1], {**probed, "problems": ["torch: no such module"], "torch": {"gpus": 0}})
    elif command == "verify":
        count = int(rest[rest.index("--samples") + 1])
        check = {"ok": True, "tokens": 5, "worst_relative_error": 1e-6}
        body = {
            "ok": True,
            "checked": [{"index": i, **check} for i in range(count)],
            "files": count,
            "bad_files": [],
            "tolerance": 1e-5,
            "dtype": "float32",
            "seconds": 0.1,
            "seed": int(rest[rest.index("--seed") + 1]) if "--seed" in rest else None,
            "reference_dtype": rest[rest.index("--dtype") + 1],
        }
        report(rest[rest.index("--report") + 1], body)


if __name__ == "__main__":
    main(sys.argv[1:])
