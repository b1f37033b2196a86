"""memory_plan.py REPORT FOLDER KIND DTYPE RANKS: what every rank holds of a loaded model.

The checkpoint is left in FOLDER/model.
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


def main() -> None:
    report, folder, kind, dtype, ranks = sys.argv[1:]
    model = Path(folder) / "model"
    if kind in special.SPECIAL:
        special.SPECIAL[kind](model)
    else:
        tiny.make(kind, model, dtype)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    from vllm import LLM

    limits: dict[str, Any] = {}
    if kind == "kimi":
        limits = {"limit_mm_per_prompt": {"image": 0, "vision_chunk": 0}}
    llm = LLM(
        str(model),
        dtype=dtype,
        tensor_parallel_size=int(ranks),
        max_model_len=256,
        max_num_batched_tokens=256,
        max_num_seqs=8,
        enforce_eager=True,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.3,
        skip_tokenizer_init=kind != "kimi",
        **limits,
    )
    found = llm.collective_rpc(vllm_memory.held)
    before = len(os.listdir("/proc/self/fd"))
    Path(report).write_text(json.dumps({"ranks": found, "driver_files": before}))
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
