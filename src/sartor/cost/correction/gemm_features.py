"""Inputs of the networks that correct GEMMs, single and grouped, and how each framework quantizes its operands.

Kernels that quantize a GEMM's input, which frameworks' tables time together with it.

Timed alone, every framework quantizes a 16-bit input: vLLM and SGLang in one kernel, TensorRT-LLM's fp8 in three, as a
layer without a checkpoint has no scale (one clears it, one looks for the largest element, one narrows). In a model the
scale is the checkpoint's, so one is left; its nvfp4 inputs come quantized from norms, attention and activations.

Read in TensorRT-LLM (cpp/tensorrt_llm/common/cudaFp8Utils.cu, _torch/modules/linear.py) and in the collectors of
ai-dynamo/aiconfigurator (collector/*/collect_gemm.py) on 2026-11-27; times are fitted (lab/fit_gemm_kernels.py).

Features of a GEMM for its network: dimensionless numbers, for tensor cores and for general ones.

Tables hold whole fused layers of inference in 16-bit types; a network moves both GEMMs of a layer, and is fitted to
the layer's time. Gradients, and GEMMs that may run apart (training), keep the formula's time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.correction.coefficients import GemmCoefficients, GroupedCoefficients
from sartor.cost.correction.network import Weights, applicable, moved_by
from sartor.cost.cost import Cost
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.cost.gpu.tiles import Machine, Problems, over_least
from sartor.hardware.gpu import Gpu
from sartor.operators import DType, GroupedGemm
from sartor.units import Array, Floats, Ints, shaped


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantizing:
    """Kernels before one GEMM."""

    kernels: int
    element_bytes: float
    """Their traffic per element of the input."""

    def time_s(self, elements: Floats, kernel_s: float, byte_s: float) -> Floats:
        """Seconds for an input of so many elements, at these per kernel and per byte."""
        return self.kernels * kernel_s + self.element_bytes * byte_s * elements


ALONE: Mapping[tuple[str, DType], _Quantizing] = MappingProxyType(
    {("trtllm", DType.FP8): _Quantizing(kernels=3, element_bytes=5.0)}
)
"""By framework and type, in a GEMM timed alone, where it is not one kernel."""

IN_A_MODEL: Mapping[tuple[str, DType], _Quantizing] = MappingProxyType(
    {
        ("trtllm", DType.FP8): _Quantizing(kernels=1, element_bytes=3.0),
        ("trtllm", DType.NVFP4): _Quantizing(kernels=0, element_bytes=0.0),
    }
)
"""The same in a model, where it differs."""


def quantizing_of(framework: str, dtype: DType, *, alone: bool) -> _Quantizing:
    """The kernels of a framework that quantize the input of a GEMM of this type."""
    once = _Quantizing(kernels=1, element_bytes=2.0 + dtype.bytes)
    timed = ALONE.get((framework, dtype), once)
    return timed if alone else IN_A_MODEL.get((framework, dtype), timed)


def waits_for_the_host(kernels: str, dtype: DType) -> bool:
    """Whether GEMMs of this type were timed call by call, not from a graph (``use_cuda_graph`` in the collector)."""
    return (kernels.partition("_")[0], dtype) == ("vllm", DType.FP8_BLOCK)


TILES = ((128, 256), (256, 128), (128, 128), (64, 256), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128),
         (192, 128), (256, 256))  # fmt: skip
"""Output tiles used for the features, independent of the calibration's menu."""

STEPS = (128, 256, 512)
"""Lengths of k by which networks over tuning runs see remainders, unless their record says otherwise."""


