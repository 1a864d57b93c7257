"""A timing as a row: the columns of data/measured, plus device, software, clocks, power and date.

Rows of all tables share one file; the column ``table`` separates them (``sartor.records.tables``). Rows with a nonzero
``flag`` (a sum of bits) are not used in fits.
"""

from __future__ import annotations

from typing import Any

from sartor.bench.cases import BenchCase, ClockMode
from sartor.bench.device import DeviceFacts
from sartor.bench.timing import Timing
from sartor.json_types import JsonDict

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
