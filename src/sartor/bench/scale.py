"""Rough speed of a device, by which suites size their cases, so that a laptop and an H200 take similar time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sartor.bench.cases import BenchCase, ClockMode, Work
from sartor.bench.device import Device, DeviceFacts, OutOfMemoryOnDevice, UnsupportedCase
from sartor.bench.timing import Policy, time_case
from sartor.operators import DType, Gemm, MemoryBound, MemoryBoundKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Rates from a one-second trial, rounded to powers of two so that a resumed run gets the same cases."""

    facts: DeviceFacts
    flops_per_s: Mapping[DType, float]
    """Only types with native GEMMs; on a host, types that are not faster than fp32 are left out."""
    bytes_per_s: float

    @property
    def dtype(self) -> DType:
        """The type that most models use on this device: bf16, else fp16, else fp32."""
        return next(d for d in (DType.BF16, DType.FP16, DType.FP32, *self.flops_per_s) if d in self.flops_per_s)

    @property
    def small(self) -> bool:
        """Whether the device is as slow as a host CPU; suites then use small sizes."""
        return self.flops_per_s[self.dtype] < 2e13

    def seconds(self, work: Work) -> float:
        """Rough seconds of one launch: compute at half of the rate, plus memory traffic."""
        dtype = getattr(work, "dtype", self.dtype)
        rate = self.flops_per_s.get(dtype, min(self.flops_per_s.values()))
        return float(work.flops) / (0.5 * rate) + float(getattr(work, "bytes_moved", 0.0)) / self.bytes_per_s

    def fits(self, work: Work, most_s: float) -> bool:
        """Whether a launch takes at most ``most_s`` and its operands at most a quarter of memory."""
        work_bytes = float(getattr(work, "bytes_moved", 0.0))
        return self.seconds(work) <= most_s and work_bytes <= 0.25 * self.facts.memory_bytes


def neighbours(scale: Scale) -> list[Scale]:
    """This scale first, then those with the memory rate, and the rates of all types or of one, off by a factor of 2."""
    steps = (1.0, 0.5, 2.0)
    all_rates = [dict.fromkeys(scale.flops_per_s, step) for step in steps]
    single = [{name: step} for name in scale.flops_per_s for step in steps[1:]]
    return [
        replace(
            scale,
            flops_per_s={name: rate * rates.get(name, 1.0) for name, rate in scale.flops_per_s.items()},
            bytes_per_s=scale.bytes_per_s * memory,
        )
        for rates in (*all_rates, *single)
        for memory in steps
    ]


TRIED = (DType.FP32, DType.BF16, DType.FP16, DType.TF32, DType.FP8)
TRIED_ON_HOSTS = (DType.FP32, DType.BF16, DType.FP16)
"""An fp8 GEMM on a host without fp8 units takes seconds."""

WORTH = 1.1
"""On a host, a narrow type counts as native if it is faster than fp32 by this factor."""


def look(device: Device) -> Scale:
    """Time one GEMM of each type and one add. Raises ``UnsupportedCase`` if not even fp32 runs."""
    quick = Policy(warmup_s=0.02, sample_s=0.005, samples=5, most_s=1.0)
    side = 768 if device.facts.backend == "cpu" else 4096
    rates = {}
    for dtype in TRIED_ON_HOSTS if device.facts.backend == "cpu" else TRIED:
        work = Gemm(name="look", m=side, n=side, k=side, dtype=dtype)
        if (seconds := _time(device, BenchCase(work=work), quick)) is not None:
            rates[dtype] = float(work.flops) / seconds
    if DType.FP32 not in rates:
        raise UnsupportedCase("no fp32 GEMM runs on this device")
    if device.facts.backend == "cpu":
        rates = {d: rate for d, rate in rates.items() if d is DType.FP32 or rate > WORTH * rates[DType.FP32]}
    rows = 4096 if device.facts.backend == "cpu" else 65536
    add = streamed("add", rows, 4096, 3.0, DType.FP32)
    seconds = _time(device, BenchCase(work=add), quick)
    bandwidth = add.bytes_moved / seconds if seconds else 1e10
    return Scale(
        facts=device.facts,
        flops_per_s={dtype: _power_of_two(rate) for dtype, rate in rates.items()},
        bytes_per_s=_power_of_two(float(bandwidth)),
    )


def streamed(op: str, rows: int, cols: int, elements: float, dtype: DType) -> MemoryBound:
    """A streaming kernel that moves ``elements`` per element of rows x cols; ``op`` is its name in the tables."""
    kinds = {"add": "residual", "rmsnorm": "norm", "layernorm": "norm", "gelu": "activation", "rope": "rotary"}
    kind = MemoryBoundKind(kinds.get(op, "activation" if op == "silu_and_mul" else op))
    moved = elements * rows * cols * dtype.bytes
    return MemoryBound(name=op, kind=kind, kernel=op, rows=rows, cols=cols, bytes_moved=moved, dtype=dtype)


def _time(device: Device, case: BenchCase, policy: Policy) -> float | None:
    try:
        return time_case(device, device.load(case), ClockMode.BURST, policy).p10_s
    except (UnsupportedCase, OutOfMemoryOnDevice):
        return None
    finally:
        device.free()


def _power_of_two(value: float) -> float:
    return float(2.0 ** round(math.log2(value)))
