"""The residual of fused attention: the features of its networks, and the kernels they apply to.

Tables measure three kernels in 16-bit types, with values as wide as keys: a causal prefill of whole sequences, one new
token against a cache, and an encoder without a mask. Only these get a residual; backward, latent attention, chunked
prefill and speculative decoding keep the formula's time. An 8-bit cache gets the residual of a 16-bit one of the same
sizes, since no table has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from sartor.cost.correction.calibration import BACKWARD, UNALIGNED, Calibration
from sartor.cost.correction.coefficients import AttentionCoefficients
from sartor.cost.correction.network import Mask, Residual, Weights, applicable, moved_by, residual_records
from sartor.cost.cost import Cost
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.hardware.gpu import FLASH_MULTIPLE, Gpu
from sartor.json_types import JsonDict
from sartor.operators import Attention, attention_pairs
from sartor.units import Array, Ints, shaped

PARTS = ("context", "encoder", "generation")

SHORTEST = 9
"""Prefills of fewer tokens run the decode kernel (``sartor.cost.gpu.attention.DECODE_ROWS``)."""

HEAD_STEP = 64
"""Causal tables have head dimensions in multiples of 64; others are rounded up."""

WINDOW_REACH = 2
"""Factor by which a window may lie outside the measured windows of its head dimension."""

_SHORT = 8
"""Kernels shorter than so many launches have an interval of their own."""

SIZES = ("batch", "num_heads", "num_kv_heads", "seq_q", "seq_kv", "head_dim", "window")


def correct_attention(op: Attention, cost: Cost, gpu: Gpu, calibration: Calibration, *, in_model: bool = False) -> Cost:
    """The formula's cost with the networks of its kernels applied; ``residual`` in its details is the factor.

    Without a framework that was measured, a decoding time lies between those of the frameworks that were: the median's
    network leaves them where their rows end at different sizes. ``in_model``: other layers' weights and caches have
    passed through L2 since this cache was last read, so it streams from memory; tables read one that fits in L2 from
    there.
    """
    if not op.pass_.computes_outputs or op.latent or op.dtype.bytes != 2:
        return cost
    c, peak = calibration.attention, peak_flops_per_s(gpu, op.dtype)
    shape, factor = np.shape(cost.time_s), None
    times, sigmas = (np.array(array, dtype=np.float64).reshape(-1) for array in (cost.time_s, cost.log_sigma))
    sizes = _sizes(op, shape)
    for part in PARTS:
        residual = _residual_of(calibration, part)
        if residual is None:
            continue
        where = np.flatnonzero(_runs(part, op, sizes) & sizes_known(residual, sizes))
        if not where.size:
            continue
        columns = {name: values[where] for name, values in sizes.items()}
        unknown = part == "generation" and not _own_residual(calibration, part)
        formula_s, launch_s = times[where], launch_of(part, c)
        moved = moved_by(
            residual,
            gpu,
            columns,
            lambda block, part=part: attention_features(part, block, peak, gpu, c),  # type: ignore[misc]
            formula_s,
            attention_floor_s(part, columns, peak, gpu, op.kv_element / op.dtype.bytes),
            sigmas[where],
            formula_s < _SHORT * launch_s,
            [(residual, sizes_known(residual, columns)) for residual in _of_frameworks(calibration, part)]
            if unknown
            else (),
        )
        factor = np.ones_like(times) if factor is None else factor
        times[where], sigmas[where] = moved.time_s, moved.log_sigma
        if in_model and part == "generation":
            cached = np.broadcast_to(op.cached_bytes, shape).reshape(-1)[where]
            times[where] = np.maximum(moved.time_s, cached / (residual.stream_share * gpu.hbm_bytes_per_s))
        factor[where] = times[where] / formula_s
    if factor is None:
        return cost
    time_s, log_sigma, residual_factor = (shaped(array, shape) for array in (times, sigmas, factor))
    return replace(cost, time_s=time_s, log_sigma=log_sigma, details=cost.details | {"residual": residual_factor})


def biting_window(op: Attention, calibration: Calibration) -> Ints:
    """Its window, or 0 where all keys lie inside one wider than in any row: rows of the same sizes with and without a
    window that leaves nothing out differ by 1% (quartiles), but for kernels that run only with one (decoding on RTX PRO
    6000, some versions on B200 and H200), which networks know as far as rows go."""
    window, dim = np.asarray(op.window), np.ceil(np.asarray(op.head_dim) / HEAD_STEP) * HEAD_STEP
    covers: Mask = (window > 0) & (window >= op.seq_kv)
    if not np.any(covers):
        return op.window
    for part in ("generation", "context"):
        residual, runs = _residual_of(calibration, part), np.equal(op.seq_q, 1) == (part == "generation")
        for seen, shortest, longest in residual.windows if residual else ():
            covers = covers & ~(runs & (dim == seen) & (window >= shortest) & (window <= longest))
    return np.where(covers, 0, window)


def next_head_dim(op: Attention, calibration: Calibration) -> Ints:
    """Its head dimension, or if the tables of its kernels lack that, the next one that they have."""
    dim = np.asarray(op.head_dim)
    plain = op.pass_.computes_outputs and not op.latent and op.causal and op.dtype.bytes == 2
    if not plain or np.any(np.not_equal(op.v_head_dim, dim)):
        return op.head_dim
    residuals = {part: _residual_of(calibration, part) for part in ("context", "generation")}
    context, generation = (_next_of(residual, dim) for residual in residuals.values())
    return np.where(np.equal(op.seq_q, 1), generation, context)


def _next_of(residual: Residual | None, dim: Array) -> Array:
    measured = np.asarray(residual.head_dims if residual else (), dtype=np.int64)
    rounded = np.ceil(dim / HEAD_STEP) * HEAD_STEP
    index = np.searchsorted(measured, rounded)
    has_next = index < measured.size
    wider = np.append(measured, 0)[index]
    return np.where(has_next & (wider != rounded), wider, dim)


def _residual_of(calibration: Calibration, part: str) -> Residual | None:
    """The network of the framework's kernels. Without a framework, or if this one was not measured: the network of the
    median of frameworks, in the latter case with an interval that covers all of them (``ANY``)."""
    own_residual = _own_residual(calibration, part)
    median = own_residual or applicable(calibration, calibration.attention, part)
    if own_residual or not calibration.kernels or median is None:
        return median
    long, small = median.any_log_sigma, median.any_log_sigma_small
    return replace(
        median,
        log_sigma=max(median.log_sigma, long),
        log_sigma_small=max(median.log_sigma_small, small),
        kin_log_sigma=max(median.kin_log_sigma, long),
        kin_log_sigma_small=max(median.kin_log_sigma_small, small),
    )


def _own_residual(calibration: Calibration, part: str) -> Residual | None:
    framework = calibration.kernels.partition("_")[0]
    return applicable(calibration, calibration.attention, f"{part}.{framework}") if framework else None


def _of_frameworks(calibration: Calibration, part: str) -> list[Residual]:
    """The networks of all frameworks measured."""
    residuals = [applicable(calibration, calibration.attention, f"{part}.{framework}") for framework in _frameworks()]
    return [residual for residual in residuals if residual]


def kernels_measured(calibration: Calibration) -> tuple[str, ...]:
    """Frameworks whose attention kernels were measured on the device, and families of their grouped kernels."""
    return tuple(dict.fromkeys((*frameworks_of(calibration), *calibration.grouped_families)))


def frameworks_of(calibration: Calibration) -> tuple[str, ...]:
    """Frameworks whose attention kernels were measured on the device, or on one of its die."""
    c = calibration.attention
    return tuple(
        framework
        for framework in _frameworks()
        if any(applicable(calibration, c, f"{part}.{framework}") for part in PARTS)
    )


@cache
def _frameworks() -> tuple[str, ...]:
    record_keys = [key.split(".") for key in residual_records()]
    return tuple(dict.fromkeys(key[2] for key in record_keys if len(key) == 3 and key[1] in PARTS))


WIDEST = 256
"""The widest head that PyTorch gives to cuDNN on Hopper."""


def in_family(op: Attention, calibration: Calibration) -> list[tuple[AttentionCoefficients, Mask]]:
    """The coefficients of a framework that has its own (``attention_families``), and where each kernel of it runs.

    PyTorch 2.11 tries cuDNN first on compute capability 9.0 with cuDNN above 9.15 (2.11 ships 9.19), forward and
    backward alike, and cuDNN takes heads up to 256 in multiples of 8 (``check_prefer_cudnn_attention`` and
    ``check_cudnn_tensor_shapes`` in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp). Heads between two multiples
    go to FlashAttention-2, compiled for Ampere. Windows and the later chunks of a prompt need a mask as a tensor; wider
    heads go to kernels that were not measured.
    """
    framework = calibration.kernels.partition("_")[0]
    families = calibration.attention_families
    if framework not in families:
        return []
    whole = np.equal(op.seq_q, op.seq_kv) | np.equal(op.seq_q, 1) | (not op.causal)
    runs: Mask = whole & (np.equal(op.window, 0) | np.greater_equal(op.window, op.seq_kv))
    runs = runs & (not op.latent and op.dtype.bytes == op.kv_element == 2)
    aligned: Mask = np.asarray(True)
    for width in (op.head_dim, op.v_head_dim):
        runs = runs & np.less_equal(width, WIDEST)
        aligned = aligned & (np.asarray(width) % FLASH_MULTIPLE == 0)
    ending = "" if op.pass_.computes_outputs else BACKWARD
    members = ((ending, runs & aligned), (f"{UNALIGNED}{ending}", runs & ~aligned & np.greater(op.seq_q, 1)))
    return [(families[f"{framework}{name}"], where) for name, where in members if f"{framework}{name}" in families]


def launch_of(part: str, c: AttentionCoefficients) -> float:
    return c.decode_launch_s if part == "generation" else c.launch_s


def attention_features(
    part: str, block: Mapping[str, Array], peak_flops_per_s: float, gpu: Gpu, c: AttentionCoefficients
) -> Weights:
    """The network's input features, (features, kernels)."""
    b, h, kv, q, s, d, w = (block[name] for name in SIZES)
    dim = d if part == "encoder" else np.ceil(d / HEAD_STEP) * HEAD_STEP
    reach, kv_bytes, rest_bytes, flops = _work(part, b, h, kv, q, s, dim, w)
    compute, memory = flops / peak_flops_per_s, (kv_bytes + rest_bytes) / gpu.hbm_bytes_per_s
    launch, windowed = launch_of(part, c), w > 0
    sizes = [b, h, kv, h / kv, dim, q, s, reach]
    ratios = [compute / memory, compute / launch, memory / launch, kv_bytes / gpu.l2_bytes, rest_bytes / gpu.l2_bytes]
    shares = [np.where(windowed, np.maximum(w, 1) / s, 1.0), flops / (4 * b * h * q * s * dim)]
    tiles: list[Array] = []
    for tile in (64, 128, 256):
        tiles += _waves(b * h * np.ceil(q / tile), np.ceil(q / tile) * tile / q, gpu)
    rows = q * h / kv
    for tile in (8, 16, 64):
        tiles += _waves(b * kv * np.ceil(rows / tile), np.ceil(rows / tile) * tile / rows, gpu)
    logs = np.log(np.stack([*sizes, *ratios, *shares, *tiles]).astype(np.float32))
    flags = np.stack([windowed, windowed & (w >= s)]).astype(np.float32)
    return np.concatenate([logs, flags])


