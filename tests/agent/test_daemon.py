"""One daemon per user and host: how it is found, started, replaced, and how it leaves."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from eagle3_agent import processes
from eagle3_agent.protocol.messages import (
    AgentStatus,
    Done,
    Ping,
    Pong,
    Status,
    StopAgent,
    Welcome,
)
from support.daemon import Home, Wire, eventually, make_root


def test_the_second_client_finds_the_first_ones_daemon(home: Home) -> None:
    first, second = home.attach(), home.attach()
    one = first.expect(Status, AgentStatus(0))
    two = second.expect(Status, AgentStatus(0))
    assert one.pid == two.pid
    assert two.clients == 2
    assert two.archive == "a" * 16
    assert first.greeting == b"EAGLE3-AGENT ready " + b"a" * 16 + b"\n"


def test_many_at_once_start_one_daemon(home: Home) -> None:
    with ThreadPoolExecutor(8) as pool:
        wires = list(pool.map(lambda _: home.attach(), range(8)))
    assert len({wire.expect(Status, AgentStatus(0)).pid for wire in wires}) == 1


def test_the_daemon_is_detached_and_private_whatever_the_umask(home: Home) -> None:
    before = os.umask(0)
    try:
        wire = home.attach()
    finally:
        os.umask(before)
    pid = wire.expect(Status, AgentStatus(0)).pid
    assert os.getsid(pid) not in (os.getsid(0), os.getsid(wire.process.pid))
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    assert os.readlink(f"/proc/{pid}/fd/2") == str(home.agent_folder / "agent.log")
    assert stat.S_IMODE(home.socket.stat().st_mode) == 0o600
    for folder in (home.state, home.agent_folder.parent, home.agent_folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    for file in ("agent.log", "agent.lock", "agent.json"):
        assert stat.S_IMODE((home.agent_folder / file).stat().st_mode) == 0o600, file


def test_a_folder_that_others_could_write_is_closed(home: Home) -> None:
    home.agent_folder.mkdir(parents=True)
    home.agent_folder.chmod(0o777)
    home.attach()
    assert stat.S_IMODE(home.agent_folder.stat().st_mode) == 0o700


def _refusal(home: Home) -> dict[str, str]:
    done = subprocess.run(home.agent("attach"), env=home.env, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == b""
    head, _, body = done.stdout.partition(b"EAGLE3-AGENT error ")
    assert head == b""
    return dict(json.loads(body))


def test_a_symlink_instead_of_the_folder_is_refused(home: Home, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    home.agent_folder.parent.mkdir(parents=True)
    home.agent_folder.symlink_to(elsewhere)
    problem = _refusal(home)
    assert "symlink" in problem["happened"]
    assert "EAGLE3_HOME" in problem["todo"]
    assert list(elsewhere.iterdir()) == []


def test_a_home_that_is_a_file_is_refused(home: Home) -> None:
    home.state.parent.write_text("a file")
    problem = _refusal(home)
    assert str(home.state.parent) in problem["happened"]
    assert problem["code"] == "connect"


def test_a_stale_socket_and_lease_are_replaced(home: Home) -> None:
    home.agent_folder.mkdir(parents=True)
    home.socket.parent.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(home.socket))
    (home.agent_folder / "agent.json").write_text('{"pid": 1, "archive": "old", "started": 1}')
    (home.agent_folder / "agent.lock").touch()
    assert isinstance(home.attach().ask(Ping(0)), Pong)


def test_killed_and_attached_again(home: Home) -> None:
    home.attach()
    home.kill_daemon()
    assert home.socket.exists()
    assert isinstance(home.attach().ask(Ping(0)), Pong)


def test_a_daemon_that_is_stopped_is_named(home: Home) -> None:
    pid = home.attach().expect(Status, AgentStatus(0)).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        assert f"pid {pid}" in _refusal(home)["happened"]
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_socket_swept_away_is_opened_again(home: Home) -> None:
    first = home.attach()
    pid = first.expect(Status, AgentStatus(0)).pid
    home.socket.unlink()
    assert home.attach().expect(Status, AgentStatus(0)).pid == pid
    assert isinstance(first.ask(Ping(0)), Pong)


def test_a_long_state_path_still_has_a_socket(tmp_path: Path) -> None:
    home = Home(tmp_path / ("long" * 30))
    try:
        wire = home.attach()
        assert isinstance(wire.ask(Ping(0)), Pong)
        assert home.socket.exists()
        assert not (home.agent_folder / "agent.sock").exists()
    finally:
        home.close()


def test_stop_ends_the_daemon_and_not_the_runs(home: Home) -> None:
    wire = home.attach()
    run = wire.start(home.profile("hold"))
    pid = wire.expect(Status, AgentStatus(0)).pid
    wire.expect(Done, StopAgent(0))
    assert wire.next() is None
    eventually(lambda: processes.identity(pid) is None)
    assert not home.socket.exists()
    again = home.attach()
    assert again.expect(Status, AgentStatus(0)).running == (run,)
    (home.run(run).path / "go").touch()
    again.ended(run, "completed")


def test_it_leaves_when_nobody_needs_it(home: Home) -> None:
    daemon = home.serve("--idle", "1.0")
    wire = home.attach()
    run = wire.start(home.profile("hold"))
    wire.close()
    assert daemon.poll() is None
    eventually(lambda: home.run(run).guardian() is not None)
    (home.run(run).path / "go").touch()
    assert daemon.wait(30) == 0
    assert home.run(run).exit() is not None


def test_an_idle_daemon_of_another_archive_is_replaced(home: Home, tmp_path: Path) -> None:
    first = home.attach()
    old = first.expect(Status, AgentStatus(0))
    newer = make_root(tmp_path / "newer", "b" * 16)
    second = home.attach(root=newer)
    kept = second.expect(Status, AgentStatus(0))
    assert (kept.pid, kept.archive) == (old.pid, "a" * 16), "another client was there"
    first.close()
    second.close()

    def replaced() -> bool:
        third = home.attach(root=newer)
        now = third.expect(Status, AgentStatus(0))
        third.close()
        return now.archive == "b" * 16 and now.pid != old.pid

    # the daemon may still be taking note that the two have left
    eventually(replaced)


def test_a_daemon_of_another_archive_with_a_run_is_kept(home: Home, tmp_path: Path) -> None:
    first = home.attach()
    run = first.start(home.profile("hold"))
    first.close()
    newer = make_root(tmp_path / "newer", "b" * 16)
    second = home.attach(root=newer)
    assert second.expect(Status, AgentStatus(0)).archive == "a" * 16
    (home.run(run).path / "go").touch()
    second.ended(run, "completed")


def test_replies_arrive_after_the_input_was_closed(home: Home) -> None:
    home.attach()
    lines = (
        b'{"type":"Hello","id":1,"version":1}\n'
        b'{"type":"Ping","id":2}\n'
        b'{"type":"SampleHost","id":3}\n'
    )
    done = subprocess.run(
        home.agent("attach"), env=home.env, input=lines, capture_output=True, timeout=60
    )
    assert done.returncode == 0
    greeting, *replies = done.stdout.splitlines()
    assert greeting.startswith(b"EAGLE3-AGENT ready")
    assert sorted(json.loads(r)["re"] for r in replies) == [1, 2, 3]


def test_attach_ends_when_nobody_reads_it(home: Home) -> None:
    wire = home.attach()
    wire.process.send_signal(signal.SIGTERM)
    wire.process.wait(10)
    assert home.attach().expect(Status, AgentStatus(0)).clients == 1


def test_the_log_is_bounded(home: Home) -> None:
    wire = home.attach()
    log = home.agent_folder / "agent.log"
    with open(log, "ab") as file:
        file.write(b"x" * (2 << 20))
    eventually(lambda: log.stat().st_size < 1 << 20)
    assert log.with_name("agent.log.1").stat().st_size > 1 << 20
    wire.send_line(b'{"type":"Ping","id":9}\n')
    assert wire.next() == Pong(9)


def test_a_client_of_another_wire_version_is_told_and_can_stop_it(home: Home) -> None:
    wire = home.attach(hello=False)
    wire.send_line(b'{"type":"Hello","id":1,"version":999}\n')
    reply = wire.next()
    assert getattr(reply, "re", None) == 1
    assert not isinstance(reply, Welcome)
    wire.expect(Done, StopAgent(0))


def test_hello_says_who_answers(home: Home) -> None:
    wire: Wire = home.attach(hello=False)
    welcome = wire.hello()
    assert welcome.host == os.uname().nodename
    assert welcome.started <= welcome.now
    assert processes.identity(welcome.pid) is not None
