"""Takes secrets out of text and values before they are shown or leave this machine; pure.

A secret is known by the name it stands behind (``HF_TOKEN``, ``password=``) or by its own shape
(the prefixes that token issuers publish).  What is masked keeps its first characters where those
only say what kind it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "••••••"

#: Names whose value is a secret; ``KEY`` alone is not one (``sort_key``), ``API_KEY`` is.
_NAME = re.compile(
    r"(?:token|secret|passwo?r?d|passwd|passphrase|credential|api_?key|access_?key|private_?key"
    r"|auth(?:orization)?|cookie|session_?id|dsn|pat|webhook)s?$",
    re.IGNORECASE,
)
#: Names that end alike and hold none.
_INNOCENT = re.compile(
    r"(?:^|_)(?:max|min|num|n|total|input|output|prompt|batched|new|completion|special|pad|eos|bos|unk"
    r"|mask|think|stop)_?(?:num_|batched_)*tokens?$|^tokens?$|_tokens$|_token_ids?$",
    re.IGNORECASE,
)

#: Shapes of tokens: Hugging Face, OpenAI and their like, GitHub, GitLab, AWS, Slack, Google, JSON
#: web tokens, npm, PyPI, Stripe, NVIDIA.  Plain hex digits are known only by the name before them.
_SHAPES = re.compile(
    r"\b(?:hf_(?:oauth_)?[A-Za-z0-9]{20,}|sk-(?:[a-z]+-)*[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}"
    r"|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*|npm_[A-Za-z0-9]{30,}"
    r"|pypi-[A-Za-z0-9_-]{40,}|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|nvapi-[A-Za-z0-9_-]{20,})"
)
#: ``scheme://user:password@host``
_URL = re.compile(r"([a-z][a-z0-9+.-]{1,20}://[^\s/:@]{0,200}):([^\s/@]{1,500})@", re.IGNORECASE)
_BEARER = re.compile(r"\b(Bearer|Basic|Token) +([A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
_VALUE = (
    r"""(?P<value>"(?:[^"\\\n]|\\.){0,2000}"|'(?:[^'\\\n]|\\.){0,2000}'|[^\s,;&)}\]"']{1,2000})"""
)
#: ``NAME=value``, ``name: value``, ``"name": "value"``
_PAIR = re.compile(
    r"""(?P<name>[A-Za-z_][\w-]{0,80})(?P<between>["']?\s{0,3}[=:]\s{0,3})""" + _VALUE
)
#: ``--name value``
_OPTION = re.compile(r"""--(?P<name>[A-Za-z_][\w-]{0,80})(?P<between>\s+)(?=["'\w])""" + _VALUE)
_PRIVATE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)


def is_secret(name: str) -> bool:
    """Whether a variable, key or option of this name holds a secret."""
    plain = name.strip().lstrip("-").replace("-", "_")
    if plain == "token" and name.strip().startswith("--"):
        return True  # nobody counts with an option of this name
    return _NAME.search(plain) is not None and _INNOCENT.search(plain) is None


def text(said: str) -> str:
    """Free text, such as a log line, without the secrets that it may hold."""
    said = _PRIVATE.sub(f"(a private key) {MASK}", said)
    said = _URL.sub(rf"\1:{MASK}@", said)
    said = _SHAPES.sub(_shape, said)
    said = _BEARER.sub(rf"\1 {MASK}", said)
    return _paired(_OPTION, _paired(_PAIR, said))


def _shape(found: re.Match[str]) -> str:
    return found[0][:4] + MASK


def _paired(pattern: re.Pattern[str], said: str) -> str:
    """Values behind the names of secrets masked.

    What stands behind another name is looked at by itself: ``error: password=x``.
    """
    told: list[str] = []
    copied = at = 0
    while found := pattern.search(said, at):
        value = found["value"]
        name = found["name"]
        if said.endswith("--", 0, found.start("name")):
            name = f"--{name}"
        if MASK in value or not is_secret(name):
            at = found.end("between")
            continue
        quote = value[0] if value[0] in "\"'" else ""
        told += [said[copied : found.start("value")], quote, MASK, quote]
        copied = at = found.end()
    return "".join([*told, said[copied:]])


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Variables with the values of the secret ones masked, the others as ``text`` leaves them."""
    return {name: MASK if is_secret(name) and v else text(v) for name, v in env.items()}


def value(anything: Any, name: str = "") -> Any:
    """Plain data of JSON, masked by its keys and by its texts."""
    if isinstance(anything, dict):
        return {k: value(v, k if isinstance(k, str) else "") for k, v in anything.items()}
    if isinstance(anything, (list, tuple)):
        return [value(v, name) for v in anything]
    if isinstance(anything, str):
        return MASK if anything and is_secret(name) else text(anything)
    return anything