def attention_floor_s(
    part: str, block: Mapping[str, Array], peak_flops_per_s: float, gpu: Gpu, kv_share: float = 1.0
) -> Array:
    """Least time the datasheet allows: FLOPs at peak, and bytes beyond what L2 can hold at HBM's rate; ``kv_share``:
    bytes of a cached element over an element's."""
    _, kv_bytes, rest_bytes, flops = _work(part, *(block[name] for name in SIZES))
    memory = np.maximum(kv_share * kv_bytes + rest_bytes - gpu.l2_bytes, 0) / gpu.hbm_bytes_per_s
    floor_s: Array = np.maximum(flops / peak_flops_per_s, memory)
    return floor_s


def _work(part: str, b: Array, h: Array, kv: Array, q: Array, s: Array, d: Array, w: Array) -> tuple[Array, ...]:
    """Keys a query tile reaches, bytes of keys and values, of queries and output, FLOPs; 16-bit elements."""
    reach = np.where(w > 0, np.minimum(s, w + np.where(q > 1, q, 0)), s)
    flops = b * h * attention_pairs(q, s, part != "encoder", w) * 4 * d
    return reach, b * kv * reach * d * 4, b * h * q * d * 4, flops


def _waves(blocks: Array, padding: Array, gpu: Gpu) -> list[Array]:
    waves = blocks / gpu.num_sms
    return [np.ceil(waves) / waves, waves, padding]


