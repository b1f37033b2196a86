"""What engine ``vllm`` gives vLLM: its environment, and the arguments of ``LLM``.

For whoever makes that engine: the run, and the dry construction that comes before it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3_agent.protocol.values import PatchFinding, Profile
from eagle3_agent.worker import model_info
from eagle3_agent.worker.capture.extension import EXTENSION

from .room import room_for_one

#: Read by vLLM when it starts.  The engine core stays in this process: one that stands alone
#: outlives its parent and keeps its GPU.  Newer releases have a second model runner, whose
#: batch the capture core does not know.
_ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}

#: Prompts of one step at most.  A prompt lives for its prefill alone, so this many fill a step
#: of 8192 tokens down to 32 tokens a prompt; each costs a row of logits.
SEQUENCES = 256
TOKENS = 8192

#: Kinds of input that vLLM's multimodal models know beside text.
_MODALITIES = ("image", "video", "audio", "vision_chunk")


def prepare(profile: Profile) -> Sequence[PatchFinding]:
    """Set the environment and apply what vLLM itself needs, in this process; what was found."""
    from eagle3_agent.worker.compat import registry
    from eagle3_agent.worker.compat.patch import Settings

    os.environ.update(_ENVIRONMENT)
    # a forked worker would inherit this process's threads and their locks
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    found = [f for f in registry.findings() if f.patch.startswith("vllm/")]
    registry.apply(found, Settings(profile.model.dtype, profile.model.trust_remote_code))
    return found


def make(profile: Profile) -> dict[str, Any]:
    """Keyword arguments of ``LLM``.  Imports vLLM; raises ModelError and EngineError."""
    model, engine = profile.model, profile.engine
    info = model_info.read(Path(model.path))
    longest = room_for_one(model, info)
    budget = engine.max_num_batched_tokens or max(TOKENS, longest)
    return {
        "model": model.path,
        "trust_remote_code": model.trust_remote_code,
        "tensor_parallel_size": model.tensor_parallel_size,
        "dtype": model_info.run_dtype(model.dtype, info),
        "gpu_memory_utilization": model.gpu_memory_utilization,
        "max_model_len": longest,
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(engine.max_num_seqs or SEQUENCES, budget),
        "enable_chunked_prefill": True,
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "worker_extension_cls": EXTENSION,
        "seed": 0,
        **_text_only(info),
    }


def _text_only(info: model_info.ModelInfo) -> dict[str, Any]:
    """Token ids are all that is run: no tokenizer, or no pictures to make room for."""
    from vllm.engine.arg_utils import EngineArgs

    config = json.loads((info.path / "config.json").read_bytes())
    if not config.keys() & {"vision_config", "audio_config"}:
        return {"skip_tokenizer_init": True}
    # a multimodal model's processor is made in any case, and wants the tokenizer
    if "language_model_only" in EngineArgs.__dataclass_fields__:
        return {"language_model_only": True}
    return {"limit_mm_per_prompt": dict.fromkeys(_MODALITIES, 0)}
