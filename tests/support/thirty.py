"""A report as long as they get, with actions, as one host of eight GPUs could give it."""

from __future__ import annotations

from eagle3_agent.protocol.values import Action, ProcessRef, Verdict

STOP = Action(
    "stop-vllm.service",
    "stop-unit",
    "Stop vllm-router.service, whose process holds GPU 0 to 7",
    (
        "Runs: systemctl stop vllm-router.service",
        "systemd sends TERM to its 9 processes (main pid 48190), KILL after its TimeoutStopSec.",
        "What it serves on port 8000 is no longer answered.",
        "It stays enabled, and starts again at the next boot.",
        "To have it back: systemctl start vllm-router.service",
    ),
    (ProcessRef(48190, 914_220),),
    "vllm-router.service",
)
END = Action(
    "terminate-48213",
    "terminate",
    "End pid 48213 (VLLM::Worker_TP3) and 7 others",
    (
        "Sends TERM to pid 48213 48214 48215 48216 48217 48218 48219 48220, waits 10 s, then KILL.",
        "By hand: kill 48213 48214 48215 48216 48217 48218 48219 48220",
        "Each is looked at again just before, by pid and start time.",
        "Their unit is set to restart: it may start them again.",
    ),
    tuple(ProcessRef(pid, 914_000 + pid) for pid in range(48213, 48221)),
)
ASIDE = Action(
    "move-aside-0",
    "move-aside",
    "Move the 412 files of another model aside",
    (
        "Renames /data/hidden_states to /data/hidden_states.before-20260530-140211",
        "By hand: mv /data/hidden_states /data/hidden_states.before-20260530-140211",
        "Nothing is removed; the run makes the folder anew.",
    ),
    path="/data/hidden_states",
    aside="/data/hidden_states.before-20260530-140211",
)

CLEAN = Verdict(
    "gpu-clean", "GPU memory free", "pass", "8 GPUs, each with 79.3 GiB or more free", seconds=0.6
)

_BLOCKED = Verdict(
    "gpu-clean",
    "GPU memory free",
    "block",
    "8 of 8 GPUs hold 71.2 GiB of 79.6 GiB each: pid 48213 to 48220, root, VLLM::Worker_TP0 to 7, "
    "unit vllm-router.service, since 2026-05-29 09:12",
    "vLLM takes gpu_memory_utilization of the whole memory at start and fails, after the load, "
    "when less is free.",
    "Stop the service for the run: systemctl stop vllm-router.service",
    0.612,
    (STOP, END),
)
_WARNED = (
    Verdict(
        "throttle", "Clocks not held back", "warn",
        "GPU 3: SW thermal slowdown now, 84 °C; the others 61 to 66 °C",
        "One slow rank holds the other seven at every step.",
        "Look at the fans and the filter of GPU 3's slot: nvidia-smi -q -i 3 -d PERFORMANCE",
        0.611,
    ),
    Verdict(
        "output", "Output folder", "warn",
        "/data/hidden_states holds 412 sample files of /models/llama8b, layers 2 15 28",
        "Files of two models in one folder train a draft on noise.",
        "Name another output.dir, or move them aside.",
        0.214, (ASIDE,),
    ),
    Verdict(
        "memlock", "Memory that can be locked", "warn",
        "ulimit -l is 64 KiB (soft and hard)",
        "NCCL registers its buffers with the card and falls back to copies where it cannot.",
        "ulimit -l unlimited in the shell that starts the agent, or in /etc/security/limits.conf",
        0.05,
    ),
)  # fmt: skip
_UNTOLD = Verdict(
    "xid", "No Xid in the kernel log", "skip", "the kernel log cannot be read by uid 1000"
)
_PASSED = (
    ("interpreter", "Profile's interpreter", "Python 3.12.3, vllm 0.16.0, speculators 0.3.0"),
    ("gpu-count", "GPUs for the profile", "8 seen, tensor_parallel_size 8"),
    ("driver", "Driver and library agree", "580.95, CUDA 13.0; torch was built for 12.8"),
    ("ecc", "ECC without errors", "no uncorrected error since boot on 8 GPUs"),
    ("remap", "Row remapping", "none pending, none failed"),
    ("compute-mode", "Compute mode", "Default on 8 GPUs"),
    ("mig", "MIG off", "off on 8 GPUs"),
    ("persistence", "Persistence", "on on 8 GPUs"),
    ("nvlink", "NVLink", "18 links active on each of 8 GPUs"),
    ("fabric", "Fabric manager", "state completed, status ok"),
    ("leftovers", "No leftovers of earlier runs", "none of 3 runs; 612 processes looked at"),
    ("stuck", "Nothing stuck in the kernel", "no process in D state for longer than 5 s"),
    ("memory-plan", "Memory plan", "67.4 GiB weights + 5.1 GiB KV + 1.2 GiB states of 79.3 GiB"),
    ("shm", "/dev/shm", "503.8 GiB free"),
    ("host-memory", "Host memory", "1.9 TiB of 2.0 TiB available"),
    ("files", "Open files", "ulimit -n 1048576"),
    ("model", "Model folder complete", "64 shards, 540.2 GiB, index and headers agree"),
    ("quantisation", "Quantisation supported", "compressed-tensors W4A16, Marlin kernel"),
    ("capture", "Capture of this architecture", "KimiK25ForConditionalGeneration by interface"),
    ("layers", "Layers", "2 30 58 60 of 61; the last entry is the verifier's state"),
    ("tokenizer", "Tokenizer and chat template", "both there"),
    ("data", "Data", "1 000 rows, 574 565 tokens, longest 2 048, loss mask of equal length"),
    ("disk", "Room for the output", "predicted 15.6 GiB, 1.2 TiB free"),
    ("write-speed", "Write speed", "1.4 GiB/s with fsync: 11 s of the run"),
    ("compat", "Patches", "6 of 14 needed, all of them known"),
)
VERDICTS: tuple[Verdict, ...] = (
    *(Verdict(c, title, "pass", saw, seconds=0.3) for c, title, saw in _PASSED[:3]),
    _BLOCKED,
    *_WARNED,
    _UNTOLD,
    *(Verdict(c, title, "pass", saw, seconds=0.2) for c, title, saw in _PASSED[3:]),
)
