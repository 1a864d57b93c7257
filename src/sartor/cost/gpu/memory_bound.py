"""Time of a kernel that streams: bytes over the achieved bandwidth, faster inside L2, plus its launches.

docs/concepts/memory-bound.md has symbols, fit and accuracy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sartor.cost.correction.calibration import TORCH, Calibration
from sartor.cost.correction.coefficients import MemoryBoundCoefficients
from sartor.cost.cost import Cost, Source
from sartor.cost.gpu.stream_law import launches, law_cost, law_covers, torch_stream_cost
from sartor.hardware.gpu import Gpu
from sartor.operators import MemoryBound, MemoryBoundKind
from sartor.units import Floats, IntArray, plain

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
    return launches(op, fused=calibration.kernels != TORCH) if law else np.asarray(op.kernels)


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
    if of_vendor and law_covers(of_vendor, op) and not (op.kernel in kernels or op.kind.value in kernels):
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
