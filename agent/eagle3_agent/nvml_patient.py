"""All GPUs again and again, without waiting for one that hangs.

A call that hangs in the driver does not hold the interpreter, so it may hang in a thread: the GPU
is named, another thread goes on with the rest, and the GPU is asked again once its call returns.
A driver that hangs as a whole still hangs this process: that is for whoever started it to see.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from . import nvml
from .protocol.values import Gpu

#: Seconds for one GPU; the first time the driver may have to initialise it.
LIMIT = 3.0
FIRST = 8.0


@dataclass
class _Question:
    """One GPU asked once."""

    index: int
    done: threading.Event = field(default_factory=threading.Event)
    answer: Gpu | None = None


class Patient:
    """Reads through ``opened``, whose calls ``call`` names."""

    def __init__(
        self,
        opened: nvml.Nvml,
        call: Callable[[], str],
        limit: float = LIMIT,
        first: float = FIRST,
    ) -> None:
        self._opened = opened
        self._call = call
        self._limit = limit
        self._first = first
        self._met: dict[int, Gpu] = {}
        self._stuck: dict[int, tuple[_Question, str]] = {}
        self._questions = self._thread()

    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU by index; raises NvmlUnavailable when not even their number is known."""
        return tuple(self._gpu(index) for index in range(self._opened.count()))

    def _gpu(self, index: int) -> Gpu:
        if index in self._stuck:
            question, why = self._stuck[index]
            if not question.done.is_set():
                return self._named(index, why)
            del self._stuck[index]
        question = _Question(index)
        self._questions.put(question)
        if not question.done.wait(self._limit if index in self._met else self._first):
            why = nvml.hangs(self._call())
            self._stuck[index] = question, why
            self._questions.put(None)  # the thread leaves when it comes back
            self._questions = self._thread()
            return self._named(index, why)
        gpu = question.answer or self._named(index, "it could not be read")
        if not gpu.error:
            self._met[index] = gpu
        return gpu

    def _named(self, index: int, error: str) -> Gpu:
        """By the names that it had: whoever has claimed it is known to have claimed it."""
        known = self._met.get(index, Gpu(index))
        return Gpu(index, uuid=known.uuid, name=known.name, error=error)

    def _thread(self) -> queue.SimpleQueue[_Question | None]:
        questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        threading.Thread(target=self._answer, args=(questions,), daemon=True).start()
        return questions

    def _answer(self, questions: queue.SimpleQueue[_Question | None]) -> None:
        while True:
            question = questions.get()
            if question is None:
                return
            try:
                question.answer = self._opened.gpu(question.index)[0]
            finally:
                question.done.set()

    def close(self) -> None:
        """Let the idle thread go, and NVML unless a call still hangs in it."""
        self._questions.put(None)
        if all(question.done.is_set() for question, _ in self._stuck.values()):
            self._opened.close()
