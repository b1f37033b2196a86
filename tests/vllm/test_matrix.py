"""Models on the releases of vLLM and of speculators, every layer against transformers in float32.

A part of ``make matrix``, whose table stands in docs/extraction.md: every model and every stack.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from support import needs
from support import vllm_matrix as matrix

#: The first test of a group measures the whole group.
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """The checkpoints, and how far apart the layers of each are."""
    folder = tmp_path_factory.mktemp("models")
    needs.vllm_python("0.16")
    return folder, matrix.make_models(folder, needs.made_demo().model)


@pytest.fixture(scope="module")
def measured(
    models: tuple[Path, dict[str, float]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[matrix.Case], matrix.Found]:
    """Measures the case, and with it what shares its process."""

    @cache
    def group_of(number: int) -> dict[matrix.Case, matrix.Found]:
        return matrix.measure(groups[number], models[0], tmp_path_factory.mktemp("case"))

    def figures(case: matrix.Case) -> matrix.Found:
        (number,) = (i for i, group in enumerate(groups) if case in group)
        return group_of(number)[case]

    groups = matrix.groups(matrix.CI)
    return figures


@pytest.mark.parametrize("case", matrix.CI, ids="@".join)
def test_every_layer_is_that_of_transformers(
    models: tuple[Path, dict[str, float]],
    measured: Callable[[matrix.Case], matrix.Found],
    case: matrix.Case,
) -> None:
    model, on = matrix.MODELS[case[0]], matrix.STACKS[case[1]]
    needs.vllm_python(on.version, on.speculators)
    found = measured(case)
    print(found)
    assert found.failed == ""
    assert found.dtype == model.dtype
    assert {i: e for i, e in enumerate(found.errors) if not e <= model.tolerance} == {}
    assert models[1][model.kind] > 5 * model.tolerance, "a layer off by one would pass unseen"


def test_ci_leaves_out_no_model_and_no_stack() -> None:
    assert {stack for _, stack in matrix.CI} == set(matrix.STACKS)
    # the kernels for AMX are not those of every machine
    assert {name for name, _ in matrix.CI} == set(matrix.MODELS) - {"deepseek-amx"}
