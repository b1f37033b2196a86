"""What a run claims for itself alone, and what clashes."""

from __future__ import annotations

import pytest

from eagle3_agent import claims
from eagle3_agent.protocol.values import Gpu
from support.preflight import profile

GPUS = tuple(Gpu(i, f"GPU-{i}a") for i in range(3))


def devices(visible: str | None, *, unknown: bool = False) -> list[str]:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = claims.of(profile(output_dir="/out/run"), GPUS, unknown, environ)
    assert found[-1] == "output:/out/run"
    return list(found[:-1])


@pytest.mark.parametrize(
    ("visible", "wanted"),
    [
        (None, ["gpu:GPU-0a", "gpu:GPU-1a", "gpu:GPU-2a"]),
        ("2,0", ["gpu:GPU-2a", "gpu:GPU-0a"]),
        ("", ["cpu"]),
        ("MIG-1111", ["gpu:MIG-1111"]),
        (" MIG-1111 , MIG-2222", ["gpu:MIG-1111", "gpu:MIG-2222"]),
    ],
)
def test_devices(visible: str | None, wanted: list[str]) -> None:
    assert devices(visible) == wanted


def test_the_profiles_choice_comes_before_the_agents_and_no_answer_means_any_gpu() -> None:
    asked = profile(host_env={"CUDA_VISIBLE_DEVICES": "MIG-22"}, output_dir="/out/run")
    assert claims.of(asked, GPUS, False, {"CUDA_VISIBLE_DEVICES": "0"})[0] == "gpu:MIG-22"
    assert devices("MIG-1111", unknown=True) == ["gpu:*"]


@pytest.mark.parametrize(
    ("mine", "theirs", "found"),
    [
        ("gpu:MIG-1111", "gpu:MIG-1111", "gpu:MIG-1111"),
        ("gpu:MIG-11", "gpu:MIG-1111", "gpu:MIG-11"),
        ("gpu:MIG-1111", "gpu:MIG-11", "gpu:MIG-1111"),
        ("gpu:MIG-1111", "gpu:MIG-2222", ""),
        ("gpu:MIG-1111", "gpu:GPU-0a", ""),
        ("gpu:MIG-1111", "gpu:*", "gpu:MIG-1111"),
        ("gpu:*", "gpu:MIG-1111", "gpu:MIG-1111"),
        ("gpu:GPU-0", "gpu:GPU-0a", ""),
        ("gpu:MIG-1111", "cpu", ""),
        ("cpu", "cpu", "cpu"),
    ],
)
def test_clashes(mine: str, theirs: str, found: str) -> None:
    assert claims.clash((mine,), (theirs,)) == found
    assert claims.clash((mine,), (theirs,), same_host=False) == ""


def test_a_claim_for_a_person() -> None:
    told = [claims.describe(c) for c in ("cpu", "gpu:GPU-0a", "gpu:MIG-11", "output:/out/run")]
    assert told == ["the CPU", "GPU GPU-0a", "MIG slice MIG-11", "the output folder /out/run"]
