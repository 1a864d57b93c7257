"""Time of a kernel that streams: bytes over the achieved bandwidth by a measured law, or a table, plus its launches.

Two laws, each on the GPU's own datasheet, so that they hold for GPUs nobody measured; without one, a table of kernels.

A vendor's law (``law_cost``) has three limits, each in its own unit: the memory (a share of its rate, another for
GDDR), the SMs (cycles per element of one SM, which add to the memory's time as the square root of squares, since both
partly overlap), and the block that handles one row (cycles per column): below one row per SM, more rows cost nothing.
PyTorch's layer norm and wide softmax read a row again to write its result; that read leaves L2 once the rows in flight
fill more than a part of it.

PyTorch's own kernels (``torch_stream_cost``), replayed or queued: the bytes that move are those of the kernels PyTorch
runs for an operator (``RUNS``), not the least; trainers and servers fuse some of them (``FUSED``). To the memory's
time, the time of the SMs is added as the root of squares: rows wait at barriers, gathers for addresses, strided copies
for instructions. Arithmetic alone (GELU) hides behind loads, or they behind it: the root of fourth powers. Everything
starts cold, so L2 serves only a row's second read.

docs/concepts/memory-bound.md has symbols, fit and accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sartor.cost.correction.calibration import TORCH, Calibration
from sartor.cost.correction.coefficients import MemoryBoundCoefficients, StreamLaw, TorchStreams
from sartor.cost.cost import Cost, Source
from sartor.hardware.gpu import Gpu
from sartor.operators import MemoryBound, MemoryBoundKind, Pass
from sartor.units import GIGA, BoolArray, FloatArray, Floats, IntArray, plain

FIRST_HBM, FIRST_HBM_SHARE = "6.0", 0.82
"""GP100's compute capability, and its share of the memory rate over a later GPU's: V100 reaches up to 95% of 900 GB/s,
"1.5x delivered memory bandwidth versus Pascal GP100" (732 GB/s; NVIDIA V100 whitepaper WP-08608-001, 2017;
recalled)."""

NORM_THREADS, SOFTMAX_THREADS = 256, 1024
"""Of the block that handles a row (PyTorch 2.1, layer norm and wide softmax)."""

THREADS = {"7.5": 1024, "8.6": 1536, "8.9": 1536, "12.0": 1536}
MOST_THREADS = 2048
"""Threads of an SM by compute capability (CUDA C++ Programming Guide), and of those not listed."""

WIDE = 1024
"""Columns up to which PyTorch's softmax keeps a row in registers and reads it once."""

WIDE_SOFTMAX = "softmax_wide"

ROW_THREADS = 1024
ROW_KERNELS = ("silu_and_mul", "rmsnorm", "activation", "norm")
"""Most threads of the block that handles a row, and kernels timed alone that have such blocks (vLLM,
csrc/activation_kernels.cu: ``dim3 block(std::min(d, 1024))``). Threads without a column left in the last pass wait."""


def _law_covers(law: StreamLaw, op: MemoryBound) -> bool:
    """Whether the law has this kernel or its kind."""
    return any(row[0] in (op.kernel, op.kind.value) for row in law.kinds)


def law_cost(op: MemoryBound, gpu: Gpu, law: StreamLaw, *, eager: bool, host: float = 1.0) -> Cost:
    """Cost of one operator; shapes broadcast. ``host`` is this host's time for a call over the middle one's."""
    rows = {row[0]: row[1:] for row in law.kinds}
    law_row = rows.get(op.kernel) or rows[op.kind.value]
    work, start_s, per_column, sigma = np.asarray(law_row[0]), *law_row[1:]
    if op.kind is MemoryBoundKind.SOFTMAX and WIDE_SOFTMAX in rows:
        work = np.where(np.asarray(op.cols) > WIDE, rows[WIDE_SOFTMAX][0], work)
    if not eager and (op.kernel if op.kernel in rows else op.kind.value) in ROW_KERNELS:
        work = work * _whole_passes(np.asarray(op.cols))
    per_byte = work / op.dtype.bytes
    clock = gpu.highest_clock_hz
    cycles = gpu.num_sms * clock
    share = law.gddr_share if gpu.has_gddr else law.hbm_share
    share = share * FIRST_HBM_SHARE if gpu.compute_capability == FIRST_HBM else share
    far = np.hypot(1 / (share * gpu.hbm_bytes_per_s), per_byte / cycles)
    near = np.hypot(1 / (law.l2_bytes_per_cycle * cycles), per_byte / cycles)
    moved = np.asarray(op.bytes_moved, dtype=np.float64) * (1.0 + _read_again(op, gpu, law))
    cached = np.minimum(moved, law.l2_part * gpu.l2_bytes)
    row = per_column * np.asarray(op.cols) / clock * op.kernels
    memory = np.maximum(cached * near + (moved - cached) * far, row)
    overhead = start_s * (host if eager else GIGA / clock) * np.asarray(op.kernels)
    seen = np.maximum(memory - law.hidden_s * op.kernels, 0.0)
    return Cost(time_s=plain(seen + overhead), memory_s=plain(memory), overhead_s=plain(overhead), log_sigma=sigma)


