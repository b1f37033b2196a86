"""What a named patch is, and how a name is replaced once and only once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal

from eagle3_agent.protocol.values import PatchFinding

from .sources import Sources, UnreadableError

Verdict = tuple[Literal["needed", "not-needed"], str]
"""What a probe saw: its conclusion and the evidence, with the signature found."""

_MARK = "_eagle3_patches"


@dataclass(frozen=True)
class Settings:
    """What the patches put in place of the library's fixed choices."""

    dtype: str = "auto"
    """``auto`` keeps the checkpoint's own dtype, float32 included."""
    trust_remote_code: bool = False
    max_num_batched_tokens: int | None = None
    """Tokens of one step; None keeps the library's choice."""
    max_num_seqs: int | None = None
    """Requests in flight; None keeps the library's choice."""
    layout: Literal["LSH", "SLH"] = "LSH"
    """How a sample's states lie in memory: what the output format writes."""


@dataclass(frozen=True)
class Patch:
    """One named change; ``apply`` may serve several patches and is idempotent."""

    id: str
    """``LIBRARY/NAME``: what is changed is the library's, or is where vLLM itself is at fault."""
    title: str
    symptom: str
    cause: str
    change: str
    until: str
    probe: Callable[[Sources], Verdict]
    """Raises UnreadableError when it cannot tell."""
    apply: Callable[[Settings], None]

    def finding(self, sources: Sources) -> PatchFinding:
        status: Literal["needed", "not-needed", "cannot-tell"]
        try:
            status, evidence = self.probe(sources)
        except UnreadableError as error:
            status, evidence = "cannot-tell", str(error)
        return PatchFinding(
            patch=self.id,
            title=self.title,
            status=status,
            evidence=evidence,
            symptom=self.symptom,
            cause=self.cause,
            change=self.change,
            until=self.until,
        )


def replace(owner: Any, name: str, patch: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(current)`` in place of ``owner.name``, unless this patch already did.

    Several patches may wrap one name; each leaves its id on what it made.
    """
    current = getattr(owner, name)
    done: tuple[str, ...] = getattr(current, _MARK, ())
    if patch in done:
        return
    made = make(current)
    setattr(made, _MARK, (*done, patch))
    setattr(owner, name, made)


def wrap(name: str, patch: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(current)`` in place of a global name of the generator's module."""

    def marked(current: Any) -> Any:
        made = make(current)
        # a class cannot lend its __dict__; the name alone helps whoever reads a traceback
        return wraps(current, updated=())(made) if callable(current) else made

    replace(generator_module(), name, patch, marked)


def generator_module() -> Any:
    """speculators' generator module, whose global names the patches replace."""
    from speculators.data_generation import vllm_hidden_states_generator

    return vllm_hidden_states_generator
