"""Runs on the host, as text after ``python -c``: receive the archive, then become the agent.

Arguments: folder, ``install`` or ``repair``, nonce, archive hash (first 16 hex digits of the
sha256 of the tar), bytes to read from standard input (the tar, zlib-compressed), and what
``attach`` is told besides.
Standard library only, Python 3.10 or newer.
"""

import errno
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
import zlib


def say(nonce: str, text: str) -> None:
    os.write(1, f"EAGLE3-{nonce} {text}\n".encode("utf-8", "surrogateescape"))


def receive(size: int) -> bytes:
    """Exactly ``size`` bytes of standard input, and not one more: the rest is the agent's."""
    parts = []
    while size:
        data = os.read(0, min(size, 1 << 16))
        if not data:
            raise EOFError("the connection ended in the middle of the archive")
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def write_file(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def unpack(tar: bytes, folder: str) -> None:
    """Plain files below ``folder``; anything else in the archive is an error."""
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
        for member in archive:
            parts = member.name.split("/")
            if not member.isfile() or ".." in parts or "" in parts:
                raise ValueError(f"the archive holds {member.name!r}, which is no plain file")
            path = os.path.join(folder, *parts)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            source = archive.extractfile(member)
            assert source is not None
            write_file(path, source.read())


def sync_folders(folder: str) -> None:
    for place, _, _ in os.walk(folder, topdown=False):
        fd = os.open(place, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def install(tar: bytes, target: str, archive: str, repair: bool) -> None:
    """Unpack beside ``target`` and rename: whoever is first wins, and both are right."""
    parent = os.path.dirname(target)
    os.makedirs(parent, mode=0o700, exist_ok=True)
    fresh = tempfile.mkdtemp(prefix=".new-", dir=parent)
    try:
        unpack(tar, fresh)
        write_file(os.path.join(fresh, "ARCHIVE"), archive.encode() + b"\n")
        sync_folders(fresh)
        if repair and os.path.lexists(target):
            # renamed into the fresh folder's name space: never deleted while it may be in use
            old = tempfile.mkdtemp(prefix=".old-", dir=parent)
            os.rename(target, os.path.join(old, "agent"))
            shutil.rmtree(old, ignore_errors=True)
        try:
            os.rename(fresh, target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            if os.stat(target).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "it belongs to another user", target) from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def keep_python(cache: str) -> None:
    """Note which Python this is, for a later contact that finds no other."""
    fresh = tempfile.mkdtemp(prefix=".new-", dir=cache)
    try:
        path = os.path.join(fresh, "agent.python")
        write_file(path, os.fsencode(sys.executable) + b"\n")
        os.rename(path, os.path.join(cache, "agent.python"))
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def main() -> None:
    folder, mode, nonce, archive, size = sys.argv[1:6]
    umask = os.umask(0o077)
    say(nonce, "send")
    try:
        tar = zlib.decompress(receive(int(size)))
        if hashlib.sha256(tar).hexdigest()[:16] != archive:
            raise ValueError("the archive arrived damaged: its checksum differs")
        install(tar, folder, archive, mode == "repair")
        keep_python(os.path.dirname(os.path.dirname(folder)))
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else folder
        fault = {"errno": error.errno, "text": error.strerror or str(error), "path": place}
        say(nonce, "error=" + json.dumps(fault))
        sys.exit(6)
    except (EOFError, ValueError, zlib.error, tarfile.TarError) as error:
        say(nonce, "error=" + json.dumps({"errno": None, "text": str(error), "path": folder}))
        sys.exit(6)
    os.umask(umask)
    # no shell and no data but our own argument: this process is to be the agent
    os.execv(sys.executable, [sys.executable, "-E", "-s", folder, "attach", *sys.argv[6:]])  # noqa: S606


if __name__ == "__main__":
    main()
