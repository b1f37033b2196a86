"""Logging in to a real sshd: host keys, user keys, the configuration, jump hosts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import asyncssh
import pytest

from eagle3_console.address import Address
from eagle3_console.errors import ConsoleError, ExitCode
from eagle3_console.hosts import Refused
from eagle3_console.ssh import SshHost
from support.sshd import Agent, Sshd, free_port, make_key

from .conftest import User


def keygen(*arguments: str) -> str:
    command = ["ssh-keygen", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


async def say(host: SshHost, text: str = "hello") -> str:
    """Run one echo through a host's shell."""
    try:
        channel = await host.open()
        await channel.write(f"echo {text}; exit\n".encode())
        got = b""
        while data := await channel.read():
            got += data
        assert await channel.exit_status() == 0
        await channel.close()
        return got.decode().strip()
    finally:
        await host.close()


async def refused(host: SshHost) -> ConsoleError:
    try:
        with pytest.raises(ConsoleError) as caught:
            await host.open()
    finally:
        await host.close()
    assert caught.value.exit_code is ExitCode.CONNECT
    assert caught.value.problem.todo
    return caught.value


async def test_a_known_host_and_a_key(server: Sshd, user: User) -> None:
    assert await say(user.host(server)) == "hello"
    assert user.asked == []


async def test_bytes_of_every_value_pass(server: Sshd, user: User) -> None:
    host = user.host(server)
    channel = await host.open("/bin/cat")
    data = bytes(range(256)) * 4096
    await channel.write(data)
    got = b""
    while len(got) < len(data):
        got += await channel.read()
    assert got == data
    await channel.close()
    await host.close()


async def test_an_unknown_key_is_asked_about_and_remembered(server: Sshd, user: User) -> None:
    user.known_hosts.unlink()
    assert await say(user.host(server)) == "hello"
    (question,) = user.asked
    printed = keygen("-lf", f"{server.host_key}.pub")
    assert question.fingerprint == printed.split()[1]
    assert question.key_type == "ssh-ed25519"
    assert question.host == f"[127.0.0.1]:{server.port}"
    assert user.known_hosts.stat().st_mode & 0o777 == 0o600
    assert user.known_hosts.read_text() == server.known_line()
    assert await say(user.host(server)) == "hello"
    assert len(user.asked) == 1
    # OpenSSH itself reads what was written
    assert "found" in keygen("-F", question.host, "-f", str(user.known_hosts))


async def test_an_unknown_key_that_nobody_vouches_for(server: Sshd, user: User) -> None:
    user.known_hosts.unlink()
    user.vouch = False
    problem = await refused(user.host(server))
    assert isinstance(problem, Refused)
    assert "is not known" in problem.problem.title
    assert "SHA256:" in problem.problem.happened
    assert not user.known_hosts.exists()
    assert "is not known" in (await refused(user.host(server, ask=False))).problem.title


async def test_a_changed_key_is_refused_by_file_and_line(
    server: Sshd, user: User, tmp_path: Path
) -> None:
    other = make_key(tmp_path / "other").with_suffix(".pub").read_text().split()
    user.known_hosts.write_text(
        f"# a comment\nnot a line\n[127.0.0.1]:{server.port} {other[0]} {other[1]}\n"
    )
    problem = await refused(user.host(server))
    assert isinstance(problem, Refused)
    assert "has changed" in problem.problem.title
    assert f"{user.known_hosts}:3" in problem.problem.happened
    assert "line 3" in problem.problem.todo
    assert user.asked == []
    assert "not a line" in user.known_hosts.read_text()


async def test_a_key_of_another_type_counts_as_changed(
    server: Sshd, user: User, tmp_path: Path
) -> None:
    key = make_key(tmp_path / "other", kind="ecdsa").with_suffix(".pub").read_text().split()
    user.known_hosts.write_text(f"[127.0.0.1]:{server.port} {key[0]} {key[1]}\n")
    problem = await refused(user.host(server))
    assert user.asked == []
    assert "has changed" in problem.problem.title
    assert "ecdsa-sha2-nistp256" in problem.problem.happened


