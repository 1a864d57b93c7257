"""What a token budget takes on a cluster: hours, device-hours, money and energy, each with what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

from sartor.errors import InputError
from sartor.hardware.cluster import Cluster

JOULES_PER_KWH = 3.6e6
POWER_SHARE = 1.0
"""Of the device's TDP drawn while training: what public model cards count with (Llama 2, arXiv 2307.09288, table 2;
Llama 3.1's card, 2024-07: TDP times device-hours). An upper bound on the device; host, network and cooling are beside
it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """A training run of ``tokens`` at one plan's predicted rate, without restarts, evaluation or idle time."""

    tokens: float
    hours: float
    low_hours: float
    high_hours: float
    """80% interval of the step time."""
    device_hours: float
    usd: float | None
    """None where no price is known."""
    usd_per_device_hour: float | None
    price_source: str
    price_date: str
    energy_j: float
    power_share: float
    """Of the device's TDP that is assumed drawn."""


def run_cost(
    cluster: Cluster, num_devices: int, tokens_per_step: int, step_s: tuple[float, float, float], tokens: float
) -> RunCost:
    """Cost of ``tokens`` at steps of ``step_s`` = (predicted, low, high) seconds. The price is the cluster's, else the
    device's; ``InputError`` for a budget that is not positive."""
    if not 0 < tokens < 1e20:
        raise InputError("tokens", tokens, "must be a positive number of tokens", "1T")
    hours, low, high = (tokens / tokens_per_step * s / 3600 for s in step_s)
    gpu = cluster.gpu
    own = cluster.price_usd_per_device_hour is not None
    price = cluster.price_usd_per_device_hour if own else gpu.price_usd_per_hour
    device_hours = hours * num_devices
    return RunCost(
        tokens=float(tokens),
        hours=hours,
        low_hours=low,
        high_hours=high,
        device_hours=device_hours,
        usd=None if price is None else price * device_hours,
        usd_per_device_hour=price,
        price_source=cluster.price_source if own else gpu.price_source,
        price_date=cluster.price_date if own else gpu.price_date,
        energy_j=device_hours * 3600 * gpu.tdp_w * POWER_SHARE,
        power_share=POWER_SHARE,
    )
