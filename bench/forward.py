"""The peer of `capture`, run by the demo's interpreter: the model's own forward and nothing else.

``python forward.py MODEL DATA``: reads token rows, runs the decoder over them
one by one as engine transformers does (same dtype, no cache, no LM head), and
prints one JSON object with the seconds of that loop.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(model_path: str, data_path: str) -> None:
    import torch
    import transformers

    lines = Path(data_path).read_text(encoding="ascii").splitlines()
    rows = [json.loads(line)["input_ids"] for line in lines]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_path, dtype=torch.bfloat16, local_files_only=True
    )
    decoder = model.model.eval()
    with torch.inference_mode():
        # the worker warms up with as many tokens
        decoder(input_ids=torch.tensor([rows[0][:16]]), use_cache=False)
        began = time.perf_counter()
        for row in rows:
            decoder(input_ids=torch.tensor([row], dtype=torch.long), use_cache=False)
        seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
