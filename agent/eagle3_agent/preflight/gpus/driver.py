"""Check ``gpu-driver``: library against kernel module, and the driver's CUDA against torch's."""

from __future__ import annotations

import re

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.engine import version_key
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.text import show
from eagle3_agent.protocol.values import Profile, Verdict

from .count import SILENT_TODO, SILENT_WHY
from .gpu_facts import PROBE, GpuFacts
from .used import cpu_build

#: CUDA's major version -> the oldest driver branch that runs it (table 1 of "Minor Version
#: Compatibility", docs.nvidia.com/deploy/cuda-compatibility).
LEAST_DRIVER = {11: 450, 12: 525, 13: 580}

_RELOAD = (
    "Reboot, or with nothing running on the GPUs: rmmod nvidia_uvm nvidia_drm nvidia_modeset "
    "nvidia && modprobe nvidia"
)


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    saw = _versions(seen)
    if seen.module and seen.library and version_key(seen.module) != version_key(seen.library):
        return CHECK.verdict(
            "block",
            f"the kernel module is {seen.module}, the library is {show(seen.library, 40)}",
            "The driver was upgraded under the loaded module: CUDA does not start.",
            _RELOAD,
        )
    if "version mismatch" in seen.sample.gpu_problem:
        return CHECK.verdict(
            "block",
            f"NVML says: driver/library version mismatch ({saw})",
            "The driver was upgraded under the loaded module: CUDA does not start.",
            _RELOAD,
        )
    if not seen.sample.driver:
        if not seen.sample.gpus:
            return CHECK.verdict("skip", show(seen.sample.gpu_problem, 200) or "no NVIDIA driver")
        return CHECK.verdict("skip", f"NVML does not say which driver this is ({saw})")
    torch = _torch_cuda(facts)
    if cpu_build(facts):
        return CHECK.verdict("pass", f"{saw}; vLLM computes on the CPU here and asks for no CUDA")
    if torch is None:
        return CHECK.verdict("pass", f"{saw}; which CUDA torch was built for is not told")
    if not torch:
        return CHECK.verdict("pass", f"{saw}; torch is a build without CUDA")
    return _against_torch(seen, profile, saw, torch)


def _versions(seen: GpuFacts) -> str:
    parts = [f"driver {show(seen.sample.driver, 40)}"] if seen.sample.driver else []
    parts += [f"kernel module {seen.module}"] if seen.module and not seen.sample.driver else []
    parts += [f"library {show(seen.library, 40)}"] if seen.library else []
    parts += [f"CUDA {show(seen.sample.cuda, 20)}"] if seen.sample.cuda else []
    return ", ".join(parts) or "no version told"


def _torch_cuda(facts: Facts) -> str | None:
    """``12.8``; empty for a build without CUDA; None where nothing tells."""
    seen = facts.maybe(interpreter_facts.PROBE)
    if seen is None:
        return None
    if seen.torch_cuda is not None:
        return seen.torch_cuda
    # "2.10.0+cu128": PyTorch's own index puts the release in the version, PyPI's wheels do not
    tag = re.search(r"\+cu(\d\d)(\d)\b", seen.dists.get("torch", ""))
    if tag:
        return f"{tag[1]}.{tag[2]}"
    return "" if "+cpu" in seen.dists.get("torch", "") else None


def _against_torch(seen: GpuFacts, profile: Profile, saw: str, torch: str) -> Verdict:
    wanted, has = version_key(torch)[:2], version_key(seen.sample.cuda)[:2]
    branch = version_key(seen.sample.driver)[:1]
    saw = f"{saw}; torch is built for CUDA {show(torch, 20)}"
    if not wanted or not branch or (not has and wanted[0] not in LEAST_DRIVER):
        return CHECK.verdict("pass", f"{saw}; whether they fit cannot be told")
    least = LEAST_DRIVER.get(wanted[0])
    # the driver's own word first: the table knows the releases of its day
    too_old = has[0] < wanted[0] if has else least is not None and branch[0] < least
    if too_old:
        return _too_old(profile, saw, torch, least)
    if len(has) == len(wanted) == 2 and has[0] == wanted[0] and has[1] < wanted[1]:
        return CHECK.verdict(
            "warn",
            f"{saw}, a later minor release than the driver's",
            f"It runs by minor version compatibility (driver {least or '?'} or later), but kernels "
            "that a library compiles to PTX on the spot may be refused.",
            f"Upgrade the driver to one with CUDA {show(torch, 20)}, or install a torch for CUDA "
            f"{show(seen.sample.cuda, 20)} or earlier.",
        )
    return CHECK.verdict("pass", saw)


def _too_old(profile: Profile, saw: str, torch: str, least: int | None) -> Verdict:
    need = f"CUDA {version_key(torch)[0]} needs driver {least} or later" if least else (
        f"CUDA {version_key(torch)[0]} needs a later driver"
    )  # fmt: skip
    way = "Upgrade the driver, or install a torch for an earlier CUDA into the interpreter."
    compat = "compat" in profile.host.env.get("LD_LIBRARY_PATH", "")
    if compat:
        return CHECK.verdict(
            "warn",
            f"{saw}; LD_LIBRARY_PATH of host.env names a compat folder",
            f"{need}; NVIDIA's forward compatibility package can stand in for it on data centre "
            "parts, and whether it does is seen when CUDA starts.",
            way,
        )
    return CHECK.verdict("block", saw, f"{need}: CUDA does not start.", way)


CHECK = Check(
    id="gpu-driver",
    title="GPU driver fits torch",
    needs=(PROBE,),
    wants=(interpreter_facts.PROBE,),
    judge=judge,
    silence="warn",
    silence_why=SILENT_WHY,
    silence_todo=SILENT_TODO,
)
