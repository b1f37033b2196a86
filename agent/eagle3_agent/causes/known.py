"""Failures that are known: what each means, and what to do about it; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .tracebacks import Raised


@dataclass(frozen=True)
class Known:
    """One kind of failure; ``pattern`` is searched in ``Type: message``."""

    id: str
    pattern: re.Pattern[str]
    means: str
    todo: str
    frames: re.Pattern[str] | None = None
    """Where set, a file of the traceback must match as well."""


def recognise(raised: Raised) -> Known | None:
    """The first kind that fits."""
    text = f"{raised.type}: {raised.message}"[:8000]
    for known in KNOWN:
        if known.pattern.search(text) and _fits_frames(known, raised):
            return known
    return None


def _fits_frames(known: Known, raised: Raised) -> bool:
    if known.frames is None:
        return True
    return any(known.frames.search(frame.file) for frame in raised.frames)


def _known(id: str, pattern: str, means: str, todo: str, frames: str = "") -> Known:
    files = re.compile(frames) if frames else None
    return Known(id, re.compile(pattern, re.IGNORECASE), means, todo, files)


_PREFLIGHT = "The preflight names the holder: press p, or `eagle3-console preflight`."

KNOWN: tuple[Known, ...] = (
    # ------------------------------------------------------------- device memory
    _known(
        "no-kv-memory",
        r"No available memory for the cache blocks",
        "After the weights and the warm-up nothing of the budget is left for the KV cache.",
        "Raise model.gpu_memory_utilization, lower model.max_model_len or "
        "engine.max_num_batched_tokens, or use more GPUs (model.tensor_parallel_size).",
    ),
    _known(
        "kv-too-small",
        r"larger than the (?:available KV cache memory|maximum number of tokens that can be stored)"
        r"|To serve at least one request",
        "One request of max_model_len does not fit into the KV cache that is left.",
        "Lower model.max_model_len to what the message says, or raise "
        "model.gpu_memory_utilization.",
    ),
    _known(
        "gpu-not-free",
        r"Free memory on device.{0,200}less than desired GPU memory utilization",
        "Somebody else held memory of that GPU when the engine started.",
        f"{_PREFLIGHT} Or lower model.gpu_memory_utilization.",
    ),
    _known(
        "memory-profiling",
        r"Error in memory profiling",
        "Another process took or freed memory of the same GPU while vLLM measured it.",
        "Let one engine start at a time on these GPUs, then start again.",
    ),
    _known(
        "cuda-oom",
        r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "The GPU had no room for one more block of memory.",
        "Lower engine.max_num_batched_tokens or model.gpu_memory_utilization, or use more GPUs; "
        "see who else held memory in the GPU plot.",
    ),
    # ------------------------------------------------------------- the GPU itself
    _known(
        "ecc",
        r"uncorrectable ECC error",
        "The GPU's memory has an error that cannot be corrected; its context is lost.",
        "Reset the GPU or reboot, and look at the row remapping in the preflight; leave it out "
        "with CUDA_VISIBLE_DEVICES until then.",
    ),
    _known(
        "gpu-lost",
        r"GPU is lost|unspecified launch failure|CUDA error: unknown error|device is lost"
        r"|Unable to determine the device handle",
        "The driver lost the GPU (look for Xid in the kernel log).",
        "Run the preflight: it names the Xid. Reset the GPU or reboot.",
    ),
    _known(
        "illegal-access",
        r"an illegal memory access|illegal instruction was encountered|misaligned address",
        "A kernel read or wrote outside its memory; the line shown is where it was noticed.",
        'Run again with CUDA_LAUNCH_BLOCKING = "1" in host.env to see which kernel; '
        "try another attention backend or vLLM version.",
    ),
    _known(
        "device-assert",
        r"device-side assert",
        "A kernel checked an index and it was out of range: mostly a token id beyond the "
        "vocabulary.",
        "Look at the preflight's check of the data (ids outside the vocabulary).",
    ),
    _known(
        "no-kernel",
        r"no kernel image is available",
        "This build was not compiled for this GPU's architecture.",
        "Install a torch and vLLM build that supports its compute capability.",
    ),
    _known(
        "driver-old",
        r"CUDA driver version is insufficient|forward compatibility was attempted"
        r"|driver on your system is too old|Error 80[34]:|driver/library version mismatch"
        r"|system has unsupported display driver",
        "The driver and the CUDA libraries do not fit each other.",
        "Reboot if the driver was just upgraded; else install a newer driver or an older "
        "CUDA build of torch.",
    ),
    _known(
        "gpu-busy",
        r"CUDA-capable device\(s\) is/are busy|devices are busy or unavailable",
        "The GPU is in exclusive mode and another process has it.",
        f"{_PREFLIGHT} The mode is shown by nvidia-smi -q -d COMPUTE.",
    ),
    _known(
        "no-gpu",
        r"No CUDA GPUs are available|no CUDA-capable device|invalid device ordinal",
        "The process saw fewer GPUs than the run needs.",
        "Correct CUDA_VISIBLE_DEVICES in host.env, or lower model.tensor_parallel_size.",
    ),
    _known(
        "fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "CUDA was used in the parent before its worker was forked.",
        'Set VLLM_WORKER_MULTIPROC_METHOD = "spawn" in host.env.',
    ),
    # ------------------------------------------------------------- between the GPUs
    _known(
        "collective-timeout",
        r"Watchdog caught collective operation timeout|Timed out after \d+ seconds waiting for",
        "One rank never arrived at a collective: it hung, died, or was far slower.",
        "Look at the rank that is missing among those that complain; run the deep preflight "
        "(peer access, all-reduce).",
    ),
    _known(
        "nccl-shm",
        r"unhandled system error|Error while creating shared memory segment|posix_fallocate failed",
        "NCCL could not use shared memory or the network between the ranks.",
        "Give the container more /dev/shm (--shm-size=16g or --ipc=host); see the NCCL WARN lines.",
    ),
    _known(
        "nccl",
        r"NCCL error|ncclUnhandledCudaError|ncclInternalError|ncclInvalidUsage",
        "The ranks could not talk to each other.",
        'Set NCCL_DEBUG = "WARN" in host.env and look at its lines; run the deep preflight.',
    ),
    _known(
        "port-in-use",
        r"EADDRINUSE|Address already in use",
        "The port that the ranks meet at was taken, often by a leftover of an earlier run.",
        "Let the preflight name leftovers, or set VLLM_PORT in host.env.",
    ),
    # ------------------------------------------------------------- disk and files
    _known(
        "disk-full",
        r"No space left on device|Errno 28\b|no space left on ",
        "The disk is full; samples that were finished stay valid.",
        "Free space, then resume the run: it goes on where it stopped.",
    ),
    _known(
        "quota",
        r"Disk quota exceeded|Errno 122\b",
        "The user's quota on that disk is used up; finished samples stay valid.",
        "Free space or raise the quota, then resume.",
    ),
    _known(
        "read-only",
        r"Read-only file system|Errno 30\b",
        "The disk is mounted read-only; after a disk error the kernel does that by itself.",
        "Look in dmesg, then choose another output.dir or have it mounted again, and resume.",
    ),
    _known(
        "disk-error",
        r"Input/output error|Stale file handle|Errno (?:5|116|121)\b",
        "A disk or its server failed while a file was read or written.",
        "Look in dmesg and at the mount; resume once it is well.",
    ),
    _known(
        "shard-broken",
        r"SafetensorError|Error while deserializing header|MetadataIncompleteBuffer|InvalidHeader",
        "A shard of the checkpoint is cut off or is not safetensors.",
        "The preflight's check of the model names the file; copy it again.",
    ),
    _known(
        "shard-missing",
        r"No such file or directory.{0,300}\.safetensors|Cannot find any model weights"
        r"|does not appear to have a file named",
        "A file of the checkpoint is not there.",
        "The preflight's check of the model names it; copy it again.",
    ),
    _known(
        "open-files",
        r"Too many open files|Errno 24\b",
        "The limit of open files is too low for this many ranks and shards.",
        "Raise it before the agent starts: ulimit -n 65536, or LimitNOFILE of its service.",
    ),
    _known(
        "permission",
        r"PermissionError|Errno 13\b",
        "The user that runs the worker may not read or write that file.",
        "Give it the right to, or choose another path.",
    ),
    # ------------------------------------------------------------- libraries that do not fit
    _known(
        "spec-vllm-misfit",
        r"unexpected keyword argument|has no attribute|cannot import name|missing \d+ required"
        r"|takes \d+ positional|No module named",
        "speculators and the installed vLLM do not fit, and no patch covers this.",
        '`eagle3-console compat` lists what was found; engine.name = "vllm" needs no speculators.',
        frames=r"/speculators/",
    ),
    _known(
        "module-missing",
        r"ModuleNotFoundError|No module named",
        "A Python package is not in the profile's interpreter.",
        "Install it there, or point host.python at the interpreter that has it.",
    ),
    _known(
        "shared-library",
        r"cannot open shared object file|undefined symbol|version `?GLIBC",
        "A compiled library does not fit the others or the system.",
        "Install torch and vLLM built for the same CUDA; check LD_LIBRARY_PATH in host.env.",
    ),
    _known(
        "compiler",
        r"Failed to find C compiler|Could not find nvcc|nvcc: not found|Ninja is required"
        r"|Python\.h: No such file",
        "A kernel had to be compiled on the spot and the tools for it are missing.",
        "Install gcc, ninja, Python's headers or the CUDA toolkit, or choose a backend that "
        "needs none (VLLM_ATTENTION_BACKEND in host.env).",
    ),
    # ------------------------------------------------------------- model and configuration
    _known(
        "trust-remote-code",
        r"trust_remote_code|contains custom code which must be executed",
        "The checkpoint brings its own Python and the profile does not allow it.",
        "Read that code, then set model.trust_remote_code = true.",
    ),
    _known(
        "max-model-len",
        r"User-specified max_model_len .{0,200}greater than the derived",
        "The model was not made for sequences this long.",
        "Lower model.max_model_len to what the message says.",
    ),
    _known(
        "heads",
        r"must be divisible by tensor[_ ]parallel[_ ]size|not divisible by.{0,40}tensor"
        r"|is not divisible by \d+$",
        "The model's heads or sizes cannot be split over this many GPUs.",
        "Choose a model.tensor_parallel_size that divides them (the message names the number).",
    ),
    _known(
        "architecture",
        r"Model architectures? .{0,200}not supported|does not recognize this architecture"
        r"|Cannot find model module|not.{0,20}supported by vLLM",
        "The installed libraries do not know this model.",
        "Install a newer vLLM (and transformers) in the profile's interpreter.",
    ),
    _known(
        "quantization",
        r"quantization method.{0,200}(?:not supported|does not match)|Unknown quantization"
        r"|Quantization scheme is not supported|is not supported for quantization",
        "This vLLM or this GPU does not know the checkpoint's quantisation.",
        "The preflight's check of the quantisation says what it needs.",
    ),
    _known(
        "tokenizer",
        r"Can't load tokenizer|Tokenizer class \S+ does not exist|TokenizersBackend"
        r"|Error parsing.{0,40}tokenizer",
        "The tokenizer's files are missing or made by another version of transformers.",
        "Copy the tokenizer's files again; for TokenizersBackend set tokenizer_class to "
        "PreTrainedTokenizerFast in tokenizer_config.json.",
    ),
    _known(
        "chat-template",
        r"chat_template is not set|no chat template|TemplateError|jinja2\.exceptions",
        "The conversations cannot be turned into tokens: the chat template is missing or refuses.",
        "Add chat_template.jinja to the model's folder, or give data with input_ids.",
    ),
    _known(
        "prompt-too-long",
        r"prompt.{0,80}longer than the maximum model length|exceeds the model's max length",
        "A row has more tokens than model.max_model_len.",
        "Lower data.seq_length, or set data.too_long to skip or truncate such rows.",
    ),
    _known(
        "offline",
        r"couldn't connect to|Repository Not Found|LocalEntryNotFoundError|HfHubHTTPError"
        r"|Max retries exceeded|is not a local folder and is not a valid model identifier",
        "Something wanted to be downloaded; a run must not depend on the network.",
        "Set model.path to a whole folder on the host.",
    ),
    # ------------------------------------------------------------- processes that end
    _known(
        "host-memory",
        r"for lack of memory|out of memory\?|OOM-?kill|Cannot allocate memory|Errno 12\b"
        r"|^MemoryError",
        "The host's memory ran out and the kernel ended a process.",
        "Lower output.buffer; look for what else holds memory on the host.",
    ),
    _known(
        "bus-error",
        r"^(?:Fatal Python error: )?Bus error|SIGBUS",
        "Memory that was mapped could not be had: mostly /dev/shm is full.",
        "Give the container more /dev/shm, and remove stale files there.",
    ),
    _known(
        "segfault",
        r"^(?:Fatal Python error: )?Segmentation fault|SIGSEGV",
        "Compiled code crashed; the frame shown is the last Python one.",
        "Try another attention backend or version; look for Xid in the preflight.",
    ),
    _known(
        "killed",
        r"^Killed\b|SIGKILL|died unexpectedly",
        "A process was killed from outside: by the kernel for lack of memory, a job's limits, "
        "or somebody.",
        "Look in dmesg for oom-kill, and at the job's memory limit.",
    ),
    _known(
        "rank-hang",
        r"RPC call to \w+ timed out|execute_model timed out|TimeoutError.{0,100}execute_model",
        "A rank did not answer in time: it hangs or is far slower than the others.",
        "See which rank's last line is oldest; run the deep preflight on these GPUs.",
    ),
)
