"""Join standard input and output to the daemon's socket; start the daemon when there is none.

Imports little: it runs at every connect.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import subprocess
import sys
import threading
import time

from . import archive, paths, runs
from .protocol import MAGIC, ProtocolError, decode_message, dumps, encode
from .protocol.messages import Done, Ping, Pong, StopAgent
from .protocol.values import Problem
from .server.lease import Lease, lease_path, lock_path, log_path

#: Seconds to wait for a daemon to serve, in all, and for one that is there to answer.
PATIENCE = 20.0
_ANSWER = 8.0

_BUFFER = 64 * 1024


class Unavailable(Exception):
    """No daemon, and none could be started."""

    def __init__(self, happened: str, todo: str) -> None:
        super().__init__(happened)
        self.problem = Problem("The agent could not be started", happened, todo, "connect")


def main(*, start: bool = True) -> int:
    """Write the greeting, then carry bytes both ways until one side is done.  Exit status.

    Without ``start``, a daemon that does not run is told as ``absent`` and stays absent.
    """
    try:
        sock = join() if start else running()
    except Unavailable as error:
        _write(1, MAGIC + b" error " + dumps(error.problem).encode("ascii") + b"\n")
        return 1
    if sock is None:
        _write(1, MAGIC + b" absent\n")
        return 0
    if not _write(1, MAGIC + b" ready " + archive.name().encode("ascii") + b"\n"):
        return 1
    pump(sock)
    return 0


def join() -> socket.socket:
    """A connection to the daemon, which is started, or replaced when old and idle.

    Raises Unavailable.
    """
    deadline = time.monotonic() + PATIENCE
    asked = False
    try:
        paths.private_dir(paths.agent_dir())
        paths.private_dir(paths.socket_path().parent)
        while True:
            sock = _connect()
            if sock is not None and not _answers(sock):
                sock.close()  # it was just ending
                sock = None
            if sock is not None:
                if asked or _current():
                    return sock
                sock.close()  # or this process would be the client that keeps the daemon
                _retire(deadline)
                asked = True
            elif time.monotonic() > deadline:
                raise Unavailable(
                    f"it did not open {paths.socket_path()} within {PATIENCE:.0f} s",
                    f"Read {log_path()} on the host.",
                )
            else:
                _start(deadline)
    except OSError as error:
        raise _no_place(str(error)) from None


def running() -> socket.socket | None:
    """A connection to the daemon that runs, from whichever archive; None where none runs.

    Raises Unavailable.
    """
    try:
        folder = paths.socket_path().parent
        if not os.path.lexists(folder):
            return None
        paths.private_dir(folder)
        sock = _connect()
        if sock is not None and not _answers(sock):
            sock.close()
            return None
        return sock
    except OSError as error:
        raise _no_place(str(error)) from None


def _no_place(happened: str) -> Unavailable:
    return Unavailable(
        happened,
        "The state folder must be writable and yours; EAGLE3_HOME names another place for it.",
    )


def _connect() -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(os.fspath(paths.socket_path()))
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()  # nothing there, or what a dead daemon left
        return None
    return sock


def _answers(sock: socket.socket) -> bool:
    """Whether somebody serves behind the socket; False when it closes instead.

    The kernel accepts connections for a process that is ending, or that is stopped.  Raises
    Unavailable for the latter.
    """
    line = b""
    try:
        sock.settimeout(_ANSWER)
        sock.sendall(encode(Ping(0)))
        while not line.endswith(b"\n"):
            # nothing follows the reply: no byte of a later line can be lost here
            data = sock.recv(_BUFFER)
            if not data:
                return False
            line += data
        sock.settimeout(None)
    except TimeoutError:
        lease = runs.read_optional(lease_path(), Lease)
        raise Unavailable(
            f"the daemon (pid {lease.pid if lease else 'unknown'}) does not answer",
            "It may be stopped, or wait for a file system: look at that process on the host.",
        ) from None
    except OSError:
        return False
    return line == encode(Pong(0))


def _current() -> bool:
    """Whether the daemon runs from this very archive (or nobody can say)."""
    lease = runs.read_optional(lease_path(), Lease)
    return lease is None or lease.archive == archive.name()


def _retire(deadline: float) -> None:
    """Ask a daemon of another archive to leave, which it does not while it is needed."""
    sock = _connect()
    if sock is None:
        return
    with sock, sock.makefile("rb") as lines:
        sock.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            sock.sendall(encode(StopAgent(1, only_idle=True)))
            reply = decode_message(lines.readline())
        except (OSError, ProtocolError):
            return
    if isinstance(reply, Done):
        _await_lock(deadline)


def _await_lock(deadline: float) -> None:
    """Wait until the daemon that is leaving has left."""
    fd = os.open(lock_path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.05)
    finally:
        os.close(fd)


def _start(deadline: float) -> None:
    """Spawn a daemon and wait until it serves or gives way to another; raises Unavailable."""
    reader, writer = os.pipe()
    # the daemon leaves this process's group and pipes: it must outlive the ssh channel
    child = subprocess.Popen(
        [*archive.command("serve"), "--detach", "--ready-fd", str(writer)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=(writer,),
        start_new_session=True,
    )
    os.close(writer)
    try:
        said = _read_line(reader, deadline)
    finally:
        os.close(reader)
    assert child.stderr is not None
    if said == b"":
        child.kill()
        complaint = child.stderr.read(4000).decode("utf-8", errors="replace").strip()
        child.wait()
        child.stderr.close()
        raise Unavailable(
            f"{sys.executable} ended before it served: {complaint[-600:] or 'it said nothing'}",
            f"Read {log_path()} on the host.",
        )
    child.stderr.close()
    child.wait()
    if said == b"held":
        time.sleep(0.05)  # another one is just starting, or leaving: the caller looks again
    elif said != b"ready":
        raise _no_place(said.decode("utf-8", errors="replace"))


def _read_line(fd: int, deadline: float) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            break
        more = os.read(fd, 4096)
        if not more:
            break
        data += more
    return data.strip()


def pump(sock: socket.socket) -> None:
    """Carry bytes until the daemon closes, or nobody reads the output any more.

    The end of the input closes only the sending half: replies still under way arrive.  Each
    direction holds one buffer, and waits while the other side does.
    """
    threading.Thread(target=_forward_input, args=(sock,), daemon=True).start()
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.register(1, 0)  # its reader's end is told unasked, and ends what the daemon does for it
    while True:
        try:
            if all(fd == 1 for fd, _ in poll.poll()):
                return
            data = sock.recv(_BUFFER)
        except OSError:
            return
        if not data or not _write(1, data):
            return


def _forward_input(sock: socket.socket) -> None:
    try:
        while True:
            data = os.read(0, _BUFFER)
            if not data:
                break
            sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the daemon is gone: the other direction sees it and ends the process


def _write(fd: int, data: bytes) -> bool:
    """Write all; False when nobody reads any more."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])
        except OSError:
            return False
    return True
