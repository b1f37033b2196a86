"""What holds for every test: no test touches the real home of whoever runs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Several models run beside each other on few cores: threads that spin while they wait, or that
# are bound to a core, starve each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> object:
    """On CI a skip is a failure, unless it names what no step of CI can bring."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    could_run = report.skipped and "not on this machine" not in str(report.longrepr)
    if could_run and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"skipped, though CI could run it: {report.longrepr}"
    return outcome


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh EAGLE3_HOME; the demo's environment stays where the user's cache has it."""
    home = tmp_path_factory.mktemp("eagle3-home")
    monkeypatch.setenv("EAGLE3_HOME", str(home))
    return home
