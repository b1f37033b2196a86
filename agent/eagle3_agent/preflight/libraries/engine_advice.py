"""vLLM's own sentence out of an exception, and what to change because of it; pure."""

from __future__ import annotations

import re

from eagle3_agent.protocol.values import ErrorInfo, Profile

_INTRODUCTION = re.compile(r"^\d+ validation errors? for \w+\n\s*", re.ASCII)
_DETAILS = re.compile(r" \[type=\w+, input_value=.*", re.DOTALL | re.ASCII)
_LISTS = re.compile(r"(?:dict_keys\()?\[(?:'[^']*'(?:, )?){6,}\]\)?")


def sentence(error: ErrorInfo) -> str:
    """The message without pydantic's frame and long lists; the line that raised if it is empty."""
    text = _DETAILS.sub("", _INTRODUCTION.sub("", error.message)).removeprefix("Value error, ")
    text = " ".join(_LISTS.sub("(a list)", text).split())
    if text:
        return text
    where = error.where
    source = f"raised by `{where.source}`" if where and where.source else "raised without a message"
    return f"{error.type}, {source}"


def place(error: ErrorInfo) -> str:
    """``file:line``, or nothing."""
    return f"{error.where.file}:{error.where.line}" if error.where else ""


def way_out(error: ErrorInfo, profile: Profile) -> str:
    """What to set, by the profile's own key where there is one."""
    text = f"{error.type}: {error.message}"
    for pattern, advice in _ADVICE:
        found = re.search(pattern, text, re.IGNORECASE | re.DOTALL)
        if found:
            return advice.format(*(_short(g) for g in found.groups()), p=profile)
    return "Change what the sentence speaks of, in the profile or in the installation."


def _short(group: str | None) -> str:
    return (group or "")[:80]


_TRUST = (
    "Set model.trust_remote_code = true once you have read the Python files in the model's "
    "folder: they are run."
)
_LENGTH = "Lower model.max_model_len (now {p.model.max_model_len}), and data.seq_length with it."
_RANKS = "Set model.tensor_parallel_size (now {p.model.tensor_parallel_size}) "

#: Pattern in the exception's type and text -> advice.  The first that is found is given; specific
#: ones come first.
_ADVICE: tuple[tuple[str, str], ...] = (
    (r"trust_remote_code|contains custom code|execute the configuration file", _TRUST),
    (
        r"heads \((\d+)\) must be divisible by tensor",
        _RANKS + "to a number that divides the {0} attention heads.",
    ),
    (r"divisible by (?:the )?tensor|divide.*tensor.?parallel", _RANKS + "to a divisor of it."),
    (
        r"world size|number of (?:available )?gpus|gpus? (?:are|is) available",
        _RANKS + "to at most the number of visible GPUs.",
    ),
    (
        r"architectures? \[?'?(\w*).*not supported",
        'Install a vLLM that knows {0}, or set engine.name = "transformers".',
    ),
    (
        r"model type .(\w+). but Transformers|does not recognize this architecture",
        "Install a newer transformers (or vLLM) in that interpreter; or, if the model brings its "
        "own code, set model.trust_remote_code = true.",
    ),
    (
        r"not supported for quantization method|supported dtypes",
        "Set model.dtype to one that the method supports (the sentence lists them).",
    ),
    (
        r"quantization method|quantization.*(?:not supported|unknown|does not match)",
        "Install a vLLM that knows this method, or take a checkpoint quantised otherwise: "
        "it stands in quantization_config of config.json.",
    ),
    (r"bfloat16.*compute capability", 'Set model.dtype = "float16": this GPU has no bfloat16.'),
    (r"max_num_batched_tokens", "Raise engine.max_num_batched_tokens, or lower max_num_seqs."),
    (r"max_num_seqs", "Set engine.max_num_seqs to what the sentence allows."),
    (r"max_model_len|max seq len|max_position", _LENGTH),
    (
        r"gpu.memory.utilization",
        "Set model.gpu_memory_utilization between 0 and 1 (now {p.model.gpu_memory_utilization}).",
    ),
    (
        r"swap space|cpu memory",
        "This vLLM reserves host memory for each rank, more than there is: lower "
        "model.tensor_parallel_size, or install a newer vLLM.",
    ),
    (
        r"undefined symbol|cannot open shared object|libcud|GLIBC",
        "torch and vLLM in that interpreter were built for different CUDA or torch releases: "
        "install both anew, together.",
    ),
    (
        r"ModuleNotFoundError|ImportError|No module named",
        "Install what is missing, or mend the versions: {p.host.python} -m pip check",
    ),
    (
        r"No CUDA|no NVIDIA driver|device type|cuda.*(?:unavailable|unknown error)",
        "See the checks on GPUs and driver: vLLM finds no device.",
    ),
    (r"config\.json|no such file|not a valid model|does not exist", "Correct model.path."),
)
