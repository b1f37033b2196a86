"""Facts that both sides speak of: profile, verdicts, GPUs, runs, problems; pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

# --------------------------------------------------------------------------- profile

EngineName = Literal["auto", "speculators", "transformers", "script", "vllm"]
OutputFormat = Literal["speculators-pt", "safetensors"]


@dataclass(frozen=True)
class HostSection:
    python: str
    """The interpreter that holds torch and vLLM, as a path on the GPU host."""
    env: dict[str, str] = field(default_factory=dict)
    """Extra environment of the worker."""


@dataclass(frozen=True)
class ModelSection:
    path: str
    tensor_parallel_size: int = 1
    max_model_len: int = 2048
    """Tokens; longer samples are truncated to ``data.seq_length`` first."""
    gpu_memory_utilization: float = 0.8
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """``auto`` keeps the checkpoint's own dtype, float32 included."""
    trust_remote_code: bool = False


@dataclass(frozen=True)
class CaptureSection:
    layers: tuple[int, ...]
    """0-based decoder layers; entry i is the state AFTER layer i: HF ``hidden_states[i + 1]``
    before the final norm.  The last entry is the verifier's last state."""


@dataclass(frozen=True)
class DataSection:
    path: str
    max_samples: int | None = None
    """None takes every sample."""
    seq_length: int = 2048
    """Tokens; what becomes of a longer sample is ``too_long``'s."""
    too_long: Literal["truncate", "skip"] = "truncate"
    """Cut together with its loss mask and counted, or left out and listed."""


@dataclass(frozen=True)
class OutputSection:
    dir: str
    format: OutputFormat = "speculators-pt"
    writer_threads: int | None = None
    """Writers that serialise, hash and sync sample files: processes of their own, threads with
    engine ``transformers``.  None lets the worker choose."""
    buffer_bytes: int | None = None
    """Host memory for states on their way to the disk; when it is full the model waits.  None lets
    the worker choose."""


@dataclass(frozen=True)
class EngineSection:
    name: EngineName = "auto"
    script: str | None = None
    args: tuple[str, ...] = ()
    max_num_batched_tokens: int | None = None
    """Tokens of one step of the model; None lets the engine choose."""
    max_num_seqs: int | None = None
    """Samples in flight; None lets the engine choose."""


@dataclass(frozen=True)
class Profile:
    """A resolved profile: what the console's TOML became, and what ``run.json`` keeps."""

    name: str
    host: HostSection
    model: ModelSection
    capture: CaptureSection
    data: DataSection
    output: OutputSection
    engine: EngineSection = EngineSection()


# --------------------------------------------------------------------------- problems

ProblemCode = Literal[
    "usage", "connect", "blocked", "busy", "not-found", "refused", "failed", "internal"
]


@dataclass(frozen=True)
class Problem:
    """An error as a value: shown as it stands, to a person."""

    title: str
    happened: str
    todo: str
    code: ProblemCode = "failed"


@dataclass(frozen=True)
class Where:
    """The line that raised: ``source`` is its text where it could be read."""

    file: str
    line: int
    function: str = ""
    source: str = ""


@dataclass(frozen=True)
class ErrorInfo:
    """The exception that ended a run; an empty ``message`` stays empty, ``where`` still speaks."""

    type: str
    message: str
    rank: int | None = None
    where: Where | None = None
    traceback: str = ""


@dataclass(frozen=True)
class Followed:
    """Errors of one kind that followed from the cause."""

    text: str
    """``Type: message``, short."""
    processes: tuple[str, ...] = ()
    """As the log names them, ``Worker_TP3``."""
    line: int = 0
    """Number of the log's line where the first of them begins, from 0."""


@dataclass(frozen=True)
class Cause:
    """What happened first, out of the output of all of a run's processes."""

    sentence: str
    """In one sentence; never empty."""
    type: str
    message: str
    process: str = ""
    """As the log names it, with its pid; empty for the run's own process."""
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    """Every rank that failed in the same way."""
    where: Where | None = None
    line: int | None = None
    """Number of the log's line where it begins, from 0; None where the log does not show it."""
    before: tuple[str, ...] = ()
    """What the same process wrote before, at most five lines."""
    hints: tuple[str, ...] = ()
    """What NCCL said itself, before."""
    kind: str = ""
    """Stable id of a known kind of failure, such as ``cuda-oom``; empty for an unknown one."""
    means: str = ""
    todo: str = ""
    followed: tuple[Followed, ...] = ()
    only_followed: bool = False
    """The log holds nothing but consequences: the cause itself left no words."""


# --------------------------------------------------------------------------- preflight

Status = Literal["pass", "warn", "block", "skip"]

ActionKind = Literal["terminate", "stop-unit", "remove-lock", "move-aside"]


