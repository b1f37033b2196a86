"""The worker's command line, as the supervisor and the agent start it.

    run RUNFOLDER                                   one run
    verify RUNFOLDER --samples N --report FILE      recompute samples; writes a VerifyReport
        [--seed S] [--dtype auto|float32|checkpoint]
    probe --report FILE                             what this interpreter holds; profile on stdin
    dry --report FILE                               the engine made without weights; likewise
    exercise NAME --report FILE                     a deep preflight's exercise; asked on stdin

Exit status: 0 it came to its end, 1 it failed (a Failure event, or the text on
stderr, says why), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from pathlib import Path


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    faulthandler.enable()  # a crash in a library's C code says where
    # a model is a local folder: nothing may reach for a hub
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if argv[:1] == ["probe"]:
        from .compat import probe

        return probe.main(argv[1:])
    if argv[:1] == ["dry"]:
        from .dry import command

        return command.main(argv[1:])
    if argv[:1] == ["exercise"]:
        from .exercise.command import main as exercise

        return exercise(argv[1:])
    options = _parser().parse_args(argv)
    if options.command == "run":
        from . import run

        return run.main(options.folder)
    from . import verify

    asked = verify.Asked(options.samples, options.seed, options.dtype)
    return verify.main(options.folder, asked, options.report)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eagle3_agent.worker")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("folder", type=Path)
    verify = commands.add_parser("verify")
    verify.add_argument("folder", type=Path)
    verify.add_argument("--samples", type=int, default=3)
    verify.add_argument("--seed", type=int)
    verify.add_argument("--dtype", choices=("auto", "float32", "checkpoint"), default="auto")
    verify.add_argument("--report", type=Path, required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
