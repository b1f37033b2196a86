"""Room for the token that vLLM samples: a place more than the longest sample has."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3_agent.protocol.values import ModelSection
from eagle3_agent.worker.engines import room
from eagle3_agent.worker.engines.base import EngineError
from eagle3_agent.worker.model_info import ModelInfo

VARIABLE = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The length that vLLM gets for (max_model_len, the model's own, where its rope changes)."""
    monkeypatch.delenv(VARIABLE, raising=False)
    info = SimpleNamespace(path=Path("/models/tiny"))

    def ask(length: int, derived: int, switch: int | None = None) -> int:
        monkeypatch.setattr(room, "_limits", lambda model: (derived, switch))
        section = ModelSection("/models/tiny", max_model_len=length)
        made: ModelInfo = info  # type: ignore[assignment]
        return room.room_for_one(section, made)

    return ask


def test_a_place_more_is_asked_for(asked: Any) -> None:
    assert asked(2048, derived=4096) == 2049
    assert VARIABLE not in os.environ


def test_a_model_s_whole_length_is_taken_with_vllm_s_leave(asked: Any) -> None:
    assert asked(4096, derived=4096) == 4097
    assert os.environ[VARIABLE] == "1"


def test_more_than_the_model_has_is_refused(asked: Any) -> None:
    with pytest.raises(EngineError, match="5000, and tiny has 4096 positions: set it to 4096"):
        asked(5000, derived=4096)


def test_the_length_at_which_rotary_factors_change_is_refused(asked: Any) -> None:
    with pytest.raises(EngineError, match=r"set model.max_model_len and data.seq_length to 4095"):
        asked(4096, derived=131072, switch=4096)
    assert asked(4095, derived=131072, switch=4096) == 4096


@pytest.mark.parametrize(
    ("config", "switch"),
    [
        ({}, None),
        ({"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 4096}}, None),
        (
            {
                "rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [2]},
                "original_max_position_embeddings": 4096,
            },
            4096,
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "long_factor": [2],
                    "original_max_position_embeddings": 8192,
                }
            },
            8192,
        ),
    ],
)
def test_where_rotary_factors_change(config: dict[str, Any], switch: int | None) -> None:
    assert room.rotary_switch(SimpleNamespace(**config)) == switch
