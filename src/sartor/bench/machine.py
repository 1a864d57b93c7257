"""How large the cases of a machine may be, and its datasheet from measured rates.

Rough speed of a device, by which suites size their cases, so that a laptop and an H200 take similar time.

A measured machine as a datasheet for ``--gpu FILE``: peak rates, bandwidth and cache.

A device of the catalogue needs none. For others, the dense peak of a type is the best rate of any GEMM, the bandwidth
the best rate of any stream on rotated buffers, and the cache size is where the rate on resident buffers drops.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sartor.bench.cases import BenchCase, ClockMode, Work
from sartor.bench.timing import Device, DeviceFacts, OutOfMemoryOnDevice, Policy, UnsupportedCase, time_case
from sartor.errors import InputError
from sartor.hardware.catalog import GPUS, gpu_from
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.operators import DType, Gemm, MemoryBound, MemoryBoundKind
from sartor.records.rows import Unexpressed, dtype_of
from sartor.units import GIB, GIGA, MEGA, MIB, TERA


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Rates from a one-second trial, rounded to powers of two so that a resumed run gets the same cases."""

    facts: DeviceFacts
    flops_per_s: Mapping[DType, float]
    """Only types with native GEMMs; on a host, types that are not faster than fp32 are left out."""
    bytes_per_s: float

    @property
    def dtype(self) -> DType:
        """The type that most models use on this device: bf16, else fp16, else fp32."""
        return next(d for d in (DType.BF16, DType.FP16, DType.FP32, *self.flops_per_s) if d in self.flops_per_s)

    @property
    def small(self) -> bool:
        """Whether the device is as slow as a host CPU; suites then use small sizes."""
        return self.flops_per_s[self.dtype] < 2e13

    def seconds(self, work: Work) -> float:
        """Rough seconds of one launch: compute at half of the rate, plus memory traffic."""
        dtype = getattr(work, "dtype", self.dtype)
        rate = self.flops_per_s.get(dtype, min(self.flops_per_s.values()))
        return float(work.flops) / (0.5 * rate) + float(getattr(work, "bytes_moved", 0.0)) / self.bytes_per_s

    def fits(self, work: Work, most_s: float) -> bool:
        """Whether a launch takes at most ``most_s`` and its operands at most a quarter of memory."""
        work_bytes = float(getattr(work, "bytes_moved", 0.0))
        return self.seconds(work) <= most_s and work_bytes <= 0.25 * self.facts.memory_bytes


TRIED = (DType.FP32, DType.BF16, DType.FP16, DType.TF32, DType.FP8)
TRIED_ON_HOSTS = (DType.FP32, DType.BF16, DType.FP16)
"""An fp8 GEMM on a host without fp8 units takes seconds."""

WORTH = 1.1
"""On a host, a narrow type counts as native if it is faster than fp32 by this factor."""


def look(device: Device) -> Scale:
    """Time one GEMM of each type and one add. Raises ``UnsupportedCase`` if not even fp32 runs."""
    quick = Policy(warmup_s=0.02, sample_s=0.005, samples=5, most_s=1.0)
    side = 768 if device.facts.backend == "cpu" else 4096
    rates = {}
    for dtype in TRIED_ON_HOSTS if device.facts.backend == "cpu" else TRIED:
        work = Gemm(name="look", m=side, n=side, k=side, dtype=dtype)
        if (seconds := _time(device, BenchCase(work=work), quick)) is not None:
            rates[dtype] = float(work.flops) / seconds
    if DType.FP32 not in rates:
        raise UnsupportedCase("no fp32 GEMM runs on this device")
    if device.facts.backend == "cpu":
        rates = {d: rate for d, rate in rates.items() if d is DType.FP32 or rate > WORTH * rates[DType.FP32]}
    rows = 4096 if device.facts.backend == "cpu" else 65536
    add = streamed("add", rows, 4096, 3.0, DType.FP32)
    seconds = _time(device, BenchCase(work=add), quick)
    bandwidth = add.bytes_moved / seconds if seconds else 1e10
    return Scale(
        facts=device.facts,
        flops_per_s={dtype: _power_of_two(rate) for dtype, rate in rates.items()},
        bytes_per_s=_power_of_two(float(bandwidth)),
    )


