"""One look at the host's memory and at the limits of its processes: both are small files."""

from __future__ import annotations

import os
from dataclasses import dataclass

from eagle3_agent.preflight.check import Ask, Probe

from . import host_facts, limits_facts
from .host_facts import HostFacts
from .limits_facts import LimitsFacts

_KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"


@dataclass(frozen=True)
class HostSide:
    memory: HostFacts
    limits: LimitsFacts


def _collect(ask: Ask) -> HostSide:
    kv_space = ask.profile.host.env.get(_KV_SPACE, os.environ.get(_KV_SPACE))
    return HostSide(host_facts.look(kv_space), limits_facts.look())


PROBE = Probe("host", HostSide, _collect, timeout=5.0)
