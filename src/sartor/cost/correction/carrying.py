"""How a calibration is carried over to an unmeasured device: intervals widen, values follow the datasheet.

Intervals: as wide as held-out devices needed. GEMMs on tensor cores: shares of a rate carry as they are;
the rules for the rest were chosen by predicting whole generations held out of the fit (docs/kin.md has the figures,
docs/concepts/gemm.md the reasons):

- fixed delays take as many cycles;
- a tile's epilogue takes as long as so many operations of its SM's tensor cores: registers and shared memory grow
  with them;
- operand bytes per cycle into an SM grow with its operations per cycle, to the power 3/4;
- partial sums of split GEMMs are exchanged at L2's rate, so many bytes per SM and cycle;
- what a written byte costs beyond a read one is spent at L2's rate, and the kernel that narrows operands half at L2's,
  half at memory's (the geometric mean of both);
- what the power limit takes grows with operations per joule at full rate.

Attention and experts follow the first and third of these rules on another die.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from sartor.cost.correction.coefficients import (
    AnyCoefficients,
    AttentionCoefficients,
    GemmCoefficients,
    GroupedCoefficients,
    MemoryBoundCoefficients,
    table_of,
)
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict
from sartor.operators import DType

DIE = 1.35
"""Largest widening for the same die with other memory or another power limit (``kin.toml``); other dies exceed it."""

OTHER_DIE = 2.5
"""Largest widening for another die of the generation; another generation exceeds it. A fit without a power limit
(sweeps of V100) is slowed on another generation's device like its general cores: T4 has 70 W, V100 300 W."""


def borrowed(fit: AnyCoefficients, section: str, widen: float, near: str = "") -> AnyCoefficients:
    """Another device's coefficients with the uncertainty of held-out devices (``lent.toml``; docs/kin.md) on the same
    die, in the same generation, or elsewhere; ``near`` overrides what ``widen`` implies."""
    near = near or ("die" if widen <= DIE else "generation" if widen <= OTHER_DIE else "other")
    floors = (table_of("kin.toml") or {}).get("floors", {}).get(near, {})
    judged = (table_of("lent.toml") or {}).get(near, {})
    keys = {part: f"{section}{name}" for part, name in _PARTS_OF_SECTIONS.items()}
    times = {part: judged[key]["times"] for part, key in keys.items() if key in judged}
    floor_of = {part: judged.get(key, {}).get("least", floors.get(key, 0.0)) for part, key in keys.items()}
    return widened(fit, widen, floor_of, times)


_PARTS_OF_SECTIONS = {"": "", "decode_": ".decode", "sub_block_": ".sub_block", "half_block_": ".half_block"}
"""Prefix of a standard deviation's field -> suffix of its floor's key."""


def widened(
    fit: AnyCoefficients,
    factor: float,
    floor_of: Mapping[str, float] | None = None,
    times: Mapping[str, float] | None = None,
) -> AnyCoefficients:
    """The same coefficients with every standard deviation multiplied by ``factor`` and at least ``floor_of``; ``times``
    overrides ``factor``. Keys of both are prefixes of a field. Those of what misalignment costs grow no further than
    what is assumed where nobody measured it."""
    floors, factors = floor_of or {}, times or {}

    def width(sigma: float, part: str) -> float:
        return max(sigma * factors.get(part, factor), floors.get(part, 0.0))

    wider: JsonDict = {}
    for field in fields(fit):
        before, sigma, _ = field.name.partition("log_sigma")
        if sigma:
            value = getattr(fit, field.name)
            wider[field.name] = min(width(value, before), max(value, _ASSUMED.get(before, math.inf)))
    for name in _WITH_SIGMA:
        if hasattr(fit, name):
            wider[name] = tuple((*row[:-1], width(row[-1], "")) for row in getattr(fit, name))
    return replace(fit, **wider)


