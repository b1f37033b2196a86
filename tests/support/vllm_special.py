"""Tiny checkpoints that transformers does not save: a multimodal wrapper, packed weights.

Each function takes a language model in float32, writes a checkpoint of it and returns the model
whose states are the truth.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import vllm_tiny as tiny

MEDIA = tiny.VOCAB - 1
"""The id that stands for a piece of an image; no row may hold it."""

_GROUP = 32
_VISION = {"heads": 2, "hidden": 32, "inner": 48, "layers": 1, "patch": 14, "table": 8}

#: What the checkpoint's own code must offer vLLM 0.16 to measure how much memory an image takes.
_PROCESSOR = """\
import torch
from transformers.image_processing_utils import BaseImageProcessor
from transformers import BatchFeature


class TinyVisionProcessor(BaseImageProcessor):
    num_frames_per_chunk = 4

    def __init__(self, media_proc_cfg=None, **kwargs):
        super().__init__(**kwargs)

    def media_tokens_calculator(self, media):
        return 4

    def preprocess(self, medias, return_tensors=None, **kwargs):
        frames = [len(m["video_chunk"]) if m["type"] == "video_chunk" else 1 for m in medias]
        return BatchFeature({
            "pixel_values": torch.zeros(16 * sum(frames), 3, 14, 14),
            "grid_thws": torch.tensor([[count, 4, 4] for count in frames]),
        })
"""


def kimi(folder: Path) -> Any:
    """Kimi-K2.5: DeepSeek-V3 as ``language_model`` beside a vision tower, no ``auto_map``."""
    from safetensors.torch import load_file, save_file

    model = tiny.build("deepseek")
    tiny.save(model, folder)
    text = json.loads((folder / "config.json").read_text())
    saved = load_file(folder / "model.safetensors")
    weights = {f"language_model.{name}": tensor for name, tensor in saved.items()}
    for file in folder.iterdir():
        file.unlink()
    save_file({**weights, **_tower()}, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "float32",
        "torch_dtype": "float32",
        "media_placeholder_token_id": MEDIA,
        "image_token_id": MEDIA,
        "tie_word_embeddings": False,
        "projection_hidden_size": _VISION["hidden"],
        "text_config": {**text, "model_type": "kimi_k2"},
        "vision_config": _vision_config(),
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tiny_vision.py").write_text(_PROCESSOR)
    (folder / "preprocessor_config.json").write_text(json.dumps(_media()))
    _tokenizer(folder)
    return model


def _vision_config() -> dict[str, Any]:
    size = _VISION
    return {
        "model_type": "kimi_k25_vision",
        "patch_size": size["patch"],
        "num_attention_heads": size["heads"],
        "num_hidden_layers": size["layers"],
        "hidden_size": size["hidden"],
        "intermediate_size": size["inner"],
        "merge_kernel_size": [2, 2],
        "mm_hidden_size": size["hidden"],
        **{f"{name}_emb_{side}": size["table"] for name in ("pos", "init_pos") for side in _SIDES},
    }


_SIDES = ("height", "width")


def _media() -> dict[str, Any]:
    return {
        "auto_map": {"AutoImageProcessor": "tiny_vision.TinyVisionProcessor"},
        "image_processor_type": "TinyVisionProcessor",
        "media_proc_cfg": {
            "patch_size": _VISION["patch"],
            "merge_kernel_size": 2,
            "temporal_merge_kernel_size": 4,
            "in_patch_limit": 16,
            "in_patch_limit_each_frame": 16,
            "in_patch_limit_video": 64,
            "patch_limit_on_one_side": 4,
            "fixed_output_tokens": None,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        },
    }


def _tower() -> dict[str, torch.Tensor]:
    hidden, inner, patch = _VISION["hidden"], _VISION["inner"], _VISION["patch"]
    shapes: dict[str, tuple[int, ...]] = {
        "vision_tower.patch_embed.proj.weight": (hidden, 3, patch, patch),
        "vision_tower.patch_embed.proj.bias": (hidden,),
        "vision_tower.patch_embed.pos_emb.weight": (_VISION["table"], _VISION["table"], hidden),
        **_affine("vision_tower.encoder.final_layernorm", hidden),
        **_affine("mm_projector.pre_norm", hidden),
        **_affine("mm_projector.proj.0", 4 * hidden, 4 * hidden),
        **_affine("mm_projector.proj.2", tiny.HIDDEN, 4 * hidden),
    }
    for layer in range(_VISION["layers"]):
        block = f"vision_tower.encoder.blocks.{layer}"
        shapes |= _affine(f"{block}.norm0", hidden) | _affine(f"{block}.norm1", hidden)
        shapes |= _affine(f"{block}.wqkv", 3 * hidden, hidden)
        shapes |= _affine(f"{block}.wo", hidden, hidden)
        shapes |= _affine(f"{block}.mlp.fc0", inner, hidden)
        shapes |= _affine(f"{block}.mlp.fc1", hidden, inner)
    return {name: torch.randn(shape) * 0.05 for name, shape in shapes.items()}


def _affine(name: str, size: int, *inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (size, *inputs), f"{name}.bias": (size,)}


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(tiny.VOCAB - 1)} | {"<|media_pad|>": MEDIA}
    inner = Tokenizer(models.WordLevel(words, unk_token="w0"))
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="w1",
        unk_token="w0",
        additional_special_tokens=["<|media_pad|>"],
    )
    made.save_pretrained(folder)


def gptq(folder: Path) -> Any:
    """Llama with four-bit integers in groups of 32, in GPTQ's layout.

    The truth is the model with the very weights that the packed ones stand for.
    """
    return _quantised(folder, _four_bits, _GPTQ)


def w8a8(folder: Path) -> Any:
    """Llama with eight-bit weights, a scale a row; activations are rounded as it runs.

    The truth does not round them.
    """
    return _quantised(folder, _eight_bits, _INT8)


def _quantised(folder: Path, pack: Callable[..., dict[str, torch.Tensor]], config: Any) -> Any:
    from safetensors.torch import load_file, save_file

    model = tiny.build("llama")
    packs: dict[str, torch.Tensor] = {}
    for name, module in model.model.layers.named_modules():
        if isinstance(module, torch.nn.Linear):
            packs |= pack(f"model.layers.{name}", module.weight.data)
    tiny.save(model, folder, "bfloat16")
    file = folder / "model.safetensors"
    replaced = {f"{name.rpartition('.')[0]}.weight" for name in packs}
    kept = {name: tensor for name, tensor in load_file(file).items() if name not in replaced}
    save_file({**kept, **packs}, file, {"format": "pt"})
    tiny.change_config(folder, quantization_config=config)
    return model.float()


_GPTQ = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": _GROUP,
    "desc_act": False,
    "sym": True,
    "lm_head": False,
    "checkpoint_format": "gptq",
}


_INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "channel",
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
            "output_activations": None,
        }
    },
}


def _eight_bits(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Round ``weight`` [out, in] in place to what eight bits hold, and give it packed."""
    scale = weight.abs().amax(dim=-1, keepdim=True) / 127
    whole = (weight / scale).round().clamp(-128, 127)
    weight.copy_(whole * scale)
    return {f"{name}.weight": whole.to(torch.int8), f"{name}.weight_scale": scale.contiguous()}


