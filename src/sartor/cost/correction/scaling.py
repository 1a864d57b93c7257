"""Coefficients of products carried to a device nobody measured, by the clock, tensor cores, L2 and power of its sheet.

Shares of a rate carry as they are. The rules for the rest were chosen by predicting whole generations held out of the
fit (docs/kin.md has the figures, docs/concepts/gemm.md the reasons):

- fixed delays take as many cycles;
- a tile's epilogue takes as long as so many operations of its SM's tensor cores: registers and shared memory grow
  with them;
- operand bytes per cycle into an SM grow with its operations per cycle, to the power 3/4;
- partial sums of split products are exchanged at L2's rate, so many bytes per SM and cycle;
- what a written byte costs beyond a read one is spent at L2's rate, and the kernel that narrows operands half at L2's,
  half at memory's (the geometric mean of both);
- what the power limit takes grows with operations per joule at full rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sartor.hardware.gpu import Gpu
from sartor.operators import DType

DELAYS = ("step_s", "wave_s", "tile_s", "launch_s", "split_s", "quantize_s")
FEED_POWER = 0.75
MOST_THROTTLE = 0.6
"""The greatest that any fit found."""
L2_BYTES_PER_CYCLE = 64
"""From L2 into one SM (NVIDIA whitepapers, V100 to H100)."""


HOST_WAIT = {"grace": 1.76}
"""How much longer kernels that wait for the host take than with an x86 one: GB200 over B200 1.77, GB300 over B300 1.75
(block-scaled products narrower than a block; data/measured/gemm_lowbit.parquet, vllm 0.24)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the rules look at, of 16-bit products."""

    clock_hz: float
    flops_per_cycle: float
    """Of one SM, at the rate its generation's tensor cores have before a product line's limits."""
    l2_over_hbm: float
    """L2's rate over memory's."""
    flops_per_joule: float
    """Peak over power limit."""

    @classmethod
    def of(cls, gpu: Gpu) -> Rates | None:
        """None of devices without tensor cores in 16 bits."""
        peak = next((gpu.peak_flops_per_s[d] for d in (DType.BF16, DType.FP16) if d in gpu.peak_flops_per_s), None)
        if peak is None:
            return None
        unlimited = peak / (gpu.tensor_core_rate * gpu.fp32_accumulate_rate)
        return cls(
            clock_hz=gpu.boost_clock_hz,
            flops_per_cycle=unlimited / (gpu.num_sms * gpu.boost_clock_hz),
            l2_over_hbm=l2_bytes_per_s(gpu) / gpu.hbm_bytes_per_s,
            flops_per_joule=peak / gpu.tdp_w,
        )


def l2_bytes_per_s(gpu: Gpu) -> float:
    """Most that L2 hands to all SMs together."""
    return L2_BYTES_PER_CYCLE * gpu.num_sms * gpu.boost_clock_hz


REFERENCE = Rates(clock_hz=1.85e9, flops_per_cycle=4096.0, l2_over_hbm=10.0, flops_per_joule=1e12)
"""The device, between all there are, that coefficients of no device in particular are written for."""


def rescaled(c: Any, before: Rates, after: Rates) -> Any:
    """``GemmCoefficients`` of a device with the rates ``before``, as those of one with ``after``."""
    cycle, units = before.clock_hz / after.clock_hz, after.flops_per_cycle / before.flops_per_cycle
    moved = {name: getattr(c, name) * cycle for name in DELAYS}
    moved["tile_s"] /= units
    caches = after.l2_over_hbm / before.l2_over_hbm
    return replace(
        c,
        **moved,
        feed_bytes_per_clock=c.feed_bytes_per_clock * units**FEED_POWER,
        split_rate=c.split_rate * caches,
        write_cost=1 + (c.write_cost - 1) / caches,
        quantize_bytes=c.quantize_bytes / caches**0.5,
        throttle=min(c.throttle * after.flops_per_joule / before.flops_per_joule, max(MOST_THROTTLE, c.throttle)),
    )