def streamed(op: str, rows: int, cols: int, elements: float, dtype: DType) -> MemoryBound:
    """A streaming kernel that moves ``elements`` per element of rows x cols; ``op`` is its name in the tables."""
    kinds = {"add": "residual", "rmsnorm": "norm", "layernorm": "norm", "gelu": "activation", "rope": "rotary"}
    kind = MemoryBoundKind(kinds.get(op, "activation" if op == "silu_and_mul" else op))
    moved = elements * rows * cols * dtype.bytes
    return MemoryBound(name=op, kind=kind, kernel=op, rows=rows, cols=cols, bytes_moved=moved, dtype=dtype)


def _time(device: Device, case: BenchCase, policy: Policy) -> float | None:
    try:
        return time_case(device, device.load(case), ClockMode.BURST, policy).p10_s
    except (UnsupportedCase, OutOfMemoryOnDevice):
        return None
    finally:
        device.free()


def _power_of_two(value: float) -> float:
    return float(2.0 ** round(math.log2(value)))


Row = JsonMap

ASSUMED_CLOCK_HZ = 3.0e9
ASSUMED_POWER_W = 100.0
"""Used if the machine reports none. No prediction for a host depends on it, and the file says so."""

_VENDORS = {"cuda": "NVIDIA", "rocm": "AMD", "cpu": "host"}


def is_catalogued(facts: DeviceFacts) -> bool:
    """Whether the catalogue has this device."""
    return facts.gpu in GPUS.names()


def stand_in(scale: Scale) -> Gpu:
    """A placeholder device of roughly this speed, for choosing GEMMs."""
    return Gpu(
        name=scale.facts.gpu,
        vendor="other",
        generation="cpu" if scale.facts.backend == "cpu" else "unknown",
        num_sms=scale.facts.num_sms,
        peak_flops_per_s=scale.flops_per_s,
        hbm_bytes=scale.facts.memory_bytes,
        hbm_bytes_per_s=scale.bytes_per_s,
        l2_bytes=min(scale.facts.l2_bytes, 0.5 * scale.facts.memory_bytes),
        boost_clock_hz=ASSUMED_CLOCK_HZ,
        tdp_w=ASSUMED_POWER_W,
    )


def machine_toml(rows: Sequence[Row], facts: DeviceFacts, date: str) -> str:
    """The datasheet as TOML text. Raises ``InputError`` if the rows have no GEMM or no stream."""
    peaks, bandwidth = _best_rates(rows), _best_bandwidth(rows)
    if not peaks or not bandwidth:
        raise InputError("records", "as measured", "must include at least one GEMM and one large streaming kernel")
    cache = facts.l2_bytes if facts.backend != "cpu" else _cache_bytes(rows) or MIB
    clocks = [float(row["clock_mhz"]) * MEGA for row in rows if row.get("clock_mhz") not in ("", None)]
    power = [float(row["power_w"]) for row in rows if row.get("power_w") not in ("", None)]
    measured = {"clock_hz": max(clocks, default=0.0), "power_w": max(power, default=0.0)}
    table = _table(facts, {kind.value: rate / TERA for kind, rate in peaks.items()}, bandwidth, cache, measured)
    gpu_from(table, facts.gpu)
    return _text(table, facts, measured, date)


def _best_rates(rows: Sequence[Row]) -> dict[DType, float]:
    """FLOP/s of the fastest GEMM of each type. Types narrower than fp32 but slower are left out: the device has no
    units for them and converts (fp16 on some hosts)."""
    best: dict[DType, float] = {}
    for row in rows:
        if row.get("table") != "gemm" or not float(row.get("latency_us") or 0):
            continue
        try:
            kind = dtype_of(str(row["dtype"]))
        except Unexpressed:
            continue
        work = 2.0 * _size(row, "batch") * _size(row, "m") * _size(row, "n") * _size(row, "k")
        best[kind] = max(best.get(kind, 0.0), work / (float(row["latency_us"]) * 1e-6))
    fp32 = best.get(DType.FP32, 0.0)
    return {kind: rate for kind, rate in best.items() if kind.bytes >= DType.FP32.bytes or rate >= fp32}


