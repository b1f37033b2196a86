"""Recorded-like moments of a host, for the TUI's tests and for the pictures in docs."""

from __future__ import annotations

import math
from dataclasses import replace

from eagle3_agent.protocol.events import (
    Ended,
    Event,
    Failure,
    Load,
    Note,
    Patched,
    Plan,
    Progress,
    Spawned,
    Stage,
    Throughput,
    Wrote,
)
from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    EngineSection,
    ErrorInfo,
    Gpu,
    GpuProcess,
    HostSample,
    HostSection,
    ModelSection,
    OutputSection,
    PatchFinding,
    Profile,
    Report,
    RunDetail,
    RunSummary,
    Samples,
    Where,
)

from . import verdicts
from .fakelink import FakeLink

#: 14:02:11 UTC on a day of 2026.
NOW = 1_780_063_331.0
GIB = 1024**3

PROFILE = Profile(
    name="kimi-k2.5-int4",
    host=HostSection("/root/venv/bin/python", {"NCCL_DEBUG": "WARN"}),
    model=ModelSection("/shared/kimi-k2.5-int4", tensor_parallel_size=8),
    capture=CaptureSection((2, 30, 58, 60)),
    data=DataSection("/root/eagle3-train/data_test", max_samples=1000),
    output=OutputSection("/root/eagle3-train/data_test/hidden_states"),
    engine=EngineSection("speculators"),
)

FINDINGS = (
    PatchFinding(
        "speculators/reply-shape",
        "One reply instead of a list",
        "needed",
        "collective_rpc has unique_reply_rank",
    ),
    PatchFinding(
        "vllm/prefix-caching-off",
        "No prefix cache",
        "needed",
        "Request has no block hasher",
    ),
    PatchFinding(
        "speculators/rotary-3d",
        "Rotary on 3-D queries",
        "not-needed",
        "the platform is CUDA",
    ),
)

ERROR = ErrorInfo(
    type="RuntimeError",
    message="Boolean value of Tensor with more than one value is ambiguous",
    rank=0,
    where=Where(
        "/root/venv/lib/python3.12/site-packages/speculators/data_generation/"
        "vllm_hidden_states_generator.py",
        273,
        "generate",
        "if not aux_hidden_states:",
    ),
    traceback="""Traceback (most recent call last):
  File "/root/venv/lib/python3.12/site-packages/eagle3_agent/worker/run.py", line 88, in main
    for batch in engine.extract(rows):
  File "/root/venv/speculators/vllm_hidden_states_generator.py", line 273, in generate
    if not aux_hidden_states:
RuntimeError: Boolean value of Tensor with more than one value is ambiguous
""",
)


def gpu(index: int, t: float, *, busy: bool = True) -> Gpu:
    """One of eight cards, with figures that move a little from second to second."""
    wave = 0.7 * math.sin(t / 19 + index / 3) + 0.3 * math.sin(t / 3.1 + 2 * index)
    return Gpu(
        index,
        f"GPU-{index}",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        int((71.2 if busy else 0.0) * GIB),
        int(95.6 * GIB),
        min(100, round(86 + 14 * wave)) if busy else 0,
        round(64 + 2 * wave) if busy else 31,
        410 + 8 * wave if busy else 68.0,
        600.0,
        (GpuProcess(48213 + index, "root", f"VLLM::Worker_TP{index}", int(71.2 * GIB)),)
        if busy
        else (),
    )


def sample(t: float, gpus: int = 8, *, busy: bool = True) -> HostSample:
    if gpus == 0:
        return HostSample(
            t,
            (),
            "NVML is not installed: libnvidia-ml.so.1 was not found",
            cpu_count=16,
            cpu_percent=38.0 + 20 * math.sin(t / 40),
            memory_used=int(12.4 * GIB),
            memory_total=int(31.3 * GIB),
            load=6.2,
        )
    return HostSample(
        t,
        tuple(gpu(i, t, busy=busy) for i in range(gpus)),
        "",
        "580.95",
        "13.0",
        96,
        21.0,
        int(212 * GIB),
        int(1007 * GIB),
        18.4,
    )


def _loading(card: Gpu, ago: float, part: float) -> Gpu:
    busy = round(6 + 5 * math.sin(ago / 17 + card.index))
    used = int(71.2 * GIB * part)
    return replace(card, utilization=busy, memory_used=used, power=120.0)


