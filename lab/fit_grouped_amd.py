"""Fit grouped GEMMs of experts on AMD's accelerators and write them into ``cost/correction/data/<gpu>.toml``.

Development only: ``python lab/fit_grouped_amd.py SHARED``. Rows are those of data/measured_amd/moe_amd.parquet with
flag 0: two grouped GEMMs with the fastest kernels of a tuning run, without sorting, routing and the first quantization;
the number of active experts is that expected of uniform routing. One fit per generation covers all native types; narrow
types reach the share of peak of the device's plain GEMMs of that type (``cost.gpu.grouped``). Whole layers (hidden
size, width, experts, experts per token) are held out, a fifth at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fit_grouped import _LAYER_SIGMA, OUT, SHAPE, SPANS, errors, put
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.correction.coefficients import GroupedCoefficients
from sartor.cost.correction.gemm_features import SHORT
from sartor.cost.gpu.grouped import _on_units_of, grouped_terms
from sartor.hardware.catalog import load_gpu
from sartor.operators import GroupedGemm
from sartor.records.rows import DTYPES

GENERATIONS = (("mi300x", "mi308x", "mi325x"), ("mi355x",))
NATIVE = ("bfloat16", "fp8", "fp8_block", "int8", "mxfp4", "mxfp8")
"""Types with both operands of that type: mixed ones (bf16 by 4 bits) run other kernels."""
SOURCE = "data/measured_amd/moe_amd.parquet (ROCm/aiter e4048607a5, 2026-08-22, MIT), best of tuning"
FREE = {key: span for key, span in SPANS.items() if key != "masked"} | {"launch_s": (8e-6, 5e-7, 6e-5)}
FIFTHS = 5


@dataclass(frozen=True)
class Part:
    """Rows of one device and type."""

    gpu: Any
    where: Any
    gemms: Sequence[GroupedGemm]
    share: float
    """Share of the 16-bit efficiency that the type reaches."""


def main(shared: Path) -> None:
    table = pd.read_parquet(shared / "data" / "measured_amd" / "moe_amd.parquet")
    table = table[(table.flag == 0) & table.dtype.astype(str).isin(NATIVE)].astype({"gpu": str, "dtype": str})
    for gpus in GENERATIONS:
        rows = (
            table[table.gpu.isin(gpus)].groupby(["gpu", "dtype", *SHAPE, "num_tokens"]).latency_us.min().reset_index()
        )
        seconds, parts = rows.latency_us.to_numpy(dtype=np.float64) * 1e-6, parts_of(rows)
        layer = (pd.util.hash_pandas_object(rows[SHAPE], index=False) % FIFTHS).to_numpy()
        held_s, small = np.empty(len(rows)), np.zeros(len(rows), dtype=bool)
        for fifth in range(FIFTHS):
            held = layer == fifth
            if held.any():
                c = fit(parts, seconds, ~held)
                held_s[held], small[held] = (
                    predicted(parts, c)[held],
                    predicted(parts, c)[held] < SHORT * 2 * c.launch_s,
                )
        c = fit(parts, seconds, np.ones(len(rows), dtype=bool))
        missed, narrow = np.abs(np.log(held_s / seconds)), (rows.dtype != "bfloat16").to_numpy()
        sigmas = {
            "log_sigma": sigma(missed, ~narrow),
            "log_sigma_small": sigma(missed, small),
            "narrow_sigma": sigma(missed, narrow),
        }
        values = {"tile_n": 128, "tile_m_most": 256, **{key: float(getattr(c, key)) for key in FREE}, **sigmas}
        for gpu in gpus:
            own = (rows.gpu == gpu).to_numpy()
            record = {
                "rows": int(own.sum()),
                "fit": errors((predicted(parts, c) / seconds)[own]),
                "source": f"{SOURCE}, {' '.join(gpus)}",
            }
            record["held_out"] = errors((held_s / seconds)[own])
            put(OUT / f"{gpu}.toml", {"grouped": values}, {"grouped": record}, "grouped")
            inside = (
                missed[own]
                <= 1.2816 * _LAYER_SIGMA * np.where(narrow, sigmas["narrow_sigma"], sigmas["log_sigma"])[own]
            )
            print(
                gpu,
                record["rows"],
                {k: round(v, 3) for k, v in record["held_out"].items()},
                f"in 80%: {inside.mean():.2f}",
            )


def parts_of(rows: pd.DataFrame) -> list[Part]:
    return [part_of(gpu, dtype, each) for (gpu, dtype), each in rows.groupby(["gpu", "dtype"])]


def part_of(name: str, label: str, rows: pd.DataFrame) -> Part:
    hidden, width, topk, experts = (rows[key].to_numpy(dtype=np.int64) for key in SHAPE)
    routed, gpu, dtype = rows.num_tokens.to_numpy(dtype=np.int64) * topk, load_gpu(name), DTYPES[label]
    groups = np.minimum(np.maximum(np.round(experts * (1 - (1 - 1 / experts) ** routed)), 1), routed).astype(np.int64)
    up = GroupedGemm(name="up", groups=groups, rows=routed, n=2 * width, k=hidden, dtype=dtype)
    known = load_calibration(gpu)
    share = _on_units_of(dtype, known).efficiency / known.grouped.efficiency
    return Part(gpu, rows.index.to_numpy(), (up, replace(up, n=hidden, k=width)), share)


def predicted(parts: Sequence[Part], c: GroupedCoefficients) -> Any:
    out = np.empty(sum(part.where.size for part in parts))
    for part in parts:
        on = replace(c, efficiency=c.efficiency * part.share)
        out[part.where] = sum(grouped_terms(each, part.gpu, on)["time_s"] for each in part.gemms)
    return out


def fit(parts: Sequence[Part], seconds: Any, where: Any) -> GroupedCoefficients:
    start, low, high = (np.log([span[i] for span in FREE.values()]) for i in range(3))
    found = least_squares(
        lambda x: np.log(predicted(parts, of(dict(zip(FREE, np.exp(x), strict=True)))) / seconds)[where],
        start,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=0.1,
        max_nfev=40,
    )
    return of(dict(zip(FREE, np.exp(found.x), strict=True)))


def of(values: Mapping[str, float]) -> GroupedCoefficients:
    return replace(GroupedCoefficients(tile_m_most=256, tile_n=128), **{key: float(v) for key, v in values.items()})


def sigma(missed: Any, where: Any) -> float:
    """Standard deviation of one GEMM with which the interval covers 80% of these layers."""
    return float(np.quantile(missed[where] if where.sum() >= 30 else missed, 0.8) / 1.2816 / _LAYER_SIGMA)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
