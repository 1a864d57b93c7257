"""Tables made in a test: the measured time is our own prediction times a known factor, so every figure is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.gpu.gemm import gemm_cost
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, Gemm

SHAPES = [(m, n, k) for m in (64, 512, 4096) for n in (1024, 4096) for k in (1024, 8192)]


def predicted_us(m: Any, n: Any, k: Any, gpu: str = "a100_sxm") -> Any:
    """What sartor predicts for a product at boost clock."""
    device = load_gpu(gpu)
    op = Gemm(name="made", m=m, n=n, k=k, dtype=DType.BF16)
    return gemm_cost(op, device, load_calibration(device), clock=Clock.BOOST).time_s * 1e6


def gemm_rows(
    factors: Sequence[float] | float = 1.0, gpu: str = "a100_sxm", shapes: Sequence[tuple[int, int, int]] = SHAPES
) -> list[dict[str, Any]]:
    """One row per shape, ``factor`` times as long as predicted."""
    each = np.broadcast_to(np.asarray(factors, dtype=float), (len(shapes),))
    return [
        {"gpu": gpu, "dtype": "bfloat16", "m": m, "n": n, "k": k, "latency_us": predicted_us(m, n, k, gpu) * f}
        for (m, n, k), f in zip(shapes, each.tolist(), strict=True)
    ]


def write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    names = list(rows[0])
    lines = [",".join(names), *(",".join(str(row.get(name, "")) for name in names) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


Write = Callable[[Path, Sequence[dict[str, Any]]], Path]
