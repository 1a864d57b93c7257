"""Time of fused attention: key/value tiles per query tile over SMs, or the key/value stream when decoding.

docs/concepts/attention.md has symbols, fit and accuracy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.cost.cost import Cost, Source
from sartor.cost.gemm import peak_flops_per_s
from sartor.hardware.calibration import AttentionCoefficients, Calibration, Clock
from sartor.hardware.gpu import Gpu
from sartor.operators import Attention, Pass, attention_pairs


def attention_cost(op: Attention, gpu: Gpu, calibration: Calibration, *, clock: Clock = Clock.SUSTAINED) -> Cost:
    """Cost of one fused attention kernel; shapes broadcast.

    Query rows of a group of heads that share keys are packed into one tile when few (decode). Blocks of query tiles
    are dealt to SMs; each walks the key/value tiles its mask lets through.
    """
    c = calibration.attention
    gemm = calibration.gemm.get(op.dtype)
    sustained = gemm.sustained if gemm and clock is Clock.SUSTAINED else 1.0
    peak = peak_flops_per_s(gpu, op.dtype) * sustained * (1.0 if op.pass_ is Pass.FORWARD else c.backward)
    widths = op.flops / np.maximum(op.batch * op.num_heads * op.pairs, 1.0)
    rate = peak * np.interp(op.head_dim, *_columns(c.efficiency))

    blocks, pairs_per_block, longest = _blocks(op, c)
    waves = np.maximum(1.0, blocks / gpu.num_sms)
    compute = widths * gpu.num_sms / rate * np.maximum(pairs_per_block * waves, longest)
    memory = op.bytes_moved / (c.hbm_share * gpu.hbm_bytes_per_s)
    time = np.maximum(compute, memory) + c.overlap * np.minimum(compute, memory) + c.launch_s
    source = Source.CALIBRATED if "attention" in calibration.calibrated else Source.ANALYTIC
    return Cost(
        time_s=_plain(time),
        compute_s=_plain(compute),
        memory_s=_plain(memory),
        overhead_s=c.launch_s,
        log_sigma=c.log_sigma,
        source=source,
        details={"blocks": _plain(blocks)},
    )


def _blocks(op: Attention, c: AttentionCoefficients) -> tuple[Any, Any, Any]:
    """Blocks, mean query-key pairs computed in one, and pairs in the longest (padding to tiles included)."""
    group = np.maximum(op.num_heads // np.maximum(op.num_kv_heads, 1), 1)
    pack = np.minimum(group, np.maximum(c.tile_q // np.asarray(op.seq_q), 1))
    rows = np.asarray(op.seq_q) * pack
    query_tiles = np.ceil(rows / c.tile_q)
    width = np.ceil(np.asarray(op.seq_kv) / c.tile_kv) * c.tile_kv
    reach = np.where(np.asarray(op.window) > 0, np.minimum(width, np.asarray(op.window) + c.tile_kv), width)
    share = op.pairs / np.maximum(attention_pairs(op.seq_q, op.seq_kv, False, 0), 1)
    mean = np.minimum(reach, width * share + c.tile_kv / 2)
    # A decode step has few blocks; keys are then split over idle SMs (flash decoding), at least one tile each.
    blocks = 1.0 * op.batch * (op.num_heads / pack) * query_tiles
    return blocks, c.tile_q * mean, np.where(rows <= c.tile_q, c.tile_q * c.tile_kv * 1.0, c.tile_q * reach)


def _columns(pairs: tuple[tuple[int, float], ...]) -> tuple[list[float], list[float]]:
    return [float(x) for x, _ in pairs], [y for _, y in pairs]


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value
