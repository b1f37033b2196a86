"""Models on the releases of vLLM and of speculators, every layer against transformers in float32.

A part of ``make matrix``, whose table stands in docs/extraction.md: every model and every stack.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support import needs
from support import vllm_matrix as matrix


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """The checkpoints, and how far apart the layers of each are."""
    folder = tmp_path_factory.mktemp("models")
    needs.vllm_python("0.16")
    return folder, matrix.make_models(folder, needs.made_demo().model)


@pytest.mark.parametrize(("name", "stack"), matrix.CI)
def test_every_layer_is_that_of_transformers(
    models: tuple[Path, dict[str, float]], tmp_path: Path, name: str, stack: str
) -> None:
    folder, neighbours = models
    model, on = matrix.MODELS[name], matrix.STACKS[stack]
    needs.vllm_python(on.version, on.speculators)
    found = matrix.measure(name, stack, folder, tmp_path)
    print(found)
    assert found.failed == ""
    assert found.dtype == model.dtype
    assert {i: e for i, e in enumerate(found.errors) if not e <= model.tolerance} == {}
    assert neighbours[model.kind] > 5 * model.tolerance, "a layer off by one would pass unseen"


def test_ci_leaves_out_no_model_and_no_stack() -> None:
    assert {stack for _, stack in matrix.CI} == set(matrix.STACKS)
    # the kernels for AMX are not those of every machine
    assert {name for name, _ in matrix.CI} == set(matrix.MODELS) - {"deepseek-amx"}
