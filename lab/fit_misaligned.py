"""Fit the kernels of misaligned 16-bit GEMMs on Hopper to this project's own records of an H100 and an H200.

    python lab/fit_misaligned.py      (half a minute; writes cost/correction/data/misaligned.toml)

Bulk copies into shared memory (TMA) want strides of 16 bytes (CUDA C++ programming guide, "Tensor Memory Access"), so
cuBLAS runs other GEMMs on the kernels of Ampere: priced by A100's fit at Ampere's FLOPs per SM and cycle, without any
row of Hopper, multiples of 4 and 8 bytes on H100 and H200 are 13% off. Both kernels start there and move little.
Printed: each GPU by a fit on the other alone, the half of the shapes that this fit did not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from sartor.bench.records_file import read_rows
from sartor.calibrate.fit import Products, seconds
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.cost import Z80
from sartor.cost.gpu.gemm import misaligned_level
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, Gemm, Layout

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "lab" / "records"
OUT = ROOT / "src" / "sartor" / "cost" / "correction" / "data" / "misaligned.toml"
GPUS = ("h100_sxm", "h200_sxm")
AMPERE = 0.5
"""FLOPs per SM and cycle of Ampere over Hopper's (hardware/flops_per_cycle.toml)."""
MOVES = {
    "wave_s": (1e-8, 8e-6),
    "tile_s": (1e-8, 2e-5),
    "launch_s": (3e-7, 1e-5),
    "split_s": (1e-7, 2e-5),
    "split_rate": (0.3, 30.0),
    "hbm_share": (0.05, 1.0),
    "overlap": (0.005, 1.0),
    "max_split": (1.0, 64.0),
    "write_cost": (1.0, 8.0),
}
"""What moves, and its bounds; besides, all tiles' shares of peak, and how they grow with a tile's area."""
PRIOR_SD, NOISE = 0.2, 0.1
"""Standard deviation of each logarithm about A100's fit; error of ln(time) that is worth as much."""


@dataclass(frozen=True)
class Rows:
    """Misaligned GEMMs of one level on one GPU, with their seconds."""

    products: Products
    time_s: Any
    seen: Any
    """Shapes of the half that a fit for judging sees: weights n x k, by a hash of their sizes."""

    def part(self, where: Any) -> Rows:
        return Rows(self.products.part(where), self.time_s[where], self.seen[where])


