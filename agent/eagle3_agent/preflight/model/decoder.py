"""Which decoder layers a checkpoint holds, by the names of its tensors; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LAYER = re.compile(r"((?:[\w-]+\.)*?(?:layers|h|blocks|block))\.(\d{1,6})\.")
#: Parts of a name that stand for something else than the language model.
_ASIDE = re.compile(r"vision|visual|audio|image|encoder|projector|tower|talker|draft|mtp|vit\b")
_KEPT = 32


@dataclass(frozen=True)
class Layers:
    """What the names tell; ``prefix`` is empty when no decoder was recognised in them."""

    prefix: str = ""
    """``model.layers``"""
    missing: tuple[int, ...] = ()
    """Layers of which no tensor is there, the first of them."""
    missing_count: int = 0
    beyond: int = 0
    """Layers past the config's last one, MTP layers included."""


def find(names: Iterable[str], count: int | None) -> Layers:
    """The decoder's layers against ``count``, the config's."""
    seen: dict[str, set[int]] = {}
    for name in names:
        match = _LAYER.match(name)
        if match:
            seen.setdefault(match[1], set()).add(int(match[2]))
    ours = {p: ids for p, ids in seen.items() if not _ASIDE.search(p)}
    if not ours or count is None:
        return Layers()
    wanted = range(min(count, 100_000))
    whole = [p for p in sorted(ours) if ours[p].issuperset(wanted)]
    # a resampler or the like may have layers too: the nearest to the config's count is the decoder
    prefix = (
        min(whole, key=lambda p: len(ours[p]))
        if whole
        else max(sorted(ours), key=lambda p: len(ours[p]))
    )
    missing = [i for i in wanted if i not in ours[prefix]]
    beyond = sum(i >= count for i in ours[prefix])
    return Layers(prefix, tuple(missing[:_KEPT]), len(missing), beyond)
