"""Arrow folders and parquet files that the real ``datasets`` wrote, read where pyarrow is."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from support import tiny, vllm_env

pytestmark = pytest.mark.vllm

_WRITE = """
import json, sys
from datasets import Dataset, DatasetDict
rows, folder = json.load(open(sys.argv[1])), sys.argv[2]
made = Dataset.from_list(rows)
made.save_to_disk(f"{folder}/prepared", num_shards=3)
made.shuffle(seed=1).select(range(7)).save_to_disk(f"{folder}/shuffled")
made.select_columns(["note"]).save_to_disk(f"{folder}/columns")
made.to_parquet(f"{folder}/rows.parquet")
talks = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
Dataset.from_list(talks).to_parquet(f"{folder}/talks.parquet")
DatasetDict({"train": made, "test": made}).save_to_disk(f"{folder}/splits")
open(f"{folder}/broken.parquet", "wb").write(b"PAR1 is not enough")
"""

_READ = """
import json, sys
from pathlib import Path
from eagle3_agent.worker import rows
from eagle3_agent.worker.errors import DataError
found = {}
for path in map(Path, sys.argv[1:]):
    try:
        found[path.name] = [list(rows.read(path)), rows.fingerprint(path)]
    except DataError as error:
        found[path.name] = [str(error), ""]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Name -> [rows or the refusal, fingerprint]."""
    if not os.access(vllm_env.interpreter(), os.X_OK):
        pytest.skip(f"{vllm_env.interpreter()} is not there: make vllm-env")
    folder = tmp_path_factory.mktemp("columnar")
    source = folder / "rows.json"
    source.write_text(json.dumps([{**row, "note": "kept out"} for row in tiny.rows(150)]))
    _run(_WRITE, str(source), str(folder))
    names = ("prepared", "shuffled", "columns", "splits", "rows.parquet", "talks.parquet")
    paths = [str(folder / name) for name in (*names, "broken.parquet")]
    made: dict[str, Any] = json.loads(_run(_READ, *paths))
    return made


def _run(code: str, *args: str) -> str:
    argv = [str(vllm_env.interpreter()), "-c", code, *args]
    done = subprocess.run(
        argv, env=vllm_env.environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_prepared_folder_in_shards_and_a_parquet_file_hold_the_same_rows(
    found: dict[str, Any],
) -> None:
    wanted = [[f"row {i}", row] for i, row in enumerate(tiny.rows(150), 1)]
    assert found["prepared"][0] == wanted
    assert found["rows.parquet"][0] == wanted
    assert found["prepared"][1] != found["rows.parquet"][1] != ""


def test_conversations_in_parquet(found: dict[str, Any]) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ((place, row),) = found["talks.parquet"][0]
    assert place == "row 1"
    assert [{k: turn[k] for k in ("role", "content")} for turn in row["messages"]] == turns


def test_a_shuffled_dataset_keeps_its_own_order(found: dict[str, Any]) -> None:
    rows = [row for _, row in found["shuffled"][0]]
    assert len(rows) == 7
    assert all(row in tiny.rows(150) for row in rows)
    assert rows != tiny.rows(7)


def test_what_holds_no_samples_is_refused_with_the_way_out(found: dict[str, Any]) -> None:
    assert found["splits"][0].endswith("holds the splits test, train: name one in data.path")
    assert found["columns"][0].endswith(
        "has the columns note; needed is one of input_ids, messages, conversations"
    )
    assert "broken.parquet is not a parquet file: " in found["broken.parquet"][0]
