"""speculators 0.3's own worker extension, with the name of the embedding call that it knows.

Loaded by vLLM in its worker process.
"""

from __future__ import annotations

from typing import Any

from speculators.data_generation.custom_worker import (
    HiddenStatesWorkerExtension,
)


class Extension(HiddenStatesWorkerExtension):  # type: ignore[misc]
    """Methods that become the vLLM worker's own."""

    def _setup_hidden_states_capture(self, layer_ids: list[int]) -> None:
        base: Any = self.model_runner.model.model
        if not hasattr(base, "get_input_embeddings"):
            base.get_input_embeddings = base.embed_input_ids
        super()._setup_hidden_states_capture(layer_ids)