async def test_the_known_key_is_asked_for_among_several(
    make: Callable[..., Sshd], user: User, tmp_path: Path
) -> None:
    rsa = make_key(tmp_path / "host_rsa", kind="rsa")
    server = make("host", f"HostKey {rsa}").start()
    server.authorize(user.key)
    kind, key = Path(f"{rsa}.pub").read_text().split()[:2]
    user.known_hosts.write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n")
    assert await say(user.host(server)) == "hello"
    assert user.asked == []


async def test_a_signed_host_key(make: Callable[..., Sshd], user: User, tmp_path: Path) -> None:
    server = make("host", f"HostCertificate {tmp_path / 'host' / 'host_key-cert.pub'}")
    authority = make_key(tmp_path / "ca")
    make_key(server.host_key)
    keygen("-s", str(authority), "-I", "host", "-h", "-n", "127.0.0.1", f"{server.host_key}.pub")
    server.start()
    server.authorize(user.key)
    kind, key = Path(f"{authority}.pub").read_text().split()[:2]
    user.known_hosts.write_text(f"@cert-authority [127.0.0.1]:* {kind} {key}\n")
    assert await say(user.host(server)) == "hello"
    assert user.asked == []


async def test_a_revoked_key_is_refused(server: Sshd, user: User) -> None:
    user.known_hosts.write_text(server.known_line() + "@revoked " + server.known_line())
    problem = await refused(user.host(server))
    assert "is revoked" in problem.problem.title
    assert f"{user.known_hosts}:2" in problem.problem.happened
    user.known_hosts.write_text("@revoked " + server.known_line())
    assert isinstance(await refused(user.host(server)), Refused)
    assert user.asked == []


async def test_a_hashed_file(server: Sshd, user: User) -> None:
    keygen("-q", "-H", "-f", str(user.known_hosts))
    assert "127.0.0.1" not in user.known_hosts.read_text()
    assert await say(user.host(server)) == "hello"
    assert user.asked == []


async def test_the_systems_known_hosts(server: Sshd, user: User) -> None:
    user.known_hosts.rename(user.folder / "global_known_hosts")
    assert await say(user.host(server)) == "hello"
    assert user.asked == []


async def test_a_known_hosts_file_that_cannot_be_written(server: Sshd, user: User) -> None:
    user.known_hosts.unlink()
    user.known_hosts.mkdir()
    host = user.host(server)
    assert await say(host) == "hello"
    assert any("cannot be written" in notice for notice in host.notices)


async def test_a_wrong_key_names_what_was_tried(
    make: Callable[..., Sshd], user: User, tmp_path: Path
) -> None:
    server = make().start()
    server.authorize(make_key(tmp_path / "somebody"))
    user.known_hosts.write_text(server.known_line())
    problem = await refused(user.host(server))
    assert isinstance(problem, Refused)
    assert "Login refused: root@127.0.0.1" in problem.problem.title
    assert str(user.key) in problem.problem.happened


async def test_no_key_at_all(server: Sshd, user: User) -> None:
    user.key.unlink()
    assert "no key was found" in (await refused(user.host(server))).problem.happened


async def test_a_key_that_only_the_agent_holds(
    make: Callable[..., Sshd], user: User, tmp_path: Path
) -> None:
    server = make().start()
    key = make_key(tmp_path / "held")
    server.authorize(key)
    user.known_hosts.write_text(server.known_line())
    with Agent(tmp_path) as agent:
        agent.add(key)
        key.unlink()
        user.agent = str(agent.socket)
        assert await say(user.host(server)) == "hello"
        # named by IdentityAgent, with the public half as IdentityFile
        user.agent = ""
        user.config.write_text(
            f"Host *\n IdentityAgent {agent.socket}\n IdentitiesOnly yes\n IdentityFile {key}.pub\n"
        )
        assert await say(user.host(server)) == "hello"
        user.config.write_text(
            f"Host *\n IdentityAgent {agent.socket}\n IdentitiesOnly yes\n"
            f" IdentityFile {user.key}\n"
        )
        assert "Login refused" in (await refused(user.host(server))).problem.title


async def test_more_keys_than_the_host_has_patience_for(
    make: Callable[..., Sshd], user: User, tmp_path: Path
) -> None:
    server = make("host", "MaxAuthTries 2").start()
    server.authorize(user.key)
    user.known_hosts.write_text(server.known_line())
    with Agent(tmp_path) as agent:
        for name in ("home", "work", "third"):
            agent.add(make_key(tmp_path / name))
        user.agent = str(agent.socket)
        problem = await refused(user.host(server))
        assert "cut the login off" in problem.problem.title
        assert "work (ssh agent)" in problem.problem.happened
        assert "IdentitiesOnly" in problem.problem.todo
        user.config.write_text(f"Host *\n IdentitiesOnly yes\n IdentityFile {user.key}\n")
        assert await say(user.host(server)) == "hello"


