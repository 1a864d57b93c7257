"""Cost of a token budget on a cluster: hours, device-hours, money and energy, each with its assumptions; and the time
that a run loses to failures and checkpoints, from published rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.gpu import Gpu
from sartor.model.counts import count_params
from sartor.model.training import TrainingJob
from sartor.step.pipeline import devices_of_pools
from sartor.step.states import main_bytes, moment_bytes

POWER_SHARE = 1.0
"""Share of the device's TDP drawn in training, as public model cards assume (Llama 2, arXiv 2307.09288, table 2; Llama
3.1's card, 2024-07: TDP times device-hours). An upper bound for the device; host, network and cooling come on top."""
CO2_KG_PER_KWH = 0.473
"""Kilograms per kWh of electricity, world average of 2024 (Ember, Global Electricity Review 2025)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """A training run of ``tokens`` at one plan's predicted rate, without evaluation or idle time; only ``run_hours``
    includes failures and checkpoints."""

    tokens: float
    hours: float
    low_hours: float
    high_hours: float
    """80% interval of the step time."""
    device_hours: float
    usd: float | None
    """None if no price is known."""
    usd_per_million_tokens: float | None
    usd_per_device_hour: float | None
    price_source: str
    price_date: str
    energy_j: float
    power_share: float
    """Assumed share of the device's TDP."""
    co2_kg: float
    """From the devices' energy, at the world's average mix."""
    run_hours: float
    """With failures, restarts and checkpoints."""
    goodput: Goodput


def run_cost(
    job: TrainingJob, cluster: Cluster, num_devices: int, step_s: tuple[float, float, float], tokens: float
) -> RunCost:
    """Cost of ``tokens`` at steps of ``step_s`` = (predicted, low, high) seconds. The price is the cluster's, else the
    device's. Raises ``InputError`` for a budget that is not positive."""
    if not 0 < tokens < 1e20:
        raise InputError("tokens", tokens, "must be a positive number of tokens", "1T")
    if tokens < job.tokens_per_step:
        must = f"must be at least one step, {job.tokens_per_step:,} tokens"
        raise InputError("tokens", f"{tokens:g}", must, f"{tokens:g}B, if billions were meant")
    hours, low, high = (tokens / job.tokens_per_step * s / 3600 for s in step_s)
    shares = [taken / num_devices for taken in devices_of_pools(cluster.pools, num_devices)]
    prices = [_price(pool) for pool in cluster.pools]
    priced = all(price is not None for price, _, _ in prices)
    price = sum((price_of or 0.0) * share for (price_of, _, _), share in zip(prices, shares, strict=True))
    watts = sum(_most_power_w(gpu) * share for gpu, share in zip(cluster.gpus, shares, strict=True))
    device_hours = hours * num_devices
    energy_j = device_hours * 3600 * watts * POWER_SHARE
    lasting = goodput(job, num_devices)
    return RunCost(
        tokens=float(tokens),
        hours=hours,
        low_hours=low,
        high_hours=high,
        device_hours=device_hours,
        usd=price * device_hours if priced else None,
        usd_per_million_tokens=price * device_hours / tokens * 1e6 if priced else None,
        usd_per_device_hour=price if priced else None,
        price_source="; ".join(dict.fromkeys(source for _, source, _ in prices if source)),
        price_date="; ".join(dict.fromkeys(date for _, _, date in prices if date)),
        energy_j=energy_j,
        power_share=POWER_SHARE,
        co2_kg=energy_j / 3.6e6 * CO2_KG_PER_KWH,
        run_hours=hours / lasting.share if lasting.share else math.inf,
        goodput=lasting,
    )


def _most_power_w(gpu: Gpu) -> float:
    """Power of one device: its datasheet's limit, or for a chip its power with everything at peak rate."""
    if gpu.accelerator is None:
        return gpu.tdp_w
    from sartor.cost.chip.ownership import power  # no GPU needs it

    return float(power(gpu.accelerator).tdp_w)


def _price(pool: Cluster) -> tuple[float | None, str, str]:
    """Price of a device-hour, its source and date: the cluster's own, else the device's."""
    gpu = pool.gpu
    if pool.price_usd_per_device_hour is None:
        return gpu.price_usd_per_hour, gpu.price_source, gpu.price_date
    return pool.price_usd_per_device_hour, pool.price_source, pool.price_date


DEVICE_HOURS_PER_FAILURE = 54 * 24 * 16_384 / 419
"""Llama 3 (Grattafiori et al. 2024, arXiv 2407.21783, sec. 3.3.4): 419 unexpected interruptions in 54 days on 16,384
H100."""
RESTART_S = 600.0
"""MegaScale (Jiang et al. 2024, arXiv 2402.15627, sec. 6.3): failures found and diagnosed in less than 10 minutes."""
STORED_BYTES_PER_S = 2e12 / 16_384
"""Checkpoint bandwidth per device: Llama 3 (sec. 3.3.1), 2 TB/s sustained for 16,384 devices."""
WEIGHT_BYTES = 2
"""Of weights in a checkpoint; fp32 main weights and the optimizer's moments come on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Share of a run's time spent on training steps that are not lost, at the checkpoint interval that loses least."""

    share: float
    failure_every_s: float
    checkpoint_bytes: float
    checkpoint_s: float
    checkpoint_every_s: float
    restart_s: float


def goodput(job: TrainingJob, num_devices: int) -> Goodput:
    """Goodput of a job on ``num_devices``: time is lost to saving checkpoints, and with each failure to the restart and
    to the steps since the last checkpoint (Young 1974: save every sqrt(2 x save x time between failures))."""
    between_s = DEVICE_HOURS_PER_FAILURE * 3600 / num_devices
    each = job.optimizer.narrow_moment_bytes or moment_bytes(job)
    main = main_bytes(job) if main_bytes(job) > WEIGHT_BYTES else 0.0
    stored = float(count_params(job.shape).total) * (WEIGHT_BYTES + main + job.optimizer.moments() * each)
    save_s = stored / (STORED_BYTES_PER_S * num_devices)
    every_s = math.sqrt(2 * save_s * between_s)
    lost = save_s / (every_s + save_s) + (RESTART_S + every_s / 2) / (between_s + RESTART_S + every_s / 2)
    return Goodput(
        share=max(1 - lost, 0.0),
        failure_every_s=between_s,
        checkpoint_bytes=stored,
        checkpoint_s=save_s,
        checkpoint_every_s=every_s,
        restart_s=RESTART_S,
    )
