"""GEMMs with fewer rows than their fit's: eager sweeps hold many rows, tables of replays go from one row on.

A sweep's series have many rows each (``fewest_m``), and the host's launch is in all of them. So a fit prices what it
has seen, and the next rule of ``borrowing`` that knows few rows prices the rest: A100's bf16 tables, run at the same
rate without the host; on V100 and MI250X what is borrowed or assumed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sartor.cost.correction.borrowing_gemm import fewest_m
from sartor.cost.correction.calibration import Calibration, Clock
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.correction.network import without_residuals
from sartor.cost.cost import Z80, Cost
from sartor.operators import DType, Gemm, GroupedGemm, Layout
from sartor.units import Array, Floats, plain

SHORT = 8
"""GEMMs shorter than so many launches have an interval of their own (lab/fit_gemm.py measures both)."""


ONE_TILE = 16
"""Rows of the smallest tile of matrix units (MMA m16n8, MFMA 16x16): kernels for fewer read their weights once."""


SQUARES = 1024
"""Rows of squares that the sweeps' fit still meets (8% off on V100); smaller ones are mostly the host's launch."""


def has_few(gemm: Gemm | GroupedGemm, calibration: Calibration) -> bool:
    """Whether GEMMs of this type have other coefficients where they have few rows."""
    wide = fewest_m(calibration.provenance.get(f"gemm.{gemm.dtype.value}", {})) > 1
    return wide and gemm.dtype in calibration.few_rows and (isinstance(gemm, Gemm) or _linear(gemm, calibration))


def with_few(calibration: Calibration) -> Calibration:
    """The formula for few rows. Coefficients that are not the device's own start as soon as its streaming kernels (a
    launch of other software holds its host, or the client that tuned its kernels), and up to one tile of rows is read
    as those read, as the sweeps' fit has it of one row."""
    few = {
        dtype: _here(dtype, c, calibration) for dtype, c in calibration.few_rows.items() if dtype in calibration.gemm
    }
    return replace(without_residuals(calibration), gemm={**calibration.gemm, **few}, few_rows={})


def _here(dtype: DType, few: GemmCoefficients, calibration: Calibration) -> GemmCoefficients:
    if replayed(dtype, calibration):
        return few
    launch_s = min(few.launch_s, calibration.memory_bound.launch_s)
    return replace(few, launch_s=launch_s, stream_rows=ONE_TILE)


def replayed(dtype: DType, calibration: Calibration) -> bool:
    """Whether this is fp16, fitted on GEMMs that the host launched one by one, beside bf16 (same rates) on graph
    replays."""
    return dtype is DType.FP16 and _by_host(calibration) == ["host", None]


def _linear(gemm: Gemm | GroupedGemm, calibration: Calibration) -> bool:
    """Whether this is such a type's GEMM of a linear layer, as replays hold them."""
    return gemm.layout is Layout.TN and replayed(gemm.dtype, calibration)


def queued(
    c: GemmCoefficients, dtype: DType, calibration: Calibration, clock: Clock, *, replay: bool = False
) -> GemmCoefficients:
    """``c`` without the host's launches in a long run, and in an engine, where kernels wait in a queue while others
    run: fp16 GEMMs that the host launched one by one then start as soon as bf16's, which were replayed. In a
    ``replay`` fp32's do so too, and the kernel that sums a split's parts."""
    if replay and dtype in _GENERAL and _launched(dtype, calibration) == "host":
        near = calibration.few_rows.get(DType.BF16) or calibration.gemm[DType.BF16]
        return replace(c, launch_s=min(c.launch_s, near.launch_s), split_s=min(c.split_s, near.split_s))
    alike = calibration.gemm.get(DType.BF16)
    short = clock is Clock.BOOST and calibration.clock is None
    if short or not alike or not replayed(dtype, calibration):
        return c
    return replace(c, launch_s=min(c.launch_s, alike.launch_s))


def rows_replayed(m: Array, dtype: DType, calibration: Calibration) -> Array:
    """Rows of GEMMs in a replay, by which a fit knows them without the host's launches.

    ``host_rows`` of a fit: by framework, the rows up to which its table holds launches by the host. Such a GEMM reads
    the same weights as one with one row more, in the same tile (vLLM's fp8 on Blackwell takes 15 to 28 us with one row,
    5 to 6 with two; SGLang's, replayed, 5 to 6 with either). An unnamed framework's is the median that holds it.
    """
    host_rows: dict[str, int] = calibration.provenance.get(f"gemm.{dtype.value}", {}).get("host_rows", {})
    framework = calibration.kernels.partition("_")[0]
    replayed = host_rows.get(framework, 0) if framework in _REPLAYED else max(host_rows.values(), default=0)
    return np.maximum(m, replayed + 1) if replayed else m


_REPLAYED = ("sglang", "trtllm", "vllm")
"""Frameworks whose GEMMs the tables tell apart."""


def _by_host(calibration: Calibration) -> list[str | None]:
    """How fp16's and bf16's GEMMs were launched when they were fitted."""
    return [_launched(d, calibration) for d in (DType.FP16, DType.BF16)]


def _launched(dtype: DType, calibration: Calibration) -> str | None:
    """``host`` for a type whose fit is of GEMMs that the host launched one by one."""
    launched: str | None = calibration.provenance.get(f"gemm.{dtype.value}", {}).get("launched")
    return launched