def _four_bits(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Round ``weight`` [out, in] in place to what four bits hold, and give it packed."""
    out, inputs = weight.shape
    groups = weight.view(out, inputs // _GROUP, _GROUP)
    scale = (groups.abs().amax(dim=-1) / 7).bfloat16()
    whole = (groups / scale.unsqueeze(-1)).round().clamp(-8, 7)
    weight.copy_((whole * scale.unsqueeze(-1)).view(out, inputs))
    codes = whole.view(out, inputs).T.to(torch.int64) + 8  # [in, out]
    zeros = torch.full((inputs // _GROUP, out), 7)  # by GPTQ's custom one less than the zero
    return {
        f"{name}.qweight": _words(codes.reshape(inputs // 8, 8, out), 1),
        f"{name}.qzeros": _words(zeros.reshape(-1, out // 8, 8), 2),
        f"{name}.scales": scale.T.contiguous(),
        f"{name}.g_idx": torch.arange(inputs, dtype=torch.int32) // _GROUP,
    }


def _words(nibbles: torch.Tensor, dim: int) -> torch.Tensor:
    """Eight four-bit codes along ``dim`` to one int32, the first in the lowest bits."""
    shifts = torch.arange(0, 32, 4).view([-1 if i == dim else 1 for i in range(nibbles.dim())])
    words = (nibbles << shifts).sum(dim=dim)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


SPECIAL: dict[str, Callable[[Path], Any]] = {"kimi": kimi, "gptq": gptq, "w8a8": w8a8}
"""Kind -> what writes its checkpoint."""
