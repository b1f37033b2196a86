"""Every check, in the order in which a report lists them: what blocks most first.

The interpreter, the GPUs and who holds them, memory, the model, the data, the output, what the
libraries make of it, the host; then the deep ones.
"""

from __future__ import annotations

from .check import Ask, Check
from .data import rows as data
from .deep import allreduce, compute, disk_throughput, peers, tiny_engine
from .gpus import clean as gpu_clean
from .gpus import count as gpu_count
from .gpus import driver as gpu_driver
from .gpus import health as gpu_health
from .gpus import kernel_log as gpu_kernel_log
from .gpus import links as gpu_links
from .gpus import modes as gpu_modes
from .libraries import capture, compat, engine_config, interpreter, script
from .memory import gpu as memory
from .memory import host, limits, shm
from .model import dtype, layers, quantization, remote_code, tokenizer
from .model import folder as model
from .output import disk, filesystem, records, speed
from .output import folder as output
from .running import leftovers, locks, others, stuck

CHECKS: tuple[Check, ...] = (
    interpreter.CHECK,
    script.CHECK,
    gpu_count.CHECK,
    gpu_clean.CHECK,
    others.CHECK,
    leftovers.CHECK,
    gpu_health.CHECK,
    gpu_driver.CHECK,
    gpu_modes.CHECK,
    gpu_links.CHECK,
    gpu_kernel_log.CHECK,
    memory.CHECK,
    host.CHECK,
    model.CHECK,
    layers.CHECK,
    dtype.CHECK,
    quantization.CHECK,
    remote_code.CHECK,
    tokenizer.CHECK,
    data.CHECK,
    output.CHECK,
    filesystem.CHECK,
    disk.CHECK,
    speed.CHECK,
    records.CHECK,
    compat.CHECK,
    engine_config.CHECK,
    capture.CHECK,
    stuck.CHECK,
    locks.CHECK,
    limits.CHECK,
    shm.CHECK,
    compute.CHECK,
    peers.CHECK,
    allreduce.CHECK,
    disk_throughput.CHECK,
    tiny_engine.CHECK,
)


def for_ask(ask: Ask) -> tuple[Check, ...]:
    """The checks that bear on this profile: the script's where one is to be run, deep if asked."""
    return tuple(c for c in CHECKS if c.applies(ask))
