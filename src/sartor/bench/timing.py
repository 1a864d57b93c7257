"""Time a case: warm up, then take samples of several launches on rotated buffers; report median and spread.

A burst run rests between samples, so that clocks stay at boost; a sustained run works for more than a second before the
first sample. On a shared host, samples during which our threads waited for a core are set aside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sartor.bench.cases import ClockMode
from sartor.bench.device import Device, DeviceState, Loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Durations and number of samples for timing one case."""

    warmup_s: float = 0.02
    sample_s: float = 0.01
    """Duration of a sample, which is at least one launch."""
    samples: int = 7
    most_s: float = 4.0
    """Stop sampling after this time, but not before three samples."""
    sustain_s: float = 1.5
    rest_s: float = 0.0
    """Pause before each sample of a burst run."""
    quiet_share: float = 0.02
    """A sample is set aside if threads waited for a core for more than this share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one launch over samples: median, 10th and 90th percentile."""

    median_s: float
    p10_s: float
    p90_s: float
    samples: int
    launches: int
    """Launches per sample."""
    set_aside: int
    """Samples disturbed by other processes."""
    quiet: bool
    """Whether there were enough undisturbed samples; if not, the disturbed ones are used too."""
    reading: DeviceState

    @property
    def spread(self) -> float:
        """(median - 10th percentile) / median; disturbances only add time, so the upper half says little."""
        return (self.median_s - self.p10_s) / self.median_s


LEAST_SAMPLES = 3


def time_case(device: Device, loaded: Loaded, mode: ClockMode, policy: Policy) -> Timing:
    """Time one loaded case."""
    started = device.host_s()
    one_s = _warm(device, loaded, policy.sustain_s if mode is ClockMode.SUSTAINED else policy.warmup_s)
    launches = max(1, min(10_000, math.ceil(policy.sample_s / max(one_s, 1e-9))))
    rest_s = policy.rest_s if mode is ClockMode.BURST else 0.0
    quiet: list[float] = []
    disturbed: list[float] = []
    while len(quiet) < policy.samples:
        spent, taken = device.host_s() - started, len(quiet) + len(disturbed)
        if taken >= LEAST_SAMPLES and (spent > policy.most_s or taken >= 4 * policy.samples):
            break
        device.pause(rest_s)
        before, began = device.waited_s(), device.host_s()
        seconds = device.launch_s(loaded, launches)
        took, waited = device.host_s() - began, device.waited_s() - before
        (quiet if waited <= policy.quiet_share * max(took, 1e-9) else disturbed).append(seconds)
    enough = len(quiet) >= min(LEAST_SAMPLES, policy.samples)
    return _timing(quiet if enough else quiet + disturbed, launches, len(disturbed), enough, device.read())


def _warm(device: Device, loaded: Loaded, seconds: float) -> float:
    """Launch for ``seconds``, at least twice (the first launch may compile); returns seconds of one launch."""
    started = device.host_s()
    device.launch_s(loaded, 1)
    launches, one_s = 1, device.launch_s(loaded, 1)
    while device.host_s() - started < seconds:
        launches = max(1, min(1000, 2 * launches, math.ceil(0.2 * seconds / max(one_s, 1e-9))))
        one_s = device.launch_s(loaded, launches)
    return one_s


def _timing(seconds: list[float], launches: int, set_aside: int, quiet: bool, reading: DeviceState) -> Timing:
    p10, median, p90 = (float(value) for value in np.quantile(seconds, [0.1, 0.5, 0.9]))
    return Timing(
        median_s=median,
        p10_s=p10,
        p90_s=p90,
        samples=len(seconds),
        launches=launches,
        set_aside=set_aside,
        quiet=quiet,
        reading=reading,
    )
