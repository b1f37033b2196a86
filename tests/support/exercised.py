"""An exercise of the deep preflight on this machine's CPU: ``python -m support.exercised NAME``.

The keeper, its commands, the worker's code and the reading of its reports are the real ones; only
the look at the GPUs is replaced by what a host with as many of them would show, and the devices
by the CPU with gloo.  A process of its own, since a keeper ends all that is below it.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from eagle3_agent.preflight.check import Ask
from eagle3_agent.preflight.deep import aim, keeper, steps
from eagle3_agent.preflight.deep.aim import Aim
from eagle3_agent.protocol import dumps, from_json
from eagle3_agent.protocol.values import Gpu, Profile

from . import vllm_env

T = TypeVar("T")

#: What a test asks of the worker beside what the exercise does: the CPU is slow.
SMALL: dict[str, dict[str, Any]] = {
    "compute": {"bytes": 64 << 20, "size": 256},
    "peers": {"bytes": 1 << 20},
    "allreduce": {"sizes": [4096, 1 << 20]},
}


def exercised(
    name: str,
    facts: type[T],
    profile: Profile,
    *,
    gpus: int,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
) -> T:
    """What ``deep.NAME.perform`` finds with ``gpus`` of the run's ranks on the CPU.

    ``changes``: a command's name -> what is asked of it otherwise.  Raises RuntimeError with why
    the exercise was stopped.
    """
    request = {"profile": profile, "gpus": gpus, "changes": dict(changes or {})}
    done = subprocess.run(
        [sys.executable, "-m", "support.exercised", name],
        input=dumps(request).encode(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(_paths())},
        stdout=subprocess.PIPE,
        timeout=200,
        check=True,
    )
    body = json.loads(done.stdout)
    if "failed" in body:
        raise RuntimeError(body["failed"])
    return from_json(facts, body["facts"])


def _paths() -> list[str]:
    return [str(vllm_env.AGENT), str(vllm_env.ROOT / "console"), str(vllm_env.ROOT / "tests")]


def _gpu(index: int) -> Gpu:
    return Gpu(index, uuid=f"GPU-{index}", name="stand-in", memory_used=0, memory_total=1 << 34)


def main(name: str) -> None:
    body = json.loads(sys.stdin.buffer.read())
    profile = from_json(Profile, body["profile"])
    gpus = tuple(_gpu(i) for i in range(body["gpus"]))
    stand_in = Aim("vllm", profile.model.tensor_parallel_size, gpus)
    aim.take = lambda ask: stand_in
    steps.exercise = _on_the_cpu(steps.exercise, body["changes"])
    exercise = importlib.import_module(f"eagle3_agent.preflight.deep.{name}")
    try:
        with keeper.Keeper() as kept:
            answer = {"facts": exercise.perform(kept, Ask(profile, deep=True))}
    except keeper.Stopped as stopped:
        answer = {"failed": str(stopped)}
    print(dumps(answer))


def _on_the_cpu(
    real: Callable[..., keeper.Command], changes: Mapping[str, Mapping[str, Any]]
) -> Callable[..., keeper.Command]:
    def made(
        kept: keeper.Keeper,
        profile: Profile,
        kind: str,
        name: str,
        asked: Mapping[str, Any],
        env: Mapping[str, str],
        timeout: float,
    ) -> keeper.Command:
        change = dict(changes.get(name, {}))
        patience = float(change.pop("timeout", timeout))
        program = change.pop("program", None)
        wanted = {**asked, "device": "cpu", **SMALL[kind], **change}
        command = real(kept, profile, kind, name, wanted, env, patience)
        if program is not None:  # another one in the worker's place, for what a GPU does then
            report = str(steps.report_of(kept, name))
            argv = [sys.executable, "-c", program, report]
            command = replace(command, argv=argv)
        return command

    return made


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """Exercises have a folder for temporary files meanwhile; fails where one is left there.

    A short path: vLLM makes sockets in it.
    """
    with tempfile.TemporaryDirectory(prefix="e3-") as temporary:
        with pytest.MonkeyPatch.context() as changed:
            changed.setenv("TMPDIR", temporary)
            yield
        assert os.listdir(temporary) == []


if __name__ == "__main__":
    main(sys.argv[1])