@dataclass(frozen=True)
class ProcessRef:
    """A process that cannot be mistaken for another that got its pid later."""

    pid: int
    start_time: int
    """Clock ticks since boot, field 22 of proc(5)'s stat."""


@dataclass(frozen=True)
class Action:
    """A way out that the agent can take, once a person has read ``effect`` and said yes.

    Only the fields of its ``kind`` are set: ``processes`` to terminate, the ``unit`` to stop, the
    ``path`` to remove or to move to ``aside``, with the inode that it had when it was offered.
    """

    id: str
    """Stable for the same target, unique within its verdict: ``terminate-48213``."""
    kind: ActionKind
    title: str
    """What it does, as a short sentence without its end: ``End pid 48213 (python3.12)``."""
    effect: tuple[str, ...]
    """Everything that will happen, a line each, with the commands that would do the same."""
    processes: tuple[ProcessRef, ...] = ()
    unit: str = ""
    """A systemd unit, ``vllm.service``; ``user@1000: vllm.service`` is one of a user's manager."""
    path: str = ""
    aside: str = ""
    device: int = 0
    inode: int = 0


@dataclass(frozen=True)
class Verdict:
    """What one check says."""

    check: str
    """Stable id, such as ``gpu-clean``; ``--force`` names it."""
    title: str
    status: Status
    saw: str
    """The facts, with figures."""
    why: str = ""
    """Why it matters to the next hour."""
    todo: str = ""
    """The way out; empty when there is nothing to do."""
    seconds: float = 0.0
    actions: tuple[Action, ...] = ()
    """What the agent could do about it; the likeliest help first."""


@dataclass(frozen=True)
class Report:
    """All verdicts of one preflight."""

    verdicts: tuple[Verdict, ...]
    seconds: float
    at: float
    """Epoch seconds at its end, by the host's clock."""

    @property
    def blocking(self) -> tuple[Verdict, ...]:
        return tuple(v for v in self.verdicts if v.status == "block")


@dataclass(frozen=True)
class PatchFinding:
    """Whether one named patch applies to what is installed, and how that is known."""

    patch: str
    """Stable id, such as ``speculators/reply-shape``."""
    title: str
    status: Literal["needed", "not-needed", "cannot-tell"]
    evidence: str
    symptom: str = ""
    cause: str = ""
    change: str = ""
    until: str = ""
    """When the patch can be deleted."""


# --------------------------------------------------------------------------- host and GPUs


@dataclass(frozen=True)
class GpuProcess:
    pid: int
    user: str
    command: str
    bytes: int | None
    """Device memory; None where NVML does not say."""
    started: float | None = None
    start_time: int | None = None
    """Clock ticks since boot, with the pid its identity; None where the process cannot be seen."""
    unit: str = ""
    """The systemd unit that runs it, as ``Action.unit`` names one."""
    container: str = ""
    """The container that it lives in, as far as its cgroup says: ``docker 4f1c2ab90d21``."""


@dataclass(frozen=True)
class Gpu:
    """One GPU at one moment.  None means that NVML did not say; never 0 for unknown."""

    index: int
    uuid: str = ""
    name: str = ""
    memory_used: int | None = None
    """Bytes in use by processes (NVML memory v2: the driver's reserve is not counted)."""
    memory_total: int | None = None
    utilization: int | None = None
    """Percent of the last sample period in which a kernel ran."""
    temperature: int | None = None
    """Degrees Celsius."""
    power: float | None = None
    """Watt."""
    power_limit: float | None = None
    processes: tuple[GpuProcess, ...] = ()
    error: str = ""
    """Why this GPU could not be read (lost, hanging); the others still are."""


@dataclass(frozen=True)
class HostSample:
    """The host at one moment."""

    t: float
    gpus: tuple[Gpu, ...] = ()
    gpu_problem: str = ""
    """Why there is no GPU list at all, in words; empty when there is one."""
    driver: str = ""
    cuda: str = ""
    cpu_count: int = 0
    cpu_percent: float | None = None
    """0 to 100 over all cores, since the sample before."""
    memory_used: int | None = None
    memory_total: int | None = None
    load: float | None = None
    """One-minute load average."""


# --------------------------------------------------------------------------- runs

RunState = Literal["queued", "running", "completed", "incomplete", "failed", "aborted", "lost"]
StageName = Literal["preflight", "load", "warmup", "extract", "write", "verify", "done"]


@dataclass(frozen=True)
class Samples:
    total: int | None = None
    done: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class StageTime:
    """One stage of a run: ``ended`` is None while it goes on."""

    name: StageName
    started: float
    ended: float | None = None


