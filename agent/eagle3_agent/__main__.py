"""The agent's command line.  The console calls it over ssh; people seldom do.

attach                       join stdin and stdout to the daemon, started if there is none
serve                        be the daemon
supervise RUNFOLDER          guard one run
sample --interval S          HostSample lines to stdout
preflight                    a profile on stdin, the outcome on stdout
version
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit status."""
    options = _parser().parse_args(argv)
    try:
        sys.exit(options.call(options))
    except KeyboardInterrupt:
        sys.exit(130)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eagle3_agent", description="eagle3-console's agent")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("attach").set_defaults(call=_attach)
    serve = commands.add_parser("serve")
    serve.add_argument("--detach", action="store_true", help="leave the caller's session")
    serve.add_argument("--ready-fd", type=int, help="where to write `ready`, `held` or an error")
    serve.add_argument("--idle", type=float, help="seconds of disuse after which it leaves")
    serve.set_defaults(call=_serve)
    commands.add_parser("version").set_defaults(call=_version)
    return parser


def _attach(options: argparse.Namespace) -> int:
    from . import attach

    status = attach.main()
    # a thread may still wait for input that never comes: leave without it
    sys.stdout.flush()
    os._exit(status)


def _serve(options: argparse.Namespace) -> int:
    from .server import daemon

    def say(word: str) -> None:
        if options.ready_fd is not None:
            os.write(options.ready_fd, word.replace("\n", " ").encode("utf-8", "replace") + b"\n")
            os.close(options.ready_fd)
        elif word != "ready":
            print(f"eagle3_agent serve: {word}", file=sys.stderr)

    try:
        if options.detach:
            daemon.detach()
        daemon.serve(lambda: say("ready"), options.idle or daemon.IDLE)
    except daemon.Held:
        say("held")
        return 1
    except OSError as error:
        say(str(error))
        return 1
    return 0


def _version(options: argparse.Namespace) -> int:
    from . import archive
    from .protocol import VERSION

    print(f"eagle3-agent {archive.name()} wire {VERSION} python {sys.version.split()[0]}")
    return 0


if __name__ == "__main__":
    main()
