"""Parts of a step that no single kernel shows: pipeline bubbles, unfused chains; and ranks whose clocks differ."""

from __future__ import annotations

import numpy as np
import pytest

from sartor.step.measured_run import PartKind, TracePart
from sartor.traces.attribute import attribute, clock_skew_s, losses
from sartor.traces.kernel_trace import HostOperator, KernelTrace, Recorded, kernel_trace

Row = tuple[str, HostOperator, float]
"""Kernel, operator, seconds."""
MATMUL: Row = ("nvjet_hsh_128x256", HostOperator(name="aten::mm"), 2e-3)
MUL: Row = ("void at::native::vectorized_elementwise_kernel<4, Mul>", HostOperator(name="aten::mul"), 1e-4)
FUSED: Row = ("triton_poi_fused_mul_0", HostOperator(name="aten::mul"), 1e-4)


def received(seconds: float, collective: str = "recv") -> Row:
    return "ncclDevKernel_SendRecv(args)", HostOperator(name="record_param_comms", collective=collective), seconds


def ran(*rows: Row, offset_s: float = 0.0) -> KernelTrace:
    """Kernels one after another."""
    kept, at = Recorded(rank=0, world_size=2), offset_s
    for number, (name, operator, seconds) in enumerate(rows):
        kept.operators[number] = operator
        kept.threads.append(1)
        kept.kernels.append((at, seconds, name, 7, number, number))
        at += seconds
    return kernel_trace("made", kept)


def part(trace: KernelTrace, kind: PartKind) -> TracePart:
    found = attribute(trace)
    assert sum(each.seconds for each in found.parts) == pytest.approx(found.step_s)
    return next(each for each in found.parts if each.kind is kind)


def test_a_receive_that_nothing_hides_is_a_pipeline_bubble() -> None:
    trace = ran(MATMUL, received(1e-3), MATMUL, received(5e-4))
    assert part(trace, PartKind.BUBBLE).seconds == pytest.approx(1.5e-3)
    assert "microbatches" in part(trace, PartKind.BUBBLE).fix
    assert losses(attribute(trace))[0].kind is PartKind.BUBBLE


def test_an_all_to_all_is_no_bubble_though_its_kernel_is_called_the_same() -> None:
    trace = ran(MATMUL, received(1e-3, "all_to_allv"))
    assert part(trace, PartKind.BUBBLE).seconds == 0
    assert part(trace, PartKind.COMMUNICATION).seconds == pytest.approx(1e-3)
    assert part(trace, PartKind.COMMUNICATION).evidence[0].startswith("all_to_allv of")


def test_a_chain_of_eager_kernels_loses_what_one_fused_kernel_would_not_take() -> None:
    chain = ran(MATMUL, MUL, MUL, MUL, MUL, MUL, MATMUL)
    assert part(chain, PartKind.UNFUSED).seconds == pytest.approx(3e-4)
    assert part(chain, PartKind.MEMORY_BOUND).seconds == pytest.approx(2e-4)
    assert part(chain, PartKind.UNFUSED).evidence[0].startswith("mul, mul, mul, mul, mul (once)")


@pytest.mark.parametrize("rows", [(MUL, MATMUL, MUL, MATMUL, MUL), (FUSED, FUSED, FUSED, FUSED)])
def test_kernels_apart_or_fused_already_lose_nothing(rows: tuple[Row, ...]) -> None:
    assert part(ran(*rows), PartKind.UNFUSED).seconds == 0


def test_clocks_that_differ_are_seen_by_the_ends_of_collectives() -> None:
    rows = (MATMUL, received(1e-3, "allreduce"), MATMUL, received(1e-3, "allreduce"))
    one, late = ran(*rows), ran(*rows, offset_s=0.02)
    assert clock_skew_s(one, [one]) == 0
    assert clock_skew_s(one, [one, late]) == pytest.approx(0.02)
    assert np.array_equal(attribute(one, ranks=[one]).parts, attribute(one, ranks=[late]).parts)
