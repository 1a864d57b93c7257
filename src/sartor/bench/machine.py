"""A measured machine as a datasheet for ``--gpu FILE``: peak rates, bandwidth and cache.

A device of the catalogue needs none. For others, the dense peak of a type is the best rate of any GEMM, the bandwidth
the best rate of any stream on rotated buffers, and the cache size is where the rate on resident buffers drops.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sartor.bench.device import DeviceFacts
from sartor.errors import InputError
from sartor.hardware.catalog import gpu_from, gpu_names
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.operators import DType, Gemm
from sartor.records.rows import Unexpressed, dtype_of
from sartor.units import GIB, GIGA, MEGA, MIB, TERA

if TYPE_CHECKING:
    from sartor.bench.scale import Scale

Row = JsonMap

ASSUMED_CLOCK_HZ = 3.0e9
ASSUMED_POWER_W = 100.0
"""Used if the machine reports none. No prediction for a host depends on it, and the file says so."""

_VENDORS = {"cuda": "NVIDIA", "rocm": "AMD", "cpu": "host"}


def is_catalogued(facts: DeviceFacts) -> bool:
    """Whether the catalogue has this device."""
    return facts.gpu in gpu_names()


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
    peaks, bandwidth = best_rates(rows), best_bandwidth(rows)
    if not peaks or not bandwidth:
        raise InputError("records", "as measured", "must include at least one GEMM and one large streaming kernel")
    cache = facts.l2_bytes if facts.backend != "cpu" else cache_bytes(rows) or MIB
    clocks = [float(row["clock_mhz"]) * MEGA for row in rows if row.get("clock_mhz") not in ("", None)]
    power = [float(row["power_w"]) for row in rows if row.get("power_w") not in ("", None)]
    measured = {"clock_hz": max(clocks, default=0.0), "power_w": max(power, default=0.0)}
    table = _table(facts, {kind.value: rate / TERA for kind, rate in peaks.items()}, bandwidth, cache, measured)
    gpu_from(table, facts.gpu)
    return _text(table, facts, measured, date)


def best_rates(rows: Sequence[Row]) -> dict[DType, float]:
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


def best_bandwidth(rows: Sequence[Row]) -> float:
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


def cache_bytes(rows: Sequence[Row]) -> float:
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
