"""What goes into an engine, and the proof that what comes out is what was asked for."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3_agent.protocol.values import Profile

from .dataset import Bad, Dataset
from .engines.base import Captured, Loaded, Sample
from .errors import CaptureError, DataError, ModelError
from .manifest import Marker
from .model_info import ModelInfo


def pending(data: Dataset, reused: set[int]) -> Iterator[Sample]:
    """Samples in the data's order, without those that are there."""
    for row in data:
        if not isinstance(row, Bad) and row.sample.index not in reused:
            yield row.sample


class Awaited:
    """Which samples an engine has taken and not yet answered for; used by two threads."""

    def __init__(self, engine: str, count: int) -> None:
        """``count`` samples are to be asked for in all."""
        self._engine, self._count = engine, count
        self._taken = 0
        self._open: set[int] = set()

    def ask(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """The same samples, remembered from when the engine takes them."""
        for sample in samples:
            self._open.add(sample.index)
            self._taken += 1
            yield sample

    def answer(self, index: int) -> None:
        """Raises CaptureError for a sample that is not awaited."""
        try:
            self._open.remove(index)
        except KeyError:
            raise CaptureError(
                f"engine {self._engine} returned sample {index} twice or unasked: "
                "a fault of the engine"
            ) from None

    def settle(self, samples: Iterator[Sample]) -> None:
        """The engine says that it is done: nothing is left to ask or to answer.

        Raises CaptureError otherwise, and DataError when the data has changed meanwhile.
        """
        if self._open:
            raise CaptureError(
                f"engine {self._engine} returned nothing for {len(self._open)} samples, the first "
                f"is {min(self._open)}: a fault of the engine"
            )
        left = next(samples, None)
        if left is not None:
            raise CaptureError(
                f"engine {self._engine} stopped before sample {left.index}: a fault of the engine"
            )
        if self._taken != self._count:
            raise DataError(
                f"the data had {self._count} samples to do when the run began and {self._taken} "
                "later: leave data.path alone while a run reads it, then resume"
            )


def check_loaded(loaded: Loaded, marker: Marker, info: ModelInfo) -> None:
    """Raises ModelError when the engine runs another dtype or model than the files will say."""
    if loaded.dtype != marker.dtype:
        raise ModelError(
            f"the engine computes in {loaded.dtype}, asked was {marker.dtype}: "
            f"set model.dtype = {loaded.dtype!r}"
        )
    if loaded.hidden != marker.hidden or loaded.layers != info.layers:
        raise ModelError(
            f"the engine loaded {loaded.layers} layers of hidden size {loaded.hidden}, config.json "
            f"says {info.layers} of {marker.hidden}: copy the model again"
        )


def check_capture(
    captured: list[Captured], sample: Sample, profile: Profile, loaded: Loaded
) -> None:
    """Raises CaptureError unless ``captured`` is ``sample`` alone, as asked for."""
    if [one.sample.index for one in captured] != [sample.index]:
        raise CaptureError(
            f"the engine returned {len(captured)} samples where one was asked for: "
            "a fault of the engine"
        )
    check_states(captured[0], profile, loaded)


def check_states(captured: Captured, profile: Profile, loaded: Loaded) -> None:
    """Raises CaptureError unless there is one ``[S, H]`` tensor of the dtype per asked layer."""
    want = (len(captured.sample.input_ids), loaded.hidden)
    layers = profile.capture.layers
    shapes = [tuple(state.shape) for state in captured.states]
    if shapes != [want] * len(layers):
        raise CaptureError(
            f"sample {captured.sample.index}: the engine returned states of shape {shapes}, "
            f"asked were {len(layers)} of {want}"
        )
    dtypes = {str(state.dtype).removeprefix("torch.") for state in captured.states}
    if dtypes != {loaded.dtype}:
        raise CaptureError(
            f"sample {captured.sample.index}: the engine returned {', '.join(sorted(dtypes))}, "
            f"it had said {loaded.dtype}"
        )
