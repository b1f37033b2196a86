"""Engine ``speculators`` from load to close: what is written, and how it ends when it must."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import needs
from support.vllm_env import Library, run_script

#: Engine starts, beside whatever else runs on few cores.
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    ("library", "kind", "ranks", "ending", "raised"),
    [
        pytest.param(
            *(None, "speculators-pt", 1, "killed"),
            "WorkerDiedError: vLLM's worker of rank 0 died: killed by SIGKILL (out of memory?)",
            id="0.3-killed",
        ),
        pytest.param(None, "safetensors", 1, "disk", "Asked: ", id="0.3-disk"),
        pytest.param("0.4", "safetensors", 2, "watch", "Asked: stop", id="0.4-two-ranks-watch"),
    ],
)
def test_an_extraction_is_whole_and_ends_when_it_must(
    tmp_path: Path, library: Library | None, kind: str, ranks: int, ending: str, raised: str
) -> None:
    needs.vllm_python(speculators=library)
    variables = {
        "VLLM_SLEEP_WHEN_IDLE": "1",  # three processes that spin are too many for two cores
        "TORCH_COMPILE_DISABLE": "1",  # the split embedding would be compiled for 40 s
    }
    found = run_script(
        *("engine.py", tmp_path, kind, str(ranks), ending),
        timeout=560,
        speculators=library,
        variables=variables if ranks > 1 else {},
    )
    print(found)
    dtype, hidden, layers, vocab, device = found["loaded"]
    assert (dtype, hidden, layers, vocab) == ("float32", 128, 8, 500)
    assert device.endswith("cpu")
    assert "SupportsEagle3 for layers 1, 3, 5" in found["source"]
    assert found["limits"] == [300, 7]
    assert "speculators/batch-limits" in found["applied"]
    assert not [name for name in found["applied"] if name.startswith("vllm/row")]
    assert found["files"] == 120
    assert found["worst"] <= 1e-5
    assert max(found["by value"]) <= 1e-5, "by value before and after an extraction"
    assert found["watched"] > 0
    assert found["raised"].startswith(raised), found["raised"]
    assert found["closing"] < 40
    assert found["processes"] == 0
