"""Coefficients carried to a device nobody measured, by its datasheet: streaming kernels and products on general cores.

Products on tensor cores have rules of their own (``hardware/scaling.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sartor.hardware.gpu import Gpu
from sartor.operators import DType

GENERAL_THROTTLE_S = 3e-4
"""Compute time at which half of the clock that general cores lose under the power limit is gone: the tables' products
follow each other, and those of a millisecond run at the limit's clock already (T4, P4, L4)."""


def per_sm(c: Any, before: Gpu, after: Gpu) -> Any:
    """``MemoryBoundCoefficients`` of the device ``before`` as those of ``after``.

    The plainest kernel (``hbm_share``) reaches the same share of any memory. What keeps another below it is work inside
    SMs, which takes as many cycles per byte of one SM: 1/share = 1/plainest + bandwidth per SM and cycle / (bytes an SM
    gets through in one). From A100's vLLM kernels it makes A40's RMS norm 0.57 of its memory (0.57 measured; 0.35 on
    A100), layer norm 0.74 (0.72), rotary 0.63 (0.73), SwiGLU 0.68 (0.75).
    """
    harder = _bytes_per_cycle(after) / _bytes_per_cycle(before)

    def carried(share: float) -> float:
        return 1 / (1 / c.hbm_share + (1 / share - 1 / c.hbm_share) * harder) if share < c.hbm_share else share

    moved = {
        name: tuple((row[0], carried(row[1]), *row[2:]) for row in getattr(c, name)) for name in ("kinds", "host_kinds")
    }
    timed_one_by_one = tuple((*row[:4], carried(row[4]), row[5]) for row in c.eager_kinds)
    return replace(c, eager_kinds=timed_one_by_one, **moved)


def _bytes_per_cycle(gpu: Gpu) -> float:
    """Of memory, for one SM in one of its cycles."""
    return gpu.hbm_bytes_per_s / (gpu.num_sms * gpu.boost_clock_hz)


def told_apart(c: Any, *, waited_is_own: bool) -> Any:
    """``MemoryBoundCoefficients`` in which no kernel is faster where the host waits for it than alone.

    Where both tables know a kernel, the device's own one says its share. A kernel that only the other table knows has
    its share there, without what the host adds.
    """
    alone = {row[0]: row for row in c.kinds}
    plain = {name: (name, share, 0.0, sigma) for name, share, _, sigma in c.host_kinds}
    if waited_is_own:
        raised = {name: (name, max(row[1], plain.get(name, row)[1]), *row[2:]) for name, row in alone.items()}
        return replace(c, kinds=tuple((plain | raised).values()))
    limits = {name: alone[name][1] if name in alone else c.hbm_share for name in plain}
    waited = tuple(
        (row[0], row[1] if alone and row[0] not in alone else min(row[1], limits[row[0]]), *row[2:])
        for row in c.host_kinds
    )
    return replace(c, kinds=tuple((plain | alone).values()) if alone else (), host_kinds=waited)


def within_power(c: Any, gpu: Gpu, flops_per_joule: float, half_s: float = GENERAL_THROTTLE_S) -> Any:
    """``GemmCoefficients`` on a device whose power limit keeps its general cores, at ``flops_per_joule`` in fp32, below
    their peak; 0: not known. ``half_s`` is the compute time at which half of that is seen."""
    if not flops_per_joule or DType.FP32 not in gpu.peak_flops_per_s:
        return c
    limit = flops_per_joule * gpu.tdp_w
    slower = max(gpu.peak_flops_per_s[DType.FP32] / limit - 1.0, 0.0)
    return replace(c, throttle=slower, throttle_s=half_s)