def rows_of(gpu: str, level: int) -> Rows:
    """Unflagged bf16 and fp16 rows of every file; one row is a matrix times a vector and left out."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for path in sorted((RECORDS / gpu).glob("*.csv")):
        for row in read_rows(path):
            if row["table"] != "gemm" or row["dtype"] not in ("bfloat16", "float16") or int(row["flag"] or 0):
                continue
            sizes = tuple(int(row[name]) for name in ("batch", "m", "n", "k"))
            one = Gemm(name="row", m=sizes[1], n=sizes[2], k=sizes[3], layout=Layout(row["layout"]))
            if sizes[1] > 1 and int(misaligned_level(one)) == level:
                found.setdefault((*sizes, row["layout"]), []).append(float(row["latency_us"]) * 1e-6)
    batch, m, n, k = np.asarray([key[:4] for key in found], dtype=np.int64).T
    layouts = np.asarray([key[4] for key in found])
    products = Products(gpu=load_gpu(gpu), dtype=DType.BF16, batch=batch, m=m, n=n, k=k, layouts=layouts)
    return Rows(products, np.asarray([np.median(each) for each in found.values()]), (n * 7919 + k * 104729) % 97 < 48)


def start(level: int) -> GemmCoefficients:
    """A100's fit at Ampere's rate on Hopper; slowed as much as its two inputs are at this level."""
    c = load_calibration(load_gpu("a100_sxm")).gemm[DType.BF16]
    none = (0.0,) * 4
    slower = 1 + 2 * c.input_penalty[3 - min(level, 2)]
    tiles = tuple((m, n, AMPERE * share / slower) for m, n, share in c.tiles)
    return replace(
        c,
        tiles=tiles,
        throttle=0.0,
        penalty_log_sigma=0.0,
        input_penalty=none + c.input_penalty[4:],
        output_penalty=none + c.output_penalty[4:],
    )


def moved(c: GemmCoefficients, z: Any) -> GemmCoefficients:
    changed = {
        name: float(np.clip(getattr(c, name) * np.exp(z[i]), low, high))
        for i, (name, (low, high)) in enumerate(MOVES.items())
    }
    factor, area = np.exp(z[-2]), z[-1]
    tiles = tuple((m, n, float(share * factor * (m * n / 2**14) ** area)) for m, n, share in c.tiles)
    return replace(c, tiles=tiles, **changed)


def fit(given: Sequence[Rows], level: int) -> GemmCoefficients:
    c = start(level)
    predicts = [seconds(each.products) for each in given]

    def misses(z: Any) -> Any:
        here = moved(c, z)
        errors = [np.log(predict(here) / each.time_s) / NOISE for predict, each in zip(predicts, given, strict=True)]
        return np.concatenate([*errors, z / PRIOR_SD])

    first = np.zeros(len(MOVES) + 2)
    return moved(c, least_squares(misses, first, loss="soft_l1", diff_step=1e-3, max_nfev=60).x)


def errors(c: GemmCoefficients, each: Rows) -> Any:
    return np.log(seconds(each.products)(c) / each.time_s)


def main() -> None:
    lines, record = [], {}
    for level, name in enumerate(("narrow", "odd", "odd_result"), 1):
        rows = {gpu: rows_of(gpu, level) for gpu in GPUS}
        out = []
        for gpu, other in (GPUS, GPUS[::-1]):
            judged = rows[gpu].part(~rows[gpu].seen)
            error = errors(fit([rows[other].part(rows[other].seen)], level), judged)
            plain = errors(start(level), judged)
            out.append(error)
            long = judged.time_s > 1e-4
            print(
                f"{name} {gpu} unseen: {error.size} rows, {np.abs(np.expm1(error)).mean():.1%}, median "
                f"{np.median(np.abs(np.expm1(error))):.1%}, bias {np.exp(np.median(error)):.3f}, over 100 us "
                f"{np.abs(np.expm1(error[long])).mean():.1%}; A100's fit as it is {np.abs(np.expm1(plain)).mean():.1%}"
            )
        unseen = np.concatenate(out)
        sigma = float(np.quantile(np.abs(unseen), 0.8) / Z80)
        record[name] = float(np.abs(np.expm1(unseen)).mean())
        found = fit(list(rows.values()), level)
        count = sum(len(each.products) for each in rows.values())
        lines += [
            "",
            f"[{name}] # {count} rows; unseen shapes on the other GPU: {record[name]:.1%} off",
            *as_toml(found, sigma),
        ]
    head = [
        "# Written by lab/fit_misaligned.py: 16-bit GEMMs on Hopper whose contiguous lengths are multiples of 4 or 8",
        "# bytes (narrow), of 2 (odd), or of 2 in the result alone (odd_result). cuBLAS runs these on kernels",
        "# of Ampere; A100's fit was the start.",
        'source = "lab/records/h100_sxm and h200_sxm: sartor measure, torch 2.11, CUDA 13.0, 2026-11-27"',
        'measured = ["hopper"]',
        "",
        "flops_per_sm_cycle = 4096 # of the tensor cores of which the tiles below reach their shares",
        'runs_on = ["hopper", "blackwell", "blackwell_rtx", "ada", "ampere/8.6"] # at the same work per SM and cycle',
    ]
    OUT.write_text("\n".join(head + lines) + "\n", encoding="utf-8")
    print(f"wrote {OUT.relative_to(ROOT)}")


def as_toml(c: GemmCoefficients, sigma: float) -> list[str]:
    tiles = ", ".join(f"[{m}, {n}, {share:.4g}]" for m, n, share in c.tiles)
    values = {name: float(f"{getattr(c, name):.4g}") for name in (*MOVES, "feed_bytes_per_clock", "step_s", "l2_share")}
    values |= {"throttle": 0.0, "penalty_log_sigma": 0.0, "batched_log_sigma": 0.0}
    values |= dict.fromkeys(("log_sigma", "log_sigma_small"), float(f"{sigma:.3g}"))
    return [f"tiles = [{tiles}]", *(f"{name} = {value}" for name, value in values.items())]


if __name__ == "__main__":
    main()
