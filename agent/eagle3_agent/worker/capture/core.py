"""One worker's capture: follows requests over the steps of its model and cuts their rows.

Rows are told apart by the worker's own batch: its order, which is not the scheduler's,
and how far each request was computed before the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from eagle3_agent.worker.engines.base import Output

from . import device, source
from .meter import Meter
from .refusals import refuse_scaled
from .staging import Arena, Layout, Region, StepBuffer

_NO_ARENA = 0


class CaptureError(RuntimeError):
    """States that are missing or cannot be told apart: nothing of them is used."""


@dataclass
class Rows:
    """The states of one request, by value."""

    layers: list[Any]
    """One numpy array [S, H] per asked layer, in that order; 16-bit floats as int16 bits."""
    dtype: str

    def tensors(self) -> list[Any]:
        """Copies of the layers as tensors of ``dtype``: a caller may write into them."""
        import torch

        # what came from another process is read-only memory
        made = [torch.from_numpy(layer.copy()) for layer in self.layers]
        kind = getattr(torch, self.dtype)
        return [state.view(kind) if state.element_size() == 2 else state for state in made]


@dataclass
class _Request:
    """A prompt's states so far."""

    length: int
    region: Region | None
    states: Any
    """The region, shaped by the layout and typed; None once it is handed over."""
    filled: int = 0

    @property
    def complete(self) -> bool:
        """Handed over: rows that come after it are not a prompt's first computing."""
        return self.filled == self.length


