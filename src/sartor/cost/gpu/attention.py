"""Time of fused attention: query tiles walk key/value tiles on SMs, while keys and values stream from memory.

Two kernels: prefill (and backward), where a block takes one tile of queries through the keys its mask lets through;
and decode, where few query rows share a key/value head and the keys are split over SMs. Symbols, fit and accuracy:
docs/concepts/attention.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from sartor.cost.correction.attention import biting_window, correct_attention, in_family, next_head_dim
from sartor.cost.correction.calibration import Calibration, Clock
from sartor.cost.correction.coefficients import AttentionCoefficients
from sartor.cost.correction.network import Mask
from sartor.cost.cost import Z80, Cost, Source, select_cost
from sartor.cost.gpu.memory_bound import memory_bound_cost
from sartor.cost.gpu.rates import lasting_s, long_run, peak_flops_per_s
from sartor.hardware.gpu import FLASH_MULTIPLE, Gpu
from sartor.operators import Attention, DType, MemoryBound, MemoryBoundKind
from sartor.units import Floats, plain

UNALIGNED_SIGMA = 0.15
"""Of a kernel whose heads were copied to another width: a choice, as no table has one."""

UNFITTED_BACKWARD_SIGMA = 0.08
"""Of backward where forward alone was measured, beyond forward's own: shares of forward's rate from 0.7 to 0.85 are
published (``AttentionCoefficients.backward``), taken as an 80% interval. Of 60 rows of PyTorch's backward on H100 and
H200 (lab/records) 78% lie inside; without it 75%."""

_COPIES_FORWARD, _COPIES_BACKWARD = 3 * 2 + 1, 2 + 3
"""Kernels: a fill and a copy per padded tensor, a copy per slice."""

DECODE_ROWS = 8
"""New tokens per sequence up to which the decode kernel runs (one, or a few with speculative decoding)."""

TILE_KV = 128
"""Keys of one step of a block, in both kernels."""

LATENT_AS = 128
"""Head dimension whose share of peak the kernels of latent decoding reach: FlashMLA 660 of 990 TFLOP/s on H800
(github.com/deepseek-ai/FlashMLA, 2025-04-22), where plain kernels of 128 reach 0.70 on H100 and H200."""


def attention_cost(
    op: Attention, gpu: Gpu, calibration: Calibration, *, clock: Clock = Clock.SUSTAINED, in_model: bool = False
) -> Cost:
    """Cost of one fused attention kernel; shapes broadcast. ``in_model``: other layers run between two reads of its
    cache (``correct_attention``).

    Several new tokens behind a cache take the fastest of the kernels (``_behind_cache``). A head dimension that tables
    lack costs at most what the next one that they have does: zeros may fill it up. A framework with coefficients of its
    own takes those where its kernels run (``in_family``). Heads that are no multiple of 8 are copied
    (``_with_copies``).
    """
    everywhere: Mask = np.asarray(True)
    rest, cost = everywhere, None
    for family, runs in (*in_family(op, calibration), (calibration.attention, everywhere)):
        ours: Mask = np.logical_and(runs, rest)
        if np.any(ours):
            family_cost = _cost(op, gpu, replace(calibration, attention=family), clock, in_model)
            cost = family_cost if cost is None else select_cost(ours, family_cost, cost)
            rest = np.logical_and(rest, ~ours)
    assert cost is not None
    return _with_copies(op, cost, gpu, calibration)


def _with_copies(op: Attention, cost: Cost, gpu: Gpu, calibration: Calibration) -> Cost:
    """Adds the copies around a flash kernel of whole sequences where heads are no multiple of 8. Forward, queries, keys
    and values get zeros up to the next multiple, and in backward the result's gradient: PyTorch fills, reads and writes
    (``constant_pad_nd``). What the kernel returns is cut to the heads' width, and its next reader copies it once more
    (flash_attn_interface.py of flash-attention 2.7; ``pad_last_dim`` in PyTorch's attention.cpp). Systolic arrays need
    no copies. No table has such rows, so they are ``assumed``."""
    width = np.ceil(np.asarray(op.head_dim) / FLASH_MULTIPLE) * FLASH_MULTIPLE
    where = (width != op.head_dim) & np.greater(op.seq_q, DECODE_ROWS) & (op.dtype.bytes == 2) & (not gpu.matrix_tile)
    if not np.any(where):
        return cost
    queries, keys = np.asarray(op.seq_q) * op.num_heads, np.asarray(op.seq_kv) * op.num_kv_heads
    forward = op.pass_.computes_outputs
    padded, sliced = (queries + 2 * keys, queries) if forward else (queries, queries + 2 * keys)
    columns = padded * (op.head_dim + 2.0 * width) + sliced * 2.0 * op.head_dim
    copies = MemoryBound(
        name=op.name,
        kind=MemoryBoundKind.CAST,
        rows=op.batch * queries,
        cols=width,
        bytes_moved=op.batch * columns * op.dtype.bytes,
        kernels=_COPIES_FORWARD if forward else _COPIES_BACKWARD,
        dtype=op.dtype,
    )
    extra = memory_bound_cost(copies, gpu, calibration)
    time_s = cost.time_s + extra.time_s
    sigma = np.hypot(np.maximum(cost.log_sigma, UNALIGNED_SIGMA) * cost.time_s, extra.log_sigma * extra.time_s) / time_s
    slower = replace(
        cost,
        time_s=time_s,
        memory_s=cost.memory_s + extra.memory_s,
        overhead_s=cost.overhead_s + extra.overhead_s,
        log_sigma=sigma,
        details=cost.details | {"assumed": 1.0},
    )
    return select_cost(where, slower, cost)


def _cost(op: Attention, gpu: Gpu, calibration: Calibration, clock: Clock, in_model: bool) -> Cost:
    settings: Settings = (gpu, calibration, clock, in_model)
    op = replace(op, window=biting_window(op, calibration))
    cost = _fused_cost(op, *settings)
    between = np.greater(op.seq_q, 1) & np.less(op.seq_q, op.seq_kv) & op.pass_.computes_outputs
    if np.any(between):
        cost = select_cost(between, _behind_cache(op, *settings), cost)
    wider = next_head_dim(op, calibration)
    if np.any(np.greater(wider, op.head_dim)):
        padded_op = replace(op, head_dim=wider, v_head_dim=wider)
        padded = _cost(padded_op, *settings)
        cost = select_cost(np.less(padded.time_s, cost.time_s), padded, cost)
    return cost


Settings: TypeAlias = tuple[Gpu, Calibration, Clock, bool]


def _fused_cost(op: Attention, gpu: Gpu, calibration: Calibration, clock: Clock, in_model: bool) -> Cost:
    """Of the kernel that tables have for as many new tokens."""
    decode = np.asarray(op.seq_q) <= DECODE_ROWS
    decode = decode & op.pass_.computes_outputs
    kernels = (_formula_cost(op, kernel, gpu, calibration, clock) for kernel in (_decode, _prefill))
    return correct_attention(op, select_cost(decode, *kernels), gpu, calibration, in_model=in_model)


def _behind_cache(op: Attention, gpu: Gpu, calibration: Calibration, clock: Clock, in_model: bool) -> Cost:
    """The fastest of a kernel that walks all keys and two that split them over SMs (FlashDecoding, FlashInfer,
    FlashAttention-3), with what was learned of each: those with a prefill's tiles take for more keys as much longer as
    a whole prompt of so many would, that of decoding as one new token's does, its products no less. None is faster than
    a prompt of the new tokens alone, or than one new token behind as many keys.

    No table has such rows. With more tokens than decoding's kernels take, a framework may run the kernel that walks all
    keys, so the interval reaches it and the time is ``assumed``."""
    settings: Settings = (gpu, calibration, clock, in_model)
    alone, whole, single_query = replace(op, seq_kv=op.seq_q), replace(op, seq_q=op.seq_kv), replace(op, seq_q=1)
    walked, short = (_formula_cost(chunk, _prefill, gpu, calibration, clock) for chunk in (op, alone))
    short_s = short.time_s * correct_attention(alone, short, gpu, calibration, in_model=in_model).learned
    long, single = _fused_cost(whole, *settings), _fused_cost(single_query, *settings)
    slowest_s = short_s + (walked.time_s - short.time_s) * long.learned
    cost = replace(walked, time_s=slowest_s)
    for kernel, learned in ((_decode, single.learned), (_split, long.learned)):
        alternative = _formula_cost(op, kernel, gpu, calibration, clock)
        alternative = replace(alternative, time_s=np.maximum(alternative.time_s * learned, alternative.compute_s))
        cost = select_cost(np.less(alternative.time_s, cost.time_s), alternative, cost)
    time_s = np.maximum(cost.time_s, np.maximum(single.time_s, _fused_cost(alone, *settings).time_s))
    unknown = np.greater(op.seq_q, DECODE_ROWS)
    apart = np.where(unknown, np.log(np.maximum(slowest_s / time_s, 1.0)) / Z80, 0.0)
    c = calibration.attention
    sigma = np.hypot(max(c.log_sigma, c.decode_log_sigma), apart)
    details = {**cost.details, "assumed": plain(1.0 * unknown)}
    return replace(cost, time_s=plain(time_s), log_sigma=plain(sigma), details=details)


Kernel: TypeAlias = Callable[[Attention, Gpu, AttentionCoefficients, float], tuple[Floats, Floats, Floats, Floats]]


def _formula_cost(op: Attention, kernel: Kernel, gpu: Gpu, calibration: Calibration, clock: Clock) -> Cost:
    """The formula's cost of one kernel."""
    c = calibration.attention
    compute, memory, launch, overlap = kernel(op, gpu, c, peak_flops_per_s(gpu, op.dtype))
    run = long_run(gpu, op.dtype, calibration.power, calibration.gemm[op.dtype].throttle, clock)
    lasting = lasting_s(compute, op.flops, run)
    time = np.maximum(lasting, memory) + overlap * np.minimum(lasting, memory) + launch
    sigma = c.log_sigma if kernel is _prefill else c.decode_log_sigma
    measured = op.pass_.computes_outputs or c.backward_fitted
    calibrated = measured and "attention" in calibration.calibrated
    guessed = 0.0 if measured else UNFITTED_BACKWARD_SIGMA
    return Cost(
        time_s=plain(time),
        compute_s=plain(np.broadcast_to(lasting, np.shape(time))),
        memory_s=plain(np.broadcast_to(memory, np.shape(time))),
        overhead_s=plain(np.broadcast_to(launch, np.shape(time))),
        log_sigma=plain(np.broadcast_to(np.hypot(sigma, guessed), np.shape(time))),
        source=Source.CALIBRATED if calibrated else Source.ANALYTIC,
        details={"assumed": 1.0} if guessed > sigma else {},
    )


def _prefill(op: Attention, gpu: Gpu, c: AttentionCoefficients, peak: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Blocks of ``tile_q`` queries of one head; a block's steps follow its mask. SMs share the steps evenly, but none
    finishes before the longest block."""
    seq_q, seq_kv = np.asarray(op.seq_q, dtype=np.float64), np.asarray(op.seq_kv, dtype=np.float64)
    tiles = np.ceil(seq_q / c.tile_q)
    blocks = op.batch * op.num_heads * tiles
    reach = np.where(np.asarray(op.window) > 0, np.minimum(seq_kv, np.asarray(op.window) + c.tile_q), seq_kv)
    longest = np.ceil(reach / TILE_KV)
    # Steps of a mean block: its share of the pairs, plus half a tile at the mask's edge.
    mean = np.minimum(longest, op.pairs / (seq_q * TILE_KV) + (0.5 if op.causal else 0.0) + 0.5)
    step = _step_s(op, gpu, c, peak, c.tile_q)
    per_sm = blocks / gpu.num_sms
    compute = np.maximum(np.maximum(per_sm, 1.0) * mean, longest) * step + np.ceil(per_sm) * c.block_s
    # Reading keys and values again after they left L2 is part of the step; here they count once each.
    partial = _partial_bytes(op) if c.partial_gradients and not op.pass_.computes_outputs else 0.0
    memory = (op.bytes_moved + partial) / (c.hbm_share * gpu.hbm_bytes_per_s)
    return compute, memory, c.launch_s, c.overlap


def _partial_bytes(op: Attention) -> Floats:
    """Traffic of gradients that blocks add up in memory: dQ in fp32 is set to zero, written and read again by a kernel
    that narrows it; where heads share keys, dK and dV of every query head are written and read again by another, but
    for latent attention, whose heads are rows of one tile."""
    queries = 3.0 * op.seq_q * op.head_dim * DType.FP32.bytes
    shared = 2.0 * op.seq_kv * (op.head_dim + op.v_head_dim) * op.dtype.bytes
    apart = np.greater(op.num_heads, op.num_kv_heads) & (not op.latent)
    partial: Floats = op.batch * op.num_heads * (queries + apart * shared)
    return partial


def _decode(op: Attention, gpu: Gpu, c: AttentionCoefficients, peak: float) -> tuple[Floats, Floats, Floats, Floats]:
    return _split(op, gpu, c, peak, c.decode_tile_q)


def _split(
    op: Attention, gpu: Gpu, c: AttentionCoefficients, peak: float, tile_q: int = 0
) -> tuple[Floats, Floats, Floats, Floats]:
    """Blocks of all query rows that share a key/value head, by default as tall as a prefill's; keys are split over idle
    SMs, so steps divide evenly."""
    tile_q = tile_q or c.tile_q
    kv_heads = np.maximum(np.asarray(op.num_kv_heads), 1)
    rows = np.asarray(op.seq_q) * np.ceil(np.asarray(op.num_heads) / kv_heads)
    tiles = np.ceil(rows / tile_q)
    blocks = op.batch * kv_heads * tiles
    reach = np.where(np.asarray(op.window) > 0, np.minimum(op.seq_kv, op.window), op.seq_kv)
    steps = np.ceil(reach / TILE_KV)
    step = _step_s(op, gpu, c, peak, tile_q)
    per_sm = blocks / gpu.num_sms
    # A compiler for a few systolic arrays loads a block's keys while the one before is computed.
    starts = np.maximum(per_sm, 1.0) if not gpu.matrix_tile else 1.0
    compute = per_sm * steps * step + starts * c.decode_block_s
    rest = 1.0 * op.batch * op.num_heads * np.asarray(op.seq_q) * (op.head_dim + op.v_head_dim) * op.dtype.bytes
    memory = (op.cached_bytes + rest) / (c.decode_hbm_share * gpu.hbm_bytes_per_s)
    return compute, memory, c.decode_launch_s + c.decode_step_s * np.minimum(steps, 32), c.decode_overlap


ARRAY_SHARE = 0.85
"""Share of peak of a systolic array that a step's GEMMs reach, as those of linear layers (generations.toml): a kernel
spends the rest of ``efficiency`` on scores, which run beside an array that a narrow head does not fill."""


def _step_s(op: Attention, gpu: Gpu, c: AttentionCoefficients, peak: float, tile_q: int) -> Floats:
    """One tile of queries against one of keys: two GEMMs (five backward) at the head dimension's share of peak."""
    padded = np.ceil(np.asarray(op.head_dim) / c.head_step) * c.head_step
    padded_v = np.ceil(np.asarray(op.v_head_dim) / c.head_step) * c.head_step
    # Latent attention has kernels of its own: 192/128 as efficient as those of its value dimension.
    share = np.interp(
        np.where(op.latent, LATENT_AS, np.minimum(padded, padded_v)),
        [float(d) for d, _ in c.efficiency],
        [share for _, share in c.efficiency],
    )
    widths = padded + padded_v if op.pass_.computes_outputs else (3 * padded + 2 * padded_v) / c.backward
    step_s: Floats = 2.0 * widths * tile_q * TILE_KV * gpu.num_sms / (peak * share)
    if gpu.matrix_tile:  # large blocks hide a step's latency, and scores a head that fills part of the systolic array
        filled = padded / (np.ceil(padded / gpu.matrix_tile) * gpu.matrix_tile)
        step_s *= np.maximum(share / (ARRAY_SHARE * filled), 1.0)
        return step_s
    step_s = np.maximum(step_s, c.step_s)
    return step_s
