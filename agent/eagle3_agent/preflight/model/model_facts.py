"""What stands in the model folder: its config, and every shard against header and index."""

from __future__ import annotations

import gc
import os
import stat
from dataclasses import dataclass, field

from eagle3_agent.preflight.check import Ask, Probe

from . import config as configs
from . import decoder, jsonfile, weights
from .decoder import Layers
from .quantised import Quantisation
from .weights import BadShard, Count

__all__ = ["PROBE", "BadShard", "Count", "ModelFacts"]

CONFIG_LIMIT = 16 * 1024 * 1024
_KEPT = 20


@dataclass(frozen=True)
class ModelFacts:
    path: str
    problem: str = ""
    """Why there is no model folder at all, in words."""
    config_problem: str = ""
    model_type: str = ""
    text_type: str = ""
    """``model_type`` of the language model's part."""
    architecture: str = ""
    layers: int | None = None
    hidden: int | None = None
    vocab: int | None = None
    dtype: str = ""
    """``float32``, ``bfloat16`` or ``float16``: what ``auto`` means for this checkpoint."""
    config_dtype: str = ""
    """The same as config.json has it; empty where it is silent."""
    quantization: str = ""
    quantisation: Quantisation = field(default_factory=Quantisation)
    custom_code: bool = False
    """config.json names Python of the checkpoint itself (``auto_map``)."""
    auto_map: dict[str, str] = field(default_factory=dict)
    routed_scale: float | None = None
    """``routed_scaling_factor`` of a mixture of experts."""
    extra_layers: int = 0
    """MTP layers after the decoder's own."""
    special_ids: dict[str, int] = field(default_factory=dict)
    index_problem: str = ""
    shards: int = 0
    bytes: int = 0
    """Of the shards that are whole."""
    data: int = 0
    """Bytes of their tensors alone."""
    dtypes: dict[str, int] = field(default_factory=dict)
    """safetensors' name of a dtype -> bytes of the tensors that have it."""
    embedding: tuple[int, ...] = ()
    """(rows, hidden) of the input embedding; empty when no tensor has such a name."""
    bad: tuple[BadShard, ...] = ()
    bad_count: int = 0
    index_total: int | None = None
    """Bytes of all tensors as the index says."""
    unindexed: Count = field(default_factory=Count)
    """Tensors of shards that the index does not name."""
    doubled: Count = field(default_factory=Count)
    """Tensors that two shards hold."""
    extra: tuple[str, ...] = ()
    """Safetensors files beside those that belong to the checkpoint."""
    extra_count: int = 0
    partial: tuple[str, ...] = ()
    """Files of a download that did not end."""
    found_layers: Layers = field(default_factory=Layers)
    other_weights: tuple[str, ...] = ()
    """Weights in formats that are not checked here (.bin, .pt, .gguf), when no safetensors is."""
    tokenizer: bool = False


def _collect(ask: Ask) -> ModelFacts:
    # headers of large checkpoints are millions of small objects without a circle
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _look(ask.profile.model.path)
    finally:
        if collecting:
            gc.enable()


def _look(path: str) -> ModelFacts:
    problem = _why_no_folder(path)
    if problem:
        return ModelFacts(path, problem)
    names = sorted(os.listdir(path))
    body, config_problem = jsonfile.read(os.path.join(path, "config.json"), CONFIG_LIMIT)
    config = configs.interpret(body)
    found = weights.read(path, names)
    return ModelFacts(
        path=path,
        config_problem=config_problem,
        model_type=config.model_type,
        text_type=config.text_type,
        architecture=config.architecture,
        layers=config.layers,
        hidden=config.hidden,
        vocab=config.vocab,
        dtype=config.dtype or found.dtype,
        config_dtype=config.dtype,
        quantization=config.quantisation.method,
        quantisation=config.quantisation,
        custom_code=bool(config.auto_map),
        auto_map=config.auto_map,
        routed_scale=config.routed_scale,
        extra_layers=config.extra_layers,
        special_ids=config.special_ids,
        index_problem=found.index_problem,
        shards=found.shards,
        bytes=found.bytes,
        data=found.data,
        dtypes=found.dtypes,
        embedding=found.embedding,
        bad=tuple(found.bad[:_KEPT]),
        bad_count=len(found.bad),
        index_total=found.index_total,
        unindexed=found.unindexed,
        doubled=found.doubled,
        extra=tuple(found.extra[:_KEPT]),
        extra_count=len(found.extra),
        partial=tuple(found.partial),
        found_layers=decoder.find(found.tensors, config.layers),
        other_weights=tuple(found.others[:_KEPT]),
        tokenizer=any(n.startswith(("tokenizer", "tiktoken", "tekken", "vocab.")) for n in names),
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
    except ValueError:  # a NUL
        return "is no path that a file can have"
    if not stat.S_ISDIR(info.st_mode):
        return "is a file, not a folder"
    try:
        os.listdir(path)
    except OSError as error:
        return f"cannot be listed: {error.strerror}"
    return ""


PROBE = Probe("model", ModelFacts, _collect, timeout=30.0)
