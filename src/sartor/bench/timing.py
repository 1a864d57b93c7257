"""Timing one case until its spread is small, and the row of the records that it becomes.

Time a case: warm up, then take samples of several launches on rotated buffers; report median and spread.

A burst run rests between samples, so that clocks stay at boost; a sustained run works for more than a second before the
first sample. On a shared host, samples during which our threads waited for a core are set aside.

A timing as a row: the columns of data/measured, plus device, software, clocks, power and date.

Rows of all tables share one file; the column ``table`` separates them (``sartor.records.tables``). Rows with a nonzero
``flag`` (a sum of bits) are not used in fits.

The protocol of a device that can be measured, and the facts about it that every record holds.

The runner uses only this protocol: ``torch_device`` has real devices, ``fake`` one with a simulated clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sartor.bench.cases import BenchCase, ClockMode
from sartor.json_types import JsonDict


class OutOfMemoryOnDevice(Exception):
    """A case does not fit into memory; it is skipped and reported, and the run continues."""


class UnsupportedCase(Exception):
    """The device or its library has no kernel for a case; ``str`` is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """The device and its software. Sizes in bytes."""

    gpu: str
    """The catalogue's name, or one made from the driver's name if the catalogue lacks the device."""
    device: str
    """The driver's name of the device."""
    backend: str
    """cuda, rocm or cpu."""
    driver: str
    torch: str
    library: str
    """Version of CUDA, ROCm or the math library."""
    num_sms: int
    memory_bytes: float
    l2_bytes: float
    num_devices: int = 1
    threads: int = 0
    """CPU threads that run the kernels; 0 on accelerators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """Clocks and power right after work; 0 if the device does not report them."""

    clock_hz: float = 0.0
    memory_clock_hz: float = 0.0
    power_w: float = 0.0
    power_limit_w: float = 0.0
    temperature_c: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A case loaded on the device: ``launch(i)`` queues it on the i-th set of buffers."""

    launch: Callable[[int], object]
    sets: int = 1
    set_bytes: float = 0.0
    """Bytes that one launch touches."""
    timer: str = "host"
    """graph (replayed), events (queued launch by launch), host (the call returns when the work is done) or thread (the
    time the one thread ran)."""
    replay: Any = None
    """A captured graph of ``graphed`` launches."""
    graphed: int = 0


class Device(Protocol):
    """A device that can be measured."""

    facts: DeviceFacts

    def load(self, case: BenchCase) -> Loaded:
        """Prepare random buffers and the kernel. Raises ``OutOfMemoryOnDevice`` or ``UnsupportedCase``."""

    def launch_s(self, loaded: Loaded, launches: int) -> float:
        """Mean seconds of ``launches`` back-to-back launches, by the device's own clock."""

    def read(self) -> DeviceState:
        """Clocks and power now."""

    def host_s(self) -> float:
        """The host's clock, used for time budgets."""

    def waited_s(self) -> float:
        """Seconds that this process's threads have waited for a core so far; 0 where work does not run on them."""

    def pause(self, seconds: float) -> None:
        """Let the device rest, so that it keeps its boost clock in short runs."""

    def free(self) -> None:
        """Free the buffers of the last case."""


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


SUSTAINED, NOISY, RESIDENT, CHOSEN_KERNEL = 32, 64, 128, 256
"""Bits of ``flag`` (1 to 16: data/measured/README.md): timed after a second of work; spread above ``NOISY_SPREAD`` or
disturbed by other processes; same buffers in every launch; a requested kernel instead of the library's choice."""

NOISY_SPREAD = 0.15
"""(median - 10th percentile) / median above which a row is flagged and timed again if time is left."""