def table_features(
    block: Mapping[str, Array],
    machine: Machine,
    c: GemmCoefficients,
    gpu: Gpu,
    *,
    own_lengths: bool = False,
    menu: bool = False,
    steps: Sequence[int] = STEPS,
    libraries: int = 0,
) -> Weights:
    """The input of a network over a table of linear layers. ``own_lengths``: with n and k as they are, not rounded to
    lengths of tables, and the remainders of k by ``steps``; ``menu``: with ``_menu_features``; ``libraries``: with one
    number each, 1 for the one whose index ``library`` is."""
    if not own_lengths:
        block = {**block, "n": table_length(block["n"]), "k": table_length(block["k"])}
    parts = [_gemm_features(block, machine, c, gpu)]
    parts += [_tuned_features(block, steps)] if own_lengths else []
    parts += [_menu_features(block, machine, c)] if menu else []
    parts += [(block["library"] == np.arange(libraries)[:, None]).astype(np.float32)] if libraries else []
    return np.concatenate(parts)


def _gemm_features(block: Mapping[str, Array], machine: Machine, c: GemmCoefficients, gpu: Gpu) -> Weights:
    """The network's input, (features, GEMMs). No feature depends on the clock or on the formula's time."""
    m, n, k = (block[name].astype(np.float32) for name in ("m", "n", "k"))
    log_m, log_n, log_k = np.log(m), np.log(n), np.log(k)
    wide, width = np.float32(machine.first_bytes), np.float32(machine.element_bytes)
    first, second, out = m * k * wide, n * k * width, m * n * np.float32(2)
    ratios = _ratios(log_m + log_n + log_k, (first, second, out), first + second + out, machine, c, gpu)
    ragged = [np.ceil(m / q) - m / q for q in _EDGES]
    parts = [*(np.stack(rows) for rows in ([log_m, log_n, log_k], ratios, ragged))]
    return np.concatenate([*parts, *_tiled(TILES, m, n, np.float32(1), log_m + log_n, machine)])


def _tuned_features(block: Mapping[str, Array], steps: Sequence[int]) -> Weights:
    """More for tables of tuning runs, which hold the weights of models as they are: the remainders of n and k (a tile's
    columns, and the steps that k splits into)."""
    n, k = (block[name].astype(np.float32) for name in ("n", "k"))
    over = [np.ceil(length / q) - length / q for length, by in ((n, _COLUMNS), (k, steps)) for q in map(np.float32, by)]
    return np.stack([*over, np.log(n / k)])


def _menu_features(block: Mapping[str, Array], machine: Machine, c: GemmCoefficients) -> Weights:
    """How much longer than the best every tile and split of the menu takes: ways that come near are what a tuning run
    may have found, so networks over small tables are nearer to weights they have not seen."""
    sizes: dict[str, Any] = {name: block[name].astype(np.float32) for name in ("m", "n", "k")}
    ones = np.ones_like(sizes["m"])
    p = Problems(**sizes, batch=ones, out_bytes=2 * ones, penalty=ones, packed_bytes=0 * ones)
    return over_least(p, machine, c).astype(np.float32)


_COLUMNS = (64, 128, 256, 512)


GENERAL_TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 64), (32, 32))
"""Output tiles of sgemm kernels, used for the features of GEMMs on general cores."""


def general_features(block: Mapping[str, Array], machine: Machine, c: GemmCoefficients, gpu: Gpu) -> Weights:
    """The same of a GEMM on general cores, batched or not: ``across`` is 1 where its layout is NN."""
    m, n, k, batch, across = (block[name].astype(np.float32) for name in ("m", "n", "k", "batch", "across"))
    log_m, log_n, log_k, log_batch = np.log(m), np.log(n), np.log(k), np.log(batch)
    width = np.float32(machine.element_bytes)
    first, second, out = m * k * width, n * k * width, m * n * width
    moved = batch * (first + second + out)
    ratios = _ratios(log_m + log_n + log_k + log_batch, (first, second, out), moved, machine, c, gpu)
    ragged = [np.ceil(length / q) - length / q for length in (m, n, k) for q in _GENERAL_EDGES]
    parts = [*(np.stack(rows) for rows in ([log_m, log_n, log_k, log_batch, across], ratios, ragged))]
    return np.concatenate([*parts, *_tiled(GENERAL_TILES, m, n, batch, log_m + log_n + log_batch, machine)])


