"""Every setting of a profile: its section, its type, its limits, one sentence about it; pure.

Reading a file is ``profile.py``'s; this table is also what ``--set`` types its
values by and what ``profiles new`` writes its comments from.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

Kind = Literal[
    "text", "path", "integer", "number", "size", "boolean", "choice", "integers", "texts", "env"
]

#: What the wire and every library take without overflow; nobody has a larger real value.
_INTEGER_MAX = 2**31 - 1
_TEXT_MAX = 4096
_SIZE_MAX = 1024**5
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

#: The one word that stands for "no limit" where a number is expected.
ALL = "all"


@dataclass(frozen=True)
class Fault:
    """What is wrong with one value and how to mend it."""

    what: str
    todo: str


@dataclass(frozen=True)
class Setting:
    section: str
    name: str
    kind: Kind
    doc: str
    required: bool = False
    minimum: int = 1
    maximum: int = _INTEGER_MAX
    choices: tuple[str, ...] = ()
    takes_all: bool = False
    """The word ``all`` is a value too, and means None."""
    example: str = ""
    """A TOML value, for ``profiles new`` and messages."""

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "host",
        "python",
        "path",
        "the interpreter on the host that has torch and vLLM",
        required=True,
        example='"/root/venv/bin/python"',
    ),
    Setting(
        "host", "env", "env", "extra environment of the worker", example='{ NCCL_DEBUG = "WARN" }'
    ),
    Setting(
        "model",
        "path",
        "path",
        "the checkpoint folder on the host",
        required=True,
        example='"/shared/my-model"',
    ),
    Setting(
        "model",
        "tensor_parallel_size",
        "integer",
        "GPUs that share the model, default 1",
        example="1",
    ),
    Setting(
        "model",
        "max_model_len",
        "integer",
        "tokens the engine makes room for, default 2048",
        example="2048",
    ),
    Setting(
        "model",
        "gpu_memory_utilization",
        "number",
        "share of each GPU's memory for the engine, above 0 up to 1, default 0.8",
        example="0.8",
    ),
    Setting(
        "model",
        "dtype",
        "choice",
        "auto keeps the checkpoint's own dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        example='"auto"',
    ),
    Setting(
        "model",
        "trust_remote_code",
        "boolean",
        "run Python code that lies in the checkpoint folder",
        example="false",
    ),
    Setting(
        "capture",
        "layers",
        "integers",
        "0-based decoder layers; the state after each is kept, in this order; the last entry is "
        "the verifier's",
        required=True,
        minimum=0,
        example="[2, 15, 27, 29]",
    ),
    Setting(
        "data",
        "path",
        "path",
        "on the host: a prepared Arrow dataset, or .jsonl or .parquet of conversations or "
        "input_ids",
        required=True,
        example='"/root/data/train.jsonl"',
    ),
    Setting(
        "data",
        "max_samples",
        "integer",
        "stop after so many samples; left out or all: every one",
        takes_all=True,
        example="1000",
    ),
    Setting(
        "data",
        "seq_length",
        "integer",
        "the most tokens of a sample, default 2048; what becomes of a longer one: too_long",
        example="2048",
    ),
    Setting(
        "data",
        "too_long",
        "choice",
        "truncate cuts a longer sample and its loss mask, skip leaves it out and lists it (the run "
        "then ends incomplete); default truncate",
        choices=("truncate", "skip"),
        example='"truncate"',
    ),
    Setting(
        "output",
        "dir",
        "path",
        "the folder on the host that receives the sample files",
        required=True,
        example='"/root/data/hidden_states"',
    ),
    Setting(
        "output",
        "format",
        "choice",
        "speculators-pt: data_{i}.pt of speculators 0.3 and 0.4; safetensors: hs_{i}.safetensors",
        choices=("speculators-pt", "safetensors"),
        example='"speculators-pt"',
    ),
    Setting(
        "output",
        "writer_threads",
        "integer",
        "writers (processes) that hash and sync sample files; left out, the worker chooses; more "
        "help while the model waits for the disk, up to what the disk takes",
        maximum=256,
        example="8",
    ),
    Setting(
        "output",
        "buffer",
        "size",
        "host memory for states on their way to the disk; left out, the worker chooses; more "
        "rides out a slow moment of the disk, when it is full the model waits",
        minimum=1024**2,
        maximum=_SIZE_MAX,
        example='"8GiB"',
    ),
    Setting(
        "engine",
        "name",
        "choice",
        "auto takes speculators where 0.3 or 0.4 is installed, else vllm where vLLM is, else "
        "transformers; script runs a file of your own",
        choices=("auto", "speculators", "transformers", "script", "vllm"),
        example='"auto"',
    ),
    Setting(
        "engine",
        "script",
        "path",
        "for engine script: the Python file on the host that extracts with speculators",
        example='"/root/02_extract_hidden_states.py"',
    ),
    Setting(
        "engine",
        "args",
        "texts",
        "for engine script: its arguments",
        example='["--batch-size", "8"]',
    ),
    Setting(
        "engine",
        "max_num_batched_tokens",
        "integer",
        "engines vllm and speculators: tokens of one step of the model; left out, the engine "
        "chooses; more fills the GPU better and takes more of its memory, longer samples are split",
        example="8192",
    ),
    Setting(
        "engine",
        "max_num_seqs",
        "integer",
        "engines vllm and speculators: samples in flight; left out, the engine chooses; more keeps "
        "steps full where samples are short",
        example="256",
    ),
)

BY_KEY: dict[str, Setting] = {setting.key: setting for setting in SETTINGS}
SECTIONS: tuple[str, ...] = tuple(dict.fromkeys(setting.section for setting in SETTINGS))


def nearest(name: str, candidates: Sequence[str]) -> str | None:
    """The candidate that ``name`` was most likely meant to be, if any is close."""
    found = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    return found[0] if found else None


def nearest_key(section: str, name: str) -> str | None:
    """For an unknown key: the nearest name in its own section, else the same name elsewhere."""
    own = [s.name for s in SETTINGS if s.section == section]
    close = nearest(name, own)
    if close is not None:
        return f"{section}.{close}"
    elsewhere = nearest(name, [s.name for s in SETTINGS])
    return next((s.key for s in SETTINGS if s.name == elsewhere), None)


def check(setting: Setting, value: Any) -> list[Fault]:
    """Everything wrong with one value of plain Python types, as TOML gives them."""
    return _CHECKS[setting.kind](setting, value)


def from_text(setting: Setting, text: str) -> Any:
    """A ``--set`` value by the setting's type; a text that does not fit is returned as it is.

    ``check`` then says what is wrong with it, in the same words as for a file.
    """
    text = text.strip() if setting.kind not in ("text", "path") else text
    if setting.kind in ("integer", "integers", "size") and _INT.fullmatch(text):
        return [int(text)] if setting.kind == "integers" else int(text)
    if setting.kind == "number" and _NUMBER.fullmatch(text):
        return float(text)
    if setting.kind == "boolean" and text in ("true", "false"):
        return text == "true"
    if setting.kind in ("integers", "texts"):
        return _list_from_text(setting.kind, text)
    return text


_INT = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")


def _list_from_text(kind: Kind, text: str) -> Any:
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    parts = [part.strip() for part in inner.split(",") if part.strip()]
    if kind == "texts":
        return [part.strip("\"'") for part in parts]
    return [int(part) if _INT.fullmatch(part) else part for part in parts]


# --------------------------------------------------------------------------- checks


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = text if len(text) <= 60 else text[:57] + "…"
    return f'"{text}"' if isinstance(value, str) else text


def _type_name(value: Any) -> str:
    names: Mapping[type, str] = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a table",
    }
    return names.get(type(value), type(value).__name__)


def _wrong_type(setting: Setting, value: Any, wanted: str) -> list[Fault]:
    example = f", such as {setting.name} = {setting.example}" if setting.example else ""
    return [
        Fault(
            f"expected {wanted}, found {_type_name(value)}: {_shown(value)}",
            f"write {wanted}{example}",
        )
    ]


def _check_text(setting: Setting, value: Any) -> list[Fault]:
    if not isinstance(value, str):
        return _wrong_type(setting, value, "text in quotes")
    if not value.strip():
        return [Fault("is empty", f"name {setting.doc}" if setting.required else "leave it out")]
    if len(value) > _TEXT_MAX:
        return [Fault(f"is {len(value)} characters long", f"the limit is {_TEXT_MAX}")]
    if any(ord(c) < 0x20 or ord(c) == 0x7F for c in value):
        return [Fault("holds a control character", "retype it; it may have come in by copying")]
    return []


def _check_integer(setting: Setting, value: Any) -> list[Fault]:
    if setting.takes_all and value == ALL:
        return []
    wanted = f'a whole number or "{ALL}"' if setting.takes_all else "a whole number"
    if isinstance(value, bool) or not isinstance(value, int):
        return _wrong_type(setting, value, wanted)
    if not setting.minimum <= value <= setting.maximum:
        return [
            Fault(
                f"{value} is out of range" if abs(value) < 10**18 else "is out of range",
                f"write {wanted} from {setting.minimum} to {setting.maximum}",
            )
        ]
    return []


_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]+)", re.IGNORECASE)
_UNITS = {
    "b": 1,
    **{f"{letter}ib": 1024**i for i, letter in enumerate("kmgt", start=1)},
    **{f"{letter}b": 1000**i for i, letter in enumerate("kmgt", start=1)},
}


def size_bytes(value: Any) -> int | None:
    """``8GiB``, ``1.5 GB`` or a whole number of bytes; None for what is no size."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = _UNITS.get(found[2].lower()) if found else None
    return round(Decimal(found[1]) * unit) if found and unit else None


