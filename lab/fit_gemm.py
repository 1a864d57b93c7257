"""Fit the GEMM formula to measured tables and write ``cost/correction/data/<gpu>.<dtype>.toml``.

Development only (scipy, pandas, pyarrow, the shared data): ``python lab/fit_gemm.py SHARED [gpu.dtype ...]``.
The formula itself (``cost.gpu.tiles``) is fitted, not a copy. The weights (n, k) of a table are split into five parts
by a hash: a sample of four parts is fitted, the fifth is held out for the recorded errors. Sweeps of
codesign_measured.csv are cut into ten contiguous blocks each; blocks 2, 3 and 7 are held out. The coefficients written
are refitted on all rows after the held-out errors have been computed.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from sartor.cost.correction.calibration import Clock
from sartor.cost.correction.carrying import HOST_WAIT
from sartor.cost.correction.coefficients import RAGGED, SCALE_BLOCK, GemmCoefficients
from sartor.cost.gpu import gemm as cost_gemm
from sartor.cost.gpu.tiles import Problems, evaluate
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.operators import DType, Gemm, Layout
from sartor.records.rows import library_of

OUT = Path(__file__).resolve().parent.parent / "src" / "sartor" / "cost" / "correction" / "data"

TILES_TABLE = (
    (128, 256), (256, 128), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128),
    (64, 32), (32, 64), (16, 64), (192, 128), (128, 192), (256, 256), (256, 192), (192, 256), (128, 96), (64, 192),
    (64, 96),
)  # fmt: skip
TILES_AMPERE_TABLE = (
    (128, 256), (256, 128), (128, 128), (64, 256), (256, 64), (64, 128), (128, 64), (64, 64), (128, 32), (32, 128),
    (64, 32), (32, 64), (16, 64), (16, 32), (64, 96), (96, 128),
)  # fmt: skip
TILES_GENERAL = ((128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 64), (32, 32))
"""Tiles that occur in the names of the sgemm kernels in gemm_fp32_kernels.parquet, and their transposes."""
TILES_AMPERE = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (128, 32),
                (64, 32))  # fmt: skip
TILES_VOLTA = ((256, 128), (128, 64), (64, 64), (64, 32))
TILES_CDNA = (
    (256, 256), (256, 224), (256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64),
    (192, 256), (96, 256), (128, 192), (128, 32), (32, 128), (32, 256), (64, 32), (32, 64), (16, 64), (16, 128),
    (16, 256),
)  # fmt: skip
TILES_TUNED: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {
    ("mi355x", "bf16"): (
        (256, 256), (128, 256), (256, 128), (192, 256), (192, 128), (128, 128), (96, 128), (80, 128), (64, 128),
        (48, 128), (16, 128), (128, 64), (96, 64), (80, 64), (64, 64), (48, 64), (32, 64), (16, 64), (64, 96), (32, 96),
        (64, 256), (16, 256),
    ),
    ("mi355x", "fp8"): (
        (256, 256), (256, 192), (256, 128), (224, 192), (192, 128), (160, 192), (128, 256), (128, 192), (128, 128),
        (128, 64), (112, 128), (96, 256), (96, 128), (80, 128), (80, 64), (64, 192), (64, 128), (64, 64), (48, 128),
        (48, 64), (32, 64), (32, 16), (16, 32), (16, 64), (16, 256),
    ),
    ("mi355x", "mxfp4"): (
        (32, 128), (64, 128), (96, 128), (128, 128), (160, 128), (192, 128), (224, 128), (256, 128), (64, 256),
        (96, 256), (128, 256), (160, 256), (192, 256), (224, 256), (256, 256), (128, 384), (160, 384), (64, 512),
        (96, 512), (128, 512), (96, 640), (64, 1024),
    ),
    ("mi308x", "fp8_block"): (
        (32, 128), (48, 128), (64, 128), (80, 128), (96, 128), (128, 128), (16, 64), (16, 128), (16, 256), (32, 64),
        (32, 256), (64, 64), (64, 256),
    ),
    ("mi355x", "fp8_block"): (
        (192, 256), (128, 128), (64, 256), (64, 128), (64, 64), (32, 128), (32, 64), (16, 128), (16, 64), (128, 64),
    ),
}  # fmt: skip
"""Tiles in the names of the kernels that a tuning run chose, where fits with them are nearer to weights withheld (fp8
8.2 to 7.6%, mxfp4 8.6 to 7.8, plain fp8_block 10.9 to 8.7; bf16 under its network), by device and type. Pre-shuffled
fp8_block (10.1 to 11.3%) and MI308X's fp8 and bf16 keep ``TILES_CDNA``."""
TILES_CDNA2_TABLE = (
    (256, 256), (256, 128), (128, 256), (128, 128), (64, 128), (128, 64), (64, 64), (32, 64), (64, 32), (32, 32),
    (16, 64), (16, 128),
)  # fmt: skip
TILES_CDNA2 = ((160, 128), (256, 128), (64, 128), (64, 64), (128, 64), (32, 32))