def past(seconds: float, gpus: int, *, since_load: float, since_extract: float) -> list[HostSample]:
    """Samples of the last ``seconds``, one in five: idle, then loading, then extracting."""
    made = []
    for ago in range(int(seconds), 0, -5):
        now = sample(NOW - ago, gpus, busy=ago <= since_load)
        if since_extract < ago <= since_load:
            part = (since_load - ago) / max(1.0, since_load - since_extract) * 21 / 64
            now = replace(now, gpus=tuple(_loading(g, ago, part) for g in now.gpus))
        made.append(now)
    return made


def summary(number: int, **changes: object) -> RunSummary:
    base = RunSummary(
        run=f"{number:04d}",
        number=number,
        state="running",
        attempt=number,
        profile=PROFILE.name,
        engine="speculators",
        started=NOW - 1871,
        ended=None,
        samples=Samples(1000, 412, 0),
        tokens=1_723_406,
        tokens_per_second=2264.0,
        bytes=int(47.1 * GIB),
        output_dir=PROFILE.output.dir,
        model=PROFILE.model.path,
        created=NOW - 1874,
        stage="extract",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def events_until_extract(start: float, load_seconds: float) -> list[Event]:
    """From the preflight to the first sample."""
    loaded = start + 2 + load_seconds
    made: list[Event] = [
        Stage(start, "preflight", "start"),
        Stage(start + 2, "preflight", "done"),
        Spawned(start + 2, 48190, 48201, ("python", "-m", "eagle3_agent.worker")),
        Stage(start + 2, "load", "start"),
        *(Patched(start + 4, f, f.status == "needed") for f in FINDINGS),
        *(Load(start + 2 + load_seconds * i / 64, i, 64) for i in range(1, 65)),
        Stage(loaded, "load", "done"),
        Stage(loaded, "warmup", "start"),
        Stage(loaded + 41, "warmup", "done", "KV cache 14.1 GiB"),
        Plan(loaded + 41, 1000, 4_182_000, int(114.3 * GIB)),
        Stage(loaded + 41, "extract", "start"),
        Note(loaded + 41, "info", "capture ready on layers 2 30 58 60 (hooks, DeepseekV2Model)"),
    ]
    return made


def throughput(*, disk: bool = False) -> Throughput:
    """12:41 of extraction, the model busy; or, with ``disk``, waiting for the writers."""
    return Throughput(
        t=NOW - 1,
        seconds=761.0,
        tokens=1_731_598,
        steps=214,
        prefill=437.0 if disk else 706.0,
        capture=12.4,
        copy=61.2,
        write=6012.0 if disk else 2436.0,
        wait=289.2 if disk else 7.6,
        padding=0.011,
        fill=0.97,
        threads=8,
        buffer_peak=int((8.0 if disk else 1.3) * GIB),
        buffer_limit=8 * GIB,
        disk_free=int((58 if disk else 3.1 * 1024) * GIB),
        disk_total=7 * 1024 * GIB,
    )


def extracting_events(*, disk: bool = False) -> list[Event]:
    start = NOW - 1871
    made = events_until_extract(start, 1082.0)
    for i in range(406, 412):
        t = NOW - (412 - i) * 1.8
        made.append(Wrote(t, i, f"data_{i}.pt", 512, 29_360_128, (512, 7168), 4, "bf16"))
    made.append(
        Progress(NOW - 1, 412, 1000, 0, 1_723_406, int(47.1 * GIB), 2283.0, 10.0, eta=1085.0)
    )
    made.append(throughput(disk=disk))
    return made


def detail(run: RunSummary, **changes: object) -> RunDetail:
    base = RunDetail(
        summary=run,
        resolved=PROFILE,
        preflight=ready_report(),
        forced=(),
        patches=FINDINGS,
        environment={
            "vllm": "0.16.0",
            "speculators": "0.3.0",
            "torch": "2.10.0",
            "transformers": "4.57.6",
            "driver": "580.95",
            "python": "3.12.3",
            "host": "gpu-01",
        },
        folder=f"/root/.local/state/eagle3/runs/{run.run}",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def ready_report() -> Report:
    """Ten checks of a real host that pass."""
    return replace(verdicts.ready(), at=NOW - 1873)


def blocked_report() -> Report:
    """Two checks block and one warns, in the words of the agent's judges."""
    return verdicts.blocked(NOW - 1)


def history() -> tuple[RunSummary, ...]:
    """Four attempts at one model and a small test run."""
    return (
        summary(
            1,
            state="failed",
            attempt=1,
            started=NOW - 90000,
            ended=NOW - 89955,
            samples=Samples(None, 0, 0),
            tokens=0,
            tokens_per_second=None,
            bytes=0,
            stage="load",
            error=ErrorInfo("AssertionError", "", 0, Where("block_pool.py", 238, "", "")),
        ),
        summary(
            2,
            state="completed",
            attempt=1,
            profile="smollm2-demo",
            engine="transformers",
            started=NOW - 80000,
            ended=NOW - 79871,
            samples=Samples(48, 48, 0),
            tokens=21_404,
            tokens_per_second=182.4,
            bytes=98_000_000,
            stage="done",
        ),
        summary(
            3,
            state="failed",
            attempt=2,
            started=NOW - 9000,
            ended=NOW - 7936,
            samples=Samples(10, 0, 0),
            tokens=0,
            tokens_per_second=None,
            bytes=0,
            error=ERROR,
        ),
        summary(4, attempt=3),
    )


def extracting(gpus: int = 8, *, disk: bool = False) -> FakeLink:
    """Run 4 at 412 of 1000 samples; with ``disk`` its writers are behind."""
    link = FakeLink(runs=history(), now=NOW)
    link.samples = [
        *past(600, gpus, since_load=1869.0, since_extract=746.0),
        sample(NOW, gpus),
    ]
    link.details = {r.run: detail(r) for r in link.runs}
    link.happen("0004", *extracting_events(disk=disk))
    link.happen("0003", *failed_events(), ended=True)
    link.write("0004", "output", log_text())
    return link


def failed_events() -> list[Event]:
    start = NOW - 9000
    return [
        *events_until_extract(start, 1011.0),
        Failure(start + 1064, ERROR),
        Stage(start + 1064, "extract", "failed"),
        Ended(start + 1064, "failed", 1),
    ]


def failed() -> FakeLink:
    """Run 3 has just failed in its first batch."""
    runs = tuple(r for r in history() if r.number < 4)
    link = FakeLink(runs=runs, now=NOW)
    link.samples = [sample(NOW - i, busy=False) for i in (2, 1, 0)]
    link.details = {r.run: detail(r) for r in link.runs}
    link.happen("0003", *failed_events(), ended=True)
    link.write("0003", "output", log_text(), ended=True)
    return link


def loading() -> FakeLink:
    """Run 4 has 21 of 64 shards."""
    start = NOW - 362
    run = summary(
        4,
        attempt=3,
        started=start,
        samples=Samples(None, 0, 0),
        tokens=0,
        tokens_per_second=None,
        bytes=0,
        stage="load",
    )
    link = FakeLink(runs=(*history()[:3], run), now=NOW)
    link.samples = past(600, 8, since_load=360.0, since_extract=0.0)
    newest = link.samples[-1]
    cards = tuple(_loading(card, 0.0, 21 / 64) for card in newest.gpus)
    link.samples.append(replace(newest, t=NOW, gpus=cards))
    link.details = {r.run: detail(r) for r in link.runs}
    made = events_until_extract(start, 1082.0)
    link.happen("0004", *(e for e in made if e.t <= NOW - 3))
    return link


def idle(gpus: int = 8) -> FakeLink:
    """A host that has never run anything."""
    link = FakeLink(now=NOW)
    link.samples = [sample(NOW - i, gpus, busy=False) for i in range(60, -1, -1)]
    return link


def log_text() -> bytes:
    rows = [
        b"INFO 11-30 13:31:02 [__init__.py:241] Automatically detected platform cuda.",
        b"(Worker_TP0 pid=48213) INFO 11-30 13:31:20 [gpu_model_runner.py:3542] Loading model",
    ]
    rows += [
        b"(Worker_TP0 pid=48213) Loading safetensors checkpoint shards: %3d%% Completed | %d/64"
        % (i * 100 // 64, i)
        for i in range(1, 65)
    ]
    rows.append(b"WARNING 11-30 13:49:12 [scheduler.py:97] prefix caching is off")
    rows.append(
        b"(Worker_TP3 pid=48216) ERROR 11-30 13:49:33 [multiproc_executor.py:815] worker failed"
    )
    rows += [
        b"(EngineCore pid=48205) INFO 11-30 13:50:%02d step %d" % (i % 60, i) for i in range(200)
    ]
    return b"\n".join(rows) + b"\n"