def _check_size(setting: Setting, value: Any) -> list[Fault]:
    if isinstance(value, (bool, float, list, dict)) or not isinstance(value, (int, str)):
        return _wrong_type(setting, value, "a size")
    count = size_bytes(value)
    if count is None:
        return [
            Fault(
                f"{_shown(value)} is no size",
                f"write a number with KiB, MiB, GiB or TiB, such as {setting.example}, "
                "or a whole number of bytes",
            )
        ]
    if not setting.minimum <= count <= setting.maximum:
        return [Fault(f"{_shown(value)} is out of range", "write a size from 1MiB to 1024TiB")]
    return []


def _check_number(setting: Setting, value: Any) -> list[Fault]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _wrong_type(setting, value, "a number")
    if not 0 < value <= 1:  # NaN fails this too
        return [Fault(f"{value} is out of range", "write a number above 0 and up to 1")]
    return []


def _check_boolean(setting: Setting, value: Any) -> list[Fault]:
    return [] if isinstance(value, bool) else _wrong_type(setting, value, "true or false")


def _check_choice(setting: Setting, value: Any) -> list[Fault]:
    listed = ", ".join(setting.choices)
    if not isinstance(value, str):
        return _wrong_type(setting, value, f"one of {listed}")
    if value not in setting.choices:
        close = nearest(value, setting.choices)
        todo = f'did you mean "{close}"? (one of {listed})' if close else f"write one of {listed}"
        return [Fault(f"{_shown(value)} is not known", todo)]
    return []


