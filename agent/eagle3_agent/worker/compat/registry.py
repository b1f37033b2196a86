"""The list of patches, and applying those that the installed versions need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eagle3_agent.protocol.values import PatchFinding

from . import config, errors, generate, kv_cache
from .patch import Patch, Settings
from .sources import Sources

PATCHES: tuple[Patch, ...] = (
    *config.PATCHES,
    *kv_cache.PATCHES,
    *generate.PATCHES,
    *errors.PATCHES,
)


def findings(sources: Sources | None = None) -> tuple[PatchFinding, ...]:
    """What every patch's probe says of what is installed; imports neither vLLM nor speculators."""
    sources = sources or Sources.installed()
    return tuple(patch.finding(sources) for patch in PATCHES)


def undecided(found: Sequence[PatchFinding]) -> list[PatchFinding]:
    """Patches that could not be decided: the data might be wrong without them."""
    return [f for f in found if f.status == "cannot-tell"]


def apply(found: Iterable[PatchFinding], settings: Settings) -> None:
    """Apply what is needed, in this process; idempotent for the same settings.

    Imports speculators and vLLM.  Must come before the generator is made.
    """
    wanted = {f.patch for f in found if f.status == "needed"}
    done = set()
    for patch in PATCHES:
        if patch.id in wanted and patch.apply not in done:
            patch.apply(settings)
            done.add(patch.apply)