_ASSUMED = {"penalty_": 0.5, "ragged_": 0.0}
"""Prefix of a standard deviation -> its value by assumption: a device that borrows knows no less of misalignment than
one of which nothing is known. 0: it is a judgement wherever it is not 0."""

_WITH_SIGMA = ("kinds", "host_kinds", "eager_kinds", "direct")
"""Fields of rows whose last entry is a standard deviation."""


# ------------------------------------------------------------------------------------- GEMMs on tensor cores


DELAYS = ("step_s", "wave_s", "tile_s", "launch_s", "split_s", "quantize_s", "quantize_more_s")
FEED_POWER = 0.75
MOST_THROTTLE = 0.6
"""The largest throttle in any fit."""
L2_BYTES_PER_CYCLE = 64
"""L2 bandwidth into one SM (NVIDIA whitepapers, V100 to H100)."""


HOST_WAIT = {"grace": 1.76}
"""Factor on kernels that wait for the host, relative to an x86 host: GB200 over B200 1.77, GB300 over B300 1.75
(block-scaled GEMMs narrower than a block; data/measured/gemm_lowbit.parquet, vllm 0.24)."""


WARP_FLOPS_PER_CYCLE = 2200.0
"""In SMs with fewer 16-bit FLOPs per cycle, warps feed the tensor cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The device properties that the rules use, for 16-bit GEMMs."""

    clock_hz: float
    flops_per_cycle: float
    """Per SM, at the rate of its generation's tensor cores before product-line limits."""
    l2_over_hbm: float
    """L2's rate over memory's."""
    flops_per_joule: float
    """Peak over power limit."""

    @property
    def by_warps(self) -> bool:
        """Whether warps feed the tensor cores from their registers (mma.sync: Ampere, Ada, Blackwell RTX); Hopper's and
        Blackwell's read shared memory."""
        return self.flops_per_cycle < WARP_FLOPS_PER_CYCLE

    @classmethod
    def of(cls, gpu: Gpu) -> Rates | None:
        """The rates of a device; None without tensor cores in 16 bits."""
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
    """L2 bandwidth to all SMs together."""
    return L2_BYTES_PER_CYCLE * gpu.num_sms * gpu.boost_clock_hz


REFERENCE = Rates(clock_hz=1.85e9, flops_per_cycle=4096.0, l2_over_hbm=10.0, flops_per_joule=1e12)
"""The middle device for which the joint coefficients are written."""


def rescaled(c: GemmCoefficients, before: Rates, after: Rates) -> GemmCoefficients:
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


def quantized_on(c: GemmCoefficients, before: Gpu, after: Gpu) -> GemmCoefficients:
    """``GemmCoefficients`` with the same quantization speed for the same number of SMs within a generation: H100 and
    H200, which differ only in memory, quantize equally fast (7.2 bytes an element at 3.35 TB/s, 9.8 at 4.8)."""
    pace = after.hbm_bytes_per_s / before.hbm_bytes_per_s * before.num_sms / after.num_sms
    return replace(c, quantize_pace=pace) if c.quantize_bytes else c


# ------------------------------------------------------------------------------------- attention, experts


ATTENTION_DELAYS = ("step_s", "block_s", "launch_s", "decode_block_s", "decode_step_s", "decode_launch_s")


def attention_on(c: AttentionCoefficients, before: Rates, after: Rates) -> AttentionCoefficients:
    """``AttentionCoefficients`` of a device with the rates ``before``, as those of one with ``after``: delays stay the
    same in cycles. Median bias of decode between A100 and RTX PRO 6000: -3% and 4%; with delays kept in seconds, -36%
    and 38%."""
    cycle = before.clock_hz / after.clock_hz
    return replace(c, **{name: getattr(c, name) * cycle for name in ATTENTION_DELAYS})


