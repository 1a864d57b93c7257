"""Speed of pricing GEMMs: the formula alone, with the learned residual, and with every term.

Forward GEMMs of linear layers with random sizes, in one call. CPU seconds of one process; set OMP_NUM_THREADS=1 to
keep it to one core.

Run from the repository: `python benchmarks/bench_gemm.py`. Exits with 1 below 100,000 products a second.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.correction.network import without_residuals
from sartor.cost.gpu.gemm import gemm_costs
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, Gemm

LEAST_PER_S = 100_000
COUNT = 200_000
CASES = (("h200_sxm", "bf16"), ("h200_sxm", "fp8"), ("b200_sxm", "nvfp4"), ("l40s", "bf16"))
"""Two devices with their own residual, one with the most tiles to choose from, one that borrows the joint fit."""


def main() -> None:
    slowest = np.inf
    print(f"{'':16}{'formula/s':>12}{'predicted/s':>14}{'with terms/s':>14}")
    for name, word in CASES:
        gpu, dtype = load_gpu(name), DType(word)
        known = load_calibration(gpu)
        op = products(dtype)
        rates = [
            COUNT / seconds_of(op, gpu, calibration, details)
            for calibration, details in ((without_residuals(known), False), (known, False), (known, True))
        ]
        print(
            f"{name + ' ' + word:16.16}"
            + "".join(f"{rate:>{w},.0f}" for rate, w in zip(rates, (12, 14, 14), strict=True))
        )
        slowest = min(slowest, rates[1])
    if slowest < LEAST_PER_S:
        sys.exit(f"{slowest:,.0f} products a second, less than {LEAST_PER_S:,}")


def products(dtype: DType) -> Gemm:
    """Rows from 8 to 16384, log-uniform; columns and depth in multiples of 256 up to 16384."""
    draw = np.random.default_rng(0)
    m = (2 ** draw.uniform(3, 14, COUNT)).astype(np.int64)
    n, k = 256 * draw.integers(1, 65, (2, COUNT))
    return Gemm(name="product", m=m, n=n, k=k, dtype=dtype)


def seconds_of(op: Gemm, gpu: object, calibration: object, details: bool) -> float:
    """Least CPU seconds of three calls."""
    least = np.inf
    for _ in range(3):
        start = time.process_time()
        gemm_costs([op], gpu, calibration, clock=Clock.BOOST, details=details)  # type: ignore[arg-type]
        least = min(least, time.process_time() - start)
    return float(least)


if __name__ == "__main__":
    main()
