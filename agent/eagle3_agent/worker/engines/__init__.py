"""Engines: ways to run a base model over samples and keep intermediate states.

``base`` is the contract; each other file is one engine and is imported only
when a run asks for it.
"""

from __future__ import annotations

from .base import Engine


def create(name: str) -> Engine:
    """The engine of that name; raises ValueError naming it when there is none."""
    if name == "transformers":
        from .transformers import TransformersEngine

        return TransformersEngine()
    if name == "speculators":
        from .speculators import SpeculatorsEngine

        return SpeculatorsEngine()
    if name == "vllm":
        from .vllm import VllmEngine

        return VllmEngine()
    known = "transformers, speculators, vllm"
    raise ValueError(f"engine {name!r} is not part of this release: {known}")
