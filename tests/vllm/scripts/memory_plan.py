"""memory_plan.py REPORT FOLDER KIND DTYPE RANKS: what every rank holds of a loaded model.

The checkpoint is left in FOLDER/model.  ``loaded`` is what stood before the kernels of this
machine packed it, where vLLM runs in this process; packed formats need no more than that: their
products ask for instructions that the machine may lack.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from support import vllm_memory
from support import vllm_special as special
from support import vllm_tiny as tiny

PACKED = ("gptq", "w8a8")


def main() -> None:
    report, folder, kind, dtype, ranks = sys.argv[1:]
    model = Path(folder) / "model"
    if kind in special.SPECIAL:
        special.SPECIAL[kind](model)
    else:
        tiny.make(kind, model, "float32" if kind == "llama" else dtype)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    loaded = vllm_memory.watch_loading()
    found: dict[str, Any] = {"ranks": []}
    try:
        llm = start(model, kind, dtype, int(ranks))
    except Exception:
        if kind not in PACKED or not loaded:
            raise
    else:
        found["ranks"] = llm.collective_rpc(vllm_memory.held)
        llm.llm_engine.engine_core.shutdown()
    Path(report).write_text(json.dumps(found | {"loaded": loaded}))


def start(model: Path, kind: str, dtype: str, ranks: int) -> Any:
    from vllm import LLM

    limits: dict[str, Any] = {"skip_tokenizer_init": True}
    if kind == "kimi":
        limits = {"limit_mm_per_prompt": {"image": 0, "vision_chunk": 0}}
    return LLM(
        str(model),
        dtype=dtype,
        tensor_parallel_size=ranks,
        max_model_len=256,
        max_num_batched_tokens=256,
        max_num_seqs=8,
        enforce_eager=True,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.3,
        **limits,
    )


if __name__ == "__main__":
    main()
