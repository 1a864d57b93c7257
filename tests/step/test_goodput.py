"""What failures and checkpoints take, from published rates."""

from __future__ import annotations

import math

import pytest

from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.training import TrainingJob
from sartor.model.zoo import load_model
from sartor.step.run_cost import Goodput, goodput, run_cost


def of(model: str, num_devices: int) -> Goodput:
    return goodput(TrainingJob(shape=load_model(model), seq_len=8192, global_batch_size=2048), num_devices)


def test_llama_3s_own_run_keeps_more_than_nine_tenths() -> None:
    found = of("llama-3.1-405b", 16_384)  # sec. 3.3.4: "higher than 90% effective training time"
    assert 0.90 < found.share < 0.97
    assert found.failure_every_s == pytest.approx(54 * 86_400 / 419)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-405b", "deepseek-v3"])
def test_goodput_is_a_share_that_more_devices_lower(model: str) -> None:
    shares = [of(model, n).share for n in (256, 1024, 4096, 16_384, 65_536)]
    assert all(0 <= share < 1 for share in shares)
    assert shares == sorted(shares, reverse=True)


def test_no_other_interval_loses_less() -> None:
    found = of("llama-3.1-70b", 1024)

    def lost(every_s: float) -> float:
        return found.checkpoint_s / every_s + every_s / 2 / found.failure_every_s

    best = lost(found.checkpoint_every_s)
    assert all(best <= lost(found.checkpoint_every_s * scale) for scale in (0.5, 0.9, 1.1, 2))


def test_a_run_takes_longer_by_its_goodput_and_emits_by_its_energy() -> None:
    job = TrainingJob(shape=load_model("llama-3.1-8b"), seq_len=8192, global_batch_size=128)
    cost = run_cost(job, load_cluster("dgx-h100"), 64, (2.0, 1.8, 2.2), 1e12)
    assert cost.run_hours == pytest.approx(cost.hours / cost.goodput.share)
    assert cost.co2_kg == pytest.approx(cost.energy_j / 3.6e6 * 0.473)
    assert math.isfinite(cost.run_hours)
