"""A link that answers from a script, and the command line run in this process over it."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Union

import pytest

from eagle3_agent.protocol import Message, encode
from eagle3_agent.protocol.messages import Probing, RunChanged, StreamName, Telemetry, Welcome
from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    ErrorInfo,
    HostSection,
    ModelSection,
    OutputSection,
    Profile,
    Report,
    RunDetail,
    RunState,
    RunSummary,
    Samples,
    Verdict,
)
from eagle3_console import cli
from eagle3_console.commands import linking
from eagle3_console.errors import ConsoleError
from eagle3_console.linkstate import LinkState, Live, Piece

Answer = Union[Message, ConsoleError, Callable[[Any], Message]]

WELCOME = Welcome(1, 1, "ab" * 32, 10, "gpu-01", "3.11.7", 1000.0, 2000.0)


class ScriptedLink:
    """A LinkPort whose replies are given by the type of the message."""

    def __init__(self, answers: dict[type, Answer], streams: dict[str, list[Piece]]) -> None:
        self.answers = answers
        self.streams = streams
        self.asked: list[Any] = []
        self.refuse: ConsoleError | None = None
        self.closed = False
        self.warnings: tuple[str, ...] = ()
        self.agent_outdated = False
        self.state: LinkState = Live(0.02, WELCOME)
        self.on_state: Callable[[LinkState], None] | None = None
        self.on_push: Callable[[RunChanged | Telemetry], None] | None = None
        self.streamed: list[tuple[str, str, int]] = []
        self.progress: list[Probing] = []
        """Told before the reply of whoever listens."""

    async def connect(self) -> Welcome:
        if self.refuse is not None:
            raise self.refuse
        return WELCOME

    async def ask(
        self,
        message: Message,
        timeout: float | None = 60.0,
        on_progress: Callable[[Probing], None] | None = None,
    ) -> Message:
        self.asked.append(message)
        if on_progress is not None:
            for probing in self.progress:
                on_progress(probing)
        answer = self.answers[type(message)]
        if isinstance(answer, ConsoleError):
            raise answer
        return answer(message) if callable(answer) else answer

    async def stream(self, run: str, stream: StreamName, offset: int = 0) -> AsyncIterator[Piece]:
        self.streamed.append((run, stream, offset))
        for piece in self.streams[stream]:
            yield piece

    async def watch(
        self, *, runs: bool = True, host_interval: float = 1.0
    ) -> tuple[RunSummary, ...]:
        return ()

    async def close(self) -> None:
        self.closed = True


@dataclass
class Ran:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def object(self) -> Any:
        """The one object of ``--json``; fails when there is another line."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


@dataclass
class Bench:
    """One scripted host and the command line in front of it."""

    capsys: pytest.CaptureFixture[str]
    answers: dict[type, Answer] = field(default_factory=dict)
    streams: dict[str, list[Piece]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.link = ScriptedLink(self.answers, self.streams)

    def run(self, *argv: str) -> Ran:
        self.capsys.readouterr()
        try:
            code = cli.main(argv)
        except SystemExit as end:  # argparse: usage errors and --help
            code = end.code if isinstance(end.code, int) else 1
        out, err = self.capsys.readouterr()
        return Ran(code, out, err)


def bench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A Bench whose link every command gets, whatever target it names."""
    made = Bench(capsys)
    monkeypatch.setattr(linking, "open_link", lambda *_args, **_kwargs: made.link)
    return made


class Screen(io.StringIO):
    """A text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


PROFILE = Profile(
    "kimi",
    HostSection("/venv/bin/python"),
    ModelSection("/models/kimi"),
    CaptureSection((2, 30, 58, 60)),
    DataSection("/data/train.jsonl"),
    OutputSection("/data/hidden"),
)

PROFILE_TEXT = """\
[host]
python = "/venv/bin/python"
[model]
path = "/models/kimi"
[capture]
layers = [2, 30, 58, 60]
[data]
path = "/data/train.jsonl"
[output]
dir = "/data/hidden"
"""


def summary(state: RunState = "completed", **changes: Any) -> RunSummary:
    values: dict[str, Any] = {
        "run": "0004",
        "number": 4,
        "state": state,
        "attempt": 2,
        "profile": "kimi",
        "engine": "speculators",
        "started": 1000.0,
        "ended": None if state in ("running", "queued") else 1100.0,
        "samples": Samples(10, 10, 0),
        "tokens": 5000,
        "tokens_per_second": 2264.5,
        "bytes": 1 << 20,
        "output_dir": "/data/hidden",
    }
    return RunSummary(**{**values, **changes})


def detail(run: RunSummary | None = None, **changes: Any) -> RunDetail:
    values: dict[str, Any] = {
        "summary": run or summary(),
        "resolved": PROFILE,
        "preflight": None,
        "forced": (),
        "patches": (),
        "environment": {"torch": "2.10.0", "driver": "580.95"},
        "folder": "/state/runs/0004",
    }
    return RunDetail(**{**values, **changes})


BLOCKED = Report(
    (
        Verdict("model", "Model", "pass", "64 shards"),
        Verdict("gpu-clean", "GPU 3", "block", "58.4 GiB held by pid 48213", "", "end pid 48213"),
        Verdict("disk", "Disk", "block", "full", "", "make room"),
    ),
    1.8,
    1000.0,
)
READY = Report((Verdict("model", "Model", "pass", "64 shards"),), 0.4, 1000.0)

EMPTY_MESSAGE = ErrorInfo("AssertionError", "", 3)


def pieces(*events: Any, ended: bool = True, size: int = 37) -> list[Piece]:
    """Events as a stream would bring them, cut without regard to where lines end."""
    data = b"".join(encode(event) for event in events)
    cuts = [data[at : at + size] for at in range(0, len(data), size)]
    last = len(cuts) - 1
    return [
        Piece(i * size, cut, caught_up=i == last, ended=ended and i == last)
        for i, cut in enumerate(cuts)
    ]
