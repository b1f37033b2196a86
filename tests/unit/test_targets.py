"""Targets on the command line, and the hosts that they become."""

from __future__ import annotations

import pytest

from eagle3_console.address import Address, parse_address
from eagle3_console.connecting import host_for
from eagle3_console.errors import ConsoleError, ExitCode
from eagle3_console.local import LocalHost
from eagle3_console.ssh import SshHost


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("gpu7", Address("gpu7")),
        ("root@gpu7", Address("gpu7", "root")),
        ("root@gpu7:2222", Address("gpu7", "root", 2222)),
        ("10.0.0.1:22", Address("10.0.0.1", None, 22)),
        ("::1", Address("::1")),
        ("[::1]", Address("::1")),
        ("root@[fe80::1%eth0]:2222", Address("fe80::1%eth0", "root", 2222)),
        ("me@corp.example@bastion", Address("bastion", "me@corp.example")),
        ("my_alias-1.x", Address("my_alias-1.x")),
    ],
)
def test_what_is_understood(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "", "@gpu7", "root@", ":22", "gpu7:", "gpu7:0", "gpu7:65536", "gpu7:ssh", "gpu7:-1",
        "[::1", "[::1]22", "[]:22", "a b", "gpu7;reboot", "$(id)", "`id`", "-oProxyCommand=id",
        "root@-x", "-l@gpu7", "gpu7\n", "gpu\x1b[31m", "a/b", "gpu7:²",
    ],
)  # fmt: skip
def test_what_is_not(text: str) -> None:
    with pytest.raises(ConsoleError) as caught:
        host_for(text)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "is not a target" in caught.value.problem.title
    assert caught.value.problem.title.isprintable()


@pytest.mark.parametrize("text", ["gpu7", "root@gpu7:2222", "[::1]:22", "me@[::1]"])
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    assert parse_address(str(parse_address(text))) == parse_address(text)


def test_the_two_kinds_of_host() -> None:
    assert isinstance(host_for("local"), LocalHost)
    host = host_for("root@gpu7:2222", python="/opt/py/bin/python")
    assert isinstance(host, SshHost)
    assert host.name == "root@gpu7:2222"
    assert host.python == "/opt/py/bin/python"
