"""``worker dry``: make the run's engine up to the point where it would start its workers.

The profile is read on stdin; FILE holds an ``EngineReport``, written anew before each step, so
that a process which dies leaves how far it came.  No weights are read, no worker is started.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3_agent.enginereport import EngineReport, Step, Work
from eagle3_agent.protocol import ProtocolError, from_json
from eagle3_agent.protocol.values import Profile
from eagle3_agent.runs import write_value
from eagle3_agent.worker import failure
from eagle3_agent.worker.compat import probe

from . import construct, layout, resolve
from .overhear import Overheard


def main(argv: list[str]) -> int:
    """Returns 0 once the report is whole, whatever it says; 1 when it cannot be made."""
    parser = argparse.ArgumentParser(prog="eagle3_agent.worker dry")
    parser.add_argument("--report", type=Path, required=True)
    options = parser.parse_args(argv)
    try:
        profile = from_json(Profile, json.loads(sys.stdin.buffer.read())["profile"])
    except (ValueError, KeyError, TypeError, RecursionError, ProtocolError) as error:
        print(f"the profile could not be read: {error}", file=sys.stderr)
        return 1
    try:
        _Dry(options.report, profile).go()
    except OSError as error:
        print(f"{options.report} cannot be written: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


class _Dry:
    """The steps, and the report that says how far they came."""

    def __init__(self, path: Path, profile: Profile) -> None:
        self._path, self._profile = path, profile
        self._heard = Overheard()
        self._report = EngineReport(engine=profile.engine.name, versions=probe.installed_versions())

    def go(self) -> None:
        """Raises OSError when the report cannot be written, and nothing else."""
        with self._heard:
            self._go()
        self._write(step="done")

    def _go(self) -> None:
        if not self._step("import", construct.import_libraries):
            return
        config = self._step("config", self._configured)
        if config is None:
            return
        found = self._step("layout", layout.capture, config, self._profile, self._report.versions)
        if found:
            self._report = replace(self._report, capture=found)

    def _configured(self) -> Any:
        config, executor = construct.make(self._profile)
        self._report = replace(self._report, resolved=resolve.facts(config, executor))
        return config

    def _step(self, step: Work, work: Callable[..., Any], *arguments: Any) -> Any:
        """What ``work`` returns; None where it raised, which the report then says."""
        self._write(step=step)
        began = time.monotonic()
        try:
            return work(*arguments)
        except BaseException as error:  # SystemExit too: a library that exits is the finding
            self._report = replace(self._report, error=failure.describe(error), failed=step)
            return None
        finally:
            seconds = dict(self._report.seconds)
            seconds[step] = round(time.monotonic() - began, 2)
            self._report = replace(self._report, seconds=seconds)

    def _write(self, step: Step) -> None:
        self._report = replace(
            self._report,
            step=step,
            warnings=tuple(self._heard.lines),
            dropped=self._heard.dropped,
            cuda_touched=_cuda_touched(),
            memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        )
        write_value(self._path, self._report, durable=False)


def _cuda_touched() -> bool | None:
    torch = sys.modules.get("torch")
    try:
        return None if torch is None else bool(torch.cuda.is_initialized())
    except Exception:  # a torch that is half imported
        return None
