"""Engine ``vllm`` over a stand-in for vLLM's engine: what is fed, announced, told and closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3_agent.protocol.values import ErrorInfo
from eagle3_agent.worker.compat.errors import RemoteError
from eagle3_agent.worker.engines import vllm
from eagle3_agent.worker.engines.base import EngineError, Output, Sample
from eagle3_agent.worker.engines.vllm import VllmEngine

BUDGET = 100
SEQUENCES = 4


class StandIn:
    """vLLM's ``LLM``: each step finishes what fits the budget, first come, first served."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.announced: dict[str, tuple[int, bytes]] = {}
        self.waiting: deque[tuple[str, int]] = deque()
        self.most_tokens = self.most_samples = 0
        self.order: list[str] = []
        self.fails: Callable[[str], None] = lambda method: None
        self.llm_engine = self
        self.engine_core = SimpleNamespace(shutdown=lambda: self.calls.append(("shutdown", ())))

    def collective_rpc(self, method: str, timeout: Any = None, args: tuple[Any, ...] = ()) -> Any:
        self.calls.append((method, args))
        self.fails(method)
        if method == "eagle3_expect":
            self.announced.update({name: (index, mask) for name, index, mask in args[0]})
        return [None]

    def add_request(self, name: str, prompt: dict[str, Any], sampling: Any) -> None:
        index, mask = self.announced[name]
        ids = prompt["prompt_token_ids"]
        assert len(mask) == len(ids)
        assert ids[0] == index
        self.waiting.append((name, len(ids)))
        self.most_tokens = max(self.most_tokens, sum(n for _, n in self.waiting))
        self.most_samples = max(self.most_samples, len(self.waiting))

    def step(self) -> list[Any]:
        self.fails("step")
        done: list[Any] = []
        room = BUDGET
        while self.waiting and (self.waiting[0][1] <= room or not done):
            name, length = self.waiting.popleft()
            room -= length
            self.order.append(name)
            done.append(SimpleNamespace(finished=True, request_id=name))
        return done


@pytest.fixture
def llm() -> StandIn:
    return StandIn()


@pytest.fixture
def engine(llm: StandIn) -> VllmEngine:
    made = VllmEngine()
    made._llm, made._budget, made._sequences = llm, BUDGET, SEQUENCES
    return made


def samples(*lengths: int) -> Iterator[Sample]:
    for index, length in enumerate(lengths):
        yield Sample(index, [index] * length, [1] * length)


OUTPUT = Output("out", "speculators-pt", (1,), "float32", 8, {}, "samples.jsonl", 1, 1000)


def test_samples_are_topped_up_within_bounds(engine: VllmEngine, llm: StandIn) -> None:
    lengths = [90, 5, 300, 40, 1] * 40
    engine.extract(samples(*lengths), OUTPUT, lambda: None)
    assert len(llm.order) == len(lengths)
    assert llm.most_samples <= 4 * SEQUENCES
    # one more than the bound may begin below it
    assert 2 * BUDGET < llm.most_tokens < 4 * BUDGET + 300
    methods = [method for method, _ in llm.calls]
    assert methods[0] == "eagle3_open"
    assert methods[-1] == "eagle3_finish"
    # a call waits for the step that runs: few calls, each for many steps
    assert methods.count("eagle3_expect") < len(lengths) / 20


def test_no_samples_are_an_end_too(engine: VllmEngine, llm: StandIn) -> None:
    engine.extract(samples(), OUTPUT, lambda: None)
    assert [method for method, _ in llm.calls] == ["eagle3_open", "eagle3_finish"]


def test_what_the_watch_raises_ends_the_extraction(engine: VllmEngine) -> None:
    def endless() -> Iterator[Sample]:
        index = 0
        while True:
            yield Sample(index, [index] * 10, [1] * 10)
            index += 1

    def watch() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        engine.extract(endless(), OUTPUT, watch)


def test_a_refusal_of_a_rank_is_told_as_it_stands(engine: VllmEngine, llm: StandIn) -> None:
    def refuse(method: str) -> None:
        raise RemoteError(ErrorInfo("eagle3_agent.worker.capture.refusals.CaptureRefused", "no"))

    llm.fails = refuse
    with pytest.raises(EngineError) as refused:
        engine._rpc("eagle3_attach", [1], "LSH")
    assert str(refused.value) == "no"


def test_close_stops_the_writers_then_the_engine(
    engine: VllmEngine, llm: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(method: str) -> None:
        raise RuntimeError("a dead worker")

    llm.fails = fail
    monkeypatch.setattr(vllm, "_forget_device", lambda: None)
    engine.close()
    engine.close()
    assert [method for method, _ in llm.calls] == ["eagle3_reset", "shutdown"]