def experts_on(c: GroupedCoefficients, before: Rates, after: Rates) -> GroupedCoefficients:
    """The same for ``GroupedCoefficients``: launches stay the same in cycles, operands follow the rule of GEMMs."""
    units = after.flops_per_cycle / before.flops_per_cycle
    return replace(
        c,
        launch_s=c.launch_s * before.clock_hz / after.clock_hz,
        feed_bytes_per_clock=c.feed_bytes_per_clock * units**FEED_POWER,
    )


# ------------------------------------------------------------------------------------- streaming kernels, general cores


GENERAL_THROTTLE_S = 3e-4
"""Compute time at which general cores have lost half of the clock that the power limit takes: the tables' GEMMs run
back to back, and those of a millisecond already run at the limit's clock (T4, P4, L4)."""


def per_sm(c: MemoryBoundCoefficients, before: Gpu, after: Gpu) -> MemoryBoundCoefficients:
    """``MemoryBoundCoefficients`` of the device ``before``, converted to ``after``.

    The simplest kernel (``hbm_share``) reaches the same share on any memory. Others reach less because of work inside
    SMs, which takes a fixed number of cycles per byte of one SM: 1/share = 1/simplest + bandwidth per SM and cycle /
    (bytes an SM processes per cycle). From A100's vLLM kernels it predicts A40's RMS norm at 0.57 of its memory (0.57
    measured; 0.35 on A100), layer norm 0.74 (0.72), rotary 0.63 (0.73), SwiGLU 0.68 (0.75).
    """
    harder = _bytes_per_cycle(after) / _bytes_per_cycle(before)

    def carried(share: float) -> float:
        return 1 / (1 / c.hbm_share + (1 / share - 1 / c.hbm_share) * harder) if share < c.hbm_share else share

    return replace(
        c,
        kinds=tuple((row[0], carried(row[1]), *row[2:]) for row in c.kinds),
        host_kinds=tuple((row[0], carried(row[1]), *row[2:]) for row in c.host_kinds),
        eager_kinds=tuple((*row[:4], carried(row[4]), row[5]) for row in c.eager_kinds),
    )


def _bytes_per_cycle(gpu: Gpu) -> float:
    """Memory bytes per SM and clock cycle."""
    return gpu.hbm_bytes_per_s / (gpu.num_sms * gpu.boost_clock_hz)


def with_calls(c: MemoryBoundCoefficients, *, calls_are_own: bool) -> MemoryBoundCoefficients:
    """``MemoryBoundCoefficients`` in which no kernel is faster when the host waits for it than alone.

    If both tables have a kernel, the device's own one gives its share. A kernel that only the other table has keeps its
    share there, without the host's time.
    """
    alone = {row[0]: row for row in c.kinds}
    plain = {name: (name, share, 0.0, sigma) for name, share, _, sigma in c.host_kinds}
    if calls_are_own:
        raised = {name: (name, max(row[1], plain.get(name, row)[1]), *row[2:]) for name, row in alone.items()}
        return replace(c, kinds=tuple((plain | raised).values()))
    limits = {name: alone[name][1] if name in alone else c.hbm_share for name in plain}
    waited = tuple(
        (row[0], row[1] if alone and row[0] not in alone else min(row[1], limits[row[0]]), *row[2:])
        for row in c.host_kinds
    )
    return replace(c, kinds=tuple((plain | alone).values()) if alone else (), host_kinds=waited)


def within_power(
    c: GemmCoefficients, gpu: Gpu, flops_per_joule: float, half_s: float = GENERAL_THROTTLE_S
) -> GemmCoefficients:
    """``GemmCoefficients`` on a device whose power limit keeps its general cores, at ``flops_per_joule`` in fp32, below
    their peak; 0: not known. ``half_s`` is the compute time at which half of that is seen."""
    if not flops_per_joule or DType.FP32 not in gpu.peak_flops_per_s:
        return c
    limit = flops_per_joule * gpu.tdp_w
    slower = max(gpu.peak_flops_per_s[DType.FP32] / limit - 1.0, 0.0)
    return replace(c, throttle=slower, throttle_s=half_s)
