"""Arrow folders and parquet files that the real ``datasets`` wrote, read where pyarrow is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support import needs, tiny, vllm_env

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
call = {"function": {"name": "f", "arguments": {"x": 1}}}
other = {"function": {"name": "f", "arguments": {"y": [{"z": 2}]}}}
tools = [
    {"messages": [{"role": "user", "content": "a", "tool_calls": None},
                  {"role": "assistant", "content": "b", "tool_calls": [made]}],
     "tools": json.dumps([{"type": "function"}])}
    for made in (call, other)
]
Dataset.from_list(tools).to_parquet(f"{folder}/tools.parquet")
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
    needs.vllm_python()
    folder = tmp_path_factory.mktemp("columnar")
    source = folder / "rows.json"
    source.write_text(json.dumps([{**row, "note": "kept out"} for row in tiny.rows(150)]))
    _run(_WRITE, str(source), str(folder))
    names = (
        "prepared",
        "shuffled",
        "columns",
        "splits",
        "rows.parquet",
        "talks.parquet",
        "tools.parquet",
    )
    paths = [str(folder / name) for name in (*names, "broken.parquet")]
    made: dict[str, Any] = json.loads(_run(_READ, *paths))
    return made


def _run(code: str, *args: str, library: vllm_env.Library | None = None) -> str:
    version: vllm_env.Version = "0.32" if library == "0.9" else "0.16"
    argv = [str(vllm_env.interpreter(version)), "-c", code, *args]
    env = vllm_env.environment(version, library)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=240, check=False)
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


def test_fields_that_a_column_adds_are_no_part_of_a_row(found: dict[str, Any]) -> None:
    """Parquet gives every object of a column all the fields that any of them has."""
    rows = [row for _, row in found["tools.parquet"][0]]
    calls = [row["messages"][1]["tool_calls"][0]["function"]["arguments"] for row in rows]
    assert calls == [{"x": 1}, {"y": [{"z": 2}]}]
    assert all("tool_calls" not in row["messages"][0] for row in rows)
    assert rows[0]["tools"] == '[{"type": "function"}]'


# ------------------------------------------------------------------ what speculators prepares

_PREPARE_EARLY = """
import sys
from datasets import Dataset
from speculators.data_generation.preprocessing import build_eagle3_dataset
from support import talks
rows = Dataset.from_list([{"conversations": talks.TALKS[name]} for name in ("one", "multi")])
made = build_eagle3_dataset(rows, talks.tokenizer("llama3"), max_length=64, num_proc=1)
made.save_to_disk(sys.argv[1])
"""

_PREPARE_LATE = """
import json, sys
import dill._dill
# it takes modules outside of the environment's own folder, as these lie, for a script's
dill._dill._is_builtin_module = lambda module: True
from datasets import Dataset
from speculators.data_generation.preprocessing import build_speculator_training_dataset
rows = Dataset.from_list(json.loads(sys.argv[2]))
made = build_speculator_training_dataset(rows, None, max_length=30, num_proc=1)
made.shuffle(seed=0).save_to_disk(sys.argv[1])
"""


@pytest.mark.parametrize("library", [None, "0.4", "0.9"])
def test_a_dataset_that_speculators_prepared_is_read_as_it_stands(
    tmp_path: Path, library: vllm_env.Library | None
) -> None:
    needs.vllm_python("0.32" if library == "0.9" else "0.16", library)
    folder = tmp_path / "prepared"
    prepare = _PREPARE_LATE if library == "0.9" else _PREPARE_EARLY
    _run(prepare, str(folder), json.dumps(tiny.rows(9)), library=library)
    wanted = json.loads(
        _run(
            "import sys, json; from datasets import load_from_disk\n"
            "rows = load_from_disk(sys.argv[1]).with_format(None)\n"
            "print(json.dumps([{k: r[k] for k in ('input_ids', 'loss_mask')} for r in rows]))",
            str(folder),
            library=library,
        )
    )
    read = json.loads(_run(_READ, str(folder), library=library))["prepared"][0]
    assert [row for _, row in read] == wanted
    assert len(wanted) == (9 if library == "0.9" else 2)
    assert all(0 < sum(row["loss_mask"]) < len(row["loss_mask"]) for row in wanted)
