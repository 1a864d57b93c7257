"""Time of a memory-bound kernel on a GPU nobody measured: one law of all measured ones, on the GPU's own datasheet.

Three limits, each in its own unit: the memory (a share of its rate, another for GDDR), the SMs (cycles per element
of one SM, which add to the memory's time as the square root of squares, since both partly overlap), and the block that
handles one row (cycles per column): below one row per SM, more rows cost nothing. PyTorch's layer norm and wide softmax
read a row again to write its result; that read leaves L2 once the rows in flight fill more than a part of it.

docs/concepts/memory-bound.md has symbols, fit and accuracy.
"""

from __future__ import annotations

import numpy as np

from sartor.cost.correction.coefficients import StreamLaw
from sartor.cost.cost import Cost
from sartor.hardware.gpu import Gpu
from sartor.operators import MemoryBound, MemoryBoundKind
from sartor.units import FloatArray, plain

GDDR = ("6.1", "7.5", "8.6", "8.9", "12.0")
GDDR_GENERATIONS = ("turing", "ada", "blackwell_rtx")
"""Compute capabilities with GDDR memory (datasheets), and generations, for a datasheet that names no capability."""

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

GIGAHERTZ = 1e9


def law_covers(law: StreamLaw, op: MemoryBound) -> bool:
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
    clock = clock_hz(gpu)
    cycles = gpu.num_sms * clock
    share = law.gddr_share if memory_is_gddr(gpu) else law.hbm_share
    share = share * FIRST_HBM_SHARE if gpu.compute_capability == FIRST_HBM else share
    far = np.hypot(1 / (share * gpu.hbm_bytes_per_s), per_byte / cycles)
    near = np.hypot(1 / (law.l2_bytes_per_cycle * cycles), per_byte / cycles)
    moved = np.asarray(op.bytes_moved, dtype=np.float64) * (1.0 + _read_again(op, gpu, law))
    cached = np.minimum(moved, law.l2_part * gpu.l2_bytes)
    row = per_column * np.asarray(op.cols) / clock * op.kernels
    memory = np.maximum(cached * near + (moved - cached) * far, row)
    overhead = start_s * (host if eager else GIGAHERTZ / clock) * np.asarray(op.kernels)
    seen = np.maximum(memory - law.hidden_s * op.kernels, 0.0)
    return Cost(time_s=plain(seen + overhead), memory_s=plain(memory), overhead_s=plain(overhead), log_sigma=sigma)


def clock_hz(gpu: Gpu) -> float:
    """The highest clock: these kernels draw too little power to be slowed."""
    return gpu.max_clock_hz or gpu.boost_clock_hz


def memory_is_gddr(gpu: Gpu) -> bool:
    """Whether the memory is GDDR, of whose rate kernels reach less than of HBM's."""
    if gpu.compute_capability:
        return gpu.compute_capability in GDDR
    return gpu.generation in GDDR_GENERATIONS


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
