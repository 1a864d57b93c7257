"""What 16-bit GEMMs of lengths that no table holds need on Hopper: each figure fitted on one GPU, judged on the other.

``python lab/fit_off_grid.py`` prints ``coarse_share`` and ``_ROUNDED_LOG_SIGMA`` (``sartor.cost.correction.gemm``) by
the records of an H100 and an H200 (lab/records), and what either makes of the other's rows. Rows whose operands are
aligned to less than 16 bytes are left out: they have a penalty of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from sartor.bench.records_file import read_rows
from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.correction.gemm import _ROUNDED_LOG_SIGMA
from sartor.cost.correction.gemm_features import table_length
from sartor.cost.cost import Z80
from sartor.cost.gpu.gemm import _coarse, alignment_penalty, gemm_costs
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, Gemm, Layout

RECORDS = Path(__file__).resolve().parent / "records"
GPUS = ("h200_sxm", "h100_sxm")
SUITES = ("random", "quick", "full")
BAD = 32 | 64 | 128
"""Flags of rows that were sustained, throttled or noisy."""


def rows_of(gpu: str, suites: Sequence[str] = SUITES) -> list[tuple[Gemm, float]]:
    """Single GEMMs in 16 bits, aligned to 16 bytes or more, and their seconds."""
    kinds = {"bfloat16": DType.BF16, "float16": DType.FP16}
    c, found = load_calibration(load_gpu(gpu)).gemm[DType.BF16], []
    for row in [row for name in suites for row in read_rows(RECORDS / gpu / f"{name}.csv")]:
        if row["table"] != "gemm" or row["dtype"] not in kinds or row["batch"] != "1" or int(row["flag"] or 0) & BAD:
            continue
        m, n, k = (int(row[name]) for name in "mnk")
        gemm = Gemm(name="measured", m=m, n=n, k=k, dtype=kinds[row["dtype"]], layout=Layout(row["layout"]))
        if alignment_penalty(gemm, c) < 1 + min(c.input_penalty[:4]):
            found.append((gemm, float(row["latency_us"]) * 1e-6))
    return found


def priced(gpu: str, rows: Sequence[tuple[Gemm, float]], share: float | None = None) -> tuple[Any, Any]:
    """Seconds and log_sigma of every row; with a ``coarse_share`` other than the one that ships."""
    device = load_gpu(gpu)
    known = load_calibration(device)
    if share is not None:
        known = replace(known, gemm={dtype: replace(c, coarse_share=share) for dtype, c in known.gemm.items()})
    costs = gemm_costs([gemm for gemm, _ in rows], device, known, clock=Clock.BOOST, details=False)
    return np.array([cost.time_s for cost in costs]), np.array([cost.log_sigma for cost in costs])


def share_of(gpu: str) -> float:
    """The share that is least off, as the mean of |ln|."""
    rows = coarse_of(gpu)
    measured = np.array([seconds for _, seconds in rows])
    least, coarse = priced(gpu, rows, 0.0)[0], priced(gpu, rows, 1.0)[0]
    shares = np.arange(0.0, 1.0, 0.01)
    return float(min(shares, key=lambda x: float(np.abs(np.log(measured / (least + x * (coarse - least)))).mean())))


def coarse_of(gpu: str) -> list[tuple[Gemm, float]]:
    return [(gemm, seconds) for gemm, seconds in rows_of(gpu) if _coarse(gemm)]


def error_of(gpu: str, rows: Sequence[tuple[Gemm, float]], share: float | None = None) -> float:
    """Mean of |predicted / measured - 1|."""
    return float(np.abs(priced(gpu, rows, share)[0] / np.array([seconds for _, seconds in rows]) - 1).mean())


def inside(gpu: str, rows: Sequence[tuple[Gemm, float]], rounded: Any = _ROUNDED_LOG_SIGMA) -> Any:
    """Share of rows inside the 80% interval, if those of rounded lengths had these deviations besides their own."""
    time_s, sigma = priced(gpu, rows)
    off = np.array([is_rounded(gemm) for gemm, _ in rows])
    sigma = np.sqrt(sigma**2 + off * (np.asarray(rounded)[..., None] ** 2 - _ROUNDED_LOG_SIGMA**2))
    away = np.abs(np.log(np.array([seconds for _, seconds in rows]) / time_s))
    return (away <= Z80 * sigma).mean(axis=-1)


def rounded_of(gpu: str) -> list[tuple[Gemm, float]]:
    return [row for row in rows_of(gpu) if is_rounded(row[0])]


def is_rounded(gemm: Gemm) -> bool:
    lengths = np.array([gemm.n, gemm.k])
    return bool(np.any(table_length(lengths) != lengths))


def sigma_of(gpu: str) -> float:
    """The least deviation with which 80% of rows of rounded lengths are inside."""
    tried = np.arange(0.0, 0.3, 0.001)
    return float(tried[np.argmax(inside(gpu, rounded_of(gpu), tried) >= 0.8)])


def picked(gpu: str, rows: Sequence[tuple[Gemm, float]]) -> tuple[int, int]:
    """Of pairs within 2% of equal work and more than 5% apart in time: of how many the faster is picked, and all."""
    found = [
        (a[1] < b[1]) == (x < y)
        for (a, x), (b, y) in combinations(list(zip(rows, priced(gpu, rows)[0], strict=True)), 2)
        if abs(float(a[0].flops) / float(b[0].flops) - 1) < 0.02 and max(a[1], b[1]) > 1.05 * min(a[1], b[1])
    ]
    return sum(found), len(found)


def main() -> None:
    for gpu, other in (GPUS, GPUS[::-1]):
        rows, share, sigma = coarse_of(other), share_of(gpu), sigma_of(gpu)
        before, after = error_of(other, rows, 0.0), error_of(other, rows, share)
        print(f"{gpu}: coarse share {share:.2f}; {other}, {len(rows)} rows: {before:.1%} off without, {after:.1%} with")
        held = inside(other, rounded_of(other), sigma)
        print(f"{gpu}: deviation of rounded lengths {sigma:.3f}; {other}: {held:.0%} inside 80%")
    for gpu in GPUS:
        rows = rows_of(gpu, ("random",))
        right, pairs = picked(gpu, rows)
        without, shipped = error_of(gpu, rows, 0.0), error_of(gpu, rows)
        print(f"{gpu}, {len(rows)} at random: {without:.1%} off without, {shipped:.1%} with the share that ships,")
        print(f"  {inside(gpu, rows):.0%} inside 80%; the faster of {pairs} pairs picked in {right / pairs:.0%}")


if __name__ == "__main__":
    main()
