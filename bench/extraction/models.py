"""Random-weight checkpoints to measure with: ``python -m bench.extraction.models NAME FOLDER``.

Llama's architecture, bfloat16, weights scaled so that states differ from layer to layer,
with a tokenizer that knows a few words.  Made on the GPU where there is one: 8b takes 16 GB
of disk and some 20 s.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shape:
    """What decides a dense decoder's cost."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    vocab: int
    tied: bool = True

    @property
    def weights(self) -> int:
        """Elements of the decoder layers' matrices, which every token meets."""
        attention = self.hidden * self.head * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    def flops(self, lengths: list[int]) -> int:
        """Of computing rows of these lengths: products with weights, and causal attention.

        The embedding is a look-up, and the head is run once a row: neither counts.
        """
        pairs = sum(n * (n + 1) // 2 for n in lengths)
        return 2 * self.weights * sum(lengths) + 4 * self.layers * self.heads * self.head * pairs

    @staticmethod
    def of(folder: Path) -> Shape:
        """From a checkpoint's config; raises ValueError for what is no dense decoder."""
        config = json.loads((folder / "config.json").read_bytes())
        if any(key in config for key in ("num_experts", "n_routed_experts", "num_local_experts")):
            raise ValueError("not every token meets every weight of a mixture of experts")
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        return Shape(
            hidden,
            int(config["intermediate_size"]),
            int(config["num_hidden_layers"]),
            heads,
            int(config.get("num_key_value_heads") or heads),
            int(config.get("head_dim") or hidden // heads),
            int(config["vocab_size"]),
            bool(config.get("tie_word_embeddings")),
        )


SHAPES = {
    "8b": Shape(4096, 14336, 32, 32, 8, 128, 128_256, tied=False),
    "1b": Shape(2048, 8192, 16, 32, 8, 64, 128_256),
    "small": Shape(512, 1536, 12, 8, 4, 64, 4096),
    "tiny": Shape(64, 128, 4, 2, 1, 32, 512),
}


def make(name: str, folder: Path) -> Path:
    """The checkpoint, unless it is there already."""
    if (folder / "made").exists():
        return folder
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[name]
    where = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    weights = {}
    for key, size in tensors(shape):
        if len(size) == 1:
            weights[key] = torch.ones(size, dtype=torch.bfloat16)
            continue
        spread = 1.0 if "embed" in key else size[-1] ** -0.5
        made = torch.randn(size, device=where, dtype=torch.float32 if where == "cpu" else None)
        weights[key] = (made * spread).to(torch.bfloat16).cpu()
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(shape), indent=1))
    _tokenizer(folder, shape.vocab)
    (folder / "made").write_text("")
    return folder


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes as Llama checkpoints have them."""
    wide, hidden = shape.heads * shape.head, shape.hidden
    narrow = shape.kv_heads * shape.head
    yield "model.embed_tokens.weight", (shape.vocab, hidden)
    for i in range(shape.layers):
        at = f"model.layers.{i}"
        yield f"{at}.self_attn.q_proj.weight", (wide, hidden)
        yield f"{at}.self_attn.k_proj.weight", (narrow, hidden)
        yield f"{at}.self_attn.v_proj.weight", (narrow, hidden)
        yield f"{at}.self_attn.o_proj.weight", (hidden, wide)
        yield f"{at}.mlp.gate_proj.weight", (shape.inner, hidden)
        yield f"{at}.mlp.up_proj.weight", (shape.inner, hidden)
        yield f"{at}.mlp.down_proj.weight", (hidden, shape.inner)
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not shape.tied:
        yield "lm_head.weight", (shape.vocab, hidden)


def config(shape: Shape) -> dict[str, Any]:
    """Readable by transformers 4 and 5 alike."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "tie_word_embeddings": shape.tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 32768,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
    }


def _tokenizer(folder: Path, vocab: int) -> None:
    """A token a word; the library's generator wants to load one."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<bos>": 0, "<eos>": 1, "<unk>": 2, **{f"w{i}": i for i in range(3, min(vocab, 64))}}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    print(make(sys.argv[1], Path(sys.argv[2])))
