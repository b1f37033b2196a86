"""GPUs as the daemon hands them out: claims by GPU, and a driver that hangs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3_agent.protocol.messages import (
    Abort,
    Done,
    Ping,
    SampleHost,
    Start,
    Started,
    Telemetry,
    WatchHost,
)
from support.daemon import Home, eventually
from support.nvml_double import environment


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


def test_runs_on_different_gpus_go_together(home: Home, nvml_library: Path) -> None:
    home.env.update(environment(nvml_library, name="claims.conf"))
    wire = home.attach()
    first = wire.start(home.profile("hold", out="one", CUDA_VISIBLE_DEVICES="0,1"))
    claims = home.run(first).record().claims
    assert [c for c in claims if c.startswith("gpu:")] == [
        "gpu:GPU-5131a7ed-0000-4000-8000-000000000000",
        "gpu:GPU-5131a7ed-0000-4000-8000-000000000001",
    ]
    second = wire.start(home.profile("hold", out="two", CUDA_VISIBLE_DEVICES="2"))
    busy = wire.refused(Start(0, home.profile(out="three", CUDA_VISIBLE_DEVICES="1,3"))).problem
    assert busy.code == "busy"
    assert first in busy.happened
    all_of_them = wire.refused(Start(0, home.profile(out="four"))).problem
    assert all_of_them.code == "busy"
    same = wire.refused(Start(0, home.profile(out="two", CUDA_VISIBLE_DEVICES="5"))).problem
    assert "output folder" in same.title
    waits = wire.expect(
        Started, Start(0, home.profile(out="five", CUDA_VISIBLE_DEVICES="2,3"), queue=True)
    )
    assert waits.queued
    # what waits in the queue is not overtaken
    jumped = wire.refused(Start(0, home.profile(out="six", CUDA_VISIBLE_DEVICES="3"))).problem
    assert waits.run in jumped.happened
    wire.expect(Done, Abort(0, second))
    wire.ended(waits.run, "completed")
    wire.expect(Done, Abort(0, first))


def test_gpu_lines_are_recorded_with_the_run(home: Home, nvml_library: Path) -> None:
    home.env.update(environment(nvml_library, name="recorded.conf"))
    wire = home.attach()
    run = wire.start(home.profile("hold"))
    gpu = home.run(run).gpu
    eventually(lambda: gpu.exists() and b"SIMULATED" in gpu.read_bytes())
    (home.run(run).path / "go").touch()
    wire.ended(run, "completed")
    assert wire.whole(run, "gpu") == gpu.read_bytes()


def test_a_driver_that_hangs_is_said_and_the_agent_goes_on(home: Home, nvml_library: Path) -> None:
    hanging = environment(nvml_library, "hang", name="hang.conf")
    daemon = home.serve("--silence", "1.5", **hanging)
    wire = home.attach()
    sample = wire.expect(Telemetry, SampleHost(0)).sample
    assert "did not answer within" in sample.gpu_problem
    assert sample.cpu_count > 0
    wire.expect(Done, WatchHost(0, 0.25))
    environment(nvml_library, name="hang.conf")

    def healthy() -> bool:
        wire.ask(Ping(0))
        return any(isinstance(m, Telemetry) and len(m.sample.gpus) == 8 for m in wire.pushes)

    eventually(healthy)
    wire.close()
    daemon.terminate()
    assert daemon.wait(20) == 0