# name: start, lower bound, upper bound. Bounds keep the coefficients physical.
SCALARS: dict[str, tuple[float, float, float]] = {
    "feed_bytes_per_clock": (64, 8, 400),
    "step_s": (1e-7, 1e-8, 4e-6),
    "wave_s": (5e-7, 1e-8, 8e-6),
    "tile_s": (5e-7, 1e-8, 8e-6),
    "launch_s": (2.5e-6, 3e-7, 3e-5),
    "split_s": (2e-6, 1e-7, 2e-5),
    "split_rate": (3, 0.3, 30),
    "write_cost": (1.3, 1, 4),
    "hbm_share": (0.85, 0.3, 1.0),
    "overlap": (0.25, 0.005, 1),
    "l2_share": (0.1, 0.001, 1),
    "max_split": (16, 2, 64),
}
THROTTLE: dict[str, tuple[float, float, float]] = {"throttle": (0.08, 1e-3, 0.6), "throttle_s": (1e-3, 5e-5, 2e-2)}
STREAM_K: dict[str, tuple[float, float, float]] = {
    "stream_k_cost": (0.1, 1e-3, 0.6),
    "stream_k_fills": (1, 0.01, 60),
}
"""In place of ``split_rate``, for libraries that deal the steps of k evenly to the SMs."""
QUANTIZE: dict[str, tuple[float, float, float]] = {
    "quantize_s": (1e-6, 1e-8, 2e-5),
    "quantize_bytes": (3, 0.01, 60),
}
CACHED: dict[str, tuple[float, float, float]] = {"l2_rate": (0.3, 0.02, 1.0)}
"""Additional coefficient for devices where short runs find the weights in L2."""
COPIES = {("blackwell_rtx", DType.BF16): 5.0, ("blackwell_rtx", DType.FP8): 5.0}
"""Copies of the weights that the tables' collector rotates over (data/measured, README). Only listed where L2 is large
and fast and using it helped on unseen weights (nvfp4 and block-scaled fp8: 13.3 and 15.2% against 13.3 and 15.5%)."""
MEMORY = {"v100": {"write_cost": 0.47}}
"""Coefficients fixed because the device's sweeps have no GEMM bound by writing its result. V100's kernels over 300 MB
stream at 814 of 900 GB/s with a third written (add) and at 808 with half written (gelu; memory_bound.parquet): writing
a byte takes 1.02 times as long as reading it there, so 0.47 times as long as the sweeps' tall and narrow GEMMs take to
read one (``hbm_share`` 0.42). Fitted freely, it became 3.6, and unfused scores ran at 115 GB/s."""
EFFICIENCY = ((0.9, 0.3, 1.1), (10, 0.1, 200), (10, 0.1, 200))
"""e, a, b of a tile's share of peak, e * m/(m + a) * n/(n + b), which is multiplied by a per-tile factor near 1."""
PENALTIES = ((1.2, 1e-3, 2), (0.43, 1e-3, 2), (0.06, 1e-4, 1), (0.03, 1e-4, 1), (0.01, 1e-4, 0.5), (0.15, 1e-4, 1))
"""Penalties of inputs aligned to 2, 4-8, 16, 32, 64 bytes, and of outputs below 16 bytes."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One fit: rows with m, n, k, batch, layout, us, weight and held_out."""

    gpu: Gpu
    dtype: DType
    rows: pd.DataFrame
    tiles: tuple[tuple[int, int], ...]
    pull: float = 0.3
    scale: float = 0.05
    penalties: bool = False
    starts: int = 1
    quantizes: bool = False
    streams_k: bool = False
    fixed: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    note: str = ""


def main(shared: Path, wanted: list[str]) -> None:
    for name in wanted or DEFAULT:
        gpu, dtype = name.rsplit(".", 1)
        parts = by_storage(_job(shared, gpu, DType(dtype)))
        text = HEAD + "\n".join(fitted(name, section, job) for section, job in parts.items())
        (OUT / f"{name}.toml").write_text(text, encoding="utf-8")


def by_storage(job: Job) -> dict[str, Job]:
    """GEMMs whose weights lie in tiles by themselves, where both kinds have rows enough."""
    tiled = (job.rows.layout == Layout.TILED.value).to_numpy()
    if min(tiled.sum(), (~tiled).sum()) < EACH:
        return {"gemm": job}
    return {
        "gemm": replace(job, rows=job.rows[~tiled]),
        "tiled": replace(job, rows=job.rows[tiled], tiles=TILES_CDNA, fixed=job.fixed | BLOCKS),
    }


BLOCKS = {"split_columns": 128.0}
"""The assembly kernels of pre-shuffled fp8_block, which split k, take whole blocks of scales only: of 129 rows with
2112, 2240 and 2624 columns none is theirs. Weights withheld 9.35 to 8.4%, with a network 7.8 to 7.3."""

IN_BLOCKS = ("mi308x.fp8_block",)
"""Fits in which tiles are whole: ck kernels take 2112, 2240 and 2624 columns by 64, and the assembly kernels 32 to 128
rows by 128, with k in at most 8 parts. Weights withheld 11.3%; with the kernels' own tiles and k split as they do
8.1%; with whole tiles besides 6.0%."""
WHOLE_TILES = {"whole_columns": True, "max_split": 8.0}

EACH = 500
"""Least rows of weights stored in tiles, and of others, for fits of their own."""


def fitted(name: str, section: str, job: Job) -> str:
    """A section of a device's file: coefficients fitted on all rows, with the errors on rows withheld."""
    trial, unseen_s, held = judged(job)
    final, tiles = fit(job, 40 if job.penalties else 25, trial)
    everywhere = np.ones(len(job.rows), dtype=bool)
    errors = {
        "held_out": score(job, unseen_s, held),
        "all": score(job, predictor(job, job.rows)(final), everywhere),
    }
    print(name, section, {key: round(value, 4) for key, value in errors["held_out"].items()}, len(tiles), flush=True)
    return as_toml(section, job, final, errors, sigmas(job, unseen_s, held, trial.launch_s))


