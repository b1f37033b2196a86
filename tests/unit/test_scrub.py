"""Secrets are taken out, and what is none is left as it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_console import scrub
from eagle3_console.scrub import MASK

HF = "hf_" + "aB3dE5gH7j" * 3
AWS = "AKIA" + "ABCDEFGHIJKLMNOP"


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "password",
        "DB_PASSWD",
        "--api-key",
        "Authorization",
        "GITHUB_PAT",
        "client_secret",
        "SENTRY_DSN",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert scrub.is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "max_num_batched_tokens",
        "tokens",
        "n_tokens",
        "pad_token",
        "eos_token",
        "eos_token_id",
        "bos_token_ids",
        "num_tokens",
        "total_tokens",
        "key",
        "sort_key",
        "tokenizer",
        "PATH",
        "author",
        "",
    ],
)
def test_names_that_hold_none(name: str) -> None:
    assert not scrub.is_secret(name)


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (f"login with {HF} failed", f"login with hf_a{MASK} failed"),
        ("HF_TOKEN=abcdef python x", f"HF_TOKEN={MASK} python x"),
        ('{"api_key": "abc def", "n": 1}', f'{{"api_key": "{MASK}", "n": 1}}'),
        ("--password hunter2 --verbose", f"--password {MASK} --verbose"),
        ("https://me:pa55@host/x", f"https://me:{MASK}@host/x"),
        ("Authorization: Bearer abcdefghijkl", f"Authorization: {MASK} {MASK}"),
        (f"aws {AWS} x", f"aws AKIA{MASK} x"),
        ("password: 'with spaces in it'", f"password: '{MASK}'"),
    ],
)
def test_secrets_in_text_go(said: str, left: str) -> None:
    assert scrub.text(said) in (left, left.replace(f"{MASK} {MASK}", f"{MASK} abcdefghijkl"))
    assert "hunter2" not in scrub.text(said)
    assert "abcdefghijkl" not in scrub.text(said)


@pytest.mark.parametrize(
    "said",
    [
        "loss 0.5, tokens: 2048, max_num_batched_tokens=8192",
        "the token of the user is checked",
        "https://host:8080/path?x=1",
        "commit 3fa7c0f2ad1d2f",
        "pad_token: <pad>",
        'File "/env/vllm/v1/core.py", line 12, in token_ids',
        "ssh-ed25519 is the key's type",
    ],
)
def test_what_is_no_secret_stays(said: str) -> None:
    assert scrub.text(said) == said


def test_a_private_key_goes_whole_also_when_it_is_cut_off() -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\nZXktdjEA\n"
    assert "b3Blb" not in scrub.text(f"x {key}-----END OPENSSH PRIVATE KEY----- y")
    assert scrub.text(f"{key}-----END OPENSSH PRIVATE KEY----- y").endswith(" y")
    assert "b3Blb" not in scrub.text(key)


def test_values_are_masked_by_key_and_by_text() -> None:
    data = {
        "host": {"env": {"HF_TOKEN": "x", "A": f"--hub {HF}", "EMPTY_TOKEN": ""}},
        "layers": [1, 2],
        "tokens": 5,
        "passwords": ["a", "b"],
    }
    done = scrub.value(data)
    assert done["host"]["env"] == {"HF_TOKEN": MASK, "A": f"--hub hf_a{MASK}", "EMPTY_TOKEN": ""}
    assert done["passwords"] == [MASK, MASK]
    assert (done["layers"], done["tokens"]) == ([1, 2], 5)
    assert scrub.environment({"WANDB_API_KEY": "k", "PATH": "/bin"}) == {
        "WANDB_API_KEY": MASK,
        "PATH": "/bin",
    }


@given(st.text(max_size=300), st.text(alphabet="abcXYZ019", min_size=20, max_size=40))
def test_a_known_shape_never_survives(around: str, tail: str) -> None:
    secret = f"hf_{tail}"
    assert secret not in scrub.text(f"{around} {secret} {around}")


@given(st.text(max_size=400))
def test_twice_is_as_once(said: str) -> None:
    once = scrub.text(said)
    assert scrub.text(once) == once


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=20),
        lambda s: st.lists(s) | st.dictionaries(st.text(max_size=9), s),
    )
)
def test_any_data_stays_data(data: object) -> None:
    json.dumps(scrub.value(data))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece", ["a=", "token ", "-----BEGIN PRIVATE KEY-----", "hf_", "://a:", '"', "--password "]
)
def test_a_megabyte_made_to_be_slow_is_not(piece: str) -> None:
    large = piece * (1_000_000 // len(piece))
    assert len(scrub.text(large)) <= len(large) + len(MASK) * large.count(piece)


@pytest.mark.parametrize(
    "said",
    ["export HF_TOKEN=hunter2", "see api_key=hunter2", "x\napi_key=hunter2", "a password: hunter2",
     "error: password=hunter2", "env: HF_TOKEN=hunter2 A=b", "run x --token hunter2 y",
     "args: --api-key 'hunter2'", 'say "k": {"password": "hunter2"}',
     "x" * 200 + " password=hunter2",
     "a=b=password=hunter2", "run --token=hunter2"],
)  # fmt: skip
def test_a_word_before_a_secrets_name_does_not_hide_it(said: str) -> None:
    assert "hunter2" not in scrub.text(said)
    assert scrub.text(scrub.text(said)) == scrub.text(said)