IDENTITY_COLUMNS = ("table", "gpu", "dtype")
SIZE_COLUMNS = (
    "op", "batch", "m", "n", "k", "layout", "kv_dtype", "phase", "heads", "kv_heads", "head_dim", "window", "seq_q",
    "seq_kv", "causal", "rows", "cols", "bytes", "n_gpus", "gpus_per_node", "model", "seq", "layers", "hidden", "ffn",
    "gated", "vocab", "tp", "part", "pass", "kernel", "library",
)  # fmt: skip
TIME_COLUMNS = (
    "latency_us", "p10_us", "p90_us", "samples", "launches", "set_aside", "mode", "resident", "buffers", "timer",
    "tflops", "gbps", "busbw_gbps", "flag",
)  # fmt: skip
DEVICE_COLUMNS = (
    "clock_mhz", "memory_clock_mhz", "power_w", "power_limit_w", "temperature_c", "device", "backend", "driver",
    "framework", "framework_version", "library_version", "threads", "suite", "date", "source",
)  # fmt: skip
COLUMNS = (*IDENTITY_COLUMNS, *SIZE_COLUMNS, *TIME_COLUMNS, *DEVICE_COLUMNS)
"""Every column of a records file, in order."""


def row_of(case: BenchCase, timing: Timing, facts: DeviceFacts, *, sets: int, timer: str, suite: str, date: str) -> Row:
    """One row with values as written to the file; columns that do not apply are left out."""
    read = timing.reading
    return {
        **case.columns,
        "table": case.table,
        "gpu": facts.gpu,
        "latency_us": _digits(timing.median_s * 1e6),
        "p10_us": _digits(timing.p10_s * 1e6),
        "p90_us": _digits(timing.p90_s * 1e6),
        "samples": timing.samples,
        "launches": timing.launches,
        "set_aside": timing.set_aside,
        "buffers": sets,
        "timer": timer,
        **_rates(case, timing),
        "flag": _flag(case, timing),
        "clock_mhz": _known(read.clock_hz / 1e6),
        "memory_clock_mhz": _known(read.memory_clock_hz / 1e6),
        "power_w": _known(read.power_w),
        "power_limit_w": _known(read.power_limit_w),
        "temperature_c": _known(read.temperature_c),
        **device_columns(facts),
        # "torch" alone means launched one by one from the host, as in data/measured
        "framework": "torch_cpu" if facts.backend == "cpu" else {"graph": "torch_graph"}.get(timer, "torch"),
        "suite": suite,
        "date": date,
        "source": "sartor measure",
    }


Row = JsonDict


def device_columns(facts: DeviceFacts) -> JsonDict:
    """Columns with the same value in every row of one file."""
    return {
        "gpu": facts.gpu,
        "device": facts.device,
        "backend": facts.backend,
        "driver": facts.driver,
        "framework_version": facts.torch,
        "library_version": facts.library,
        "threads": facts.threads or "",
    }


def _rates(case: BenchCase, timing: Timing) -> JsonDict:
    seconds, work = timing.median_s, case.work
    if case.table in ("gemm", "grouped_gemm", "attention"):
        return {"tflops": _digits(float(work.flops) / seconds / 1e12, 4)}
    if case.table == "memory_bound":
        return {"gbps": _digits(case.columns["bytes"] / seconds / 1e9, 4)}
    if case.table == "collectives":
        n = int(work.group_size)  # type: ignore[union-attr]
        factor = {"all_reduce": 2 * (n - 1) / n, "send_recv": 1.0}.get(case.columns["op"], (n - 1) / n)
        return {"busbw_gbps": _digits(factor * case.columns["bytes"] / seconds / 1e9, 4), "gpus_per_node": n}
    return {"tp": 1}


def _flag(case: BenchCase, timing: Timing) -> int:
    noisy = not timing.quiet or timing.spread > NOISY_SPREAD
    bits = (
        (case.mode is ClockMode.SUSTAINED, SUSTAINED),
        (noisy, NOISY),
        (case.resident, RESIDENT),
        (bool(case.kernel), CHOSEN_KERNEL),
    )
    return sum(bit for is_set, bit in bits if is_set)


def _known(value: float) -> Any:
    return _digits(value) if value > 0 else ""


def _digits(value: float, digits: int = 5) -> float:
    return float(f"{value:.{digits}g}")