async def test_a_signed_user_key(make: Callable[..., Sshd], user: User, tmp_path: Path) -> None:
    authority = make_key(tmp_path / "ca")
    server = make("host", f"TrustedUserCAKeys {authority}.pub").start()
    user.known_hosts.write_text(server.known_line())
    assert "Login refused" in (await refused(user.host(server))).problem.title
    keygen("-s", str(authority), "-I", "me", "-n", "root", f"{user.key}.pub")
    assert await say(user.host(server)) == "hello"


async def test_an_agent_that_is_gone_is_no_obstacle(server: Sshd, user: User) -> None:
    user.agent = str(user.folder / "no-such-socket")
    assert await say(user.host(server)) == "hello"


async def test_a_locked_key_is_asked_for(
    make: Callable[..., Sshd], user: User, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    server = make().start()
    user.key.unlink()
    key = make_key(user.folder / "id_rsa", "correct horse", "rsa")
    server.authorize(key)
    user.known_hosts.write_text(server.known_line())
    problem = await refused(user.host(server))
    assert "needs a passphrase" in problem.problem.happened
    assert f"ssh-add {key}" in problem.problem.todo
    user.asked_secrets.clear()
    user.secrets = ["wrong donkey", "correct horse"]
    host = user.host(server)
    channel = await host.open()
    await channel.close()
    assert [q.retry for q in user.asked_secrets] == [False, True]
    assert str(key) in user.asked_secrets[0].prompt
    # a lost connection does not ask again
    await host.close()
    assert await say(host) == "hello"
    assert len(user.asked_secrets) == 2
    assert "correct horse" not in caplog.text


class _PasswordOnly(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return password == "correct horse"


async def test_a_password(user: User, caplog: pytest.LogCaptureFixture) -> None:
    # sshd would need the password of an account of this machine
    caplog.set_level(0)

    async def echo(process: asyncssh.SSHServerProcess[str]) -> None:
        await process.stdin.readline()
        process.stdout.write("hello\n")
        process.exit(0)

    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=_PasswordOnly,
        process_factory=echo,
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
    )
    address = Address("127.0.0.1", "me", server.get_port())
    user.secrets = ["wrong donkey", "correct horse"]
    host = SshHost(
        address,
        ask_host_key=user.ask_key,
        ask_secret=user.ask_secret,
        files=user.files(),
    )
    assert await say(host) == "hello"
    assert [q.retry for q in user.asked_secrets] == [False, True]
    # what was answered is not asked for again when the link comes back
    assert await say(host) == "hello"
    assert len(user.asked_secrets) == 2
    assert "correct horse" not in caplog.text
    problem = await refused(SshHost(address, files=user.files()))
    assert "Login refused: me@127.0.0.1" in problem.problem.title
    server.close()


async def test_alias_port_user_and_key_by_the_configuration(
    make: Callable[..., Sshd], user: User, tmp_path: Path
) -> None:
    server = make().start()
    key = make_key(tmp_path / "keys" / "work")
    server.authorize(key)
    user.config.write_text(
        f"Host gpu\n HostName 127.0.0.1\n Port {server.port}\n User root\n"
        f" IdentityFile {key}\n HostKeyAlias gpu-box\n"
        f" CertificateFile {tmp_path / 'not-there'}\n"
        "Host *\n RemoteCommand tmux\n RequestTTY yes\n ForwardAgent yes\n"
    )
    assert await say(user.host("gpu")) == "hello"
    (question,) = user.asked
    # as OpenSSH writes it: an alias stands for host and port
    assert question.host == "gpu-box"
    assert await say(user.host("gpu")) == "hello"
    assert len(user.asked) == 1
    other = Path(f"{key}.pub").read_text().split()
    user.known_hosts.write_text(f"gpu-box {other[0]} {other[1]}\n")
    assert "has changed" in (await refused(user.host("gpu"))).problem.title
    assert len(user.asked) == 1


async def test_through_a_jump_host_with_keys_of_both(
    make: Callable[..., Sshd], user: User, tmp_path: Path
) -> None:
    jump, inner = make("jump").start(), make("inner").start()
    key = make_key(tmp_path / "inner-key")
    jump.authorize(user.key)
    inner.authorize(key)
    user.config.write_text(
        f"Host bastion\n HostName 127.0.0.1\n Port {jump.port}\n User root\n"
        f"Host gpu\n HostName 127.0.0.1\n Port {inner.port}\n User root\n ProxyJump bastion\n"
        f" IdentityFile {key}\n"
    )
    assert await say(user.host("gpu")) == "hello"
    assert [question.via for question in user.asked] == ["bastion", ""]
    assert user.known_hosts.read_text() == jump.known_line() + inner.known_line()
    assert inner.execs() == 1
    assert jump.execs() == 0
    # a jump host with another key is no way in
    user.known_hosts.write_text(inner.known_line().replace(str(inner.port), str(jump.port)))
    assert "has changed" in (await refused(user.host("gpu"))).problem.title


async def test_a_jump_host_that_cannot_reach_the_target(
    make: Callable[..., Sshd], user: User
) -> None:
    jump = make("jump").start()
    jump.authorize(user.key)
    user.known_hosts.write_text(jump.known_line())
    user.config.write_text(
        f"Host bastion\n HostName 127.0.0.1\n Port {jump.port}\n"
        f"Host gpu\n HostName 127.0.0.1\n Port {free_port()}\n ProxyJump bastion\n"
        "Host loop\n ProxyJump loop\n"
    )
    problem = await refused(user.host("gpu"))
    assert "through its jump host" in problem.problem.title
    assert "circle" in (await refused(user.host("loop"))).problem.title


async def test_lines_that_the_library_does_not_know_block_nobody(
    server: Sshd, user: User, tmp_path: Path
) -> None:
    more = tmp_path / "more.conf"
    more.write_text(
        "Match sessiontype shell\n Port 1\n"
        f"Host gpu\n HostName 127.0.0.1 # the big one\n Port {server.port}\n"
    )
    user.config.write_text(f'Match command "rsync*"\n Port 2\nHost *\n User root\nInclude {more}\n')
    host = user.host("gpu")
    assert await say(host) == "hello"
    assert len(host.notices) == 2
    assert any(f"{user.config} line 1" in notice for notice in host.notices)
    assert any(f"{more} line 1" in notice for notice in host.notices)


async def test_a_configuration_that_makes_no_sense(server: Sshd, user: User) -> None:
    user.config.write_text("Host *\n Ciphers no-such-cipher\n")
    problem = await refused(user.host(server))
    assert "share no ssh algorithm" in problem.problem.title
    assert "encryption algorithm" in problem.problem.happened
    assert "Ciphers" in problem.problem.todo


async def test_nobody_listens(user: User) -> None:
    problem = await refused(SshHost(Address("127.0.0.1", None, free_port()), files=user.files()))
    assert "refuses connections" in problem.problem.title


async def test_no_such_name(user: User) -> None:
    problem = await refused(SshHost(Address("no-such-host.invalid"), files=user.files()))
    assert "no host named no-such-host.invalid" in problem.problem.title


async def test_a_host_that_never_answers(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr("eagle3_console.ssh.errors.CONNECT_TIMEOUT", 0.5)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(1)
        address = Address("127.0.0.1", None, deaf.getsockname()[1])
        problem = await refused(SshHost(address, files=user.files()))
    assert "No answer" in problem.problem.title


async def test_max_sessions(make: Callable[..., Sshd], user: User) -> None:
    server = make("host", "MaxSessions 1").start()
    server.authorize(user.key)
    user.known_hosts.write_text(server.known_line())
    host = user.host(server)
    first = await host.open("/bin/cat")
    with pytest.raises(ConsoleError) as caught:
        await host.open()
    assert "no further session" in caught.value.problem.title
    await first.close()
    second = await host.open()
    await second.close()
    await host.close()


def test_the_real_home_is_the_default() -> None:
    from eagle3_console.ssh.config import SshFiles

    files = SshFiles()
    assert files.folder == Path("~/.ssh").expanduser()
    assert files.configs()[0] == files.folder / "config"
    assert os.fspath(files.users_known_hosts(lambda _: None)[0]).endswith(".ssh/known_hosts")