def _sizes(op: Attention, shape: tuple[int, ...]) -> dict[str, Array]:
    values: JsonDict = {name: getattr(op, name) for name in (*SIZES, "v_head_dim")}
    return {
        name: np.broadcast_to(np.asarray(value, dtype=np.float64), shape).reshape(-1) for name, value in values.items()
    }


def sizes_known(residual: Residual, sizes: Mapping[str, Array]) -> Mask:
    """Whether the fit saw this head dimension, and such windows at it: others are no guide (a network trained at 256
    only with 1024 keys was 18 times off with 128)."""
    dim, window = np.ceil(sizes["head_dim"] / HEAD_STEP) * HEAD_STEP, sizes["window"]
    inside: Mask = (window == 0) & (np.isin(dim, residual.head_dims) if residual.head_dims else True)
    for seen, shortest, longest in residual.windows:
        inside |= (dim == seen) & (window * WINDOW_REACH >= shortest) & (window <= longest * WINDOW_REACH)
    return inside


def _runs(part: str, op: Attention, sizes: Mapping[str, Array]) -> Mask:
    """Mask of the problems that run the kernel of table ``part``."""
    q, s = sizes["seq_q"], sizes["seq_kv"]
    plain: Mask = (sizes["v_head_dim"] == sizes["head_dim"]) & (sizes["num_kv_heads"] <= sizes["num_heads"])
    if part == "generation":
        runs: Mask = plain & (q == 1) & (s > 1)
    elif op.causal == (part == "context"):
        runs = plain & (q >= SHORTEST) & (q == s) & ((part == "context") | (sizes["window"] == 0))
    else:
        runs = np.zeros_like(plain)
    return runs