def judged(job: Job) -> tuple[GemmCoefficients, Any, Any]:
    """A fit without the held-out rows, its seconds for every row, and the mask of held-out rows. In tuning runs one
    weight may have half of all rows: there each fifth of the weights is held out in turn, so the mask is all rows."""
    held = job.rows.held_out.to_numpy()
    trial, _ = fit(replace(job, rows=job.rows[~held]), 40)
    time_s = predictor(job, job.rows)(trial)
    if "fold" not in job.rows:
        return trial, time_s, held
    for out, other in judged_by_folds(job):
        time_s[out] = predictor(job, job.rows)(other)[out]
    return trial, time_s, np.ones_like(held)


def judged_by_folds(job: Job) -> Iterator[tuple[Any, GemmCoefficients]]:
    """Each fifth of the weights as a mask, with a fit of the other four."""
    for fold in sorted(set(job.rows.fold)):
        out = (job.rows.fold == fold).to_numpy()
        yield out, fit(replace(job, rows=job.rows[~out]), 40)[0]


def _job(shared: Path, gpu: str, dtype: DType) -> Job:
    if gpu in AMD_TUNED or (gpu in HIPBLASLT and dtype is not DType.FP32):
        return tuned_job(shared, gpu, dtype)
    if dtype is DType.FP16:
        return sweep_job(shared, gpu)
    return fp32_job(shared, gpu) if dtype is DType.FP32 else table_job(shared, gpu, dtype)


def fp32_job(shared: Path, gpu: str) -> Job:
    """fp32 GEMMs without tensor cores, eager PyTorch: linear layers (TN) and batched GEMMs (NN) of random sizes."""
    name = "gemm_fp32_kernels.parquet"
    table = pd.read_parquet(shared / "data" / "measured" / name)
    table = table[(table.gpu == gpu) & (table.flag == 0)]
    keys = ["op", "batch", "m", "n", "k"]
    rows = table.groupby(keys, observed=True).latency_us.median().rename("us").reset_index()
    part = ((rows.n * 2654435761 + rows.k * 40503 * 977) % 1000003) % 5
    rows = rows.assign(layout=np.where(rows.op == "linear", "TN", "NN"), weight=1.0, held_out=part == 0)
    return Job(
        gpu=load_gpu(gpu),
        dtype=DType.FP32,
        rows=rows,
        tiles=TILES_GENERAL,
        penalties=True,
        starts=2,
        fixed={"throttle": 0.0},
        source=f"data/measured/{name} (NeuSight, MIT), {gpu}",
        note="Eager PyTorch without TF32, sizes at random, linear layers TN, batched products NN.",
    )


COARSE_SHARE = 0.44
"""Of GEMMs aligned to 16 bytes only, which no table has: what records of H200 and those of H100 ask for
(lab/fit_off_grid.py)."""


def table_job(shared: Path, gpu: str, dtype: DType, each: bool = False) -> Job:
    """Rows of data/measured with flag 0; the target of a shape is the median over frameworks and versions. ``each``: a
    row for each framework, which is its ``library``; without those whose rows wait for the host."""
    name = "gemm_fp16_bf16.parquet" if dtype is DType.BF16 else "gemm_lowbit.parquet"
    columns = ["gpu", "dtype", "m", "n", "k", "framework", "latency_us", "flag"]
    table = pd.read_parquet(shared / "data" / "measured" / name, columns=columns)
    label = WIDENED.get((gpu, dtype)) or {DType.BF16: "bfloat16", DType.INT8: "sq"}.get(dtype, dtype.value)
    table = table[(table.gpu == gpu) & (table.dtype == label) & (table.flag == 0)]
    generation = load_gpu(gpu).generation
    copies = COPIES.get((generation, dtype))
    fixed = _PENALTY[generation] | ({"weight_copies": copies} if copies else {})
    fixed |= {"penalty_log_sigma": 0.1} if gpu == "a100_sxm" and dtype is DType.BF16 else {}  # its sweeps' own steps
    fixed |= {"coarse_share": COARSE_SHARE} if generation == "hopper" and dtype is DType.BF16 else {}
    if dtype is DType.FP8_BLOCK:
        whole = (table.n >= SCALE_BLOCK) & (table.k >= SCALE_BLOCK)
        fixed |= sub_block(table[~whole & (table.m <= 4096)], HOST_WAIT.get(load_gpu(gpu).host, 1.0))
        table = table[whole]
    keys = ["m", "n", "k", *(["library"] if each else [])]
    table = table.assign(library=table.framework.astype(str))
    table = table[~table.library.isin(waiting(table))] if each else table
    rows = table.groupby(keys, observed=True).latency_us.median().rename("us").reset_index()
    part = ((rows.n * 2654435761 + rows.k * 40503 * 977) % 1000003) % 5
    rows = rows.assign(batch=1, layout="TN", weight=1.0, held_out=part == 0)
    return Job(
        gpu=load_gpu(gpu),
        dtype=dtype,
        rows=rows,
        tiles=TILES_AMPERE_TABLE if generation == "ampere" else TILES_TABLE,
        quantizes=dtype is not DType.BF16 and not dtype.weight_only,
        pull=EVEN if gpu == "a100_sxm" and dtype is DType.BF16 else 0.3,
        streams_k=(generation, dtype) in DEALT,
        fixed=fixed,
        source=f"data/measured/{name} (ai-dynamo/aiconfigurator 095f58a5, 2026-08-21, Apache-2.0), {gpu} {label}",
        note="TN layout, graph replay, boost clock. Alignment is assumed: the table holds no n or k off 32."
        + ("" if dtype is DType.BF16 or dtype.weight_only else " Times include quantizing the activation."),
    )


