"""make.py REPORT FOLDER KIND DTYPE: a tiny checkpoint in FOLDER/model, and rows for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support import vllm_tiny as tiny

LENGTHS = (100, 17, 256, 1, 64, 200, 33, 256, 90, 5, 128, 70)


def main(report: str, folder: str, kind: str, dtype: str) -> None:
    tiny.make(kind, Path(folder) / "model", dtype)
    rows = tiny.sequences(LENGTHS)
    with (Path(folder) / "rows.jsonl").open("w") as file:
        for row in rows:
            mask = [int(i >= len(row) // 2) for i in range(len(row))]
            file.write(json.dumps({"input_ids": row, "loss_mask": mask}) + "\n")
    Path(report).write_text(json.dumps({"rows": len(rows), "tokens": sum(map(len, rows))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
