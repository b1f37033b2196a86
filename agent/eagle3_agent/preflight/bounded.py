"""Run a command that may hang, flood or leave children: bounded in time and in bytes."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: A probe's answer is larger than this only when something is wrong.
OUTPUT_LIMIT = 8 * 1024 * 1024
_STDERR_KEPT = 64 * 1024
#: Seconds between two looks at a child whose pipes are silent.
_GLANCE = 0.05
#: Seconds granted to a killed child; one in D state is left behind, not waited for.
_GRACE = 0.5


@dataclass(frozen=True)
class Answer:
    """How a bounded command ended."""

    status: int | None
    """Exit status, negative for a signal; None when it was killed for time or size."""
    stdout: bytes
    stderr: bytes
    """The last bytes of it."""
    cut: str = ""
    """Why it was killed: ``time`` or ``size``; empty when it ended by itself."""

    def last_words(self) -> str:
        """The last line of stderr that says something."""
        lines = self.stderr.decode("utf-8", "replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: str = "/",
    own_session: bool = True,
    limit: int = OUTPUT_LIMIT,
) -> Answer:
    """Run ``argv`` and return within ``timeout`` seconds and a short grace.

    With ``own_session`` everything that it left in its process group is killed as well, and, when
    it is cut, all below it in whatever session;
    without, it stays in the caller's group, for whoever bounds the caller to clean up.
    Raises OSError when the command cannot be started.
    """
    source = os.memfd_create("stdin", os.MFD_CLOEXEC)  # a file: writing it can never block
    try:
        os.write(source, stdin)
        os.lseek(source, 0, os.SEEK_SET)
        process = subprocess.Popen(
            list(argv),
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=own_session,
        )
    finally:
        os.close(source)
    return _watch(process, time.monotonic() + timeout, own_session, limit)


def _watch(process: subprocess.Popen[bytes], deadline: float, group: bool, limit: int) -> Answer:
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = bytearray(), bytearray()
    cut = ""
    with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
        for pipe, kept in ((process.stdout, out), (process.stderr, err)):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, kept)
        while not cut:
            left = deadline - time.monotonic()
            ended = _has_ended(process.pid)
            for key, _ in selector.select(0 if ended else max(0.0, min(left, _GLANCE))):
                _drain(key.fd, key.data, selector)
            del err[:-_STDERR_KEPT]
            if len(out) > limit:
                cut = "size"
            elif ended:
                break
            elif left <= 0:
                cut = "time"
        if cut and group:
            # not at the top: every probe would pay for it, and this is rare
            from eagle3_agent import ending

            ending.kill_tree(process.pid)  # also a session, which the group's end does not reach
        _kill(process, group)
    status = None if cut else process.returncode
    return Answer(status, bytes(out[:limit]), bytes(err), cut)


def _drain(fd: int, kept: bytearray, selector: selectors.BaseSelector) -> None:
    """Read what is there, up to a megabyte, so that one flood cannot starve the deadline."""
    for _ in range(16):
        try:
            data = os.read(fd, 64 * 1024)
        except BlockingIOError:
            return
        if not data:
            selector.unregister(fd)
            return
        kept += data


def _has_ended(pid: int) -> bool:
    """Without reaping: while the zombie stands, its process group's id cannot be reused."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _kill(process: subprocess.Popen[bytes], group: bool) -> None:
    try:
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        elif not _has_ended(process.pid):
            os.kill(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # gone already, or it changed its user: nothing more can be done from here
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        pass  # D state: the kernel will let it go when it can