def _best_bandwidth(rows: Sequence[Row]) -> float:
    """Bytes/s of the fastest stream on rotated buffers: a streaming kernel, or a GEMM with few rows."""
    rates = [0.0]
    for row in rows:
        seconds = float(row.get("latency_us") or 0) * 1e-6
        if not seconds or int(float(row.get("resident") or 0)):
            continue
        if row.get("table") == "memory_bound" and float(row["bytes"]) >= 16 * MIB:
            rates.append(float(row["bytes"]) / seconds)
        elif row.get("table") == "gemm" and _size(row, "m") <= 16 and (moved := _gemm_bytes(row)) >= 16 * MIB:
            rates.append(moved / seconds)
    return max(rates)


def _cache_bytes(rows: Sequence[Row]) -> float:
    """Bytes of the largest resident working set that runs closer to the best rate than to memory's; 0 if the best rate
    is less than 1.5 times memory's."""
    cache_sizes = {
        float(row["bytes"]): float(row["bytes"]) / float(row["latency_us"])
        for row in rows
        if row.get("table") == "memory_bound" and int(float(row.get("resident") or 0)) and float(row["latency_us"])
    }
    if len(cache_sizes) < 4:
        return 0.0
    sizes = np.asarray(sorted(cache_sizes))
    rates = np.asarray([cache_sizes[size] for size in sizes])
    top, memory = float(np.sort(rates)[-3:].mean()), float(rates[-1])
    if top < 1.5 * memory:
        return 0.0
    return float(sizes[rates >= np.sqrt(top * memory)].max())


def _gemm_bytes(row: Row) -> float:
    batch, m, n, k = (int(_size(row, name)) for name in ("batch", "m", "n", "k"))
    return float(Gemm(name="row", batch=batch, m=m, n=n, k=k, dtype=dtype_of(str(row["dtype"]))).bytes_moved)


def _size(row: Row, name: str) -> float:
    return float(row.get(name) or 1)


# ------------------------------------------------------------------------------------------- the file


def _table(
    facts: DeviceFacts, peaks: Mapping[str, float], bandwidth: float, cache: float, measured: Mapping[str, float]
) -> JsonDict:
    """A datasheet's keys in its units."""
    order = [dtype.value for dtype in DType if dtype.value in peaks]
    return {
        "name": facts.gpu,
        "title": facts.device,
        "vendor": _VENDORS.get(facts.backend, "other"),
        "generation": "cpu" if facts.backend == "cpu" else "unknown",
        "num_sms": facts.num_sms,
        "hbm_gib": round(facts.memory_bytes / GIB, 3),
        "hbm_gb_per_s": _digits(bandwidth / GIGA),
        "l2_mib": _digits(min(cache, 0.5 * facts.memory_bytes) / MIB),
        "boost_clock_mhz": _digits((measured.get("clock_hz") or ASSUMED_CLOCK_HZ) / MEGA),
        "tdp_w": _digits(measured.get("power_w") or ASSUMED_POWER_W),
        "devices_per_node": facts.num_devices,
        "peak_dense_tflops": {name: _digits(peaks[name]) for name in order},
    }


def _text(table: JsonMap, facts: DeviceFacts, measured: Mapping[str, float], date: str) -> str:
    how = f"sartor measure on this machine, torch {facts.torch}, driver {facts.driver}, {date}"
    assumed = [name for name, key in (("boost_clock_mhz", "clock_hz"), ("tdp_w", "power_w")) if not measured[key]]
    lines = [
        "# Written by sartor measure: the rates this machine reached. Use it as --gpu FILE.",
        *(f"{key} = {json.dumps(value)}" for key, value in table.items() if not isinstance(value, dict)),
        'confidence = "medium"',
        f"note = {json.dumps(_note(assumed))}",
        "",
        "[peak_dense_tflops] # best rate any product reached",
        *(f"{key} = {value}" for key, value in table["peak_dense_tflops"].items()),
        "",
        "[sources]",
        f"all = {json.dumps(how)}",
        *(f'{name} = "assumed: the machine does not state it"' for name in assumed),
    ]
    return "\n".join(lines) + "\n"


def _note(assumed: Sequence[str]) -> str:
    note = "Peaks and bandwidth are the best rates seen, not a datasheet's."
    return note + (f" Assumed, not read: {', '.join(assumed)}." if assumed else "")


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