def waiting(table: pd.DataFrame) -> list[str]:
    """Frameworks whose rows wait for the host, which hides the kernel's own time: of products with few rows, whose
    weights differ by a factor of hundreds, all but the shortest and longest twentieth take as long to a factor of
    ``SAME`` (vLLM's block-scaled fp8 1.8 to 1.9, all others 5 and more)."""
    few = table[table.m <= 16].groupby("library").latency_us
    return sorted((few.quantile(0.95) / few.quantile(0.05))[lambda span: span < SAME].index)


SAME = 3.0

WIDENED = {("arc_pro_b60", DType.INT8_WO): "fp8"}
"""Tables of fp8 on a device whose matrix units have none: its weights are widened (cost/gpu/rates.py: as_run)."""

DEALT = (("blackwell_rtx", DType.BF16), ("ampere", DType.BF16), ("ampere", DType.INT8_WO), ("ampere", DType.INT4_WO))
"""Fits in which steps of k are dealt evenly to SMs. Of weights held out, split-K and stream-K, the formula and then
with its network: bf16 of A100 8.4, 8.1% (pulled to even tiles) and 3.9, 3.8%, of RTX PRO 6000 8.7, 8.5% and 3.6,
3.45%; A100's int8 weights 10.4, 8.0% and 5.5, 5.4%, int4 weights 11.5, 9.6% and 6.5, 6.3%. Hopper and Blackwell gain
in the formula only (2026-11-26)."""

EVEN = 30.0
"""Pull of A100's bf16 tiles to one factor: its formula also prices fp16, without a network, and a tile's own factor
takes up what the tables' libraries choose. Weights held out 7.6 to 8.1% (with the network 3.8%), another source's fp16
6.9 to 6.6%."""

AMD_TUNED = ("mi300x", "mi308x", "mi325x", "mi355x")
HIPBLASLT = ("mi210", "mi250")
"""Fewer than 100 rows each, from a client that adds 30 to 40 us to every GEMM with a fused epilogue: the launch."""
CLIENT = {"launch_s": (3e-5, 3e-7, 6e-5)}


def tuned_job(shared: Path, gpu: str, dtype: DType) -> Job:
    """Rows of data/measured_amd with 16-bit output: the fastest kernel of a tuning run for each shape, so a lower bound
    of a framework's time. Pre-shuffled weights are layout TILED; rows with a time that the source copied from another
    shape are flagged and left out."""
    table = pd.read_parquet(shared / "data" / "measured_amd" / "gemm_amd.parquet")
    label = {DType.BF16: "bfloat16", DType.FP16: "float16"}.get(dtype, dtype.value)
    table = table[(table.gpu == gpu) & (table.dtype == label)]
    good = table[(table.flag == 0) & (table.out_dtype != "float32") & (table.k <= MOST_K)]
    keys = ["batch", "m", "n", "k", "layout"]
    good = good.assign(layout=np.where(good.bpreshuffle, Layout.TILED.value, good.layout))
    good = good.assign(
        library=good.get("libtype", pd.Series("", good.index)).map(lambda name: library_of({"libtype": name}))
    )
    rows = (
        good.groupby(keys, observed=True).agg(us=("latency_us", "median"), library=("library", "first")).reset_index()
    )
    part = ((rows.n * 2654435761 + rows.k * 40503 * 977) % 1000003) % 5
    few, tuner = gpu in HIPBLASLT, ("ROCm/hipBLASLt 7d9fb683db, 2024-10-25", "ROCm/aiter e4048607a5, 2026-08-22")
    swept = rows.groupby(["n", "k"]).us.transform("size")
    copied = int(((table.flag & COPIED) > 0).sum())
    return Job(
        gpu=load_gpu(gpu),
        dtype=dtype,
        rows=rows.assign(weight=np.minimum(1.0, SWEPT / swept), held_out=part == 0, fold=part),
        tiles=TILES_CDNA2_TABLE if few else TILES_TUNED.get((gpu, dtype.value), TILES_CDNA),
        pull=1.0 if few else 0.3,
        scale=0.1,
        fixed=_CDNA
        | ({"copies": COPIES_TUNED} if f"{gpu}.{dtype.value}" in TURNED else {})
        | ({"max_split": 1.0} if f"{gpu}.{dtype.value}" in WHOLE else {})
        | ({"ragged": ()} if f"{gpu}.{dtype.value}" in UNSPLIT else {})
        | ({"cooperative_s": 0.0} if f"{gpu}.{dtype.value}" in SHARED_OUT else {})
        | (BLOCKS | WHOLE_TILES if f"{gpu}.{dtype.value}" in IN_BLOCKS else {}),
        source=f"data/measured_amd/gemm_amd.parquet ({tuner[not few]}, MIT), {gpu} {label}",
        note="Best kernel of a tuning run, kernel time only, without quantizing the activation, caches mostly cold: a "
        f"{'launch holds what the tuning client adds; a ' if few else ''}framework without these kernels takes longer. "
        f"{len(table) - len(good)} rows left out, {copied} of them with a time copied from another shape.",
    )