def _whole_passes(cols: FloatArray) -> FloatArray:
    """Columns for which a block has threads in all its passes over a row, per column of the row."""
    return np.where(cols > ROW_THREADS, np.ceil(cols / ROW_THREADS) * ROW_THREADS / np.maximum(cols, 1), 1.0)


def _read_again(op: MemoryBound, gpu: Gpu, law: StreamLaw) -> FloatArray | float:
    """Traffic beyond the least, over it: norms read a row twice and write it, a wide softmax reads it three times."""
    norm, softmax = op.kind is MemoryBoundKind.NORM, op.kind is MemoryBoundKind.SOFTMAX
    if not law.again_span or not (norm or softmax) or np.any(np.asarray(op.kernels) != 1):
        return 0.0
    threads = THREADS.get(gpu.compute_capability, MOST_THREADS)
    rows = np.minimum(np.asarray(op.rows), gpu.num_sms * threads / (NORM_THREADS if norm else SOFTMAX_THREADS))
    filled = rows * np.asarray(op.cols) * op.dtype.bytes / gpu.l2_bytes
    past = np.clip(np.log(np.maximum(filled, 1e-9) / law.again_from) / law.again_span, 0.0, 1.0)
    share = 0.5 if norm else np.where(np.asarray(op.cols) > WIDE, 1.0, 0.0)
    return np.asarray(past * share)


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

_WIDE_IN_TORCH = 2048
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
        wide = single & (np.asarray(op.cols) > _WIDE_IN_TORCH)
        per_element = np.where(wide, rows["softmax_wide"][0], per_element)
        per_row = np.where(wide, rows["softmax_wide"][1], per_row)
    cycles = per_element * elements * traffic + per_row * np.asarray(op.rows)
    moved = np.asarray(op.bytes_moved, dtype=np.float64) * (traffic + again * _left_l2(op, gpu, law, name))
    memory, busy = moved / (law.hbm_share * gpu.hbm_bytes_per_s), cycles / (gpu.num_sms * gpu.highest_clock_hz)
    power = 4 if name.startswith(HIDES) else 2
    stream = (memory**power + busy**power) ** (1 / power)
    overhead = law.launch_s * _torch_launches(op, fused=fused) + kernel_row[2]
    return Cost(
        time_s=plain(stream + overhead), memory_s=plain(stream), overhead_s=plain(overhead), log_sigma=plain(sigma)
    )


def _torch_launches(op: MemoryBound, *, fused: bool) -> IntArray:
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


_OTHERS_LOG_SIGMA = 0.25
"""Of kernels that are not PyTorch's own, which the law was not measured on: what generations.toml has for memory-bound
kernels. vLLM's layers of 2023-24 on H100 would need 0.39 (data/measured/memory_bound.parquet, 2026-11-27)."""


def memory_bound_cost(op: MemoryBound, gpu: Gpu, calibration: Calibration, *, eager: bool = False) -> Cost:
    """Cost of one streaming operator; shapes broadcast.

    By the law measured on the generation where there is one (``takes_law``). Else the first ``l2_part`` of an L2-full
    of bytes goes at L2's rate, the rest at HBM's. ``eager``: the host launches each kernel and waits for it, as some
    benchmarks do; the first one starts while its call still takes the host (``hidden_s``).
    """
    law = calibration.torch_streams
    if not law or not takes_law(op, calibration):
        return _by_table(op, gpu, calibration, eager=eager)
    torch = calibration.kernels == TORCH
    cost = torch_stream_cost(op, gpu, law, fused=not torch)
    cost = cost if torch else replace(cost, log_sigma=np.maximum(cost.log_sigma, _OTHERS_LOG_SIGMA))
    cost = replace(cost, source=Source.CALIBRATED) if "torch_streams" in calibration.calibrated else cost
    return _waited(cost, op, calibration) if eager else cost


def launched_cost(op: MemoryBound, gpu: Gpu, calibration: Calibration) -> Cost:
    """Cost of one streaming operator of a model that the host launches kernel by kernel: launches run ahead of the
    device, so it takes its own time, or the host's calls where they are longer."""
    queued, (call_s, sigma) = memory_bound_cost(op, gpu, calibration), _call(op, calibration)
    return replace(
        queued,
        time_s=plain(np.maximum(queued.time_s, call_s)),
        overhead_s=plain(np.maximum(queued.overhead_s, call_s - queued.memory_s)),
        log_sigma=plain(np.where(queued.time_s < call_s, sigma, queued.log_sigma)),
    )


