"""fp16 GEMMs of linear layers on devices with an fp16 fit of eager sweeps and a bf16 fit of replayed tables.

Both types run at the same rates. The sweeps' series have many rows each (``fewest_m``), and the host's launch is in
all of them; the tables go from one row on, without it. So each fit prices what it has seen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration, Clock
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.cost import Cost
from sartor.operators import DType, Gemm, GroupedGemm, Layout
from sartor.units import Floats, plain

SHORT = 8
"""GEMMs shorter than so many launches have an interval of their own (lab/fit_gemm.py measures both)."""


def swept(gemm: Gemm | GroupedGemm, calibration: Calibration) -> bool:
    """Whether this is a linear layer's fp16 GEMM, with fp16 fitted on GEMMs that the host launched one by one and bf16
    (same rates) on graph replays."""
    return gemm.dtype is DType.FP16 and gemm.layout is Layout.TN and _by_host(calibration) == ["host", None]


def queued(c: GemmCoefficients, dtype: DType, calibration: Calibration, clock: Clock) -> GemmCoefficients:
    """``c`` without the host's launches in a long run, where kernels wait in a queue while others run: fp16 GEMMs that
    the host launched one by one then start as soon as bf16's, which were replayed."""
    replayed = calibration.gemm.get(DType.BF16)
    if clock is Clock.BOOST or dtype is not DType.FP16 or not replayed or _by_host(calibration) != ["host", None]:
        return c
    return replace(c, launch_s=min(c.launch_s, replayed.launch_s))


def _by_host(calibration: Calibration) -> list[str | None]:
    """How fp16's and bf16's GEMMs were launched when they were fitted."""
    return [calibration.provenance.get(f"gemm.{d.value}", {}).get("launched") for d in (DType.FP16, DType.BF16)]


def carried(formula: Cost, network: Cost, gemm: Gemm | GroupedGemm) -> Cost:
    """``formula`` with the share of the network's correction (in ln) that holds for another library than the tables'
    and off their grid of m."""
    if isinstance(gemm, GroupedGemm):
        return formula
    most, least = _CARRIED
    first, last = _CARRIED_ROWS
    fade = np.clip(np.log(np.asarray(gemm.m) / first) / np.log(last / first), 0.0, 1.0)
    factor = (network.time_s / formula.time_s) ** (most - (most - least) * fade)
    details = formula.details | ({"residual": plain(factor)} if formula.details else {})
    return replace(formula, time_s=plain(formula.time_s * factor), details=details)


_CARRIED, _CARRIED_ROWS = (0.6, 0.15), (256, 512)
"""Shares up to and from these rows. Slope on the network's correction, of the one release in A100's tables with other
kernels (SGLang 0.5.9): 0.6 to 0.9 up to 256 rows, 0.3 from 512; times that of rows of m left out on what lies between
their neighbours (SGLang 0.5.10): 0.9 and 0.4 (lab/notebook/gemm.md, 2026-11-27)."""


def between(eager: Cost, replayed: Cost, gemm: Gemm | GroupedGemm, calibration: Calibration) -> Cost:
    """``eager``, or ``replayed`` where the host's launch is much of a GEMM and ``replayed`` is shorter, and where the
    sweeps hold no such GEMM: up to half of their fewest rows. From there to their fewest rows, one turns into the
    other."""
    short_s = SHORT * calibration.gemm[DType.FP16].launch_s
    sooner = (eager.time_s < short_s) & (replayed.time_s < eager.time_s)
    share = np.where(sooner, 1.0, _unseen(gemm, calibration))
    if not np.any(share):
        return eager
    nearer = share > 0.5
    time_s = (1.0 - share) * eager.time_s + share * replayed.time_s
    moved = time_s / np.where(nearer, replayed.time_s, eager.time_s)

    def either(before: Any, after: Any) -> Any:
        return np.where(nearer, after, before)

    names = ("compute_s", "memory_s", "overhead_s")
    terms = {name: plain(either(getattr(eager, name), getattr(replayed, name)) * moved) for name in names}
    keys = dict.fromkeys((*eager.details, *replayed.details))
    absent = {key: 0.0 if key == "assumed" else 1.0 for key in keys}
    details = {
        key: plain(either(eager.details.get(key, no), replayed.details.get(key, no))) for key, no in absent.items()
    }
    sigma = (1.0 - share) * eager.log_sigma + share * replayed.log_sigma
    return replace(eager, time_s=plain(time_s), log_sigma=plain(sigma), details=details, **terms)


def _unseen(gemm: Gemm | GroupedGemm, calibration: Calibration) -> Floats:
    """0 for GEMMs with as many rows as the sweeps have, 1 for half as many or fewer. Batched GEMMs, which the tables do
    not hold, stay the sweeps'."""
    least = float(calibration.provenance["gemm.fp16"].get("fewest_m", 1))
    if isinstance(gemm, GroupedGemm):
        return 0.0
    few: Floats = np.where(np.asarray(gemm.batch) == 1, np.clip(2.0 - 2.0 * np.asarray(gemm.m) / least, 0.0, 1.0), 0.0)
    return few