COPIES_TUNED = 101.0
"""Copies of operands and result that aiter's tuner turns through (aiter/test_common.py; data/amd_traces_logs.md)."""

TURNED = ("mi355x.bf16", "mi355x.fp8", "mi355x.fp8_block", "mi355x.mxfp4")
"""Fits that know of the copies. On MI308X they gain nothing (lab/notebook/gemm.md), the others hold few small GEMMs."""

WHOLE = ("mi355x.fp8",)
"""Tables in which no kernel split k (column ``split_k``): weights withheld 6.7 to 6.2%. mxfp4 is the same, but its
network is nearer without (6.9 for 7.1%)."""

UNSPLIT = ("mi355x.bf16",)
"""Fits with rows of 100 and 200 columns that Triton alone takes. MI308X has other kernels for them, 1.2x slower."""

SHARED_OUT = ("mi308x.bf16",)
"""Fits with a kernel whose waves share out k. Its pace is fitted after all else, which stays as it is: the file has
the other coefficients of an earlier fit, as one of today drops a tile (96 x 256) that MI300X's training borrows."""

IN_SIDE_CACHE: dict[str, tuple[float, float, float]] = {
    "turned_share": (0.6, 0.05, 1.0),
    "turned_step": (0.7, 0.1, 1.0),
}

SWEPT = 100
"""The rows of one weight count as at most this many: some weights have a thousand rows, most have twenty."""

COPIED = 32
"""Flag of rows with a time that belongs to another shape."""

MOST_K = 65536
"""Largest k fitted. Weight gradients over whole batches (k up to 800,000), tuned with few splits, use other kernels."""

_CDNA: dict[str, Any] = {"input_penalty": [0.02, 0.02, 0.01, 0.01, 0.0, 0.0, 0.0, 0.0],
                         "output_penalty": [0.01, 0.01, 0.01, 0.01, 0.01, 0.0, 0.0, 0.0],
                         "ragged_log_sigma": 1.0}  # fmt: skip
"""From the MI250X sweeps: loads need only element alignment. But aiter's fast kernels need results with rows that are
multiples of 32 bytes: 100 and 200 columns take 4 to 8 times the formula's time on MI355X (21 rows, which need a
standard deviation of 1.5) and 1.2 times on MI308X (7 rows, 0.2). Two weights are too few for a rule, so the interval is
between the two."""


def sub_block(table: pd.DataFrame, wait: float) -> dict[str, float]:
    """Medians and spreads of the GEMMs with n or k of 32 and 64, which one framework runs and which are host-bound.
    Times are converted to an x86 host, compared with which this host takes ``wait`` times as long."""
    us = table.groupby(["m", "n", "k"], observed=True).latency_us.median().rename("us").reset_index()
    half, few = (us.k >= SCALE_BLOCK) & (us.n >= SCALE_BLOCK / 2), us.m < 32
    found: dict[str, float] = {}
    for kernel, parts in (
        ("sub_block", {"_s": us[~half]}),
        ("half_block", {"_s": us[half & ~few], "_few_s": us[half & few]}),
    ):
        missed = [np.abs(np.log(part.us / part.us.median())) for part in parts.values()]
        found |= {f"{kernel}{end}": 1e-6 * part.us.median() / wait for end, part in parts.items() if len(part)}
        if sum(map(len, missed)):
            found[f"{kernel}_log_sigma"] = max(float(np.quantile(np.concatenate(missed), 0.8)) / 1.2816, 0.02)
    return found


_AMPERE = {"input_penalty": [1.22, 1.22, 0.41, 0.41, 0.05, 0.01, 0.01, 0.0],
           "output_penalty": [0.44, 0.44, 0.15, 0.15, 0.01, 0.0, 0.0, 0.0]}  # fmt: skip
_HOPPER = {"input_penalty": [2.0, 2.0, 0.8, 0.8, 0.05, 0.02, 0.01, 0.0],
           "output_penalty": [1.2, 1.2, 0.5, 0.5, 0.01, 0.0, 0.0, 0.0]}  # fmt: skip
_PENALTY: dict[str, dict[str, Any]] = {
    "ampere": _AMPERE, "ada": _AMPERE, "blackwell_rtx": _AMPERE, "hopper": _HOPPER, "blackwell": _HOPPER,
    "battlemage": _AMPERE,
}  # fmt: skip
"""Ampere: the steps of the A100 sweeps. Hopper and Blackwell are assumed: without 16-byte strides the copy engine (TMA)
cannot be used and slower, older kernels run; one published point agrees (10922-wide SwiGLU on H100, 273 TFLOP/s)."""


