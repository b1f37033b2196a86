# mypy: disable-error-code="misc"
"""A model runner as vLLM's looks from the capture core: a real torch model, a batch, two phases.

The state after layer i of token t at position p is ``[t + i + 1, p + i + 1, 0, 0]``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

HIDDEN = 4
LAYERS = 6
DEVICE = os.environ.get("EAGLE3_TEST_DEVICE", "cpu")
"""``cuda`` runs the same cases over streams and pinned memory, where there is a GPU."""


def state(layer: int, ids: Sequence[int], first: int = 0) -> torch.Tensor:
    """What should be captured after ``layer`` of tokens that begin at position ``first``."""
    rows = torch.zeros(len(ids), HIDDEN)
    rows[:, 0] = torch.tensor(ids, dtype=torch.float32) + layer + 1
    rows[:, 1] = torch.arange(first, first + len(ids)) + layer + 1
    return rows


class Layer(torch.nn.Module):
    """Gives its state in two summands, as most of vLLM's layers do."""

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> Any:
        step = torch.zeros(HIDDEN, device=hidden.device)
        step[:2] = 1
        return step.expand_as(hidden).contiguous(), hidden + residual


class WholeLayer(torch.nn.Module):
    """Gives its whole state first and its input second, as Cohere's does."""

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> Any:
        step = torch.zeros(HIDDEN, device=hidden.device)
        step[:2] = 1
        return hidden + step, hidden


class Norm(torch.nn.Module):
    def __init__(self, adds: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(HIDDEN))
        self._adds = adds

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> Any:
        whole = hidden + residual if self._adds else hidden
        return whole * self.weight, whole


class Decoder(torch.nn.Module):
    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        kind = WholeLayer if whole else Layer
        self.layers = torch.nn.ModuleList(kind() for _ in range(LAYERS))
        self.norm = Norm(adds=not whole)
        self.skip: set[int] = set()
        self.asked: tuple[int, ...] = ()

    def forward(self, hidden: torch.Tensor) -> Any:
        residual = torch.zeros_like(hidden)
        states = []
        for index, layer in enumerate(self.layers):
            if index in self.asked:
                states.append(hidden + residual)
            # called past the module, as compiled code does
            run = layer.forward if index in self.skip else layer
            hidden, residual = run(hidden, residual)
        hidden, _ = self.norm(hidden, residual)
        return (hidden, states) if states else hidden


class Model(torch.nn.Module):
    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.model = Decoder(whole)

    def forward(self, hidden: torch.Tensor) -> Any:
        return self.model(hidden)


class NamedModel(Model):
    """Offers vLLM's SupportsEagle3: id i is the input of layer i, the last state has none."""

    supports_eagle3 = True

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        self.model.asked = layers


class Runner:
    """Requests are prompts; ``step`` schedules given numbers of tokens in a given batch order."""

    def __init__(self, model: Any = None, budget: int = 32, padded: int = 0) -> None:
        self.model = (model or Model()).to(DEVICE)
        self.device = DEVICE
        self.model_config = SimpleNamespace(
            dtype=torch.float32,
            hf_text_config=SimpleNamespace(num_hidden_layers=LAYERS, hidden_size=HIDDEN),
        )
        self.scheduler_config = SimpleNamespace(max_num_batched_tokens=budget)
        self.input_batch = SimpleNamespace(req_ids=[], num_computed_tokens_cpu=[])
        self.requests: dict[str, Any] = {}
        self.padded = padded
        self.cut = 0
        """Rows that the model is run on too few."""
        self.output: Any = None
        self._half_done = False
        self._finished: set[str] = set()

    def add(self, name: str, ids: Sequence[int]) -> None:
        self.requests[name] = SimpleNamespace(prompt_token_ids=list(ids))

    def end(self, name: str) -> None:
        self._finished.add(name)

    def step(self, *pieces: tuple[str, int, int]) -> Any:
        """Both phases for (request, tokens before, tokens now), in the worker's order."""
        scheduled = {name: count for name, _, count in reversed(pieces)}
        output = SimpleNamespace(
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            finished_req_ids=self._finished,
            pieces=pieces,
        )
        self._finished = set()
        if self.execute_model(output) is None:
            return self.sample_tokens(None)
        return None

    def execute_model(self, output: Any) -> Any:
        assert not self._half_done, "the second phase of the step before is missing"
        for name in output.finished_req_ids:
            self.requests.pop(name, None)
        self.input_batch.req_ids = [name for name, _, _ in output.pieces]
        self.input_batch.num_computed_tokens_cpu = [begin for _, begin, _ in output.pieces]
        if not output.total_num_scheduled_tokens:
            return "nothing to do"
        rows = [
            state(
                -1, (self.requests[name].prompt_token_ids + [0] * 64)[begin : begin + count], begin
            )
            for name, begin, count in output.pieces
        ]
        hidden = torch.cat([*rows, torch.full((self.padded, HIDDEN), -1.0)])
        hidden = hidden.to(DEVICE)
        with torch.inference_mode():
            self.output = self.model(hidden[: len(hidden) - self.cut])
        self._half_done = True
        return None

    def sample_tokens(self, grammar: Any) -> str:
        self._half_done = False
        return "sampled"
