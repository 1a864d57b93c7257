"""Extended cost terms beyond the published model, all off by default; without them the answer is the published one.

Devices are numbered from the last stage up: the copies of the last stage come first, then those of the stage before it,
and so on; within a stage the devices of one copy are adjacent. A tier of ``size`` contains the devices ``k * size ...
(k + 1) * size - 1``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import gcd, isfinite

from sartor.errors import InputError, check_positive
from sartor.placement.problem import RESYNC_FACTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Links among ``size`` adjacent devices: the send bandwidth of each device, and the latency of a message."""

    size: int
    bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """``num_devices`` equal devices, on which a layer takes ``slowdown`` times the seconds in the tables."""

    name: str
    num_devices: int
    memory_bytes: float
    slowdown: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementTerms:
    """Cost terms beyond the publication.

    Parameters
    ----------
    resync_every_stage
        The copies of every stage reduce its gradients, not only those of the first; the slowest delays the batch.
    tiers
        Link tiers, innermost first; sizes divide one another and the last one holds all devices. Empty: one tier of
        the problem's bandwidth.
    device_types
        Up to three pools of devices. A stage and its copies stay within one; the stages on one pool are adjacent in
        the pipeline. Every order of the pools is tried; links between pools are of the outermost tier.
        Empty: the problem's devices.
    virtual_stages
        Numbers of chunks per device group to try (interleaving); 1 is always allowed.
    zero_stages
        ZeRO stages to choose from (1: optimizer states, 2: and gradients, 3: and parameters are sharded over the
        copies); 0 is always allowed.
    resync_factor
        Bytes sent per parameter byte and (n-1)/n when n copies reduce: 4 as published, 2 for a ring all-reduce.
    """

    resync_every_stage: bool = False
    tiers: tuple[Tier, ...] = ()
    device_types: tuple[DeviceType, ...] = ()
    virtual_stages: tuple[int, ...] = (1,)
    zero_stages: tuple[int, ...] = (0,)
    resync_factor: float = RESYNC_FACTOR

    def __post_init__(self) -> None:
        for tier in self.tiers:
            _at_least_one("devices of a tier", tier.size)
            check_positive("bandwidth of a tier", tier.bytes_per_s)
            if not isfinite(tier.latency_s) or tier.latency_s < 0:
                raise InputError("latency of a tier", tier.latency_s, "must be finite and not negative", "0")
        for inner, outer in pairwise(tier.size for tier in self.tiers):
            if outer % inner or outer == inner:
                nearest = str(max(2, round(outer / inner)) * inner)
                raise InputError("devices of a tier", outer, f"must be a multiple of the {inner} within it", nearest)
        self._check_types()
        for v in self.virtual_stages:
            _at_least_one("virtualStages", v)
        for z in self.zero_stages:
            if z not in (0, 1, 2, 3):
                raise InputError("zeroStages", z, "must be 0, 1, 2 or 3", str(min(max(z, 0), 3)))
        check_positive("resyncFactor", self.resync_factor)
        if len(self.device_types) > 1 and set(self.virtual_stages) != {1}:
            must = "must be [1] with several device types: interleaving over unequal devices is not priced"
            raise InputError("virtualStages", list(self.virtual_stages), must, "[1]")

    def _check_types(self) -> None:
        names = [device_type.name for device_type in self.device_types]
        if len(names) > MAX_TYPES:
            raise InputError("deviceTypes", len(names), f"must be at most {MAX_TYPES}", str(MAX_TYPES))
        if len(set(names)) < len(names):
            raise InputError("deviceTypes", ", ".join(names), "names must be unique")
        for device_type in self.device_types:
            _at_least_one(f"maxDevices of {device_type.name}", device_type.num_devices)
            check_positive(f"maxMemoryPerDevice of {device_type.name}", device_type.memory_bytes)
            check_positive(f"slowdown of {device_type.name}", device_type.slowdown)


MAX_TYPES = 3


def _at_least_one(field: str, value: int) -> None:
    if value < 1:
        raise InputError(field, value, "must be at least 1", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The tiers in use: those of the terms, or one with the problem's bandwidth. The last tier holds all devices."""

    tiers: tuple[Tier, ...]
    resync_factor: float

    @property
    def outermost(self) -> int:
        return len(self.tiers) - 1

    def tier_holding(self, first: int, last: int) -> int:
        """Index of the innermost tier with a group that contains both devices."""
        for index, tier in enumerate(self.tiers[:-1]):
            if first // tier.size == last // tier.size:
                return index
        return self.outermost

    def tier_at(self, boundary: int, reach: int) -> int:
        """Tier of the links across the boundary before device ``boundary``, with ``reach`` devices on either side."""
        return self.tier_holding(max(0, boundary - reach), boundary + reach - 1)

    def resync_s_per_byte(self, ranks: int, stride: int) -> float:
        """Seconds per byte to reduce over ``ranks`` devices, every ``stride``-th, tier by tier.

        Within a tier of size g, gcd(ranks, g / stride) ranks are sure to share a group; the next tier then carries only
        their share of the bytes.
        """
        seconds, share, done = 0.0, 1.0, 1
        for tier, within in zip(self.tiers, self._within(ranks, stride), strict=True):
            n = within // done
            seconds += self.resync_factor * (n - 1) / n * share / tier.bytes_per_s
            share, done = share / n, within
        return seconds

    def resync_latency_s(self, ranks: int, stride: int) -> float:
        """Message latencies of one reduction: 2 (n - 1) on each tier that n parties span."""
        seconds, done = 0.0, 1
        for tier, within in zip(self.tiers, self._within(ranks, stride), strict=True):
            seconds += 2 * (within // done - 1) * tier.latency_s
            done = within
        return seconds

    def _within(self, ranks: int, stride: int) -> list[int]:
        """Number of ranks reduced after each tier."""
        inner = [gcd(ranks, t.size // stride) if t.size % stride == 0 else 1 for t in self.tiers[:-1]]
        return [*inner, ranks]