def sweep_job(shared: Path, gpu: str) -> Job:
    """Sweeps of codesign_measured.csv (fp16). Plain sweeps weigh most: they show the waves and alignment steps."""
    device = {"a100_sxm": "a100", "v100_sxm": "v100", "mi250x": "mi250x"}[gpu]
    table = pd.read_csv(shared / "reference" / "codesign_measured.csv")
    table = table[(table.device == device) & table.kind.isin(["gemm", "bmm", "layer_op"]) & (table.tflops > 0)].copy()
    linear = table.op.isin(["qkv", "proj", "mlp_up", "mlp_down", "score"]) | (table.sweep == "logit_v_sweep")
    table["layout"] = np.where(linear, "TN", "NN")
    table["us"] = 2e-6 * table.batch * table.M * table.K * table.N / table.tflops
    table["set"] = table.sweep.where(~table.sweep.isin(["h_sweep", "h_sweep_old"]), table.op)
    weights = {"mm_ksweep_high": 20.0, "mm_ksweep_low": 8.0, "mm_m_sweep": 2.0, "logit_v_sweep": 2.0}
    weights |= {"bmm_msweep": 0.3, "bmm_bsweep": 0.3}
    if device == "a100":
        weights |= {"mm_ksweep_high": 30.0, "mm_ksweep_low": 5.0, "qkv": 0.12, "proj": 0.12, "mlp_up": 0.12}
        weights |= {"mlp_down": 0.12, "score": 0.05, "aov": 0.05}
    if device == "mi250x":
        weights |= {"mm_ksweep_low": 3.0}
    table["weight"] = table.set.map(weights)
    table = table.rename(columns={"M": "m", "K": "k", "N": "n"}).reset_index(drop=True)
    held = np.zeros(len(table), dtype=bool)
    for _, sweep in table.groupby(["set", "batch", "t"], dropna=False):
        order = sweep.sort_values(["m", "n", "k"]).index
        held[order[np.isin(np.arange(len(order)) * 10 // len(order), [2, 3, 7])]] = True
    rows = table.assign(held_out=held).astype({"m": int, "n": int, "k": int, "batch": int})
    kind = {"a100": TILES_AMPERE, "v100": TILES_VOLTA, "mi250x": TILES_CDNA2}[device]
    return Job(
        gpu=load_gpu(gpu),
        dtype=DType.FP16,
        rows=rows,
        tiles=kind,
        pull=2.0 if device == "a100" else 0.05,
        scale=0.2 if device == "mi250x" else 0.05,
        penalties=True,
        starts=8 if device == "a100" else 16,
        fixed={"throttle": 0.0, "stream_rows": 1.0} | MEMORY.get(device, {}),  # the sweeps have no GEMMs under 32 rows
        source=f"reference/codesign_measured.csv, device {device} (authors' raw logs of arXiv 2401.14489, 2023)",
        note="Eager PyTorch, so launches are long and clocks sustained; plain and batched products NN, layers TN.",
    )


def fit(job: Job, most: int, start: GemmCoefficients | None = None) -> tuple[GemmCoefficients, list[Any]]:
    """Least squares of ln(predicted/measured) with a robust loss, on at most 4,000 rows."""
    if "ragged" in job.fixed:
        ragged = job.rows.n % RAGGED > 0
        job = replace(job, rows=job.rows[~ragged], fixed=job.fixed | {"ragged": in_one_pass(job.rows[ragged])})
    rows = job.rows
    if len(rows) > 4000:
        plain = (
            rows[rows.get("kind", pd.Series("layer_op", index=rows.index)) != "layer_op"] if job.penalties else rows[:0]
        )
        rest = rows.drop(plain.index).sample(4000 - min(len(plain), 2000), random_state=0)
        rows = pd.concat([plain, rest])
    tiles = [(m, n) for m, n, _ in start.tiles] if start else list(job.tiles)
    spans = _spans(job, len(tiles))
    low, high = np.log([s[1] for s in spans]), np.log([s[2] for s in spans])
    first = np.clip(_vector(job, start, tiles) if start else np.log([s[0] for s in spans]), low + 1e-6, high - 1e-6)
    predict = predictor(job, rows)
    weight, target = np.sqrt(rows.weight.to_numpy()), rows.us.to_numpy() * 1e-6
    count = len(_scalars(job)) + 3

    def residual(x: Any) -> Any:
        error = weight * np.log(predict(_coefficients(job, x, tiles)) / target)
        return np.concatenate([error, job.pull * x[count : count + len(tiles)]])

    starts = [first]
    if job.penalties and start is None:  # few rows and many local minima: start from several points
        widths = np.where(np.arange(len(first)) < len(_scalars(job)), 0.7, 0.15)
        shifts = np.random.default_rng(0).normal(0, 1, (job.starts - 1, len(first))) * widths
        starts += [np.clip(first + shift, low + 1e-6, high - 1e-6) for shift in shifts]
    options = {"loss": "soft_l1", "f_scale": job.scale, "diff_step": 2e-3, "max_nfev": most, "bounds": (low, high)}
    found = min((least_squares(residual, each, **options) for each in starts), key=lambda result: result.cost)
    fitted = _coefficients(job, found.x, tiles)
    if start is None and not job.penalties:
        fitted = _prune(job, rows, fitted)
    if "cooperative_s" in job.fixed:
        fitted = replace(fitted, cooperative_s=shared_out(job, fitted))
    _MEMORY[id(fitted)] = (found.x, tiles)
    return fitted, list(fitted.tiles)


def shared_out(job: Job, c: GemmCoefficients) -> float:
    """The pace of a kernel whose waves share out k at which all rows together are nearest, a weight's by their root."""
    predict, seconds = predictor(job, job.rows), job.rows.us * 1e-6
    often = job.rows.groupby(["n", "k"]).us.transform("size") ** -0.5

    def missed(pace: float) -> float:
        return float((often * np.abs(np.log(predict(replace(c, cooperative_s=pace)) / seconds))).sum())

    return float(min(np.geomspace(2e-10, 3e-9, 60), key=missed))


def in_one_pass(rows: pd.DataFrame) -> tuple[tuple[float, float], ...]:
    """(rows, s per element of k) of results that the kernels which split k refuse: medians of few rows, of some hundred
    and of many, whose time stays between two of Triton's settings."""
    pace = 1e-6 * rows.us / rows.k
    few, some, many = (pace[(rows.m >= a) & (rows.m <= b)].median() for a, b in ((1, 64), (256, 512), (1024, 10**9)))
    return () if rows.empty else ((64.0, few), (256.0, some), (512.0, some), (1024.0, many))


_MEMORY: dict[int, Any] = {}


def _scalars(job: Job) -> dict[str, tuple[float, float, float]]:
    cached = CACHED if "weight_copies" in job.fixed else {}
    turned = IN_SIDE_CACHE if "copies" in job.fixed else {}
    client = CLIENT if job.gpu.name in HIPBLASLT else {}
    alone = {name: span for name, span in SCALARS.items() if name != "split_rate"} | STREAM_K
    return (
        (alone if job.streams_k else SCALARS)
        | client
        | ({} if job.penalties else THROTTLE)
        | (QUANTIZE if job.quantizes else {})
        | cached
        | turned
    )


def _spans(job: Job, tiles: int) -> list[tuple[float, float, float]]:
    ampere = job.gpu.generation == "ampere"
    penalties = [(start if ampere else min(start, 0.05), low, high) for start, low, high in PENALTIES]
    penalties = penalties if job.penalties else []
    return [
        *_scalars(job).values(),
        *EFFICIENCY,
        *[(1.0, 0.4, 1.5) if job.penalties else (0.97, 0.4, 1.0)] * tiles,
        *penalties,
    ]


def _vector(job: Job, start: GemmCoefficients, tiles: list[Any]) -> Any:
    """The vector of ``start`` without the factors of pruned tiles."""
    x, before = _MEMORY[id(start)]
    head = len(_scalars(job)) + 3
    factors = [x[head + before.index(tile)] for tile in tiles]
    return np.concatenate([x[:head], factors, x[head + len(before) :]])


def _coefficients(job: Job, x: Any, tiles: list[Any]) -> GemmCoefficients:
    values = np.exp(x)
    names = list(_scalars(job))
    head = len(names)
    e, a, b = values[head : head + 3]
    factors = values[head + 3 : head + 3 + len(tiles)]
    menu = tuple(
        (m, n, min(1.1, float(e * m / (m + a) * n / (n + b) * f))) for (m, n), f in zip(tiles, factors, strict=True)
    )
    known: dict[str, Any] = dict(zip(names, map(float, values[:head]), strict=True)) | job.fixed
    if job.penalties:
        p = values[head + 3 + len(tiles) :]
        odd = p[0] if job.gpu.generation == "ampere" else 1.5 * p[1]  # other sweeps have no odd lengths: assumed
        steps = np.array([odd, odd, p[1], p[1], p[2], p[3], p[4], 0.0])
        known["input_penalty"] = tuple(float(v) for v in np.maximum.accumulate(steps[::-1])[::-1])
        written = float(p[5])  # odd outputs were not swept: assumed as much worse than even ones as odd inputs are
        known["output_penalty"] = (*[written * float(odd / p[1])] * 2, written, written, written / 12, 0.0, 0.0, 0.0)
    return GemmCoefficients(tiles=menu, **known)


def _prune(job: Job, rows: pd.DataFrame, c: GemmCoefficients) -> GemmCoefficients:
    """The coefficients without tiles that fewer than one GEMM in 150 uses."""
    used = predictor(job, rows, details=True)(c)
    taken = pd.Series(list(zip(used["tile_m"], used["tile_n"], strict=True))).value_counts(normalize=True)
    kept = tuple(t for t in c.tiles if taken.get((t[0], t[1]), 0.0) >= 1 / 150)
    return replace(c, tiles=kept)


def predictor(job: Job, rows: pd.DataFrame, details: bool = False) -> Callable[[GemmCoefficients], Any]:
    """Seconds of each row as a function of the coefficients, in the order of the rows."""
    groups = [(np.flatnonzero(rows.layout == layout), Layout(layout)) for layout in sorted(set(rows.layout))]
    parts = []
    for where, layout in groups:
        part = rows.iloc[where]
        sizes = {key: part[key].to_numpy(dtype=np.int64) for key in ("m", "n", "k", "batch")}
        parts.append((where, Gemm(name="fit", dtype=job.dtype, layout=layout, **sizes)))

    def predict(c: GemmCoefficients) -> Any:
        machine = cost_gemm._machine(job.gpu, job.dtype, c, Clock.BOOST)
        out: dict[str, Any] = {}
        for where, gemm in parts:
            arrays, shape = cost_gemm._problem(gemm, c)
            flat = Problems(**{key: np.broadcast_to(value, shape) for key, value in arrays.items()})
            for key, value in evaluate(flat, machine, c, details).items():
                out.setdefault(key, np.empty(len(rows)))[where] = value
        return out if details else out["time_s"]

    return predict


def score(job: Job, time_s: Any, where: Any) -> dict[str, float]:
    rows = job.rows[where]
    ratio = time_s[where] * 1e6 / rows.us.to_numpy()
    error = np.abs(ratio - 1)
    out = {"rows": len(rows), "mape": error.mean(), "median": np.median(error), "p90": np.quantile(error, 0.9)}
    out["bias"] = np.median(ratio)
    large = ((rows.m >= 512) & (rows.n >= 512) & (rows.k >= 512)).to_numpy()
    if large.any():
        out["mape_512"] = error[large].mean()
    if "fold" in rows:  # independent of how many rows a weight has
        out["mape_by_weight"] = rows.assign(error=error).groupby(["n", "k"]).error.mean().mean()
    if "set" in rows:
        out |= {f"mape_{name}": error[(rows.set == name).to_numpy()].mean() for name in sorted(set(rows.set))}
    return {key: float(value) for key, value in out.items()}


def sigmas(job: Job, time_s: Any, where: Any, launch_s: float) -> tuple[float, float]:
    """Standard deviations that cover 80% of held-out rows: of GEMMs much longer than the launch, and of short ones."""
    if "set" in job.rows:
        plain = job.rows.set.isin(["mm_ksweep_high", "mm_ksweep_low", "qkv", "proj", "mlp_up", "mlp_down"])
        where = where & plain.to_numpy()
    error = np.abs(np.log(time_s[where] * 1e6 / job.rows.us.to_numpy()[where]))
    small = time_s[where] < 8 * launch_s
    long, short = (error[part] if part.sum() > 20 else error for part in (~small, small))
    return float(np.quantile(long, 0.8) / 1.2816), float(np.quantile(short, 0.8) / 1.2816)


HEAD = """\
# Written by lab/fit_gemm.py. Seconds end in _s; shares are of the datasheet's rates.
# Symbols: docs/concepts/gemm.md.
"""


BLACKWELL = ("b200_sxm", "b300_sxm", "gb200", "gb300")
"""GPUs on which vLLM's fp8 GEMMs of one row hold the host's launch (15 to 28 us for weights under 8 MB, 5 to 6 with two
rows, and with one row in SGLang's table; gemm_lowbit.parquet, vLLM 0.24.0, 2026-11-29)."""


def as_toml(
    section: str, job: Job, c: GemmCoefficients, errors: dict[str, dict[str, float]], sigma: tuple[float, float]
) -> str:
    lines = [
        f"[provenance.{section}]",
        f'source = "{job.source}"',
        f'note = "{job.note}"',
        f'date = "{datetime.date.today().isoformat()}"',
        *(['launched = "host"'] if "set" in job.rows or job.dtype is DType.FP32 else []),
        *([f"fewest_m = {fewest_m(job.rows)}"] if "set" in job.rows else []),
        *(["host_rows = { vllm = 1 }"] if job.dtype is DType.FP8 and job.gpu.name in BLACKWELL else []),
        f"rows = {len(job.rows)}",
    ]
    for part, e in errors.items():
        cells = [f"{k} = {v:.1f}" if k == "rows" else f"{k} = {_number(v)}" for k, v in e.items()]
        lines.append(f"{part} = {{ {', '.join(cells)} }}")
    lines += ["", f"[{section}]", "# tile_m, tile_n, share of peak in the main loop", "tiles = ["]
    lines += [f"  [{m}, {n}, {share:.3f}]," for m, n, share in c.tiles]
    lines += ["]"]
    names = [*_scalars(job), *(("input_penalty", "output_penalty") if job.penalties else ())]
    names += [name for name in job.fixed if name not in names]
    if job.penalties:
        names += ["batched_log_sigma", "penalty_log_sigma"]
    lines += [f"{name} = {_number(getattr(c, name))}" for name in names]
    lines += [f"log_sigma = {sigma[0]:.4f}", f"log_sigma_small = {sigma[1]:.4f}"]
    return "\n".join(lines) + "\n"


def fewest_m(rows: pd.DataFrame) -> int:
    """The fewest rows that a series of sweeps has: at least 20 single GEMMs."""
    often = rows.m[rows.batch == 1].value_counts()
    return int(often.index[often >= 20].min())


def _number(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_number(v) for v in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    text = f"{value:.4g}"
    return text if any(c in text for c in ".en") or isinstance(value, int) else text + ".0"


DEFAULT = [
    "a100_sxm.fp16", "v100_sxm.fp16", "mi250x.fp16", "a100_sxm.bf16", "h100_sxm.bf16", "h200_sxm.bf16",
    "b200_sxm.bf16",
    "gb200.bf16", "b300_sxm.bf16", "gb300.bf16", "rtx_pro_6000_server.bf16", "arc_pro_b60.bf16",
    "h100_sxm.fp8", "h200_sxm.fp8", "b200_sxm.fp8", "gb200.fp8", "b300_sxm.fp8", "gb300.fp8", "rtx_pro_6000_server.fp8",
    "h100_sxm.fp8_block", "h200_sxm.fp8_block", "b200_sxm.fp8_block", "gb200.fp8_block", "b300_sxm.fp8_block",
    "gb300.fp8_block",
    "rtx_pro_6000_server.fp8_block", "b200_sxm.nvfp4", "gb200.nvfp4", "b300_sxm.nvfp4", "gb300.nvfp4",
    "rtx_pro_6000_server.nvfp4", "a100_sxm.int8", "a100_sxm.int8_wo", "a100_sxm.int4_wo", "arc_pro_b60.int8_wo",
    "a100_pcie_40gb.fp32", "a100_pcie_80gb.fp32", "h100_sxm.fp32", "l4.fp32", "mi100.fp32", "mi210.fp32",
    "p100_pcie_16gb.fp32",
    "p4.fp32", "t4.fp32", "v100_pcie_32gb.fp32", "mi300x.fp8_block", "mi325x.fp8_block", "mi308x.bf16", "mi308x.fp8",
    "mi308x.fp8_block", "mi210.bf16", "mi210.fp16", "mi250.fp16",
    "mi355x.bf16", "mi355x.fp8", "mi355x.fp8_block", "mi355x.int8", "mi355x.mxfp4",
]  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