def _waited(cost: Cost, op: MemoryBound, calibration: Calibration) -> Cost:
    """``cost`` after the call of the first kernel, or as long as all calls."""
    call_s, sigma = _call(op, calibration)
    called = calibration.memory_bound.called
    first_s = call_s / _launches(op, calibration) - (called.hidden_s if called else 0.0)
    return replace(
        cost,
        time_s=plain(np.maximum(call_s, first_s + cost.time_s)),
        overhead_s=plain(call_s),
        log_sigma=plain(np.maximum(cost.log_sigma, sigma)),
    )


def _call(op: MemoryBound, calibration: Calibration) -> tuple[Floats, Floats]:
    """Seconds of the host for an operator's calls, and their log_sigma. Of several kernels, each is a plain one."""
    c, kernels = calibration.memory_bound, _launches(op, calibration)
    calls = {name: (c.eager_launch_s + start_s, sigma) for name, (_, start_s, sigma) in _known(c, eager=True).items()}
    calls |= {row[0]: (row[2], row[4]) for row in (c.called.kinds if c.called else ())}
    timed = {row[0]: (row[2], row[5]) for row in c.eager_kinds if row[1] == op.dtype.bytes}
    named = timed.get(op.kernel) or calls.get(op.kernel) or calls.get(op.kind.value)
    call_s, sigma = named or (c.eager_launch_s, c.log_sigma)
    single = kernels == 1
    return np.where(single, call_s, c.eager_launch_s * kernels), np.where(single, sigma, c.log_sigma)


def _launches(op: MemoryBound, calibration: Calibration) -> IntArray:
    """Kernels that run for an operator."""
    law = takes_law(op, calibration)
    return _torch_launches(op, fused=calibration.kernels != TORCH) if law else np.asarray(op.kernels)


def takes_law(op: MemoryBound, calibration: Calibration) -> bool:
    """Whether the operator's time is that of the law measured on the device's generation: not of a framework whose own
    kernels were timed on the device, nor of kernels that route tokens to experts, which expert layers were fitted with
    (PyTorch's are its own)."""
    if calibration.kernels == TORCH:
        return calibration.torch_streams is not None
    timed = calibration.kernels != "" and calibration.kernels == calibration.memory_bound.framework
    return calibration.torch_streams is not None and not timed and op.kind is not MemoryBoundKind.ROUTING


def _by_table(op: MemoryBound, gpu: Gpu, calibration: Calibration, *, eager: bool) -> Cost:
    c = calibration.memory_bound
    rows = [row[2:] for row in c.eager_kinds if eager and row[:2] == (op.kernel, op.dtype.bytes)]
    if rows:
        return _from_the_host(op, gpu, calibration, *rows[0])
    kernels = _known(c, eager=eager)
    of_vendor = c.called if eager else c.alone
    if of_vendor and _law_covers(of_vendor, op) and not (op.kernel in kernels or op.kind.value in kernels):
        return law_cost(op, gpu, of_vendor, eager=eager)
    share, start_s, sigma = kernels.get(op.kernel) or kernels.get(op.kind.value) or (c.hbm_share, 0.0, c.log_sigma)
    rate = share * gpu.hbm_bytes_per_s
    bytes_moved = np.asarray(op.bytes_moved, dtype=np.float64)
    near = np.minimum(bytes_moved, c.l2_part * gpu.l2_bytes)
    memory = near / (rate * c.l2_speedup) + (bytes_moved - near) / rate
    overhead = ((c.eager_launch_s if eager else c.launch_s) + start_s) * op.kernels
    return Cost(
        time_s=plain(memory + overhead),
        memory_s=plain(memory),
        overhead_s=plain(overhead),
        log_sigma=sigma,
        source=Source.CALIBRATED if "memory_bound" in calibration.calibrated else Source.ANALYTIC,
    )


def _known(c: MemoryBoundCoefficients, *, eager: bool) -> dict[str, tuple[float, float, float]]:
    """Share of HBM bandwidth, start and log_sigma of kernels and kinds that were measured."""
    return {row[0]: row[1:] for row in (*c.kinds, *(c.host_kinds if eager else ()))}


def _from_the_host(
    op: MemoryBound, gpu: Gpu, calibration: Calibration, least_s: float, start_s: float, share: float, sigma: float
) -> Cost:
    """A kernel that the host launches and waits for: at least the time of the call, else a start plus its bytes."""
    memory = np.asarray(op.bytes_moved, dtype=np.float64) / (share * gpu.hbm_bytes_per_s)
    time = np.maximum(least_s, start_s + memory) * op.kernels
    return Cost(
        time_s=plain(time),
        memory_s=plain(memory * op.kernels),
        overhead_s=plain(time - memory * op.kernels),
        log_sigma=sigma,
        source=Source.CALIBRATED if "memory_bound" in calibration.calibrated else Source.ANALYTIC,
    )
