"""Time of a grouped GEMM: every expert's rows in tiles of their own, its weights from HBM once.

An expert with r rows takes ceil(r / tile_m) tiles down and ceil(n / tile_n) across, so what counts is the rows of each
expert, not their mean. The library is taken to choose the tile height that is fastest. Symbols, fit and accuracy:
docs/concepts/moe.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import TORCH, Calibration, Clock
from sartor.cost.correction.coefficients import GemmCoefficients, GroupedCoefficients
from sartor.cost.correction.gemm_features import SHORT, correct_grouped, walked_rows
from sartor.cost.cost import Cost, Source, select_cost
from sartor.cost.gpu.gemm import gemm_costs
from sartor.cost.gpu.rates import LongRun, lasting_s, long_run, peak_flops_per_s
from sartor.hardware.gpu import Gpu
from sartor.operators import DType, Gemm, GroupedGemm, Pass
from sartor.units import FloatArray, Floats, plain

TILES_M = np.asarray([16.0, 32.0, 64.0, 128.0, 256.0])
"""Tile heights of the grouped kernels of CUTLASS, Triton and TensorRT-LLM."""

_QUANTILES = (np.arange(16) + 0.5) / 16


def grouped_cost(op: GroupedGemm, gpu: Gpu, calibration: Calibration, *, clock: Clock = Clock.SUSTAINED) -> Cost:
    """Cost of one grouped GEMM; sizes may be arrays.

    ``calibration.with_kernels`` chooses whose kernels run (PyTorch's own: ``_by_torch``); else it is the middle of
    frameworks. A weight gradient contracts an expert's rows: it is a batch of plain GEMMs, and so are others that run
    ``apart`` where that is faster. Systolic arrays may run them one by one. Side by side, uneven groups take their
    rows' time.
    """
    if op.pass_ is Pass.WGRAD:
        return gemm_costs([replace(op, skew=1.0)], gpu, calibration, clock=clock)[0]
    if calibration.kernels == TORCH and TORCH in calibration.attention_families and op.dtype is DType.BF16:
        return _by_torch(op, gpu, calibration, clock)
    loads = _lesser_skews(op)
    uneven = _slowest(_fused_cost(replace(op, skew=loads), gpu, calibration, clock)) if loads is not None else None
    cost = uneven or _fused_cost(op, gpu, calibration, clock)
    if gpu.matrix_tile:
        cost = _faster(cost, _one_by_one(op, gpu, calibration, clock))
    if not op.apart:
        return cost
    return _faster(cost, gemm_costs([replace(op, skew=1.0)], gpu, calibration, clock=clock, details=False)[0])


def _by_torch(op: GroupedGemm, gpu: Gpu, calibration: Calibration, clock: Clock) -> Cost:
    """``torch._grouped_mm`` on Hopper: CUTLASS's plain GEMM walks the tiles of all groups, of 64 x 128 where rows or
    columns are at most 128, else of 128 x 256 (PyTorch 2.11, ATen/native/cuda/GroupMM.cu)."""
    small, large = (_in_tiles_of(tile, op, gpu, calibration, clock) for tile in ((64, 128), (128, 256)))
    return select_cost(np.less_equal(np.minimum(op.rows, op.n), 128), small, large)


def _in_tiles_of(tile: tuple[int, int], op: GroupedGemm, gpu: Gpu, calibration: Calibration, clock: Clock) -> Cost:
    """A batch of plain GEMMs in one tile without a split of k; uneven groups add tiles."""
    c, height = calibration.gemm[op.dtype], np.asarray(tile[:1], dtype=np.float64)
    share = next((share for m, n, share in c.tiles if (m, n) == tile), max(share for *_, share in c.tiles))
    coefficients = replace(c, tiles=((*tile, share),), max_split=1.0)
    mean = np.asarray(op.rows / np.maximum(np.minimum(op.groups, op.rows), 1))[..., None]
    uneven = tiles_down(mean, 1.0, np.asarray(op.skew)[..., None], height) / tiles_down(mean, 1.0, 1.0, height)
    gemms = {**calibration.gemm, op.dtype: coefficients}
    padded = replace(op, skew=plain(np.maximum(np.asarray(uneven)[..., 0], 1.0)))
    return gemm_costs([padded], gpu, replace(calibration, gemm=gemms), clock=clock)[0]


def _one_by_one(op: GroupedGemm, gpu: Gpu, calibration: Calibration, clock: Clock) -> Cost:
    """A plain GEMM for every group, one after another."""
    rows = np.ceil(np.asarray(op.rows) / op.groups)
    plain_gemm = Gemm(name=op.name, m=rows, n=op.n, k=op.k, dtype=op.dtype, layout=op.layout, quantized=op.quantized)
    cost = gemm_costs([plain_gemm], gpu, calibration, clock=clock, details=False)[0]
    return replace(cost, time_s=op.groups * cost.time_s)


def _fused_cost(op: GroupedGemm, gpu: Gpu, calibration: Calibration, clock: Clock) -> Cost:
    return correct_grouped(op, _formula_cost(op, gpu, calibration, clock), gpu, calibration)


_SKEW_STEP = 2**0.5


def _lesser_skews(op: GroupedGemm) -> FloatArray | None:
    """Skews from 1 up to the operator's own, on a new first axis, if its groups are those that even routing visits: the
    same weights and rows are never faster for being uneven. Networks say so all the same (down to 0.68 on A100, 0.93 on
    B200). None where that bounds nothing."""
    largest = float(np.max(op.skew, initial=1.0))
    if largest <= 1.0 or not op.visited_evenly:
        return None
    sizes = (op.groups, op.rows, op.n, op.k, op.skew, op.masked_rows, op.tokens, op.experts)
    skew = np.broadcast_to(np.asarray(op.skew, dtype=np.float64), np.broadcast_shapes(*map(np.shape, sizes)))
    steps = _SKEW_STEP ** np.arange(np.ceil(np.log(largest) / np.log(_SKEW_STEP)))
    return np.stack([np.minimum(skew, step) for step in (*steps, np.inf)])


def _slowest(cost: Cost) -> Cost:
    """The slowest along the first axis."""
    time_s = np.asarray(cost.time_s)
    worst = np.argmax(time_s, axis=0)[None]

    def chosen(values: Floats) -> Any:
        return plain(np.take_along_axis(np.broadcast_to(np.asarray(values), time_s.shape), worst, axis=0)[0])

    terms = {name: chosen(getattr(cost, name)) for name in ("compute_s", "memory_s", "overhead_s", "log_sigma")}
    details = {name: chosen(value) for name, value in cost.details.items()}
    return replace(cost, time_s=chosen(time_s), details=details, **terms)


def _formula_cost(op: GroupedGemm, gpu: Gpu, calibration: Calibration, clock: Clock) -> Cost:
    """The cost from the formula, without residual."""
    c = _on_units_of(op.dtype, calibration)
    if gpu.matrix_tile:
        c = _on_arrays(c, calibration.gemm[op.dtype], gpu.matrix_tile)
    run = long_run(gpu, op.dtype, calibration.power, calibration.gemm[op.dtype].throttle, clock)
    terms = grouped_terms(op, gpu, c, run)
    time_s = terms["time_s"]
    sigma = np.where(time_s < SHORT * c.launch_s, c.log_sigma_small, c.log_sigma)
    details = {key: plain(terms[key]) for key in ("tile_m", "tile_n", "waves")}
    return Cost(
        time_s=plain(time_s),
        compute_s=plain(terms["compute_s"]),
        memory_s=plain(terms["memory_s"]),
        overhead_s=plain(np.broadcast_to(c.launch_s, np.shape(time_s))),
        log_sigma=plain(sigma),
        source=_source(op.dtype, calibration),
        details=details,
    )


def _on_units_of(dtype: DType, calibration: Calibration) -> GroupedCoefficients:
    """For experts of fewer than 16 bits: the efficiency scaled by the ratio of plain GEMM efficiency in their type to
    16 bits, with a standard deviation of at least ``narrow_sigma``."""
    c, units, wide = _kernels_of(dtype, calibration), calibration.gemm[dtype], calibration.gemm[DType.BF16]
    if dtype.bytes >= 2:
        return c
    share = max(tile[2] for tile in units.tiles) / max(tile[2] for tile in wide.tiles)
    sigmas = {name: max(getattr(c, name), c.narrow_sigma) for name in ("log_sigma", "log_sigma_small")}
    return replace(c, efficiency=c.efficiency * min(share, 1.0), **sigmas)


def _on_arrays(c: GroupedCoefficients, plain: GemmCoefficients, side: int) -> GroupedCoefficients:
    """Experts on a few large systolic arrays: a compiler walks their rows as it walks those of plain GEMMs, with the
    same share of peak, operands from the same scratchpad and the array's width."""
    share = max(tile[2] for tile in plain.tiles)
    feed = plain.feed_bytes_per_clock
    return replace(c, tile_n=side, efficiency=share, half_tile=0.0, feed_bytes_per_clock=feed, tile_s=plain.tile_s)


def _kernels_of(dtype: DType, calibration: Calibration) -> GroupedCoefficients:
    """Triton has no kernels for experts of 4-bit floats: a framework with a family of Triton's and one other runs the
    other (SGLang's served models of ../shared/data/end_to_end, nvfp4 on B200 and GB200: time per token 12 to 10% and
    48 to 32% off, 2026-11-23)."""
    families = calibration.grouped_families
    kernels = [name for name in families if name.startswith(f"{calibration.kernels}_")]
    others = [name for name in kernels if not name.endswith("_triton")]
    return families[others[0]] if dtype is DType.NVFP4 and len(others) == 1 < len(kernels) else calibration.grouped


def _faster(cost: Cost, alternative: Cost) -> Cost:
    return select_cost(np.less(alternative.time_s, cost.time_s), alternative, cost)


def grouped_terms(op: GroupedGemm, gpu: Gpu, c: GroupedCoefficients, run: LongRun | None = None) -> dict[str, Floats]:
    """Seconds of compute, memory and all, with the tile height chosen; the sizes' broadcast shape."""
    rows, masked = walked_rows(op.rows, op.masked_rows, op.tokens, c.dragged)
    sizes = (op.groups, rows, op.n, op.k, op.skew, masked)
    groups, rows, n, k, skew, masked = (np.asarray(v, dtype=np.float64)[..., None] for v in sizes)
    tiles_m = TILES_M[: max(1, int(np.searchsorted(TILES_M, c.tile_m_most, side="right")))]
    active = np.maximum(np.minimum(groups, rows), 1)
    blocks = tiles_down(rows / active, active, skew, tiles_m) * np.ceil(n / c.tile_n)
    rate = peak_flops_per_s(gpu, op.dtype) / gpu.num_sms * c.efficiency * tiles_m / (tiles_m + c.half_tile)
    feed = c.feed_bytes_per_clock * gpu.boost_clock_hz
    per_k = np.maximum(2 * tiles_m * c.tile_n / rate, (tiles_m + c.tile_n) * op.dtype.bytes / feed)
    waves = blocks / gpu.num_sms
    waves = waves + c.tail * (np.ceil(waves) - waves)
    compute = waves * (k * per_k + c.tile_s * (tiles_m * c.tile_n) / 16384)
    best = np.argmin(compute, axis=-1)[..., None]
    compute_s = lasting_s(np.take_along_axis(compute, best, axis=-1)[..., 0], op.flops, run)
    out = max(2.0, op.dtype.bytes)
    traffic = op.dtype.bytes * (active * n * k + rows * k) + out * rows * n
    traffic = traffic + c.masked * op.dtype.bytes * masked * (n + k)
    memory = (traffic / (c.hbm_share * gpu.hbm_bytes_per_s))[..., 0]
    time_s = np.maximum(compute_s, memory) + c.overlap * np.minimum(compute_s, memory) + c.launch_s
    return {
        "time_s": time_s,
        "compute_s": compute_s,
        "memory_s": memory,
        "tile_m": tiles_m[best][..., 0],
        "tile_n": np.broadcast_to(float(c.tile_n), time_s.shape),
        "waves": np.take_along_axis(np.broadcast_to(waves, (*time_s.shape, tiles_m.size)), best, axis=-1)[..., 0],
    }


def tiles_down(mean: Floats, groups: Floats, skew: Floats, tiles_m: Floats = TILES_M) -> Floats:
    """Row tiles of all groups, for every tile height on the last axis, where the largest group has ``skew`` x ``mean``.

    Groups' rows are spread evenly on a logarithmic scale (a power law of exponent 1) from ``_least_load`` up to it.
    """
    even = groups * np.ceil(mean / tiles_m - 1e-9)
    if not np.any(np.asarray(skew) > 1):
        return even
    lowest = _least_load(skew)
    total = 0.0
    weight = 0.0
    for q in _QUANTILES:
        load = lowest * (np.maximum(skew, 1.0) / lowest) ** q
        weight = weight + load
    scale = _QUANTILES.size / weight
    for q in _QUANTILES:
        load = lowest * (np.maximum(skew, 1.0) / lowest) ** q * scale
        total = total + np.ceil(mean * load / tiles_m - 1e-9)
    return np.where(np.asarray(skew) > 1, groups * total / _QUANTILES.size, even)


def _least_load(skew: Floats) -> Floats:
    """Rows of the smallest group over the mean's, where rows are log-uniform up to ``skew`` x mean.

    The mean of a log-uniform variable on [a, K] is (K - a) / ln(K / a); with mean 1, a - ln a = K - ln K (a <= 1),
    solved by Newton's method from below.
    """
    k = np.maximum(np.asarray(skew, dtype=np.float64), 1 + 1e-9)
    smallest = np.finfo(np.float64).tiny
    a: Floats = np.maximum(k * np.exp(-np.minimum(k, 700.0)), smallest)
    for _ in range(12):
        a = np.clip(a - (a - np.log(a) - k + np.log(k)) / np.minimum(1 - 1 / a, -1e-12), smallest, 1.0)
    return a


NOBODY_MEASURED = GroupedCoefficients().narrow_sigma
"""Default of ``narrow_sigma``; a smaller value means that a fit had narrow experts."""


def _source(dtype: DType, calibration: Calibration) -> Source:
    measured = dtype in (DType.BF16, DType.FP16) or calibration.grouped.narrow_sigma < NOBODY_MEASURED
    own_fit = "grouped" in calibration.calibrated and measured
    return Source.CALIBRATED if own_fit else Source.ANALYTIC
