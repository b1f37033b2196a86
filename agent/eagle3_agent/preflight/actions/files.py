"""Removes a stale lock or renames what is in the way: no link is followed, nothing is replaced."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator

from eagle3_agent.preflight.running import lock_facts
from eagle3_agent.preflight.text import show
from eagle3_agent.protocol.values import Action

from .refused import look_again

_RENAME_NOREPLACE = 1  # renameat2(2)


def remove_lock(action: Action) -> tuple[str, ...]:
    """Unlink the lock if it is still the file that was shown and nobody uses it; else NotTaken."""
    with _folder_of(action.path) as (folder, name):
        info = _expect(folder, name, action)
        if not stat.S_ISREG(info.st_mode):
            raise look_again("The lock is not removed", f"{show(action.path)} is no plain file")
        holder = lock_facts.opener(info.st_dev, info.st_ino)
        if holder:
            raise look_again("The lock is in use", f"pid {holder} has {show(action.path)} open")
        _refuse_locked(folder, name, action)
        _expect(folder, name, action)
        try:
            os.unlink(name, dir_fd=folder)
        except OSError as error:
            raise look_again("It is not removed", f"{show(action.path)}: {_words(error)}") from None
        _sync(folder)
    age = time.time() - info.st_mtime
    return (f"removed {show(action.path, 400)}, which was {age / 3600:.1f} h old",)


def move_aside(action: Action) -> tuple[str, ...]:
    """Rename it if it is still what was shown and the new name is free; else NotTaken."""
    target = os.path.basename(action.aside)
    if os.path.dirname(action.aside) != os.path.dirname(action.path) or "/" in target or not target:
        raise look_again("It is not moved", "the new name is in another folder")
    with _folder_of(action.path) as (folder, name):
        info = _expect(folder, name, action)
        if not stat.S_ISDIR(info.st_mode) and not stat.S_ISREG(info.st_mode):
            raise look_again("It is not moved", f"{show(action.path)} is no folder and no file")
        try:
            _rename(folder, name, target, stat.S_ISDIR(info.st_mode))
        except FileExistsError:
            raise look_again("It is not moved", f"{show(action.aside)} is there already") from None
        except OSError as error:
            raise look_again("It is not moved", f"{show(action.path)}: {_words(error)}") from None
        _sync(folder)
        moved = os.stat(target, dir_fd=folder, follow_symlinks=False)
    if (moved.st_dev, moved.st_ino) != (action.device, action.inode):
        # swapped between the last look and the rename: say so, it is whole under its new name
        return (f"what was moved to {show(action.aside, 400)} is not what was shown",)
    return (f"moved {show(action.path, 400)}", f"to {show(action.aside, 400)}")


@contextlib.contextmanager
def _folder_of(path: str) -> Iterator[tuple[int, str]]:
    """The folder that holds ``path``, and the last name."""
    parts = path.split("/")
    names, name = [p for p in parts[1:-1] if p], parts[-1]
    if not path.startswith("/") or name in ("", ".", "..") or {".", ".."} & set(names):
        raise look_again("The path is not taken", f"{show(path)} is no plain absolute path")
    try:
        fd = _open(names)
    except OSError as error:
        link = error.errno in (errno.ELOOP, errno.ENOTDIR)
        words = "a link or a file stands in its way" if link else _words(error)
        raise look_again("Nothing is touched there", f"{show(path)}: {words}") from None
    try:
        yield fd, name
    finally:
        os.close(fd)


def _open(names: list[str]) -> int:
    """The folder below /, opened name by name without following a link; raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open("/", flags)
    for part in names:
        try:
            below = os.open(part, flags, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _sync(folder: int) -> None:
    """Let it survive a power cut, where the mount can do that; it is done either way."""
    with contextlib.suppress(OSError):
        os.fsync(folder)


def _words(error: OSError) -> str:
    return error.strerror or str(error)


def _expect(folder: int, name: str, action: Action) -> os.stat_result:
    """What stands there now, if it is what was shown."""
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        raise look_again("It is gone", f"{show(action.path)} is not there any more") from None
    except OSError as error:
        raise look_again("It cannot be read", f"{show(action.path)}: {_words(error)}") from None
    if stat.S_ISLNK(info.st_mode):
        raise look_again("It is a link now", f"{show(action.path)} was none when it was shown")
    if (info.st_dev, info.st_ino) != (action.device, action.inode):
        raise look_again("It is another one now", f"{show(action.path)} was made anew meanwhile")
    return info


def _refuse_locked(folder: int, name: str, action: Action) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=folder)
    except OSError:
        return  # made without a mode, as torch's may be: who made it would have it open
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise look_again("The lock is in use", f"{show(action.path)} is locked") from None
    except OSError:
        pass  # a mount without flock: nobody can hold one there
    finally:
        os.close(fd)


def _rename(folder: int, name: str, target: str, is_folder: bool) -> None:
    """Raises FileExistsError rather than replace anything."""
    libc = ctypes.CDLL(None, use_errno=True)
    renameat2 = getattr(libc, "renameat2", None)
    if renameat2 is not None:
        old, new = os.fsencode(name), os.fsencode(target)
        if renameat2(folder, old, folder, new, ctypes.c_uint(_RENAME_NOREPLACE)) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EINVAL):
            raise OSError(number, os.strerror(number), name)
    # a libc, kernel or mount (NFS) without it
    if not is_folder:
        os.link(name, target, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        os.unlink(name, dir_fd=folder)
        return
    if _is_there(folder, target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    # of what could appear meanwhile, rename replaces an empty folder alone
    os.rename(name, target, src_dir_fd=folder, dst_dir_fd=folder)


def _is_there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
