"""Known failures of GPUs, their driver, and what connects them; pure."""

from __future__ import annotations

from .kinds import Known, known

_PREFLIGHT = "The preflight names the holder: press p, or `eagle3-console preflight`."

KNOWN: tuple[Known, ...] = (
    # ------------------------------------------------------------- device memory
    known(
        "no-kv-memory",
        r"No available memory for the cache blocks",
        "After the weights and the warm-up nothing of the budget is left for the KV cache.",
        "Raise model.gpu_memory_utilization, lower model.max_model_len or "
        "engine.max_num_batched_tokens, or use more GPUs (model.tensor_parallel_size).",
    ),
    known(
        "kv-too-small",
        r"larger than the (?:available KV cache memory|maximum number of tokens that can be stored)"
        r"|To serve at least one request",
        "One request of max_model_len does not fit into the KV cache that is left.",
        "Lower model.max_model_len to what the message says, or raise "
        "model.gpu_memory_utilization.",
    ),
    known(
        "gpu-not-free",
        r"Free memory on device.{0,200}less than desired GPU memory utilization",
        "Somebody else held memory of that GPU when the engine started.",
        f"{_PREFLIGHT} Or lower model.gpu_memory_utilization.",
    ),
    known(
        "memory-profiling",
        r"Error in memory profiling",
        "Another process took or freed memory of the same GPU while vLLM measured it.",
        "Let one engine start at a time on these GPUs, then start again.",
    ),
    known(
        "cuda-oom",
        r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "The GPU had no room for one more block of memory.",
        "Lower engine.max_num_batched_tokens or model.gpu_memory_utilization, or use more GPUs; "
        "see who else held memory in the GPU plot.",
    ),
    # ------------------------------------------------------------- the GPU itself
    known(
        "ecc",
        r"uncorrectable ECC error",
        "The GPU's memory has an error that cannot be corrected; its context is lost.",
        "Reset the GPU or reboot, and look at the row remapping in the preflight; leave it out "
        "with CUDA_VISIBLE_DEVICES until then.",
    ),
    known(
        "gpu-lost",
        r"GPU is lost|unspecified launch failure|CUDA error: unknown error|device is lost"
        r"|Unable to determine the device handle",
        "The driver lost the GPU (look for Xid in the kernel log).",
        "Run the preflight: it names the Xid. Reset the GPU or reboot.",
    ),
    known(
        "illegal-access",
        r"an illegal memory access|illegal instruction was encountered|misaligned address",
        "A kernel read or wrote outside its memory; the line shown is where it was noticed.",
        'Run again with CUDA_LAUNCH_BLOCKING = "1" in host.env to see which kernel; '
        "try another attention backend or vLLM version.",
    ),
    known(
        "cublas",
        r"CUBLAS_STATUS_(?!ALLOC)\w+",
        "A matrix product failed on the GPU: mostly after an illegal access, or by a libcublas of "
        "another CUDA.",
        'Run again with CUDA_LAUNCH_BLOCKING = "1" in host.env; take other CUDA folders out of '
        "LD_LIBRARY_PATH.",
    ),
    known(
        "device-assert",
        r"device-side assert",
        "A kernel checked an index and it was out of range: mostly a token id beyond the "
        "vocabulary.",
        "Look at the preflight's check of the data (ids outside the vocabulary).",
    ),
    known(
        "no-kernel",
        r"no kernel image is available",
        "This build was not compiled for this GPU's architecture.",
        "Install a torch and vLLM build that supports its compute capability.",
    ),
    known(
        "driver-old",
        r"CUDA driver version is insufficient|forward compatibility was attempted"
        r"|driver on your system is too old|Error 80[34]:|driver/library version mismatch"
        r"|system has unsupported display driver",
        "The driver and the CUDA libraries do not fit each other.",
        "Reboot if the driver was just upgraded; else install a newer driver or an older "
        "CUDA build of torch.",
    ),
    known(
        "gpu-busy",
        r"CUDA-capable device\(s\) is/are busy|devices are busy or unavailable",
        "The GPU is in exclusive mode and another process has it.",
        f"{_PREFLIGHT} The mode is shown by nvidia-smi -q -d COMPUTE.",
    ),
    known(
        "no-gpu",
        r"No CUDA GPUs are available|no CUDA-capable device|invalid device ordinal",
        "The process saw fewer GPUs than the run needs.",
        "Correct CUDA_VISIBLE_DEVICES in host.env, or lower model.tensor_parallel_size.",
    ),
    known(
        "fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "CUDA was used in the parent before its worker was forked.",
        'Set VLLM_WORKER_MULTIPROC_METHOD = "spawn" in host.env.',
    ),
    # ------------------------------------------------------------- between the GPUs
    known(
        "collective-timeout",
        r"Watchdog caught collective operation timeout|Timed out after \d+ seconds waiting for",
        "One rank never arrived at a collective: it hung, died, or was far slower.",
        "Look at the rank that is missing among those that complain; run the deep preflight "
        "(peer access, all-reduce).",
    ),
    known(
        "nccl-shm",
        r"unhandled system error|Error while creating shared memory segment|posix_fallocate failed",
        "NCCL could not use shared memory or the network between the ranks.",
        "Give the container more /dev/shm (--shm-size=16g or --ipc=host); see the NCCL WARN lines.",
    ),
    known(
        "nccl",
        r"NCCL error|ncclUnhandledCudaError|ncclInternalError|ncclInvalidUsage",
        "The ranks could not talk to each other.",
        'Set NCCL_DEBUG = "WARN" in host.env and look at its lines; run the deep preflight.',
    ),
    known(
        "port-in-use",
        r"EADDRINUSE|Address already in use",
        "The port that the ranks meet at was taken, often by a leftover of an earlier run.",
        "Let the preflight name leftovers, or set VLLM_PORT in host.env.",
    ),
)
