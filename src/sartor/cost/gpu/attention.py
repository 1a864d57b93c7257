"""Time of fused attention: query tiles walk key/value tiles on SMs, while keys and values stream from memory.

Two kernels: prefill (and backward), where a block takes one tile of queries through the keys its mask lets through;
and decode, where few query rows share a key/value head and the keys are split over SMs. Symbols, fit and accuracy:
docs/concepts/attention.md.
"""

from __future__ import annotations

import numpy as np

from sartor.cost.correction.attention import correct_attention
from sartor.cost.correction.calibration import Calibration, Clock
from sartor.cost.correction.coefficients import AttentionCoefficients
from sartor.cost.cost import Cost, Source
from sartor.cost.gpu.power import lasting_s, long_run
from sartor.cost.peaks import peak_flops_per_s
from sartor.hardware.gpu import Gpu
from sartor.operators import Attention
from sartor.units import Floats, plain

DECODE_ROWS = 8
"""New tokens per sequence up to which the decode kernel runs (one, or a few with speculative decoding)."""

TILE_KV = 128
"""Keys of one step of a block, in both kernels."""

HEAD_STEP = 32
"""Kernels are compiled for head dimensions in steps of 32; others are padded (FlashAttention-2 and -3)."""


def attention_cost(
    op: Attention, gpu: Gpu, calibration: Calibration, *, clock: Clock = Clock.SUSTAINED, in_model: bool = False
) -> Cost:
    """Cost of one fused attention kernel; shapes broadcast. ``in_model``: other layers run between two reads of its
    cache (``correct_attention``)."""
    c = calibration.attention
    peak = peak_flops_per_s(gpu, op.dtype)
    prefill, decode = _prefill(op, gpu, c, peak), _decode(op, gpu, c, peak)
    few = np.asarray(op.seq_q) <= DECODE_ROWS
    few = few & (op.pass_.computes_outputs)
    compute, memory, launch, overlap = (np.where(few, d, p) for d, p in zip(decode, prefill, strict=True))
    run = long_run(gpu, op.dtype, calibration.power, calibration.gemm[op.dtype].throttle, clock)
    lasting = lasting_s(compute, op.flops, run)
    time = np.maximum(lasting, memory) + overlap * np.minimum(lasting, memory) + launch
    sigma = np.where(few, c.decode_log_sigma, c.log_sigma) * np.ones_like(time)
    cost = Cost(
        time_s=plain(time),
        compute_s=plain(lasting),
        memory_s=plain(memory),
        overhead_s=plain(launch),
        log_sigma=plain(sigma),
        source=Source.CALIBRATED if "attention" in calibration.calibrated else Source.ANALYTIC,
    )
    return correct_attention(op, cost, gpu, calibration, in_model=in_model)


def _prefill(op: Attention, gpu: Gpu, c: AttentionCoefficients, peak: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Blocks of ``tile_q`` queries of one head; a block's steps follow its mask. SMs share the steps evenly, but none
    finishes before the longest block."""
    seq_q, seq_kv = np.asarray(op.seq_q, dtype=np.float64), np.asarray(op.seq_kv, dtype=np.float64)
    tiles = np.ceil(seq_q / c.tile_q)
    blocks = op.batch * op.num_heads * tiles * 1.0
    reach = np.where(np.asarray(op.window) > 0, np.minimum(seq_kv, np.asarray(op.window) + c.tile_q), seq_kv)
    longest = np.ceil(reach / TILE_KV)
    # Steps of a mean block: its share of the pairs, plus half a tile at the mask's edge.
    mean = np.minimum(longest, op.pairs / (seq_q * TILE_KV) + (0.5 if op.causal else 0.0) + 0.5)
    step = _step_s(op, gpu, c, peak, c.tile_q)
    per_sm = blocks / gpu.num_sms
    compute = np.maximum(np.maximum(per_sm, 1.0) * mean, longest) * step + np.ceil(per_sm) * c.block_s
    # Reading keys and values again after they left L2 is part of the step; here they count once each.
    memory = op.bytes_moved / (c.hbm_share * gpu.hbm_bytes_per_s)
    return compute, memory, c.launch_s, c.overlap


def _decode(op: Attention, gpu: Gpu, c: AttentionCoefficients, peak: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Blocks of all query rows that share a key/value head; keys are split over idle SMs, so steps divide evenly."""
    kv_heads = np.maximum(np.asarray(op.num_kv_heads), 1)
    rows = np.asarray(op.seq_q) * np.ceil(np.asarray(op.num_heads) / kv_heads)
    tiles = np.ceil(rows / c.decode_tile_q)
    blocks = op.batch * kv_heads * tiles * 1.0
    reach = np.where(np.asarray(op.window) > 0, np.minimum(op.seq_kv, op.window), np.asarray(op.seq_kv) * 1.0)
    steps = np.ceil(reach / TILE_KV)
    step = _step_s(op, gpu, c, peak, c.decode_tile_q)
    per_sm = blocks / gpu.num_sms
    compute = per_sm * steps * step + np.maximum(per_sm, 1.0) * c.decode_block_s
    rest = 1.0 * op.batch * op.num_heads * np.asarray(op.seq_q) * (op.head_dim + op.v_head_dim) * op.dtype.bytes
    memory = (op.cached_bytes + rest) / (c.decode_hbm_share * gpu.hbm_bytes_per_s)
    return compute, memory, c.decode_launch_s + c.decode_step_s * np.minimum(steps, 32), c.decode_overlap


def _step_s(op: Attention, gpu: Gpu, c: AttentionCoefficients, peak: float, tile_q: int) -> Floats:
    """One tile of queries against one of keys: two GEMMs (five backward) at the head dimension's share of peak."""
    padded = np.ceil(np.asarray(op.head_dim) / HEAD_STEP) * HEAD_STEP
    padded_v = np.ceil(np.asarray(op.v_head_dim) / HEAD_STEP) * HEAD_STEP
    # Latent attention's 192/128 has its own kernels, as efficient as those of its value dimension.
    share = np.interp(
        np.minimum(padded, padded_v), [float(d) for d, _ in c.efficiency], [share for _, share in c.efficiency]
    )
    widths = padded + padded_v if op.pass_.computes_outputs else (3 * padded + 2 * padded_v) / c.backward
    step_s: Floats = 2.0 * widths * tile_q * TILE_KV * gpu.num_sms / (peak * share)
    if gpu.matrix_tile:  # large blocks hide a step's latency; a head narrower than the systolic array fills part of it
        step_s *= np.ceil(padded / gpu.matrix_tile) * gpu.matrix_tile / padded
        return step_s
    step_s = np.maximum(step_s, c.step_s)
    return step_s
