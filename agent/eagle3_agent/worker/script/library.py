"""speculators' generator in the script's process: patched, held against the profile, watched.

The patches are engine ``speculators``'s own.  What the script asks of the generator must be what
the profile says: the folder's marker, ``verify`` and a resume go by the profile alone.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import sys
from functools import wraps
from pathlib import Path
from typing import Any

from eagle3_agent.protocol.values import PatchFinding, Profile
from eagle3_agent.worker import model_info
from eagle3_agent.worker.compat import probe, registry
from eagle3_agent.worker.compat.generate import SOURCE
from eagle3_agent.worker.compat.patch import Settings
from eagle3_agent.worker.compat.sources import GENERATOR, GENERATOR_CLASS, Sources
from eagle3_agent.worker.engines import machine
from eagle3_agent.worker.engines.base import EngineError
from eagle3_agent.worker.errors import ModelError

from . import channel


class ScriptMismatchError(EngineError):
    """The script asks for something else than the profile says."""


def patch(profile: Profile) -> None:
    """Import the generator's module with the patches that this pair of libraries needs.

    Raises EngineError where that cannot be told, and what the import raises.
    """
    told = _told()
    sources = Sources.installed()
    found = told or registry.findings(sources)
    unsure = registry.undecided(found)
    if unsure:
        raise EngineError(
            f"cannot tell whether {len(unsure)} patches are needed for this vLLM and speculators, "
            f"so the data might be wrong (first: {unsure[0].patch}: {unsure[0].evidence}). Use "
            "vllm 0.16.0 with speculators 0.3.0 or 0.4.0.1, or the engine vllm"
        )
    registry.apply(found, _settings(profile))
    importlib.import_module(GENERATOR)
    _watch(getattr(sys.modules[GENERATOR], GENERATOR_CLASS), profile)
    if not told:
        channel.tell(channel.Findings(found))
        note = probe.untried(sources, probe.installed_versions(), "script")
        if note:
            channel.tell(channel.Remark(note))


def _told() -> tuple[PatchFinding, ...]:
    """What a process above this one has probed already; empty for the first."""
    for line in channel.Follower(channel.run_folder()).read():
        if isinstance(line, channel.Findings) and any(f.patch in _PROBED for f in line.found):
            return line.found
    return ()


_PROBED = frozenset(patch.id for patch in registry.PATCHES)


def _settings(profile: Profile) -> Settings:
    return Settings(
        dtype=profile.model.dtype,
        trust_remote_code=profile.model.trust_remote_code,
        max_num_batched_tokens=profile.engine.max_num_batched_tokens,
        max_num_seqs=profile.engine.max_num_seqs,
    )


# ------------------------------------------------------------------ what the script asks for


def _watch(generator: Any, profile: Profile) -> None:
    """Hear of the generator's making and of its first call; no data passes through here."""
    init, generate = generator.__init__, generator.generate
    if getattr(init, "_eagle3_watched", False):
        return

    @wraps(init)
    def making(self: Any, *args: Any, **kwargs: Any) -> None:
        _before(_arguments(init, self, args, kwargs), profile)
        init(self, *args, **kwargs)
        layers = tuple(map(int, self.layer_ids))
        _check_layers(layers, profile)
        config = self.vllm_config
        channel.tell(
            channel.Standing(
                layers=layers,
                dtype=str(config.model_config.dtype).removeprefix("torch."),
                device=machine.devices(config.parallel_config.tensor_parallel_size),
                source=str(getattr(self, SOURCE, "")),
            )
        )

    told: list[bool] = []

    @wraps(generate)
    def generating(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not told:
            told.append(True)
            channel.tell(channel.Generating())
        return generate(self, *args, **kwargs)

    making._eagle3_watched = True  # type: ignore[attr-defined]
    generator.__init__, generator.generate = making, generating


def _arguments(init: Any, self: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """By name, defaults included; empty for a call that ``init`` is about to refuse."""
    try:
        bound = inspect.signature(init).bind(self, *args, **kwargs)
    except TypeError:
        return {}
    bound.apply_defaults()
    return bound.arguments


def _before(arguments: dict[str, Any], profile: Profile) -> None:
    """Tell what is asked for; raises ScriptMismatchError before minutes go into the load."""
    model = str(arguments.get("model_path", ""))
    layers = arguments.get("layer_ids")
    asked = tuple(int(layer) for layer in layers) if layers is not None else None
    same = _same_model(model, profile)
    channel.tell(
        channel.Asked(
            model=model,
            layers=asked,
            max_model_len=_number(arguments.get("max_model_len")),
            tensor_parallel_size=_number(arguments.get("tensor_parallel_size")),
            same_model=same,
        )
    )
    if same is False:
        raise ScriptMismatchError(
            f"the script loads the model {model}, the profile says model.path = "
            f"{profile.model.path}: make them the same"
        )
    if asked is None:
        asked = _chosen(profile)
    _check_layers(asked, profile)


def _number(value: Any) -> int | None:
    try:
        return operator.index(value)
    except TypeError:
        return None  # the library is about to refuse it


def _chosen(profile: Profile) -> tuple[int, ...]:
    """Layers that the generator takes when it is given none; the load shows whether it did."""
    count = model_info.read(Path(profile.model.path)).layers
    return (2, count // 2, count - 3, count - 1)


def _check_layers(asked: tuple[int, ...], profile: Profile) -> None:
    if asked != tuple(profile.capture.layers):
        raise ScriptMismatchError(
            f"the script captures the layers {list(asked)}, the profile says capture.layers = "
            f"{list(profile.capture.layers)}: the files would be taken for other layers than they "
            "hold. Make them the same, in the profile or in the script's arguments"
        )


def _same_model(model: str, profile: Profile) -> bool | None:
    """By the fingerprint that the output folder's marker holds; None for no local folder."""
    if not Path(model).is_dir():
        return None
    try:
        theirs = model_info.read(Path(model))
    except ModelError:
        return None  # the load will say what is wrong with it
    return theirs.fingerprint == model_info.read(Path(profile.model.path)).fingerprint
