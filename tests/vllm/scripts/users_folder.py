"""users_folder.py REPORT FOLDER: what a script's user has beside the model that make.py made.

FOLDER/data_test is FOLDER/rows.jsonl as ``datasets`` saves it; the model gets a tokenizer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import datasets
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel


def main(report: str, folder: str) -> None:
    root = Path(folder)
    lines = (root / "rows.jsonl").read_text().splitlines()
    made: Any = datasets.Dataset.from_list([json.loads(line) for line in lines])
    made.save_to_disk(root / "data_test")
    words = Tokenizer(WordLevel({"<unk>": 0, "</s>": 1}, unk_token="<unk>"))
    tokenizer: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")
    tokenizer.save_pretrained(root / "model")
    Path(report).write_text(json.dumps({"rows": len(lines)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