@dataclass(frozen=True)
class Throughput:
    """Where the time of this attempt's extract stage goes: sums since it began, one a second at
    most.  Seconds are by the clock of the process that captures; ``write`` is summed over the
    writer threads, so it can exceed ``seconds``."""

    t: float
    seconds: float
    tokens: int
    """Tokens that the model has computed; fewer may be on the disk."""
    steps: int
    prefill: float
    """In the model's forward."""
    capture: float
    """Collecting the states and cutting them by sample."""
    copy: float
    """From the device to the host; it overlaps the next forward."""
    write: float
    """Serialise, hash, write, sync, rename."""
    wait: float
    """The model stood still since the buffer was full: the disk was behind."""
    padding: float
    """Share, 0 to 1, of the computed rows that belong to no sample."""
    fill: float
    """Share, 0 to 1, of the steps' token budget that was used."""
    threads: int
    buffer_peak: int
    """Bytes of host memory that states on their way to the disk held at most."""
    buffer_limit: int
    disk_free: int | None = None
    """Bytes that the run's user may still write to the output's filesystem, asked for by a writer
    after its newest file; None before that, and where the filesystem does not say."""
    disk_total: int | None = None
    """The filesystem's size in bytes."""


@dataclass(frozen=True)
class RunSummary:
    """One line of the history."""

    run: str
    """The run's id: its folder's name, four digits or more."""
    number: int
    state: RunState
    attempt: int
    profile: str
    engine: str
    started: float | None
    ended: float | None
    samples: Samples
    tokens: int
    tokens_per_second: float | None
    """Mean over the extract stage."""
    bytes: int
    output_dir: str
    model: str = ""
    created: float = 0.0
    stage: str = ""
    error: ErrorInfo | None = None
    cause: str = ""
    """What happened first, in one sentence; empty where nothing failed or nobody looked."""


@dataclass(frozen=True)
class RunDetail:
    """Everything about one run that is not a stream."""

    summary: RunSummary
    resolved: Profile
    preflight: Report | None
    forced: tuple[str, ...]
    patches: tuple[PatchFinding, ...]
    environment: dict[str, Any]
    """Versions, driver, host name, interpreter: what a diff of attempts compares."""
    folder: str
    stages: tuple[StageTime, ...] = ()
    throughput: Throughput | None = None
    cause: Cause | None = None
    """Of a run that failed or was lost."""


ReferenceDtype = Literal["auto", "float32", "checkpoint"]
"""What a verification recomputes in; ``auto`` is float32 where the host has room for it."""


@dataclass(frozen=True)
class LayerCheck:
    """One captured layer of one sample against the reference."""

    layer: int
    ok: bool
    median: float | None
    """Over tokens, of |captured - reference| / |reference|, 2-norms."""
    worst: float | None
    """The same of the worst token."""
    why: str = ""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a sample's states, once it is known that something is."""

    kind: str
    """Stable id: ``wrong-layer``, ``wrong-order``, ``repeated-layer``, ``post-norm``, ``scale``,
    ``shifted-rows``, ``moved-rows``, ``other-sample``, ``truncated``, ``zeros``, ``not-finite``,
    ``noise``, ``inexact``."""
    text: str
    """One sentence, with the layers, rows, factor or sample that fit."""
    layers: tuple[int, ...]
    """Captured layers that it concerns."""


@dataclass(frozen=True)
class SampleCheck:
    """One sample recomputed with transformers."""

    index: int
    ok: bool
    tokens: int
    worst_relative_error: float | None
    """Max over layers of the median over tokens of |captured - reference| / |reference|, 2-norms.

    Token by token, since a few tokens are thousands of times larger than the rest and nearly
    the same in every layer: a maximum over the tensor would hide states of a wrong layer.
    """
    why: str = ""
    role: str = ""
    """Why it was chosen: ``longest``, ``shortest``, ``drawn`` or ``cut`` (its rows are too few)."""
    layers: tuple[LayerCheck, ...] = ()
    """In the profile's order, repeats repeated."""
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Substitute:
    """A check that needs no second model, made where nothing could be recomputed."""

    check: str
    """Stable id, such as ``next-token``."""
    status: Literal["holds", "fails", "cannot-tell"]
    saw: str
    """With figures."""
    shows: str
    """What it proves when it holds, and what it cannot see."""


@dataclass(frozen=True)
class VerifyReport:
    ok: bool
    """Nothing was found wrong; whether anything was recomputed is ``not_recomputed``'s."""
    checked: tuple[SampleCheck, ...]
    files: int
    """Files whose checksum was compared with the manifest."""
    bad_files: tuple[str, ...]
    tolerance: float
    dtype: str
    """Of the captured states."""
    seconds: float
    reference: str = ""
    reference_dtype: str = ""
    seed: int | None = None
    """Draws the same samples again; None where no sample was asked for."""
    verdict: str = ""
    """One sentence."""
    why_tolerance: str = ""
    not_recomputed: str = ""
    """Why there is no reference; empty when there is one, or no sample was asked for."""
    instead: tuple[Substitute, ...] = ()
    """What was checked where nothing could be recomputed."""