def _ratios(
    log_mnk: Weights, operands: tuple[Weights, ...], moved: Weights, machine: Machine, c: GemmCoefficients, gpu: Gpu
) -> list[Weights]:
    """Compute, memory and launch against each other, and every operand against L2, all as ln."""
    compute = log_mnk + np.float32(np.log(2 / (machine.sm_flops_per_s * machine.num_sms)))
    memory = np.log(moved) - np.float32(np.log(gpu.hbm_bytes_per_s))
    launch, l2 = np.float32(np.log(c.launch_s)), np.float32(np.log(gpu.l2_bytes))
    return [compute - memory, compute - launch, memory - launch, *(np.log(b) - l2 for b in (*operands, moved))]


def _tiled(
    tiles: tuple[tuple[int, int], ...], m: Weights, n: Weights, batch: object, log_area: Weights, machine: Machine
) -> tuple[Weights, Weights, Weights]:
    """Idle share of the last wave, tile padding and number of waves, for each tile, all as ln."""
    tm, tn = np.asarray(tiles, dtype=np.float32).T[:, :, None]
    grid = np.ceil(m / tm) * np.ceil(n / tn) * batch
    waves, log_grid = grid / np.float32(machine.num_sms), np.log(grid)
    log_waves = log_grid - np.float32(np.log(machine.num_sms))
    return np.log(np.ceil(waves)) - log_waves, log_grid + np.log(tm * tn) - log_area, log_waves


_GENERAL_EDGES = tuple(np.float32(q) for q in (2, 4, 8, 32, 128))
"""For all three lengths: tables of general cores have random sizes."""

_EDGES = tuple(np.float32(q) for q in (8, 16, 32, 64, 128, 256))
"""For rows only: tables have n and k in multiples of 256 (except the smallest), so theirs cannot be learned."""


def table_length(length: Array) -> Array:
    """``n`` or ``k`` rounded up to sizes in the tables: 32, 64, 128, then multiples of 256.

    Sizes in between get no factor of their own: one without measurements would be noise that a search exploits.
    """
    step = np.select([length <= 32, length <= 64, length <= 128], [32.0, 64.0, 128.0], 256.0)
    rounded: Array = np.ceil(length / step) * step
    return rounded


def held_length(length: Array, lengths: Sequence[float], tile: float = 0.0, block: float = 0.0) -> Array:
    """``n`` or ``k`` if a table of tuning runs holds it, else rounded up to an eighth to a quarter of itself, at most
    512: its few lengths say nothing of remainders between.

    Where kernels take whole tiles of columns and some whole blocks only, half as coarsely, to whole tiles; and within a
    step of a held length that is no whole number of blocks, others of this kind stay so: the same kernels run.
    """
    table = np.asarray(lengths)
    measured = table[np.searchsorted(table, length).clip(max=table.size - 1)] == length
    step = np.minimum(np.ldexp(1.0, np.frexp(length)[1] - 3), float(_COLUMNS[-1]))
    if tile:
        apart = np.abs(length[:, None] - table[table % block > 0]).min(axis=1, initial=np.inf)
        alike = (apart <= step) & (np.ceil(length / tile) * tile % block > 0)
        step = np.where(alike, tile, np.maximum(step / 2, tile))
    rounded: Array = np.where(measured, length, np.ceil(length / step) * step)
    return rounded


PART = "grouped"

SIZES = ("groups", "rows", "n", "k", "skew", "masked_rows", "tokens", "experts")

_TILES = (16, 64, 128)


SHORT = 5
"""Grouped GEMMs shorter than so many launches have an interval of their own."""


