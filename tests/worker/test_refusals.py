"""What the capture core refuses by vLLM's config or runner, with the way out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eagle3_agent.worker.capture.refusals import CaptureRefused, refuse, refuse_scaled


def config(**changes: Any) -> Any:
    """A config that is captured from, with ``section__field`` changed."""
    made: Any = SimpleNamespace(
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1, data_parallel_size=1, tensor_parallel_size=8
        ),
        compilation_config=SimpleNamespace(mode=3, pass_config=SimpleNamespace(enable_sp=None)),
        cache_config=SimpleNamespace(enable_prefix_caching=False),
        model_config=SimpleNamespace(enforce_eager=True),
    )
    for name, value in changes.items():
        *path, field = name.split("__")
        owner = made
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, field, value)
    return made


def runner() -> Any:
    batch = SimpleNamespace(req_ids=[], num_computed_tokens_cpu=[])
    return SimpleNamespace(input_batch=batch, requests={}, execute_model=print)


def test_tensor_parallelism_alone_is_taken() -> None:
    refuse(config(), runner())


@pytest.mark.parametrize(
    ("changes", "said", "way_out"),
    [
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline", "set it to 1"),
        ({"parallel_config__data_parallel_size": 2}, "data parallelism", "set it to 1"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "context", "set it to 1"),
        ({"parallel_config__decode_context_parallel_size": 2}, "context", "set it to 1"),
        ({"parallel_config__use_sequence_parallel_moe": True}, "part of the rows", "Switch it off"),
        ({"parallel_config__enable_dbo": True}, "part of the rows", "Switch it off"),
        ({"compilation_config__pass_config__enable_sp": True}, "enable_sp", "Switch it off"),
        (
            {"cache_config__enable_prefix_caching": True},
            "states are missing",
            "enable_prefix_caching=False",
        ),
        ({"model_config__enforce_eager": False}, "CUDA graph", "enforce_eager=True"),
    ],
)
def test_what_would_give_wrong_states_is_refused(
    changes: dict[str, Any], said: str, way_out: str
) -> None:
    with pytest.raises(CaptureRefused) as refused:
        refuse(config(**changes), runner())
    assert said in str(refused.value)
    assert way_out in str(refused.value)


def test_passes_of_a_compiler_that_does_not_run_are_no_reason() -> None:
    eager = config(compilation_config__pass_config__enable_sp=True, compilation_config__mode=0)
    refuse(eager, runner())


def test_a_runner_that_does_not_say_whose_rows_it_computes_is_refused() -> None:
    other = runner()
    other.input_batch = None
    with pytest.raises(CaptureRefused, match=r"req_ids, num_computed_tokens_cpu.*MODEL_RUNNER=0"):
        refuse(config(), other)


def test_scaled_layers_are_refused_in_float16_alone() -> None:
    plain = SimpleNamespace()
    scaled = SimpleNamespace(routed_scaling_factor=2.5)
    refuse_scaled([plain], "float16")
    refuse_scaled([SimpleNamespace(routed_scaling_factor=1.0)], "float16")
    refuse_scaled([plain, scaled], "bfloat16")
    with pytest.raises(CaptureRefused, match=r"divides its states by 2.5: set model.dtype"):
        refuse_scaled([plain, scaled], "float16")
