"""What a dry construction of the engine finds: written by the worker, read by the preflight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .protocol.values import ErrorInfo

Work = Literal["import", "config", "layout"]
Step = Literal["start", "import", "config", "layout", "done"]
"""Where a construction is: a process that died left the step that it had begun."""


@dataclass(frozen=True)
class Resolved:
    """The engine's configuration as vLLM made it from the run's own arguments."""

    architecture: str
    dtype: str
    """``bfloat16``"""
    quantization: str = ""
    """vLLM's name of the method; empty for none."""
    max_model_len: int = 0
    """Positions that the engine is given: one more than the profile's where there is room."""
    block_size: int | None = None
    """Tokens of a KV cache block; None where vLLM settles it once the workers run."""
    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    max_num_batched_tokens: int = 0
    max_num_seqs: int = 0
    tensor_parallel: int = 1
    executor: str = ""
    """vLLM's class of it: ``UniProcExecutor``."""


@dataclass(frozen=True)
class Capture:
    """How the states would be had from this model."""

    model: str
    """The class that vLLM's registry gives."""
    decoder: str = ""
    """The class of one decoder layer; empty where the model was not laid out."""
    layers: int = 0
    how: str = ""
    """As the run says it: ``vLLM's SupportsEagle3 for layers 1, 3``."""
    seen: Literal["model", "class"] = "class"
    """What was looked at: the model laid out without weights, or its class alone."""
    refusals: tuple[str, ...] = ()
    """Reasons for which the worker would refuse, each with its way out."""
    problem: str = ""
    """Why the model could not be laid out, in words."""
    attention: tuple[str, ...] = ()
    """Attention backends of its layers, each once."""
    tried: str = ""
    """The tested (vLLM, model) that this is; empty where it is judged by signatures."""


@dataclass(frozen=True)
class EngineReport:
    """What ``worker dry --report`` writes, anew before each step."""

    step: Step = "start"
    engine: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Step -> how long it took."""
    error: ErrorInfo | None = None
    """What ended the step ``failed``."""
    failed: Work | None = None
    resolved: Resolved | None = None
    capture: Capture | None = None
    warnings: tuple[str, ...] = ()
    """What vLLM logged as a warning or an error meanwhile, each once."""
    dropped: int = 0
    """Of those, how many more there were."""
    cuda_touched: bool | None = None
    """Whether torch initialised CUDA in this process, and so may hold some memory of a GPU until it
    ends, which is at once."""
    memory_mb: int = 0
    """MiB of host memory at the most."""
