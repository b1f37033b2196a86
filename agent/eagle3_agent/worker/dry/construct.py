"""The engine's configuration, by the very calls that a run makes, stopped before its workers.

Nothing of these calls is copied: the run's own code makes the arguments, vLLM's own code (or
speculators') makes the configuration, and what would start the workers is replaced in this
process by something that hands the configuration over.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from eagle3_agent.protocol.events import Event
from eagle3_agent.protocol.values import Profile
from eagle3_agent.worker.engines.base import EngineError


class _Made(BaseException):
    """Carries the configuration out; no ``except Exception`` on its way takes it."""

    def __init__(self, config: Any, executor: Any) -> None:
        self.config = config
        self.executor = executor


def import_libraries() -> bool:
    """Import torch and vLLM; raises whatever they do.

    speculators is left to ``make``: on some versions it imports under the patches alone.
    """
    importlib.import_module("torch")
    importlib.import_module("vllm")
    return True


def make(profile: Profile) -> tuple[Any, str]:
    """vLLM's config for this profile's engine, and the name of its executor's class.

    Raises EngineError or ModelError for what the run itself would refuse, and whatever vLLM
    raises.  ``script``: as the profile says; the script's own arguments are not known.
    """
    start = _vllm if profile.engine.name == "vllm" else _speculators
    try:
        start(profile)
    except _Made as made:
        return made.config, getattr(made.executor, "__name__", str(made.executor))
    raise EngineError("vLLM made no engine of its arguments: its configuration was not seen")


def _vllm(profile: Profile) -> None:
    from eagle3_agent.worker.engines import arguments

    arguments.prepare(profile)
    given = arguments.make(profile)
    from vllm.v1.engine.llm_engine import LLMEngine

    from vllm import LLM

    def stop(self: Any, vllm_config: Any, executor_class: Any, *_: Any, **__: Any) -> None:
        raise _Made(vllm_config, executor_class)

    _replaced(LLMEngine, "__init__", stop, lambda: LLM(**given))


def _speculators(profile: Profile) -> None:
    from eagle3_agent.worker.compat.patch import generator_module
    from eagle3_agent.worker.engines import speculators

    generator_class = speculators.prepare(profile, _unheard)
    module = generator_module()
    executor = module.MultiprocExecutor

    def stop(vllm_config: Any, *_: Any, **__: Any) -> None:
        raise _Made(vllm_config, executor)

    _replaced(
        module, "MultiprocExecutor", stop, lambda: speculators.start(generator_class, profile)
    )


def _replaced(owner: Any, name: str, stop: Any, call: Callable[[], Any]) -> None:
    before = getattr(owner, name)
    setattr(owner, name, stop)
    try:
        call()
    finally:
        setattr(owner, name, before)


def _unheard(event: Event) -> None:
    """The compatibility check tells of patches."""