def correct_grouped(op: GroupedGemm, cost: Cost, gpu: Gpu, calibration: Calibration) -> Cost:
    """The formula's cost with the network of its kernels applied; ``residual`` in its details is the factor."""
    if not op.pass_.computes_outputs or op.dtype.bytes != 2 or op.apart:
        return cost
    c, peak = calibration.grouped, peak_flops_per_s(gpu, op.dtype)
    residual = applicable(calibration, c, PART)
    if residual is None:
        return cost
    shape = np.shape(cost.time_s)
    formula_s, sigma = (np.asarray(np.broadcast_to(v, shape)).reshape(-1) for v in (cost.time_s, cost.log_sigma))
    columns = grouped_columns(op, shape)
    moved = moved_by(
        residual,
        gpu,
        columns,
        lambda block: grouped_features(block, peak, c, gpu),
        formula_s,
        grouped_floor_s(columns, peak, gpu),
        sigma,
        formula_s < SHORT * c.launch_s,
    )
    time_s, log_sigma, factor = (shaped(array, shape) for array in (moved.time_s, moved.log_sigma, moved.factor))
    return replace(cost, time_s=time_s, log_sigma=log_sigma, details=cost.details | {"residual": factor})


def grouped_columns(op: GroupedGemm, shape: tuple[int, ...]) -> dict[str, Array]:
    """Sizes as flat arrays."""
    return {name: np.broadcast_to(np.asarray(getattr(op, name), dtype=np.float64), shape).reshape(-1) for name in SIZES}


def grouped_features(block: Mapping[str, Array], peak_flops_per_s: float, c: GroupedCoefficients, gpu: Gpu) -> Weights:
    """The network's input, (features, GEMMs): experts, tokens and their rows, ratios of compute, traffic and launch,
    rows over L2, tiles over SMs. n and k themselves are left out: tables have a dozen weight shapes, which a network
    would memorize."""
    groups, routed, n, k, skew, others, masked_rows, experts_held = (block[name] for name in SIZES)
    tokens, experts = (
        np.where(masked_rows > 0, masked_rows, routed + others),
        np.where(experts_held > 0, experts_held, groups),
    )
    rows, masked = walked_rows(routed, others, masked_rows, c.dragged)
    walked, launch_s = walked_rows(routed, others, masked_rows, 1.0)[0], c.launch_s
    active = np.maximum(np.minimum(groups, rows), 1.0)
    rows_per_group = np.maximum(rows / active, 1.0)
    compute = 2 * rows * n * k / peak_flops_per_s
    memory = 2 * (active * n * k + rows * (n + k)) / gpu.hbm_bytes_per_s
    ratios = [compute / memory, compute / launch_s, memory / launch_s]
    tiles: list[Array] = []
    for tile in _TILES:
        waves = active * np.ceil(rows_per_group / tile) * np.ceil(n / 128) / gpu.num_sms
        tiles += [waves, np.ceil(waves) / waves, np.ceil(rows_per_group / tile) * tile / rows_per_group]
    sizes = [active, rows_per_group, np.maximum(skew, 1.0), 1 + masked / rows]
    sizes += [tokens / experts, tokens, 2 * rows * k / gpu.l2_bytes, 1 + (walked - routed) / rows]
    logs: Weights = np.log(np.stack([*sizes, *ratios, *tiles]).astype(np.float32))
    return logs


def walked_rows(rows: Ints, masked: Floats, tokens: Ints, dragged: float) -> tuple[Floats, Floats]:
    """Rows computed and rows only masked: of the choices that tokens with a row here made elsewhere, the share
    ``dragged`` is computed too."""
    if not dragged:
        return rows, masked
    walked = np.asarray(rows, dtype=np.float64) + masked
    called = np.where(np.greater(tokens, 0), tokens, walked)
    extra = dragged * np.maximum(np.minimum(called, rows) * walked / called - rows, 0.0)
    return rows + extra, masked - extra


def grouped_floor_s(block: Mapping[str, Array], peak_flops_per_s: float, gpu: Gpu) -> Array:
    """Least time the datasheet allows: FLOPs at peak, and weights beyond what L2 can hold at HBM's rate."""
    groups, rows, n, k = (block[name] for name in SIZES[:4])
    weights = 2 * np.minimum(groups, rows) * n * k
    memory = np.maximum(weights - gpu.l2_bytes, 0) / gpu.hbm_bytes_per_s
    floor_s: Array = np.maximum(2 * rows * n * k / peak_flops_per_s, memory)
    return floor_s
