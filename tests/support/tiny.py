"""Tiny random checkpoints, rows and runs for the worker's tests, and the worker as a process.

Checkpoints are built by the worker's own interpreter (it has torch; the tests'
has not); what a test must look at inside of a sample file is asked of it too.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from eagle3_agent.protocol.events import Event, Failure, Progress, Skipped, Stage
from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    EngineSection,
    HostSection,
    ModelSection,
    OutputFormat,
    OutputSection,
    Profile,
)
from eagle3_agent.runs import RunFolder, RunRecord, write_value
from eagle3_console import demo

AGENT = Path(__file__).parents[2] / "agent"

VOCAB = 320
HIDDEN = 32
LAYERS = 6

Kind = Literal["llama", "llama-bf16", "qwen3", "moe", "nan"]

#: Tiny models are slower with more threads, most of all on a busy machine.
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}

_BUILD = """
import sys, torch, transformers as t
from tokenizers import Tokenizer, models, pre_tokenizers, decoders
torch.manual_seed(0)
base = dict(vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=6,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=512,
            initializer_range=0.15)
moe = dict(base, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
           decoder_sparse_step=1)
kinds = {
    "llama": (t.LlamaConfig, t.LlamaForCausalLM, base, torch.float32),
    "llama-bf16": (t.LlamaConfig, t.LlamaForCausalLM, base, torch.bfloat16),
    "qwen3": (t.Qwen3Config, t.Qwen3ForCausalLM, base, torch.float32),
    "moe": (t.Qwen3MoeConfig, t.Qwen3MoeForCausalLM, moe, torch.float32),
    "nan": (t.LlamaConfig, t.LlamaForCausalLM, base, torch.float32),
}
# one token a byte, so that every span of text is one of tokens too
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
words = {c: i for i, c in enumerate(alphabet)}
words.update({"<|im_start|>": 256, "<|im_end|>": 257})
inner = Tokenizer(models.BPE(vocab=words, merges=[]))
inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
inner.decoder = decoders.ByteLevel()
plain = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\\n{{ m['content'] }}<|im_end|>\\n"
         "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}")
marked = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\\n{% if m['role'] == 'assistant' %}"
          "{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}{% else %}"
          "{{ m['content'] }}<|im_end|>{% endif %}\\n{% endfor %}")
for kind, folder in zip(sys.argv[1::2], sys.argv[2::2]):
    config, model, options, dtype = kinds[kind]
    made = model(config(**options)).to(dtype)
    if kind == "nan":
        with torch.no_grad():
            made.model.layers[3].mlp.down_proj.weight.fill_(float("inf"))
    made.save_pretrained(folder)
    tokenizer = t.PreTrainedTokenizerFast(
        tokenizer_object=inner, additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        eos_token="<|im_end|>")
    tokenizer.chat_template = marked if kind == "qwen3" else plain
    tokenizer.save_pretrained(folder)
"""


def worker_python() -> Path | None:
    """The interpreter with torch: ``EAGLE3_WORKER_PYTHON``, or the demo's; None without one."""
    named = os.environ.get("EAGLE3_WORKER_PYTHON")
    if named:
        return Path(named)
    made = demo.files()
    # the stamp is written last: without it the environment is half made
    ready = (made.python.parents[1] / ".ready").exists()
    return made.python if ready else None


