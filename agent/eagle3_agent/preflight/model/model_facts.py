"""What stands in the model folder: its config, and every shard against header and index."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from typing import Any

from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.preflight.files import open_regular

from . import safetensors

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_CONFIG_LIMIT = 16 * 1024 * 1024
_INDEX_LIMIT = 256 * 1024 * 1024
_BAD_KEPT = 20

#: Where multimodal configs keep the language model's part.
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")


@dataclass(frozen=True)
class BadShard:
    name: str
    problem: str


@dataclass(frozen=True)
class ModelFacts:
    path: str
    problem: str = ""
    """Why there is no model folder at all, in words."""
    config_problem: str = ""
    model_type: str = ""
    architecture: str = ""
    layers: int | None = None
    hidden: int | None = None
    vocab: int | None = None
    dtype: str = ""
    """``float32``, ``bfloat16`` or ``float16``: what ``auto`` means for this checkpoint."""
    quantization: str = ""
    custom_code: bool = False
    """config.json names Python of the checkpoint itself (``auto_map``)."""
    index_problem: str = ""
    shards: int = 0
    bytes: int = 0
    """Of the shards that are whole."""
    bad: tuple[BadShard, ...] = ()
    bad_count: int = 0
    other_weights: tuple[str, ...] = ()
    """Weights in formats that are not checked here (.bin, .pt, .gguf), when no safetensors is."""
    tokenizer: bool = False


def _collect(ask: Ask) -> ModelFacts:
    path = ask.profile.model.path
    problem = _why_no_folder(path)
    if problem:
        return ModelFacts(path, problem)
    names = sorted(os.listdir(path))
    config, config_problem = _read_json(os.path.join(path, "config.json"), _CONFIG_LIMIT)
    weights = _Weights(path, names)
    weights.read()
    text = _text_config(config)
    return ModelFacts(
        path=path,
        config_problem=config_problem,
        model_type=str(config.get("model_type", "")),
        architecture=", ".join(map(str, _items(config.get("architectures"))))[:200],
        layers=_count(text, _LAYERS),
        hidden=_count(text, _HIDDEN),
        vocab=_count(text, ("vocab_size",)),
        dtype=_dtype(config, text) or weights.dtype,
        quantization=_quantization(text) or _quantization(config),
        custom_code="auto_map" in config,
        index_problem=weights.index_problem,
        shards=weights.shards,
        bytes=weights.bytes,
        bad=tuple(weights.bad[:_BAD_KEPT]),
        bad_count=len(weights.bad),
        other_weights=tuple(weights.others[:_BAD_KEPT]),
        tokenizer=any(n.startswith(("tokenizer", "tiktoken", "vocab.")) for n in names),
    )


def _why_no_folder(path: str) -> str:
    if not os.path.isabs(path):
        return "is not a whole path: it must begin with /"
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if not stat.S_ISDIR(info.st_mode):
        return "is a file, not a folder"
    try:
        os.listdir(path)
    except OSError as error:
        return f"cannot be listed: {error.strerror}"
    return ""


def _read_json(path: str, limit: int) -> tuple[dict[str, Any], str]:
    """(the object, "") or ({}, what is wrong with the file)."""
    name = os.path.basename(path)
    try:
        file, _ = open_regular(path)
        with file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        return {}, f"{name} is not there"
    except OSError as error:
        return {}, f"{name} cannot be read: {error.strerror}"
    if len(data) > limit:
        return {}, f"{name} is longer than {limit} bytes"
    try:
        body = json.loads(data)
    except ValueError as error:
        return {}, f"{name} is not JSON: {error}"
    except RecursionError:
        return {}, f"{name} is not JSON of sensible depth"
    return (body, "") if isinstance(body, dict) else ({}, f"{name} is not a JSON object")


class _Weights:
    """The shards that the folder should hold, each looked at once."""

    def __init__(self, path: str, names: list[str]) -> None:
        self.path = path
        self.names = names
        self.index_problem = ""
        self.shards = 0
        self.bytes = 0
        self.bad: list[BadShard] = []
        self.others: list[str] = []
        self.dtype = ""

    def read(self) -> None:
        if INDEX in self.names:
            self._read_indexed()
            return
        found = [n for n in self.names if n.endswith(".safetensors")]
        single = [SINGLE] if SINGLE in found else found
        for name in single:
            self._look(name)
        numbered = [re.fullmatch(r".*-\d{5}-of-(\d{5})\.safetensors", n) for n in single]
        totals = {int(m[1]) for m in numbered if m}
        if totals and totals != {len(single)}:
            self.index_problem = (
                f"{INDEX} is not there, and {len(single)} of {max(totals)} shards are"
            )
        if not found:
            self.others = [n for n in self.names if n.endswith((".bin", ".pt", ".pth", ".gguf"))]

    def _read_indexed(self) -> None:
        body, self.index_problem = _read_json(os.path.join(self.path, INDEX), _INDEX_LIMIT)
        mapping = body.get("weight_map")
        if self.index_problem:
            return
        if not isinstance(mapping, dict) or not mapping:
            self.index_problem = f"{INDEX} has no weight_map"
            return
        wanted: dict[str, set[str]] = {}
        for tensor, shard in mapping.items():
            wanted.setdefault(str(shard), set()).add(tensor)
        for name, tensors in sorted(wanted.items()):
            if os.path.basename(name) != name or name in (".", ".."):
                self.bad.append(BadShard(name, "is named by the index outside the model folder"))
                continue
            self._look(name, tensors)

    def _look(self, name: str, wanted: set[str] | None = None) -> None:
        self.shards += 1
        try:
            contents = safetensors.read(os.path.join(self.path, name))
        except safetensors.BadFile as error:
            self.bad.append(BadShard(name, str(error)))
            return
        self.bytes += contents.size
        self.dtype = self.dtype or contents.dtype
        missing = sorted((wanted or set()) - contents.tensors)
        if missing:
            self.bad.append(
                BadShard(
                    name,
                    f"lacks {len(missing)} of the {len(wanted or ())} tensors that the index "
                    f"puts there, such as {missing[0]}",
                )
            )


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part that describes the decoder: the config itself, or nested one or two deep."""
    for _ in range(2):
        if _count(config, _LAYERS) is not None:
            return config
        inner = [config[k] for k in _NESTED if isinstance(config.get(k), dict)]
        if not inner:
            return config
        config = inner[0]
    return config


def _count(config: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = config.get(name)
        if type(value) is int and 0 < value < 2**40:
            return value
    return None


def _dtype(*configs: dict[str, Any]) -> str:
    for config in configs:
        for key in ("dtype", "torch_dtype"):
            name = str(config.get(key) or "").removeprefix("torch.")
            if name in ("float32", "bfloat16", "float16"):
                return name
    return ""


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _quantization(config: dict[str, Any]) -> str:
    section = config.get("quantization_config")
    return str(section.get("quant_method", ""))[:60] if isinstance(section, dict) else ""


PROBE = Probe("model", ModelFacts, _collect, timeout=30.0)
