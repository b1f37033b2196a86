"""Bringing a small agent to hosts as they are in the wild, over a real sshd."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3_console import deploy
from eagle3_console.errors import ConsoleError, ExitCode
from eagle3_console.link import Link
from eagle3_console.linkstate import Live
from support.bare_host import in_own_mounts, login_shell, script, tools, without_python
from support.links import fake_archive
from support.sshd import Sshd

from .conftest import User

Make = Callable[..., Sshd]


def ready(server: Sshd, user: User) -> Sshd:
    server.start()
    server.authorize(user.key)
    user.known_hosts.write_text(server.known_line())
    return server


async def connect(server: Sshd, user: User) -> Link:
    """Connect and check that the agent answers; the link is closed again."""
    link = Link(user.host(server), archive=fake_archive())
    try:
        await link.connect()
        assert isinstance(link.state, Live)
    finally:
        await link.close()
    return link


async def fails(server: Sshd, user: User) -> ConsoleError:
    link = Link(user.host(server), archive=fake_archive())
    try:
        with pytest.raises(ConsoleError) as caught:
            await link.connect()
    finally:
        await link.close()
    problem = caught.value.problem
    assert caught.value.exit_code is ExitCode.CONNECT
    for text in (problem.title, problem.happened, problem.todo):
        assert text
        assert text.isprintable()
        assert "Traceback" not in text
    return caught.value


async def test_two_execs_then_one(server: Sshd, user: User) -> None:
    await connect(server, user)
    assert server.execs() == 2
    await connect(server, user)
    assert server.execs() == 3
    folder = server.home / "e3" / "cache" / "agent" / fake_archive().name
    assert (folder / "ARCHIVE").read_text() == fake_archive().name + "\n"
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0 or "__pycache__" in path.parts


async def test_one_session_at_a_time_is_enough(make: Make, user: User) -> None:
    server = ready(make("host", "MaxSessions 1", "AllowTcpForwarding no"), user)
    await connect(server, user)


async def test_two_consoles_at_once(server: Sshd, user: User) -> None:
    await asyncio.gather(*(connect(server, user) for _ in range(4)))
    parent = server.home / "e3" / "cache" / "agent"
    assert [entry.name for entry in parent.iterdir()] == [fake_archive().name]


async def test_home_decides_where_nothing_else_does(make: Make, user: User) -> None:
    server = make("host", EAGLE3_HOME="")
    ready(server, user)
    await connect(server, user)
    assert (server.home / ".cache" / "eagle3" / "agent" / fake_archive().name).is_dir()


async def test_xdg_cache_home(make: Make, user: User, tmp_path: Path) -> None:
    server = ready(make("host", EAGLE3_HOME="", XDG_CACHE_HOME=str(tmp_path / "xdg")), user)
    await connect(server, user)
    assert (tmp_path / "xdg" / "eagle3" / "agent" / fake_archive().name).is_dir()


async def test_a_folder_with_every_odd_sign(make: Make, user: User, tmp_path: Path) -> None:
    server = make("host", EAGLE3_HOME="")
    odd = tmp_path / "a b'c$(touch pwned)`id`;é"
    server.options = (
        login_shell(
            server,
            f"EAGLE3_HOME={shlex.quote(str(odd))}; export EAGLE3_HOME\n"
            'exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n',
        ),
    )
    ready(server, user)
    await connect(server, user)
    assert (odd / "cache" / "agent" / fake_archive().name).is_dir()


async def test_no_python(make: Make, user: User, tmp_path: Path) -> None:
    server = make()
    server.options = (without_python(server, tools(tmp_path / "bin")),)
    ready(server, user)
    problem = (await fails(server, user)).problem
    assert "There is no Python" in problem.title
    assert "3.10" in problem.todo


async def test_a_python_that_is_too_old(make: Make, user: User, tmp_path: Path) -> None:
    server = make()
    path = tools(tmp_path / "bin")
    old = script(path / "python3", "echo EAGLE3 3.8.10\n")
    server.options = (without_python(server, path),)
    ready(server, user)
    problem = (await fails(server, user)).problem
    assert "too old" in problem.title
    assert f"3.8.10 is {old}" in problem.happened


async def test_a_python_that_does_not_work(make: Make, user: User, tmp_path: Path) -> None:
    server = make()
    path = tools(tmp_path / "bin")
    broken = script(path / "python3", "echo EAGLE3 3.11.2; exit 1\n")
    server.options = (without_python(server, path),)
    ready(server, user)
    problem = (await fails(server, user)).problem
    assert "does not work" in problem.title
    assert str(broken) in problem.happened


async def test_the_named_python_comes_first(make: Make, user: User, tmp_path: Path) -> None:
    server = make()
    path = tools(tmp_path / "bin")
    server.options = (without_python(server, path),)
    ready(server, user)
    named = tmp_path / "my python"
    named.symlink_to(Path(sys.executable).resolve())
    host = user.host(server)
    host.python = str(named)
    link = Link(host, archive=fake_archive())
    await link.connect()
    await link.close()


async def test_a_file_where_the_folder_should_be(make: Make, user: User) -> None:
    server = ready(make(), user)
    (server.home / "e3").write_text("in the way")
    problem = (await fails(server, user)).problem
    assert "cannot be put on" in problem.title
    assert str(server.home / "e3") in problem.happened
    assert "EAGLE3_HOME" in problem.todo


async def test_an_agent_that_somebody_else_left_there(server: Sshd, user: User) -> None:
    await connect(server, user)
    folder = server.home / "e3" / "cache" / "agent" / fake_archive().name
    os.chown(folder, 4711, 4711)
    problem = (await fails(server, user)).problem
    assert "is not yours" in problem.title
    assert str(folder) in problem.happened
    # without its mark it looks as if it were not there, and cannot be put there either
    (folder / "ARCHIVE").unlink()
    assert "belongs to another user" in (await fails(server, user)).problem.happened


async def test_a_home_that_is_mounted_read_only(make: Make, user: User) -> None:
    in_own_mounts()
    server = make()
    server.options = (
        login_shell(
            server,
            f"exec unshare -m sh -c 'mount --bind {server.home} {server.home} && "
            f'mount -o remount,ro,bind {server.home} && exec /bin/sh -c "$0"\' '
            '"$SSH_ORIGINAL_COMMAND"\n',
        ),
    )
    ready(server, user)
    problem = (await fails(server, user)).problem
    assert "cannot be put on" in problem.title
    assert "Read-only file system" in problem.happened


async def test_a_full_disk(make: Make, user: User) -> None:
    in_own_mounts()
    server = make()
    server.options = (
        login_shell(
            server,
            f"exec unshare -m sh -c 'mount -t tmpfs -o size=16k none {server.home} && "
            'exec /bin/sh -c "$0"\' "$SSH_ORIGINAL_COMMAND"\n',
        ),
    )
    ready(server, user)
    problem = (await fails(server, user)).problem
    assert "disk is full" in problem.title
    assert "No space left" in problem.happened


async def test_a_start_up_file_that_chats(server: Sshd, user: User) -> None:
    (server.home / ".bashrc").write_text(
        "printf 'Welcome to \\033[1mgpu\\033[0m\\n\\0377'; head -c 50000 /dev/zero | tr '\\0' =\n"
    )
    link = await connect(server, user)
    assert len(link.warnings) == 1
    assert "start-up files" in link.warnings[0]
    assert "Welcome to" in link.warnings[0]
    assert link.warnings[0].isprintable()


@pytest.mark.parametrize("tail", ["while :; do echo spam; done", "head -c 5000000 /dev/zero"])
async def test_a_start_up_file_that_never_stops(server: Sshd, user: User, tail: str) -> None:
    (server.home / ".bashrc").write_text(tail + "\n")
    problem = (await fails(server, user)).problem
    assert "prints too much" in problem.title
    assert ".bashrc" in problem.todo


async def test_a_start_up_file_that_swallows_the_script(
    server: Sshd, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy, "SHELL_TIMEOUT", 1.0)
    (server.home / ".bashrc").write_text("echo what is your name; exec cat >/dev/null\n")
    problem = (await fails(server, user)).problem
    assert "does not run what it is sent" in problem.title
    assert "what is your name" in problem.happened


async def test_an_account_without_a_shell(make: Make, user: User) -> None:
    server = ready(make("host", "ForceCommand /usr/sbin/nologin"), user)
    problem = (await fails(server, user)).problem
    assert "runs no commands" in problem.title
    assert "not available" in problem.happened
    assert "status 1" in problem.happened
    assert "chsh" in problem.todo


async def test_a_forced_command_with_terminal_escapes(make: Make, user: User) -> None:
    server = make()
    server.options = (
        login_shell(server, "printf '\\033]0;owned\\007\\033[2Jgit only\\n'; exit 3\n"),
    )
    ready(server, user)
    problem = (await fails(server, user)).problem
    assert "git only" in problem.happened
    assert "\x1b" not in problem.happened
    assert "status 3" in problem.happened


async def test_a_login_shell_that_is_no_posix_shell(make: Make, user: User) -> None:
    # what fish and tcsh have in common with sh is: a plain path runs; nothing else is relied on
    server = make()
    server.options = (
        login_shell(
            server,
            'case "$SSH_ORIGINAL_COMMAND" in /bin/sh) exec /bin/sh ;; '
            '*) echo "fish: Unsupported use of anything" >&2; exit 127 ;; esac\n',
        ),
    )
    ready(server, user)
    await connect(server, user)


SHELLS = [path for name in ("bash", "dash", "fish", "tcsh", "zsh") if (path := shutil.which(name))]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda path: Path(path).name)
async def test_the_real_shells_of_this_machine(make: Make, user: User, shell: str) -> None:
    server = make()
    server.options = (login_shell(server, f'exec {shell} -c "$SSH_ORIGINAL_COMMAND"\n'),)
    ready(server, user)
    await connect(server, user)


async def test_the_agents_umask_is_the_users(make: Make, user: User) -> None:
    # the unpacker's own is strict, and must not pass to what the agent writes for the user
    server = make()
    server.options = (login_shell(server, 'umask 027; exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n'),)
    ready(server, user)
    await connect(server, user)
    folder = server.home / "e3" / "cache" / "agent" / fake_archive().name
    cached = next(folder.rglob("__pycache__"))
    assert stat.S_IMODE(cached.stat().st_mode) == 0o750
