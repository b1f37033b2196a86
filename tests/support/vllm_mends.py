"""What the CPU build of vLLM does wrong by itself, mended for the tests that would stumble on it.

None of it is part of the product: on a GPU other code runs.  ``use`` makes vLLM load the named
mends as a plugin in every one of its processes.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_NAMES = "EAGLE3_TEST_MENDS"


def use(names: Sequence[str], folder: Path) -> None:
    """Call before vLLM is imported; ``folder`` gets the plugin's metadata."""
    if not names:
        return
    place = folder / "plugin"
    info = place / "vllm_test_mends-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-test-mends\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nmends = support.vllm_mends:apply\n"
    )
    os.environ[_NAMES] = " ".join(names)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(place))


def apply() -> None:
    for name in os.environ[_NAMES].split():
        _MENDS[name]()


def _native_rotary() -> None:
    """vLLM's rotary kernel is wrong for DeepSeek's three-dimensional query: error 0.12 to 0.33."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    RotaryEmbedding.forward_cpu = RotaryEmbedding.forward_native


def _no_amx() -> None:
    """Have vLLM run as on a CPU without AMX.

    With it, 0.32 takes an MLA kernel that knows bfloat16 alone, and 0.16 an attention kernel for
    bfloat16 that its build does not hold.
    """
    import torch

    torch.cpu._is_amx_tile_supported = torch._C._cpu._is_amx_tile_supported = lambda: False


def _numba_scan() -> None:
    """vLLM 0.32 looks for kernels in every loaded module and stumbles over numba's library object.

    That object answers every name with a function of the library, ``__dict__`` too.
    """
    library: Any = importlib.import_module("llvmlite.binding.ffi")._lib_wrapper
    answer = library.__getattr__

    def guarded(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return answer(self, name)

    library.__getattr__ = guarded


_MENDS = {"native-rotary": _native_rotary, "no-amx": _no_amx, "numba-scan": _numba_scan}
