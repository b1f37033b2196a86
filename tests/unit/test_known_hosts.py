"""known_hosts files: who is named by which line, and what a shown key amounts to."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from eagle3_console.ssh.known_hosts import fingerprint, look_up, remember, spelled

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIGtleQ=="
OTHER = "AAAAC3NzaC1lZDI1NTE5AAAAIG90aGVy"


def verdict(tmp_path: Path, text: str, host: str = "gpu7", port: int | None = 22) -> str:
    file = tmp_path / "known_hosts"
    file.write_text(text)
    return look_up([tmp_path / "not-there", file], host, port, "ssh-ed25519", KEY).verdict


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "unknown"),
        (f"gpu7 ssh-ed25519 {KEY}", "known"),
        (f"GPU7 ssh-ed25519 {KEY} a comment", "known"),
        (f"gpu8,gpu7,10.0.0.7 ssh-ed25519 {KEY}", "known"),
        (f"gpu* ssh-ed25519 {KEY}", "known"),
        (f"gpu? ssh-ed25519 {KEY}", "known"),
        (f"gpu*,!gpu7 ssh-ed25519 {KEY}", "unknown"),
        (f"gpu[0-9] ssh-ed25519 {KEY}", "unknown"),
        (f"gpu7 ssh-ed25519 {OTHER}", "changed"),
        (f"gpu7 ssh-rsa {OTHER}", "changed"),
        (f"gpu7 ssh-rsa {OTHER}\ngpu7 ssh-ed25519 {KEY}", "known"),
        (f"gpu8 ssh-ed25519 {OTHER}", "unknown"),
        (f"@revoked gpu7 ssh-ed25519 {KEY}\ngpu7 ssh-ed25519 {KEY}", "revoked"),
        (f"gpu7 ssh-ed25519 {KEY}\n@revoked * ssh-ed25519 {KEY}", "revoked"),
        (f"@revoked gpu7 ssh-ed25519 {OTHER}", "unknown"),
        (f"@cert-authority gpu7 ssh-ed25519 {KEY}", "unknown"),
        (f"# gpu7 ssh-ed25519 {KEY}", "unknown"),
        ("gpu7 ssh-ed25519 not!base64\ngpu7\n@odd gpu7 ssh-ed25519 AAAA\n\0\xff", "unknown"),
        (f"|1|broken|hash ssh-ed25519 {OTHER}", "unknown"),
        (f"|9|AAAA|AAAA ssh-ed25519 {OTHER}", "unknown"),
    ],
)
def test_lines(tmp_path: Path, text: str, said: str) -> None:
    assert verdict(tmp_path, text + "\n") == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"[gpu7]:2222 ssh-ed25519 {KEY}", "known"),
        (f"[gpu7]:2222 ssh-ed25519 {OTHER}", "changed"),
        (f"[gpu7]:2223 ssh-ed25519 {OTHER}", "unknown"),
        (f"[gpu7]:* ssh-ed25519 {KEY}", "known"),
        # the bare name vouches for a port, and never against one
        (f"gpu7 ssh-ed25519 {KEY}", "known"),
        (f"gpu7 ssh-ed25519 {OTHER}", "unknown"),
        (f"gpu7 ssh-ed25519 {KEY}\n[gpu7]:2222 ssh-ed25519 {OTHER}", "known"),
        (f"@revoked gpu7 ssh-ed25519 {KEY}\n[gpu7]:2222 ssh-ed25519 {KEY}", "revoked"),
    ],
)
def test_another_port(tmp_path: Path, text: str, said: str) -> None:
    assert verdict(tmp_path, text + "\n", port=2222) == said


def test_the_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"# one\ngpu7 ssh-rsa {OTHER}\ngpu7 ssh-ed25519 {OTHER}\n")
    finding = look_up([file], "gpu7", 22, "ssh-ed25519", KEY)
    assert finding.entry is not None
    assert finding.entry.place == f"{file}:3"


def test_a_hash_names_its_host_alone(tmp_path: Path) -> None:
    salt = base64.b64encode(b"s" * 20).decode()
    name = hmac.new(b"s" * 20, b"[gpu7]:2222", "sha1").digest()
    line = f"|1|{salt}|{base64.b64encode(name).decode()} ssh-ed25519 {OTHER}\n"
    assert verdict(tmp_path, line, port=2222) == "changed"
    assert verdict(tmp_path, line, port=2223) == "unknown"


def test_a_fingerprint() -> None:
    # sha256 of the decoded key, base64 without padding, as ssh-keygen -l prints it
    digest = hashlib.sha256(base64.b64decode(KEY)).digest()
    assert fingerprint(KEY) == "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def test_remembering(tmp_path: Path) -> None:
    file = tmp_path / "new" / "known_hosts"
    remember(file, "::1", 2222, "ssh-ed25519", KEY)
    assert file.read_text() == f"[::1]:2222 ssh-ed25519 {KEY}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    file.write_text("no newline at the end")
    remember(file, "gpu7", 22, "ssh-ed25519", KEY)
    assert file.read_text() == f"no newline at the end\ngpu7 ssh-ed25519 {KEY}\n"
    assert look_up([file], "gpu7", 22, "ssh-ed25519", KEY).verdict == "known"


def test_spelling() -> None:
    assert spelled("gpu7", 22) == spelled("gpu7", None) == "gpu7"
    assert spelled("gpu7", 2222) == "[gpu7]:2222"
