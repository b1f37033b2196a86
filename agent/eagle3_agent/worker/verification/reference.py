"""The second model: whether the host has room for it, and the states of all its layers.

It runs on a GPU that nobody uses, for the seconds that it takes, and on the CPU otherwise.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle3_agent.protocol.values import CaptureSection, Profile, ReferenceDtype
from eagle3_agent.worker.engines.base import EngineError, Sample
from eagle3_agent.worker.engines.transformers import TransformersEngine
from eagle3_agent.worker.memory import available
from eagle3_agent.worker.model_info import ITEM_SIZE, ModelInfo

#: What transformers needs to load a checkpoint of a quantisation method.
_PACKAGES = {
    "compressed-tensors": "compressed_tensors",
    "awq": "awq",
    "gptq": "gptqmodel",
    "bitsandbytes": "bitsandbytes",
}

#: Weights are loaded shard by shard into their place: the largest shard is held beside them.
_LOADING = 1.1

_BESIDE = 1 << 30
"""Bytes for Python, torch and the sample's own activations."""


_CONTEXT = 2 << 30
"""Bytes in use in a GPU that is idle, at most: this process's own context (0.6 GB on an H200) and
the driver's reserve."""


class NoReference(Exception):
    """Why nothing can be recomputed, in words."""


@dataclass(frozen=True)
class Trace:
    """What the reference computed of one sample."""

    sample: Sample
    states: tuple[Any, ...]
    """``[S, H]`` after each decoder layer, all of them, on the CPU."""


class Reference:
    """A loaded model.  Not thread-safe."""

    def __init__(self, engine: TransformersEngine, dtype: str, device: str) -> None:
        import transformers

        self._engine = engine
        self.dtype = dtype
        self.described = f"transformers {transformers.__version__}, {dtype}, {device}"

    def trace(self, sample: Sample) -> Trace:
        (captured,) = self._engine.capture([sample])
        return Trace(sample, tuple(captured.states))

    def close(self) -> None:
        self._engine.close()


def load(profile: Profile, info: ModelInfo, asked: ReferenceDtype, longest: int) -> Reference:
    """The model in the best dtype that fits; ``longest`` is the tokens of the longest sample.

    Raises NoReference when there is no room for it or the library cannot load it.
    """
    dtype = choose_dtype(info, asked, longest)
    everything = CaptureSection(tuple(range(info.layers)))
    engine = TransformersEngine(dtype=dtype, device=idle_gpu(need(info, dtype, longest)) or "cpu")
    try:
        loaded = engine.load(replace(profile, capture=everything), lambda event: None)
        return Reference(engine, dtype, loaded.device)
    except EngineError as error:
        engine.close()
        raise NoReference(str(error)) from error
    except Exception as error:  # a library's own, for a model that it does not know
        engine.close()
        first = str(error).strip().split("\n")[0][:300]
        raise NoReference(
            f"transformers cannot load this model ({type(error).__name__}: {first})"
        ) from error


def need(info: ModelInfo, dtype: str, longest: int) -> int:
    """Bytes of host memory for the weights in ``dtype`` and all layers' states of a sample.

    Of a quantised checkpoint the stored weights stay beside the decompressed ones: a layer of
    compressed-tensors decompresses its weight in its first forward and keeps it.
    """
    weights = info.weight_bytes / info.weight_width * ITEM_SIZE[dtype]
    if quantisation(info.path):
        weights += info.weight_bytes
    states = (info.layers + 1) * longest * info.hidden * ITEM_SIZE[dtype]
    return int(weights * _LOADING) + states + _BESIDE


def idle_gpu(size: int) -> str | None:
    """A GPU in which nobody holds memory and ``size`` bytes fit; None without one.

    A GPU that is used at all is left alone: what is free there may be what its run is about to
    take.
    """
    import torch

    if not torch.cuda.is_available():
        return None
    for number in range(torch.cuda.device_count()):
        try:
            free, total = torch.cuda.mem_get_info(number)
        except RuntimeError:  # a lost GPU, or one in exclusive use
            continue
        if total - free < _CONTEXT and size < free:
            return f"cuda:{number}"
    return None


def quantisation(path: Path) -> str:
    """``quant_method`` of the checkpoint; "" for a plain one."""
    try:
        config = json.loads((path / "config.json").read_bytes())
        text = config.get("text_config") or {}
        found = config.get("quantization_config") or text.get("quantization_config") or {}
        return str(found.get("quant_method", "unknown")) if found else ""
    except (OSError, ValueError, AttributeError):
        return ""


def choose_dtype(info: ModelInfo, asked: ReferenceDtype, longest: int) -> str:
    """What the reference runs in; raises NoReference with the arithmetic."""
    method = quantisation(info.path)
    package = _PACKAGES.get(method, "")
    if package and importlib.util.find_spec(package) is None:
        raise NoReference(
            f"the checkpoint is quantised ({method}), and {package} is not installed beside "
            "transformers"
        )
    if method and asked == "auto":
        options = [info.dtype]  # float32 of quantised weights is no better a reference
    elif asked == "auto":
        options = list(dict.fromkeys(("float32", info.dtype)))
    else:
        options = ["float32" if asked == "float32" else info.dtype]
    free = available()
    if free is None:
        return options[0]
    needs = {dtype: need(info, dtype, longest) for dtype in options}
    for dtype in options:
        if needs[dtype] < free:
            return dtype
    told = " and ".join(f"{needs[d] / 2**30:.0f} GiB in {d}" for d in options)
    hint = "" if asked != "float32" else "; --dtype checkpoint needs less"
    raise NoReference(
        f"a second model needs {told} (weights x {_LOADING:g}, the states of {info.layers} layers, "
        f"1 GiB) and the host has {free / 2**30:.0f} GiB free{hint}"
    )
