"""States that nobody may train on, found by their bits before they are written."""

from __future__ import annotations

from .item import States

#: Of each dtype: its width as an unsigned integer, the mask that takes the sign off, infinity.
_BITS = {
    "bfloat16": ("uint16", 0x7FFF, 0x7F80),
    "float16": ("uint16", 0x7FFF, 0x7C00),
    "float32": ("uint32", 0x7FFFFFFF, 0x7F800000),
}

#: Bytes looked at in one go: a block and its copy without signs stay in a core's cache.
_BLOCK = 1 << 20


def fault(states: States, layers: tuple[int, ...], kind: str) -> str:
    """Why these states are wrong, naming the first place; "" when nothing is.

    ``states`` are ``[L, S, H]`` for kind ``LSH``, ``[S, L, H]`` for ``SLH``.  Found are NaN,
    infinity, and a row (one token at one layer) of nothing but zeros: a residual stream holds the
    token's embedding plus what the layers added, so that a real model gives an exact zero only for
    tokens without any embedding, while a buffer that was never filled, a lost row or a dead layer
    gives nothing else.

    Read as integers without sign, IEEE numbers keep their order and infinity and NaN lie on top:
    one pass of numpy, in the calling thread alone, where torch's ``isfinite`` takes 20 times as
    long and starts a team of OpenMP threads per caller.
    """
    import numpy as np

    width, mask, infinity = _BITS[states.dtype]
    hidden = states.shape[2]
    rows = np.frombuffer(states.data, width).reshape(-1, hidden)
    step = max(1, _BLOCK // max(1, rows.itemsize * hidden))
    for start in range(0, len(rows), step):
        largest = (rows[start : start + step] & np.array(mask, width)).max(axis=1)
        if largest.max() >= infinity or largest.min() == 0:
            row = int(np.flatnonzero((largest >= infinity) | (largest == 0))[0])
            what = "all zeros" if largest[row] == 0 else "NaN or infinity"
            return _place(start + row, states.shape, layers, kind, what)
    return ""


def _place(row: int, shape: tuple[int, ...], layers: tuple[int, ...], kind: str, what: str) -> str:
    if kind == "LSH":
        place, token = divmod(row, shape[1])
    else:
        token, place = divmod(row, shape[1])
    verb = "is" if what == "all zeros" else "holds"
    return f"the state of token {token} after layer {layers[place]} {verb} {what}"
