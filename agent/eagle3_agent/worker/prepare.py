"""What a run and a verification both need before any model is loaded."""

from __future__ import annotations

from pathlib import Path

from eagle3_agent.protocol.values import Profile

from . import dataset, model_info, rows
from .dataset import Dataset
from .errors import ModelError
from .limits import Limits
from .manifest import CONVENTION, Marker
from .model_info import ModelInfo


def open_data(profile: Profile, info: ModelInfo) -> Dataset:
    limits = Limits(
        vocab=info.vocab,
        seq_length=profile.data.seq_length,
        max_model_len=profile.model.max_model_len,
        max_samples=profile.data.max_samples,
        too_long=profile.data.too_long,
    )
    return dataset.read(
        Path(profile.data.path),
        Path(profile.model.path),
        limits,
        trust_remote_code=profile.model.trust_remote_code,
    )


def make_marker(profile: Profile, info: ModelInfo, name: str) -> Marker:
    """What the samples of run ``name`` have in common; raises DataError."""
    return Marker(
        format=1,
        run=name,
        model=profile.model.path,
        model_fingerprint=info.fingerprint,
        data=profile.data.path,
        data_fingerprint=rows.fingerprint(Path(profile.data.path)),
        layers=profile.capture.layers,
        convention=CONVENTION,
        dtype=model_info.run_dtype(profile.model.dtype, info),
        hidden=info.hidden,
        output_format=profile.output.format,
    )


def check_layers(profile: Profile, info: ModelInfo) -> None:
    """Raises ModelError naming the layers that the model does not have."""
    wrong = [layer for layer in profile.capture.layers if not 0 <= layer < info.layers]
    if wrong or not profile.capture.layers:
        raise ModelError(
            f"capture.layers = {list(profile.capture.layers)}: {info.path} has the layers 0 to "
            f"{info.layers - 1}"
        )
