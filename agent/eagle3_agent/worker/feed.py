"""What goes into an engine, and the proof that what comes out is what was asked for."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3_agent.protocol.values import Profile

from .dataset import Bad, Dataset
from .engines.base import Captured, Engine, Loaded, Sample
from .errors import CaptureError, ModelError
from .manifest import Marker
from .model_info import ModelInfo


def pending(data: Dataset, reused: set[int]) -> Iterator[Sample]:
    """Samples in the data's order, without those that are there."""
    for row in data:
        if not isinstance(row, Bad) and row.sample.index not in reused:
            yield row.sample


def batches(samples: Iterator[Sample], engine: Engine) -> Iterator[list[Sample]]:
    """Consecutive samples within the engine's limits; one sample at least."""
    batch: list[Sample] = []
    tokens = 0
    for sample in samples:
        length = len(sample.input_ids)
        full = len(batch) >= engine.batch_samples or tokens + length > engine.batch_tokens
        if batch and full:
            yield batch
            batch, tokens = [], 0
        batch.append(sample)
        tokens += length
    if batch:
        yield batch


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


def capture(
    engine: Engine, batch: list[Sample], profile: Profile, loaded: Loaded
) -> Iterator[Captured]:
    """Each sample of ``batch`` exactly once, as asked for; raises CaptureError otherwise."""
    awaited = {sample.index for sample in batch}
    for captured in engine.capture(batch):
        if captured.sample.index not in awaited:
            raise CaptureError(
                f"engine {engine.name} returned sample {captured.sample.index} "
                "twice or unasked: a fault of the engine"
            )
        awaited.remove(captured.sample.index)
        check_states(captured, profile, loaded)
        yield captured
    if awaited:
        raise CaptureError(
            f"engine {engine.name} returned nothing for sample {min(awaited)}: "
            "a fault of the engine"
        )
