"""Time of memory-bound kernels, replayed or queued, on a GPU's datasheet: PyTorch's own, measured on the generation.

The bytes that move are those of the kernels PyTorch runs for an operator (``RUNS``), not the least; trainers and
servers fuse some of them (``FUSED``). To the memory's
time, the time of the SMs is added as the root of squares: rows wait at barriers, gathers for addresses, strided copies
for instructions. Arithmetic alone (GELU) hides behind loads, or they behind it: the root of fourth powers. Everything
starts cold, so L2 serves only a row's second read.

docs/concepts/memory-bound.md has symbols, fit and accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sartor.cost.correction.coefficients import TorchStreams
from sartor.cost.cost import Cost
from sartor.cost.gpu.stream_law import MOST_THREADS, SOFTMAX_THREADS, clock_hz
from sartor.hardware.gpu import Gpu
from sartor.operators import MemoryBound, MemoryBoundKind, Pass
from sartor.units import BoolArray, FloatArray, IntArray, plain

BACKWARD = ".backward"

KINDS = {
    MemoryBoundKind.NORM: "rmsnorm",
    MemoryBoundKind.ACTIVATION: "gelu",
    MemoryBoundKind.ROTARY: "rotary",
    MemoryBoundKind.SOFTMAX: "softmax",
    MemoryBoundKind.EMBEDDING: "embedding",
    MemoryBoundKind.OPTIMIZER: "optimizer",
    MemoryBoundKind.CROSS_ENTROPY: "loss",
    MemoryBoundKind.RESIDUAL: "plain",
    MemoryBoundKind.CAST: "plain",
}
"""The commonest kernel of a kind, for operators that name none. Others are ``other``: at the rate of plain elementwise
kernels, which were measured, with a wide interval."""

KERNELS = ("gelu", "gelu.backward", "rmsnorm", "layernorm", "softmax", "embedding", "embedding.backward", "optimizer")
"""Those that run as the graph counts them."""

RUNS: Mapping[str, tuple[float, float, int]] = {
    "silu_and_mul": (5 / 3, 0.0, 2),  # silu (2 elements), product (3)
    "silu_and_mul.backward": (9 / 5, 0.0, 3),  # two products and silu's gradient (3 each)
    "rotary": (9 / 2, 0.0, 7),  # four products of halves (1 each), a sum and a difference (1.5), concatenated (2)
    "rotary.backward": (15 / 2, 0.0, 12),  # negated (1), products (4), sums (3), zeros (2), copies (2), a sum (3)
    "rmsnorm.backward": (5 / 3, 0.0, 2),  # gradients of inputs (3 elements), then of weights (2)
    "layernorm.backward": (5 / 3, 0.0, 2),
    "softmax.backward": (5 / 3, 0.0, 1),  # output and gradient are read for their sum, then again
    "cross_entropy": (2.0, 2.0, 2),  # log-softmax reads a row for its largest value, its sum, its result; gather
    "cross_entropy.backward": (5 / 2, 0.0, 2),  # zeros (1), then gradient twice, output, result
    "loss": (14 / 26, 8 / 26, 3),  # a copy in fp32 (6 bytes), log-softmax of it (8, and 8 again), gather
    "loss.backward": (26 / 14, 0.0, 4),  # zeros (4 bytes), log-softmax (16), back to 16 bits (6)
}
"""Traffic over the least, of a row's second and third read over the least where L2 does not have it, and launches
(PyTorch 2.11: aten/src/ATen/native/cuda/{SoftMax,PersistentSoftmax,layer_norm_kernel,Loss}; recalled)."""

WIDE = 2048
"""Columns up to which a warp's registers hold a row of softmax (PersistentSoftmax; recalled); wider ones have a block,
``softmax_wide``."""

HIDES = "gelu"
"""The kernel whose work is arithmetic."""

FUSED = ("silu_and_mul", "rotary")
"""What trainers and servers run as one kernel with the least traffic, forward and backward."""


def torch_stream_cost(op: MemoryBound, gpu: Gpu, law: TorchStreams, *, fused: bool) -> Cost:
    """Cost of one operator; shapes broadcast. One of several kernels is a chain that has its traffic, except a model's
    loss. ``fused``: as trainers and servers run it."""
    name, rows = name_of(op), {row[0]: row[1:] for row in law.kinds}
    kernel_row, elements = rows[name], 1.0 * np.asarray(op.rows) * np.asarray(op.cols)
    single, runs = _is_single(op), _runs(name, fused=fused)
    traffic, again = np.where(single, runs[0], 1.0), np.where(single, runs[1], 0.0)
    per_element, per_row, _, sigma = (
        np.where(single, alone, chained)
        for alone, chained in zip(kernel_row, kernel_row if name == "other" else rows["plain"], strict=True)
    )
    if name == "softmax":
        wide = single & (np.asarray(op.cols) > WIDE)
        per_element = np.where(wide, rows["softmax_wide"][0], per_element)
        per_row = np.where(wide, rows["softmax_wide"][1], per_row)
    cycles = per_element * elements * traffic + per_row * np.asarray(op.rows)
    moved = np.asarray(op.bytes_moved, dtype=np.float64) * (traffic + again * _left_l2(op, gpu, law, name))
    memory, busy = moved / (law.hbm_share * gpu.hbm_bytes_per_s), cycles / (gpu.num_sms * clock_hz(gpu))
    power = 4 if name.startswith(HIDES) else 2
    stream = (memory**power + busy**power) ** (1 / power)
    overhead = law.launch_s * launches(op, fused=fused) + kernel_row[2]
    return Cost(
        time_s=plain(stream + overhead), memory_s=plain(stream), overhead_s=plain(overhead), log_sigma=plain(sigma)
    )


def launches(op: MemoryBound, *, fused: bool) -> IntArray:
    """Kernels that run for an operator."""
    return np.where(_is_single(op), _runs(name_of(op), fused=fused)[2], op.kernels)


def _is_single(op: MemoryBound) -> BoolArray:
    return np.asarray((np.asarray(op.kernels) == 1) | (op.kind is MemoryBoundKind.CROSS_ENTROPY))


def _runs(name: str, *, fused: bool) -> tuple[float, float, int]:
    return (1.0, 0.0, 1) if fused and name.startswith(FUSED) else RUNS.get(name, (1.0, 0.0, 1))


def name_of(op: MemoryBound) -> str:
    """The kernel of PyTorch that an operator is; ``plain`` is an elementwise one."""
    name = op.kernel if op.kernel in RUNS or op.kernel in KERNELS else KINDS.get(op.kind, "other")
    back = f"{name}{BACKWARD}"
    return back if op.pass_ is Pass.BACKWARD and (back in RUNS or back in KERNELS) else name


def _left_l2(op: MemoryBound, gpu: Gpu, law: TorchStreams, name: str) -> FloatArray:
    """Share of a row's next read that comes from memory: rows in flight fill L2."""
    width = 4.0 if name == "loss" else op.dtype.bytes
    rows = np.minimum(op.rows, gpu.num_sms * MOST_THREADS / SOFTMAX_THREADS)
    filled = np.maximum(rows * np.asarray(op.cols) * width / gpu.l2_bytes, 1e-9)
    return np.asarray(np.clip(np.log(filled / law.again_from) / law.again_span, 0.0, 1.0))
