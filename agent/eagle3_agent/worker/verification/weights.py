"""A few tensors of a checkpoint, read from its safetensors shards without loading the model.

Enough for what stands around the decoder layers: the embedding before the first, the final norm
and the output head after the last.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_agent.worker import model_info

#: Ends of tensor names, the field's own; the shortest full name that fits is the decoder's.
_NORM = ("model.norm.weight", "final_layernorm.weight", "ln_f.weight", "norm.weight")
_EMBEDDING = ("embed_tokens.weight", "wte.weight", "tok_embeddings.weight")
_HEAD = ("lm_head.weight", "embed_out.weight")

#: Names that hold another part of the model.
_ELSEWHERE = ("vision", "visual", "audio", "layers.", "blocks.", ".h.", "mtp", "eagle")

_FLOATING = ("F32", "BF16", "F16")

#: Rows of the head at a time: 8192 x 7168 in float32 are 224 MiB.
_PART = 8192


class NotThere(Exception):
    """Why a tensor cannot be read, in words."""


@dataclass(frozen=True)
class Ends:
    """What stands before and after the decoder layers."""

    norm: Any
    """float32 ``[H]``, or None."""
    embedding: Path | None
    head: Path | None
    names: dict[str, str]
    eps: float
    offset: float
    """Added to the norm's weight: 1 in the Gemma family, 0 elsewhere."""
    centred: bool
    """The final norm subtracts the mean: a layer norm, which is not computed here."""
    routed_scaling: float | None
    """``routed_scaling_factor`` of a mixture of experts."""

    def normed(self, states: Any) -> Any:
        """Final RMS norm of ``[S, H]``, in float32; raises NotThere."""
        if self.norm is None:
            raise NotThere("the shards hold no final norm")
        if self.centred:
            raise NotThere("the final norm is no RMS norm")
        x = states.float()
        scale = (x.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        return x * scale * (self.norm + self.offset)

    def embedded(self, ids: Sequence[int]) -> Any:
        """Rows of the embedding, float32 ``[S, H]``; raises NotThere."""
        if self.embedding is None:
            raise NotThere("the shards hold no embedding")
        part = _slice(self.embedding, self.names["embedding"])
        seen = {i: part[i : i + 1][0].float() for i in set(ids)}
        import torch

        return torch.stack([seen[i] for i in ids])

    def vocab(self) -> int:
        """Rows of the output head; raises NotThere."""
        return int(self._head().get_shape()[0])

    def _head(self) -> Any:
        if self.head is None:
            raise NotThere("the shards hold no output head")
        return _slice(self.head, self.names["head"])

    def losses(self, normed: Any, targets: Any) -> tuple[Any, Any]:
        """Of ``[S, H]`` normed states: cross entropy in nats ``[T, S]`` for each row of target ids
        ``[T, S]``, and the likeliest id ``[S]``.  The head is read in parts; raises NotThere.
        """
        import torch

        part, vocab = self._head(), self.vocab()
        total = torch.full((len(normed),), float("-inf"))
        best, likeliest = total.clone(), torch.zeros(len(normed), dtype=torch.long)
        own = torch.zeros(targets.shape)
        for start in range(0, vocab, _PART):
            logits = normed @ part[start : min(start + _PART, vocab)].float().T
            total = torch.logaddexp(total, logits.logsumexp(dim=1))
            top, where = logits.max(dim=1)
            likeliest = torch.where(top > best, where + start, likeliest)
            best = torch.maximum(best, top)
            inside = (targets >= start) & (targets < start + logits.shape[1])
            picked = logits.gather(1, (targets - start).clamp(0, logits.shape[1] - 1).T).T
            own = torch.where(inside, picked, own)
        return total - own, likeliest


def read(path: Path) -> Ends:
    """Finds the tensors by name; nothing is read but the norm.  Raises OSError, ModelError."""
    info, tensors = _config(path), _names(path)
    norm_at, norm_name = _find(tensors, _NORM)
    embedding_at, embedding = _find(tensors, _EMBEDDING)
    head_at, head = _find(tensors, _HEAD)
    if head_at is None and info.get("tie_word_embeddings", True):
        head_at, head = embedding_at, embedding
    norm = None if norm_at is None else _slice(norm_at, norm_name)[:].float()
    kind = str(info.get("model_type", ""))
    return Ends(
        norm=norm,
        embedding=embedding_at,
        head=head_at,
        names={"embedding": embedding, "head": head},
        eps=float(info.get("rms_norm_eps") or info.get("norm_eps") or 1e-6),
        offset=1.0 if kind.startswith(("gemma", "qwen3_next")) else 0.0,
        centred=bool(norm_name) and norm_name.removesuffix("weight") + "bias" in tensors,
        routed_scaling=info.get("routed_scaling_factor"),
    )


def _config(path: Path) -> dict[str, Any]:
    config = json.loads((path / "config.json").read_bytes())
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def _names(path: Path) -> dict[str, Path]:
    """Every floating tensor of the shards by name, from their headers."""
    found: dict[str, Path] = {}
    for name in model_info.shard_names(path):
        try:
            with (path / name).open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length))
        except (OSError, ValueError, struct.error):
            continue
        for tensor, facts in header.items():
            if tensor != "__metadata__" and facts.get("dtype") in _FLOATING:
                found[tensor] = path / name
    return found


def _find(tensors: dict[str, Path], ends: Sequence[str]) -> tuple[Path | None, str]:
    for end in ends:
        fitting = [
            name
            for name in tensors
            if name.endswith(end) and not any(part in name for part in _ELSEWHERE)
        ]
        if fitting:
            name = min(fitting, key=len)
            return tensors[name], name
    return None, ""


def _slice(path: Path, name: str) -> Any:
    from safetensors import safe_open

    return safe_open(str(path), framework="pt").get_slice(name)
