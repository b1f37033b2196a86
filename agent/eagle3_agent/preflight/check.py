"""The contract of a check: probes collect facts, a pure function judges them.

To add a check, write one module with a ``Check`` (and a ``Probe`` if no existing
one brings its facts) and name it in ``catalogue``.  Nothing here runs a probe:
that is ``runner``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from eagle3_agent.protocol.values import Action, Profile, Report, Status, Verdict

from .text import show

T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """What a probe is told."""

    profile: Profile
    deep: bool = False
    """Take the time that certainty needs; a quick probe may look at a part and say so."""


@dataclass(frozen=True)
class Probe(Generic[T]):
    """One collector of facts; it runs in a process of its own."""

    name: str
    facts: type[T]
    """A dataclass that the protocol's codec can carry."""
    collect: Callable[[Ask], T]
    """Reads the host.  Expected trouble is a fact; an exception makes the probe silent."""
    timeout: float
    """Seconds after which it is killed; its checks then say that it did not answer."""
    deep_timeout: float | None = None
    """The same in a deep preflight, where it looks at more."""


@dataclass(frozen=True)
class Facts:
    """What the probes of one preflight brought, and why some brought nothing."""

    found: Mapping[str, Any] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    """Probe name -> why it did not answer, in words."""

    def get(self, probe: Probe[T]) -> T:
        """For a probe among the check's ``needs``: judged only when it answered."""
        value: T = self.found[probe.name]
        return value

    def maybe(self, probe: Probe[T]) -> T | None:
        """For a probe among the check's ``wants``: None when it did not answer."""
        return self.found.get(probe.name)


def known(*pairs: tuple[Probe[Any], Any]) -> Facts:
    """Facts from values, as if their probes had answered."""
    return Facts({probe.name: value for probe, value in pairs})


def always(ask: Ask) -> bool:
    return True


def only_deep(ask: Ask) -> bool:
    """For a check whose probe takes the host's time or memory for seconds."""
    return ask.deep


@dataclass(frozen=True)
class Check:
    """One question of the preflight."""

    id: str
    """Stable; ``--force`` names it."""
    title: str
    needs: tuple[Probe[Any], ...]
    """Probes that must have answered before ``judge`` is called."""
    judge: Callable[[Facts, Profile], Verdict]
    """Pure: the same facts and profile give the same verdict."""
    silence: Literal["warn", "block"]
    """The verdict when a needed probe did not answer."""
    silence_why: str = ""
    silence_todo: str = ""
    wants: tuple[Probe[Any], ...] = ()
    """Probes whose facts improve the verdict and which it can do without."""
    applies: Callable[[Ask], bool] = always
    """Whether it is asked at all; a check that does not apply is not in the report."""

    def verdict(
        self,
        status: Status,
        saw: str,
        why: str = "",
        todo: str = "",
        actions: Sequence[Action] = (),
    ) -> Verdict:
        return Verdict(
            check=self.id,
            title=self.title,
            status=status,
            saw=saw,
            why=why,
            todo=todo,
            actions=tuple(actions),
        )

    def decide(self, facts: Facts, profile: Profile) -> Verdict:
        """The verdict, whatever the probes did; a judge that fails is a warning, never a crash."""
        for probe in self.needs:
            if probe.name not in facts.found:
                saw = facts.silent.get(probe.name, f"the {probe.name} probe was not run")
                return self.verdict(self.silence, saw, self.silence_why, self.silence_todo)
        try:
            return self.judge(facts, profile)
        except Exception as error:
            return self.verdict(
                "warn",
                f"this check failed by itself: {show(f'{type(error).__name__}: {error}', 300)}",
                "It says nothing about the host.",
                "Look at the matter by hand, and report the line above.",
            )


@dataclass(frozen=True)
class Outcome:
    """One preflight: its verdicts, the host's fingerprint and what ``auto`` became."""

    report: Report
    environment: dict[str, Any]
    """Flat: strings, numbers and lists of strings; see ``environment``."""
    engine: str
    """The engine that would run; ``auto`` when the interpreter fits none."""


@dataclass(frozen=True)
class Progress:
    """How far one preflight is: a line of it is written whenever a probe has answered."""

    done: int
    total: int
    waiting: tuple[str, ...] = ()
    """Names of the probes that have not answered yet."""
