"""The shared measurements as arrays: per shape the median over frameworks and versions of rows with flag 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

LABELS = {"bf16": "bfloat16", "int8": "sq"}


def gemm_targets(shared: Path, gpu: str, dtype: str) -> dict[str, Any]:
    """m, n, k, seconds and whether the weight (n, k) belongs to the held-out fifth (the hash of lab/fit_gemm.py)."""
    name = "gemm_fp16_bf16.parquet" if dtype == "bf16" else "gemm_lowbit.parquet"
    wanted = (pc.field("gpu") == gpu) & (pc.field("dtype") == LABELS.get(dtype, dtype)) & (pc.field("flag") == 0)
    table = pq.read_table(shared / "data" / "measured" / name, columns=["m", "n", "k", "latency_us"], filters=wanted)
    sizes = np.stack([table[key].to_numpy() for key in ("m", "n", "k")]).astype(np.int64)
    if dtype == "fp8_block":
        inside = (sizes[1] >= 128) & (sizes[2] >= 128)  # blocks of 128; below, one framework's fallback was timed
        sizes, latency = sizes[:, inside], table["latency_us"].to_numpy()[inside]
    else:
        latency = table["latency_us"].to_numpy()
    keys, seconds = medians(sizes, latency * 1e-6)
    m, n, k = keys
    return {"m": m, "n": n, "k": k, "seconds": seconds, "held": (n * 2654435761 + k * 40503 * 977) % 1000003 % 5 == 0}


def medians(keys: Any, values: Any) -> tuple[Any, Any]:
    """Distinct columns of ``keys`` and the median value of each."""
    order = np.lexsort((values, *keys[::-1]))
    keys, values = keys[:, order], values[order]
    starts = np.flatnonzero(np.r_[True, np.any(keys[:, 1:] != keys[:, :-1], axis=0)])
    counts = np.diff(np.r_[starts, len(values)])
    middle = (values[starts + (counts - 1) // 2] + values[starts + counts // 2]) / 2
    return keys[:, starts], middle


def sweep(shared: Path, device: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Rows of plain sweeps of codesign_measured.csv: m, n, k and the measured FLOP per second, sorted by n."""
    table = np.genfromtxt(
        shared / "reference" / "codesign_measured.csv", delimiter=",", names=True, dtype=None, encoding="utf-8"
    )
    rows = table[(table["device"] == device) & np.isin(table["sweep"], names)]
    rows = rows[np.argsort(rows["N"], kind="stable")]
    return {
        "m": rows["M"].astype(np.int64),
        "n": rows["N"].astype(np.int64),
        "k": rows["K"].astype(np.int64),
        "flops_per_s": rows["tflops"] * 1e12,
    }
