"""What every probe of the catalogue brings from a clean host with two H200s and a Llama of 8B.

GPUs, interpreter, data and patches are those of the recorded host (tests/recorded/h200-tp2), as
it was before its run 2; what nobody recorded is set up here as such a host has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eagle3_agent.distributions import DISTRIBUTIONS
from eagle3_agent.enginereport import Capture, EngineReport, Resolved
from eagle3_agent.nvml_facts import Clocks, Errors, Health, Links, Modes, Pair, Pcie
from eagle3_agent.preflight.check import Facts, Probe
from eagle3_agent.preflight.data import data_facts
from eagle3_agent.preflight.data.tally import Tally
from eagle3_agent.preflight.deep import allreduce, compute, disk_throughput, peers, tiny_engine
from eagle3_agent.preflight.deep.disk_writers import Wrote
from eagle3_agent.preflight.gpus import gpu_facts, kernel_log_facts
from eagle3_agent.preflight.libraries import compat, engine_facts, interpreter_facts, script
from eagle3_agent.preflight.memory import checkpoint, host_probe, shm_facts
from eagle3_agent.preflight.memory.checkpoint import CheckpointFacts, Group
from eagle3_agent.preflight.memory.dimensions import read_decoder
from eagle3_agent.preflight.memory.host_facts import HostFacts
from eagle3_agent.preflight.memory.limits_facts import Limit, LimitsFacts
from eagle3_agent.preflight.model import capability, model_facts, natives, tokenizer_facts
from eagle3_agent.preflight.model.decoder import Layers
from eagle3_agent.preflight.output import output_facts, records, speed
from eagle3_agent.preflight.output.mounts import Mount
from eagle3_agent.preflight.running import lock_facts, process_facts, stuck_facts
from eagle3_agent.protocol.values import HostSample, Profile

from .recording import busy_sample, recorded

KIB, MIB, GIB = 1024, 1024**2, 1024**3
TOKENS = 574_565

#: Probe -> what it brings.
Pairs = Mapping[Probe[Any], Any]


def profile() -> Profile:
    return recorded("0002").record.profile


def facts(changes: Pairs | None = None) -> Facts:
    """Of every probe; ``changes`` replace those of some."""
    found = {**_gpus(), **_libraries(), **_running(), **_model(), **_disks(), **_deep()}
    return Facts({p.name: value for p, value in {**found, **(changes or {})}.items()})


# ------------------------------------------------------------------ GPUs


def idle_sample() -> HostSample:
    """The host before its first run."""
    return recorded("0001").samples[0][0]


def gpu_state(sample: HostSample) -> gpu_facts.GpuFacts:
    """GPUs that are well, whatever memory is in use on them."""
    return gpu_facts.GpuFacts(
        replace(sample, driver="580.159.04", cuda="13.0"),
        health=tuple(_health(gpu.index) for gpu in sample.gpus),
        pairs=(Pair(0, 1, "NODE", nvlink=True),),
        library="580.159.04",
        module="580.159.04",
    )


def _health(index: int) -> Health:
    return Health(
        index,
        f"0000:{4 + index:02x}:00",
        Modes(
            "default", persistence=True, mig=False, mig_pending=False, ecc=True, ecc_pending=True
        ),
        errors=Errors(0, 0, False, False),
        clocks=Clocks(("idle",), 95, 700.0),
        pcie=Pcie(5, 5, 16, 16),
        links=Links(18, peers={"switch": 18}, fabric="completed"),
    )


def _gpus() -> Pairs:
    log = kernel_log_facts.KernelLogFacts(
        now=10_000.0, source="the kernel's ring buffer", boot=100.0, since=100.0
    )
    devices = tuple(capability.Device(i, "NVIDIA H200", 90) for i in range(2))
    return {
        gpu_facts.PROBE: gpu_state(idle_sample()),
        kernel_log_facts.PROBE: log,
        capability.PROBE: capability.CapabilityFacts(devices),
    }


# ------------------------------------------------------------------ what is installed


def dists() -> dict[str, str]:
    environment = recorded("0002").record.environment
    return {k: environment[k] for k in DISTRIBUTIONS if k in environment}


def _libraries() -> Pairs:
    asked, environment = profile(), recorded("0002").record.environment
    findings = recorded("0002").standing(float("inf")).patches
    resolved = Resolved(
        "LlamaForCausalLM", "bfloat16", "", 2049, 16, True, False, 8192, 256, 2, "MultiprocExecutor"
    )
    seen = Capture(
        "LlamaForCausalLM",
        "LlamaDecoderLayer",
        32,
        "vLLM's SupportsEagle3 for layers 2, 16, 29, the final norm's input for layer 31",
        "model",
        attention=("FLASH_ATTN",),
        tried="vLLM 0.16.0, Llama",
    )
    report = EngineReport(
        "done", "speculators", resolved=resolved, capture=seen, cuda_touched=False
    )
    return {
        interpreter_facts.PROBE: interpreter_facts.InterpreterFacts(
            asked.host.python, python=environment["python"], dists=dists(), torch_cuda="13.0"
        ),
        compat.PROBE: compat.CompatFacts(
            "speculators", compat.WorkerReport(dists(), "3.12.3", findings=findings)
        ),
        engine_facts.PROBE: engine_facts.EngineFacts(
            "speculators", report, age=760.0, seconds=19.0
        ),
        script.PROBE: script.ScriptFacts("/srv/extract.py", bytes=4096, syntax=script.Syntax()),
    }


# ------------------------------------------------------------------ what runs


def held_by_another() -> HostSample:
    """The holders with the start times that /proc has of them: they can be told from others."""
    sample = busy_sample()
    gpus = tuple(
        replace(gpu, processes=tuple(replace(p, start_time=914_000 + p.pid) for p in gpu.processes))
        for gpu in sample.gpus
    )
    return replace(sample, gpus=gpus)


def _running() -> Pairs:
    limits = LimitsFacts(
        0,
        Limit(65536, 65536),
        Limit(8 * MIB, 8 * MIB),
        core=Limit(0),
        core_pattern="core",
        cores=32,
    )
    memory = HostFacts(252 * GIB, 240 * GIB, 0, 0)
    return {
        process_facts.PROBE: process_facts.ProcessFacts(),
        stuck_facts.PROBE: stuck_facts.StuckFacts(over=0.5),
        lock_facts.PROBE: lock_facts.LockFacts(looked_at=("/root/.cache/huggingface/hub/.locks",)),
        host_probe.PROBE: host_probe.HostSide(memory, limits),
        shm_facts.PROBE: shm_facts.ShmFacts(total=126 * GIB, free=126 * GIB),
    }


# ------------------------------------------------------------------ model, data, disks


def whole_model() -> model_facts.ModelFacts:
    return model_facts.ModelFacts(
        profile().model.path,
        model_type="llama",
        text_type="llama",
        architecture="LlamaForCausalLM",
        layers=32,
        hidden=4096,
        vocab=128_256,
        dtype="bfloat16",
        config_dtype="bfloat16",
        shards=9,
        bytes=int(14.96 * GIB),
        data=int(14.96 * GIB),
        dtypes={"BF16": int(14.96 * GIB)},
        embedding=(128_256, 4096),
        found_layers=Layers("model.layers"),
        tokenizer=True,
    )


def _model() -> Pairs:
    asked = profile()
    return {
        model_facts.PROBE: whole_model(),
        checkpoint.PROBE: CheckpointFacts(
            asked.model.path,
            decoder=read_decoder(
                {
                    "model_type": "llama",
                    "architectures": ["LlamaForCausalLM"],
                    "hidden_size": 4096,
                    "intermediate_size": 14336,
                    "num_hidden_layers": 32,
                    "num_attention_heads": 32,
                    "num_key_value_heads": 8,
                    "vocab_size": 128_256,
                    "max_position_embeddings": 8192,
                    "torch_dtype": "bfloat16",
                }
            ),
            groups=tuple(_llama()),
            files=9,
        ),
        natives.PROBE: natives.NativeFacts(
            transformers=True, vllm=False, tokenizer_class="PreTrainedTokenizerFast", tokenizer=True
        ),
        tokenizer_facts.PROBE: tokenizer_facts.TokenizerFacts(
            files=("tokenizer.json",),
            tokens=128_256,
            largest_id=128_255,
            template="tokenizer_config.json",
        ),
        data_facts.PROBE: data_facts.DataFacts(
            asked.data.path,
            kind="JSONL",
            talks=False,
            rows=500,
            tally=Tally(rows=500, input_ids=500, exact_tokens=TOKENS, longest=2048),
            tokens=TOKENS,
            tokens_exact=True,
            tokens_from="counted input_ids",
        ),
    }


def _llama() -> list[Group]:
    """The tensors of Llama-3.1-8B."""
    once = {
        "lm_head": (128_256, 4096),
        "model.embed_tokens": (128_256, 4096),
        "model.norm": (4096,),
    }
    each = {
        "input_layernorm": (4096,),
        "post_attention_layernorm": (4096,),
        "self_attn.q_proj": (4096, 4096),
        "self_attn.k_proj": (1024, 4096),
        "self_attn.v_proj": (1024, 4096),
        "self_attn.o_proj": (4096, 4096),
        "mlp.gate_proj": (14336, 4096),
        "mlp.up_proj": (14336, 4096),
        "mlp.down_proj": (4096, 14336),
    }
    found: list[tuple[str, tuple[int, ...], int]] = [(n, shape, 1) for n, shape in once.items()]
    found += [(f"model.layers.*.{n}", shape, 32) for n, shape in each.items()]
    return [
        Group(f"{name}.weight", "BF16", shape, count, 2 * shape[0] * (shape[1:] or (1,))[0])
        for name, shape, count in found
    ]


def output(free: float) -> output_facts.OutputFacts:
    """The output folder on a disk with so many bytes free; it is not there yet."""
    asked = profile()
    return output_facts.OutputFacts(
        asked.output.dir,
        place="/data",
        mount=Mount("/data", "ext4", "/dev/nvme1n1"),
        write_seconds=0.001,
        free=int(free),
        total=1024 * GIB,
    )


def _disks() -> Pairs:
    return {
        output_facts.PROBE: output(111.8 * GIB),
        speed.PROBE: speed.SpeedFacts(128 * MIB, 0.09),
        records.PROBE: records.RecordsFacts("/root/.local/state/eagle3", free=60 * GIB),
    }


# ------------------------------------------------------------------ the deep exercises


def _deep() -> Pairs:
    one = compute.Reported("done", "", 100 * GIB, 0, 0, 0, 8192, "bfloat16", 700.0, 690.0)
    rounds = (allreduce.Round(256 * KIB, 3e-5, 0), allreduce.Round(256 * MIB, 9e-4, 0))
    reported = allreduce.Reported("done", "", "2.27.5", rounds)
    copies = (peers.Pair(0, 1, 390e9, 0), peers.Pair(1, 0, 388e9, 0))
    access = ((False, True), (True, False))
    return {
        compute.PROBE: compute.ComputeFacts(
            gpus=tuple(compute.Exercised(i, "NVIDIA H200", 20.0, "", one) for i in range(2))
        ),
        peers.PROBE: peers.PeersFacts(
            gpus=(0, 1), report=peers.Reported("done", "", access, copies), seconds=9.0
        ),
        allreduce.PROBE: allreduce.AllReduceFacts(
            ranks=tuple(allreduce.Rank(i, i, "", "", reported) for i in range(2)), seconds=12.0
        ),
        disk_throughput.PROBE: disk_throughput.DiskFacts(
            place="/data",
            threads=16,
            file=36 * MIB,
            file_from="the size of its mean sample",
            wrote=Wrote(2_000_000_000, 53, 1.4, 0.6),
        ),
        tiny_engine.PROBE: tiny_engine.EngineFacts(
            engine="speculators",
            ranks=2,
            device="2 GPUs",
            built=tiny_engine.Built("done", "", "LlamaForCausalLM (llama)", "", "bfloat16", 4),
            phases=(tiny_engine.Phase("build", 6.1), tiny_engine.Phase("load", 31.0)),
            samples=4,
            ok=True,
            verdict="4 samples agree",
            worst=0.003,
            tolerance=0.02,
        ),
    }
