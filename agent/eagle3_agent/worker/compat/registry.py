"""The list of patches, and applying those that the installed versions need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eagle3_agent.protocol.values import PatchFinding

from . import config, errors, fits, generate, imports, kv_cache, model, runner, window
from .patch import Patch, Settings
from .sources import Sources

PATCHES: tuple[Patch, ...] = (
    *imports.PATCHES,  # first: the others import the generator
    *config.PATCHES,
    *window.PATCHES,
    *model.PATCHES,
    *kv_cache.PATCHES,
    *generate.PATCHES,
    *errors.PATCHES,
    *runner.PATCHES,
)

#: (vLLM, speculators) that the tests run; "" where speculators is not there.  0.20.2 ran on a GPU,
#: with engine ``vllm``.
TRIED = frozenset(
    (vllm, speculators) for vllm in ("0.16.0", "0.32.0") for speculators in ("0.3.0", "0.4.0.1", "")
) | {("0.20.2", "")}


def findings(sources: Sources | None = None) -> tuple[PatchFinding, ...]:
    """What every probe says of what is installed; imports neither vLLM nor speculators.

    A library that is absent is not spoken of: its patches are left out.
    """
    sources = sources or Sources.installed()
    there = {name for name in ("vllm", "speculators") if name in sources.roots}
    if "vllm" not in there:
        return ()
    patches = [p.finding(sources) for p in PATCHES if p.id.partition("/")[0] in there]
    return (*patches, *fits.findings(sources))


def is_patch(finding: PatchFinding) -> bool:
    """Whether a finding speaks of a patch, and not of what vLLM must have anyway."""
    return any(patch.id == finding.patch for patch in PATCHES)


def undecided(found: Sequence[PatchFinding]) -> list[PatchFinding]:
    """Patches that could not be decided: the data might be wrong without them."""
    return [f for f in found if f.status == "cannot-tell"]


def untried(vllm: str, speculators: str) -> str:
    """One sentence for a pair that no test runs; empty for one that is tested.

    A build's tag after ``+`` is not looked at.
    """
    if (vllm.partition("+")[0], speculators) in TRIED:
        return ""
    pair = f"vllm {vllm}" + (f" with speculators {speculators}" if speculators else "")
    both, alone = "0.16.0 and 0.32.0, speculators 0.3.0 and 0.4.0.1", "0.16.0, 0.20.2 and 0.32.0"
    tried = f"vllm {both if speculators else alone}"
    return f"{pair}: never run with this release, judged by signatures alone (tried: {tried})"


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