_GENERAL = (DType.FP32, DType.TF32)
"""Types of general cores, which no table replays (tf32: on devices without units for it)."""


def carried(formula: Cost, network: Cost, gemm: Gemm | GroupedGemm) -> Cost:
    """``formula`` with the share of the network's correction (in ln) that holds for another library than the tables'
    and off their grid of m."""
    if isinstance(gemm, GroupedGemm):
        return formula
    upper, lower = _CARRIED
    first, last = _CARRIED_ROWS
    fade = np.clip(np.log(np.asarray(gemm.m) / first) / np.log(last / first), 0.0, 1.0)
    factor = (network.time_s / formula.time_s) ** (upper - (upper - lower) * fade)
    details = formula.details | ({"residual": plain(factor)} if formula.details else {})
    return replace(formula, time_s=plain(formula.time_s * factor), details=details)


_CARRIED, _CARRIED_ROWS = (0.6, 0.15), (256, 512)
"""Shares up to and from these rows. Slope on the network's correction, of the one release in A100's tables with other
kernels (SGLang 0.5.9): 0.6 to 0.9 up to 256 rows, 0.3 from 512; times that of rows of m left out on what lies between
their neighbours (SGLang 0.5.10): 0.9 and 0.4 (lab/notebook/gemm.md, 2026-11-27)."""


def between(eager: Cost, few: Cost, gemm: Gemm | GroupedGemm, calibration: Calibration) -> Cost:
    """``eager``, or ``few`` where the sweeps hold no such GEMM: up to half of their fewest rows. From there to their
    fewest rows, one turns into the other. Also where the host's launch is much of a GEMM that was replayed too, and
    that is shorter."""
    share, doubt = _unseen(gemm, calibration), _doubt(eager, few, gemm, calibration)
    few_s = few.time_s
    if _linear(gemm, calibration):
        short_s = SHORT * calibration.gemm[DType.FP16].launch_s
        share = np.where((eager.time_s < short_s) & (few.time_s < eager.time_s), 1.0, share)
    else:  # never above the sweeps' price, or more rows would be faster on the way to it
        few_s = np.minimum(few.time_s, eager.time_s)
    if not np.any(share):
        return replace(eager, log_sigma=plain(np.hypot(eager.log_sigma, doubt))) if np.any(doubt) else eager
    nearer = share > 0.5
    time_s = (1.0 - share) * eager.time_s + share * few_s
    moved = time_s / np.where(nearer, few.time_s, eager.time_s)

    def either(before: Any, after: Any) -> Any:
        return np.where(nearer, after, before)

    names = ("compute_s", "memory_s", "overhead_s")
    terms = {name: plain(either(getattr(eager, name), getattr(few, name)) * moved) for name in names}
    keys = dict.fromkeys((*eager.details, *few.details))
    absent = {key: 0.0 if key == "assumed" else 1.0 for key in keys}
    details = {key: plain(either(eager.details.get(key, no), few.details.get(key, no))) for key, no in absent.items()}
    if details and not replayed(gemm.dtype, calibration):
        details["assumed"] = plain(np.maximum(details.get("assumed", 0.0), np.where(nearer, 1.0, 0.0)))
    sigma = (1.0 - share) * eager.log_sigma + share * few.log_sigma
    return replace(eager, time_s=plain(time_s), log_sigma=plain(np.hypot(sigma, doubt)), details=details, **terms)


def mostly_few(gemm: Gemm, calibration: Calibration) -> bool:
    """Whether a GEMM of scalar sizes is nearer to those of few rows."""
    return bool(np.all(np.asarray(_unseen(gemm, calibration)) > 0.5))


def _doubt(eager: Cost, few: Cost, gemm: Gemm | GroupedGemm, calibration: Calibration) -> Floats:
    """What an interval adds to hold both prices where ``few`` is not the device's own: below the sweeps' rows, and, if
    it was measured on the same die with kernels of later years, for any number of rows."""
    if replayed(gemm.dtype, calibration):
        return 0.0
    apart: Floats = np.abs(np.log(few.time_s / eager.time_s)) / Z80
    return apart if holds_newer(gemm.dtype, calibration) else apart * _unseen(gemm, calibration)


def holds_newer(dtype: DType, calibration: Calibration) -> bool:
    """Whether a type was timed with eager sweeps, and on another device of the die with kernels of later years."""
    lender = calibration.owner(f"few_rows.{dtype.value}")
    return dtype in calibration.few_rows and calibration.same_die and lender == f"borrowed from {calibration.relative}"


def _unseen(gemm: Gemm | GroupedGemm, calibration: Calibration) -> Floats:
    """0 for GEMMs with as many rows as the sweeps have, 1 for half as many or fewer. Batched GEMMs, which the tables do
    not hold, stay the sweeps'. Where no replay of the device tells better, their squares count too."""
    if isinstance(gemm, GroupedGemm):
        return 0.0
    fewest = fewest_m(calibration.provenance[f"gemm.{gemm.dtype.value}"])
    fewest = fewest if _linear(gemm, calibration) else min(fewest, SQUARES)
    few: Floats = np.where(np.asarray(gemm.batch) == 1, np.clip(2.0 - 2.0 * np.asarray(gemm.m) / fewest, 0.0, 1.0), 0.0)
    return few