class Capture:
    """Collects the states of one worker's model; without ``keep`` it captures nothing."""

    def __init__(self, runner: Any, layers: Sequence[int], layout: Layout, *, keep: bool) -> None:
        self._runner = runner
        self._layers = tuple(layers)
        self._layout: Layout = layout
        self._keep = keep
        self._requests: dict[str, _Request] = {}
        self._expected: dict[str, tuple[int, bytes]] = {}
        self._done: dict[str, _Request] = {}
        self._failure: Exception | None = None
        self._pool: Any = None
        self._arena: Arena | None = None
        self.source = ""
        if keep:
            self._attach()

    # -------------------------------------------------------------- calls of the extension

    def reserve(self, size: int) -> None:
        if self._keep:
            self._close_arena()
            self._arena = Arena(self._device, size)

    def open(self, output: Output) -> None:
        from eagle3_agent.worker.writing.pool import Pool

        if not self._keep:
            return
        if self._arena is None or self._arena.size < output.buffer_bytes:
            self.reserve(output.buffer_bytes)
        assert self._arena is not None
        self._arena.limit(output.buffer_bytes)
        self._meter = Meter(self._budget)
        self._pool = Pool(output, memory=self._arena.shared)

    def expect(self, batch: Sequence[tuple[str, int, bytes]]) -> None:
        if self._keep:
            self._expected.update((name, (index, mask)) for name, index, mask in batch)

    def take(self) -> dict[str, Rows]:
        self._raise_failure()
        done, self._done = self._done, {}
        return {name: self._rows(request) for name, request in done.items()}

    def reset(self) -> None:
        if self._pool is not None:
            self._pool.abort()
            self._pool = None
        self.drop_requests()
        self._close_arena()

    def drop_requests(self) -> None:
        """Forget every request and the failure of the last step."""
        for request in [*self._requests.values(), *self._done.values()]:
            self._free(request)
        self._requests.clear()
        self._done.clear()
        self._expected.clear()
        self._failure = None

    def finish(self) -> None:
        self._raise_failure()
        if self._pool is None:
            return
        self._pool.finish()
        self._tell(last=True)
        self._pool = None
        self._close_arena()

    # -------------------------------------------------------------- the model

    def _attach(self) -> None:
        import torch

        runner, config = self._runner, self._runner.model_config
        model = runner.get_model() if hasattr(runner, "get_model") else runner.model
        text = config.hf_text_config
        count = int(text.num_hidden_layers)
        self._dtype = config.dtype
        self._dtype_name = str(config.dtype).removeprefix("torch.")
        refuse_scaled(source.find_decoder(model, count)[1], self._dtype_name)
        where = torch.device(runner.device)
        self._device = device.of(where)
        self._budget = int(runner.scheduler_config.max_num_batched_tokens)
        shape = (len(self._layers), self._budget, int(text.hidden_size))
        self._buffer = StepBuffer(self._device, where, self._dtype, shape, self._layout)
        self._meter = Meter(self._budget)
        self._places: dict[int, list[int]] = {}
        for place, layer in enumerate(self._layers):
            self._places.setdefault(layer, []).append(place)
        self._seen: set[int] = set()
        self._scheduled = 0
        self._source = source.attach(model, self._layers, count, self._put, self._fail)
        self.source = self._source.words
        self._wrap()

    def detach(self) -> None:
        """Leave the model and its runner as they were."""
        self.reset()
        if self._keep:
            self._keep = False
            self._source.remove()
            for name in self._wrapped:
                delattr(self._runner, name)

    def _wrap(self) -> None:
        """Look at each step before and after; vLLM's two phases are told apart."""
        runner = self._runner
        execute = runner.execute_model
        sample: Any = getattr(runner, "sample_tokens", None)

        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            self._before(scheduler_output)
            try:
                output = execute(scheduler_output, *args, **kwargs)
            except BaseException:
                self._scheduled = 0
                raise
            self._after(scheduler_output)
            # a step left half done would poison the next one: its second phase ends it
            if output is not None:
                self._raise_failure()
            return output

        def sample_tokens(*args: Any, **kwargs: Any) -> Any:
            output = sample(*args, **kwargs)
            self._raise_failure()
            return output

        runner.execute_model = execute_model
        self._wrapped = ["execute_model"]
        if sample is not None:
            runner.sample_tokens = sample_tokens
            self._wrapped.append("sample_tokens")

    def _before(self, scheduler_output: Any) -> None:
        self._seen.clear()
        for name in scheduler_output.finished_req_ids:
            ended = self._requests.pop(name, None)
            self._expected.pop(name, None)
            if ended is not None:
                self._free(ended)
        self._scheduled = int(scheduler_output.total_num_scheduled_tokens)
        if self._scheduled:
            self._meter.began(self._device.mark(), self._scheduled)

    def _after(self, scheduler_output: Any) -> None:
        scheduled, self._scheduled = self._scheduled, 0
        if not scheduled:
            return
        self._meter.ended(self._device.mark())
        if self._failure is not None:
            return
        try:
            self._cut(scheduler_output.num_scheduled_tokens, scheduled)
        except Exception as error:
            self._failure = error

    def _put(self, layer: int, hidden: Any, residual: Any) -> None:
        """Called while the model runs; what is wrong is kept and raised once the step is done."""
        if not self._scheduled:
            return  # a dummy run of vLLM's own
        rows = hidden.shape[0]
        fits = self._scheduled <= min(rows, self._buffer.tokens)
        if not fits or hidden.shape[-1] != self._buffer.hidden:
            self._fail(
                f"layer {layer} gave states {tuple(hidden.shape)} for {self._scheduled} tokens "
                f"of {self._buffer.hidden}, in steps of {self._buffer.tokens} at most"
            )
            return
        begin = self._device.mark()
        for place in self._places[layer]:
            self._buffer.put(place, self._scheduled, hidden, residual)
        self._meter.captured(begin, self._device.mark(), rows)
        if layer in self._seen:
            self._fail(f"layer {layer} was run twice in one step")
        self._seen.add(layer)

    def _fail(self, text: str) -> None:
        if self._scheduled and self._failure is None:
            self._failure = CaptureError(text)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # -------------------------------------------------------------- cutting

    def _cut(self, scheduled: dict[str, int], total: int) -> None:
        missing = sorted(set(self._places) - self._seen)
        if missing:
            raise CaptureError(
                f"layers {missing} were not run as modules: nothing was captured. "
                "Use engine transformers for this model"
            )
        start = 0
        with self._device.side():
            for name, begin, count in self._pieces(scheduled):
                if start + count <= total:
                    self._cut_one(name, begin, count, start)
                start += count
        if start != total:
            raise CaptureError(f"vLLM's batch holds {start} tokens, {total} were scheduled")
        self._tell()

    def _cut_one(self, name: str, begin: int, count: int, start: int) -> None:
        """Bring rows ``start`` and on to request ``name``, whose row ``begin`` is the first."""
        request = self._request(name, begin)
        if request.complete:
            return  # decoded, or computed again after a preemption
        wanted = min(count, request.length - begin)
        before = self._device.mark()
        self._buffer.copy_out(start, wanted, request.states, begin)
        after = self._device.mark()
        self._buffer.copied(after)
        self._meter.copied(before, after)
        request.filled = begin + wanted
        if request.complete:
            self._hand_over(name, request, after.wait)

    def _pieces(self, scheduled: dict[str, int]) -> Any:
        """(request, first row, rows) in the order in which rows lie in the step."""
        batch = self._runner.input_batch
        for place, name in enumerate(batch.req_ids):
            count = scheduled.get(name, 0)
            if count:
                yield name, int(batch.num_computed_tokens_cpu[place]), count

    def _request(self, name: str, begin: int) -> _Request:
        request = self._requests.get(name)
        if request is None:
            length = len(self._prompt(name))
            if begin == 0:
                region, states = self._memory(length)
                request = self._requests[name] = _Request(length, region, states)
        # a preempted request begins again at 0 and overwrites what it had
        if request is None or (begin > request.filled and not request.complete):
            have = 0 if request is None else request.filled
            raise CaptureError(
                f"request {name}: row {begin} came after row {have}: the rows between were not "
                "computed (prefix caching?)"
            )
        return request

    def _prompt(self, name: str) -> Sequence[int]:
        ids: Sequence[int] | None = self._runner.requests[name].prompt_token_ids
        if ids is None:
            raise CaptureError(f"request {name} has no token ids")
        return ids

    def _memory(self, length: int) -> tuple[Region | None, Any]:
        import torch

        width = len(self._layers), self._buffer.hidden
        shape = (width[0], length, width[1]) if self._layout == "LSH" else (length, *width)
        size = length * width[0] * width[1] * self._dtype.itemsize
        if self._arena is None or self._pool is None:
            return None, torch.empty(shape, dtype=self._dtype)
        began = time.perf_counter()
        region = self._arena.take(size)
        self._meter.wait += time.perf_counter() - began
        return region, region.data.view(self._dtype).view(shape)

    # -------------------------------------------------------------- handing over

    def _hand_over(self, name: str, request: _Request, ready: Callable[[], None]) -> None:
        region, arena = request.region, self._arena
        if self._pool is None or region is None or arena is None:
            ready()
            self._done[name] = _Request(request.length, None, request.states, request.length)
            request.states = None
            return
        from eagle3_agent.worker.writing.item import Item, States

        index, mask = self._expectation(name, request.length)
        item = Item(
            index=index,
            input_ids=list(self._prompt(name)),
            loss_mask=list(mask),
            states=States.of(request.states, arena.offset(region)),
            ready=ready,
            release=partial(arena.give_back, region),
        )
        arena.leave(region)
        request.region = request.states = None
        began = time.perf_counter()
        self._pool.submit(item)
        self._meter.wait += time.perf_counter() - began

    def _expectation(self, name: str, length: int) -> tuple[int, bytes]:
        # newer releases add a random part to a request's id
        found = self._expected.pop(name, None) or self._expected.pop(name.rpartition("-")[0], None)
        if found is None or len(found[1]) != length:
            raise CaptureError(f"request {name} of {length} tokens was not announced")
        return found

    def _rows(self, request: _Request) -> Rows:
        import torch

        states = request.states
        if self._layout == "SLH":
            states = states.transpose(0, 1)
        # numpy knows no bfloat16, and pickles arrays without copying them
        if states.element_size() == 2:
            states = states.view(torch.int16)
        return Rows([layer.numpy() for layer in states], self._dtype_name)

    def _free(self, request: _Request) -> None:
        if request.region is not None and self._arena is not None:
            self._arena.give_back(request.region)
        request.region = request.states = None

    def _close_arena(self) -> None:
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _tell(self, last: bool = False) -> None:
        if self._pool is None or not (last or self._meter.due()):
            return
        peak = self._arena.peak if self._arena is not None else _NO_ARENA
        self._pool.tell(self._meter.measured(self._pool.seconds, peak))