def _check_integers(setting: Setting, value: Any) -> list[Fault]:
    if not isinstance(value, list):
        return _wrong_type(setting, value, "a list of whole numbers")
    if not value:
        return [Fault("is empty", f"name at least one layer, such as {setting.example}")]
    wrong = [v for v in value if isinstance(v, bool) or not isinstance(v, int)]
    if wrong:
        return _wrong_type(setting, wrong[0], "a list of whole numbers")
    faults = []
    low = [v for v in value if not setting.minimum <= v <= _INTEGER_MAX]
    if low:
        faults.append(
            Fault(f"{_shown(low[0])} is no layer", f"layers count from {setting.minimum}")
        )
    return faults


def _check_texts(setting: Setting, value: Any) -> list[Fault]:
    if not isinstance(value, list) or any(not isinstance(v, str) for v in value):
        return _wrong_type(setting, value, "a list of texts")
    if any("\0" in text for text in value):
        return [Fault("holds a NUL character", "remove it")]
    return []


def _check_env(setting: Setting, value: Any) -> list[Fault]:
    if not isinstance(value, dict):
        return _wrong_type(setting, value, "a table of texts")
    faults = []
    for name, text in value.items():
        if not _ENV_NAME.match(name):
            faults.append(
                Fault(f"{_shown(name)} is no name of a variable", "use letters, digits and _")
            )
        if not isinstance(text, str):
            faults.append(
                Fault(f"{name} is {_type_name(text)}", f'write it in quotes: {name} = "{text}"')
            )
        elif "\0" in text:
            faults.append(Fault(f"{name} holds a NUL character", "remove it"))
    return faults


_CHECKS: dict[Kind, Callable[[Setting, Any], list[Fault]]] = {
    "text": _check_text,
    "path": _check_text,
    "integer": _check_integer,
    "number": _check_number,
    "size": _check_size,
    "boolean": _check_boolean,
    "choice": _check_choice,
    "integers": _check_integers,
    "texts": _check_texts,
    "env": _check_env,
}