def run_python(python: Path, code: str, *args: str, path: Path | None = None) -> str:
    """stdout of a script, which may import from ``path``; its stderr is in the failure's text."""
    found = {} if path is None else {"PYTHONPATH": str(path)}
    done = subprocess.run(
        [str(python), "-c", code, *args],
        env={**os.environ, **_ONE_THREAD, **found},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(python: Path, root: Path, kinds: Sequence[Kind]) -> dict[Kind, Path]:
    """One process builds them all: importing torch is what takes the time."""
    folders = {kind: root / kind for kind in kinds}
    run_python(python, _BUILD, *(part for kind in kinds for part in (kind, str(folders[kind]))))
    return folders


def rows(count: int, *, length: int = 24) -> list[dict[str, Any]]:
    """Token rows of mixed lengths; every one differs from every other."""
    made = []
    for i in range(count):
        size = length + (i * 7) % 17
        ids = [(i * 31 + j * j * 7 + j) % VOCAB for j in range(size)]
        made.append({"input_ids": ids, "loss_mask": [int(j > 3) for j in range(size)]})
    return made


def write_jsonl(path: Path, items: Iterable[Any]) -> Path:
    """Strings and bytes are written as they stand, so that a line can be broken."""
    with path.open("wb") as file:
        for item in items:
            line = item if isinstance(item, bytes) else json.dumps(item).encode()
            file.write(line + b"\n")
    return path


def profile(
    python: Path,
    model: Path,
    data: Path,
    output: Path,
    *,
    layers: tuple[int, ...] = (1, 3, 5),
    kind: OutputFormat = "speculators-pt",
    seq_length: int = 2048,
    max_samples: int | None = None,
    trust_remote_code: bool = False,
) -> Profile:
    return Profile(
        name="tiny",
        host=HostSection(python=str(python)),
        model=ModelSection(path=str(model), trust_remote_code=trust_remote_code),
        capture=CaptureSection(layers),
        data=DataSection(path=str(data), max_samples=max_samples, seq_length=seq_length),
        output=OutputSection(dir=str(output), format=kind),
        engine=EngineSection("transformers"),
    )


def make_run(folder: Path, asked: Profile) -> RunFolder:
    """A run's folder as the agent makes it, wherever the test wants it."""
    folder.mkdir()
    record = RunRecord(
        format=1,
        run=folder.name,
        number=1,
        attempt=1,
        created=0.0,
        host="test",
        profile=asked,
        engine="transformers",
    )
    write_value(folder / "run.json", record)
    return RunFolder(folder)


def change_profile(run: RunFolder, change: Callable[[Profile], Profile]) -> None:
    record = run.record()
    write_value(run.path / "run.json", replace(record, profile=change(record.profile)))


def spawn(run: RunFolder, *command: str, wrap: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """The worker as the supervisor starts it; output in ``output.log``."""
    python = run.record().profile.host.python
    argv = [*wrap, python, "-m", "eagle3_agent.worker", *(command or ("run", str(run.path)))]
    env = {**os.environ, **_ONE_THREAD, "PYTHONPATH": str(AGENT), "PYTHONUNBUFFERED": "1"}
    with run.output.open("ab") as log:
        return subprocess.Popen(
            argv, cwd=run.path, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def work(run: RunFolder, *command: str, wrap: Sequence[str] = ()) -> int:
    """Start the worker and wait for it; returns its exit status."""
    with spawn(run, *command, wrap=wrap) as process:
        try:
            return process.wait(timeout=240)
        finally:
            process.kill()


def events(run: RunFolder) -> list[Event]:
    return [event for _, event in run.read_events()]


def failure(run: RunFolder) -> Failure:
    (found,) = [e for e in events(run) if isinstance(e, Failure)]
    return found


def skipped(run: RunFolder) -> dict[int, str]:
    return {e.index: e.reason for e in events(run) if isinstance(e, Skipped)}


def progress(run: RunFolder) -> Progress:
    """The last one."""
    return [e for e in events(run) if isinstance(e, Progress)][-1]


def finished(run: RunFolder) -> bool:
    """The last stage says that every file is flushed."""
    stages = [e for e in events(run) if isinstance(e, Stage)]
    return bool(stages) and (stages[-1].name, stages[-1].status) == ("done", "done")


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Until ``condition`` holds; fails when the process ends first or a minute has passed."""
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, f"the worker ended first: {process.returncode}"
        assert time.monotonic() < deadline, "waited a minute in vain"
        time.sleep(0.005)
