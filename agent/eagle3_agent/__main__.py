"""The agent's command line.  The console calls it over ssh; people seldom do.

attach [--running]           join stdin and stdout to the daemon, started if there is none
serve                        be the daemon
supervise RUNFOLDER          guard one run
sample --interval S          HostSample lines to stdout
preflight                    a profile on stdin, the outcome on stdout
act                          an action that a check offers on stdin, what was done on stdout
version
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit status."""
    from . import paths

    options = _parser().parse_args(argv)
    paths.settle()
    try:
        sys.exit(options.call(options))
    except KeyboardInterrupt:
        sys.exit(130)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eagle3_agent", description="eagle3-console's agent")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    attach = commands.add_parser("attach")
    attach.add_argument("--running", action="store_true", help="start none: say `absent` instead")
    attach.set_defaults(call=_attach)
    serve = commands.add_parser("serve")
    serve.add_argument("--detach", action="store_true", help="leave the caller's session")
    serve.add_argument("--ready-fd", type=int, help="where to write `ready`, `held` or an error")
    serve.add_argument("--idle", type=float, help="seconds of disuse after which it leaves")
    serve.add_argument("--silence", type=float, help="seconds after which telemetry hangs")
    serve.set_defaults(call=_serve)
    supervise = commands.add_parser("supervise")
    supervise.add_argument("folder", metavar="RUNFOLDER")
    supervise.set_defaults(call=_supervise)
    sample = commands.add_parser("sample")
    sample.add_argument("--interval", type=float, default=1.0, help="seconds between two lines")
    sample.add_argument("--count", type=int, help="lines to print; without end if not given")
    sample.add_argument("--parent", type=int, help="pid of the caller, whose end ends it")
    sample.set_defaults(call=_sample)
    commands.add_parser("preflight").set_defaults(call=_preflight)
    commands.add_parser("act").set_defaults(call=_act)
    commands.add_parser("version").set_defaults(call=_version)
    return parser


def _attach(options: argparse.Namespace) -> int:
    from . import attach

    status = attach.main(start=not options.running)
    # a thread may still wait for input that never comes: leave without it
    sys.stdout.flush()
    os._exit(status)


def _serve(options: argparse.Namespace) -> int:
    from .server import daemon, host_feed

    def say(word: str) -> None:
        if options.ready_fd is not None:
            os.write(options.ready_fd, word.replace("\n", " ").encode("utf-8", "replace") + b"\n")
            os.close(options.ready_fd)
        elif word != "ready":
            print(f"eagle3_agent serve: {word}", file=sys.stderr)

    try:
        if options.detach:
            daemon.detach()
        idle, silence = options.idle or daemon.IDLE, options.silence or host_feed.SILENCE
        daemon.serve(lambda: say("ready"), idle, silence)
    except daemon.Held:
        say("held")
        return 1
    except OSError as error:
        say(str(error))
        return 1
    return 0


def _supervise(options: argparse.Namespace) -> int:
    from . import supervisor

    return supervisor.main(options.folder)


def _sample(options: argparse.Namespace) -> int:
    from . import telemetry

    try:
        parent = options.parent or os.getppid()
        telemetry.run(max(0.05, options.interval), options.count, parent)
    except BrokenPipeError:
        pass  # nobody reads any more
    return 0


def _preflight(options: argparse.Namespace) -> int:
    from .preflight import command

    return command.main(sys.stdin.buffer, sys.stdout.buffer)


def _act(options: argparse.Namespace) -> int:
    from .preflight.actions import perform

    return perform.main(sys.stdin.buffer, sys.stdout.buffer)


def _version(options: argparse.Namespace) -> int:
    from . import archive
    from .protocol import VERSION

    print(f"eagle3-agent {archive.name()} wire {VERSION} python {sys.version.split()[0]}")
    return 0


if __name__ == "__main__":
    main()
