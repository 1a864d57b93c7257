"""Bounds of one layer on many accelerators: floor <= bound <= what is proved <= running in turn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from accelerators import TPU, accelerators
from effort import times
from sartor.cost.chip.area import published_grid
from sartor.cost.chip.operator_latency import Fused
from sartor.cost.collective.links import link_time_s
from sartor.designs.space import taken
from sartor.hardware.accelerator import Accelerator
from sartor.model.editing import edit_fields
from sartor.model.lower.graph import lower_layer
from sartor.model.shape import TransformerShape
from sartor.model.workload import ParallelDims, Workload
from sartor.model.zoo import load_model
from sartor.operators import Attention, Collective, Gemm, GroupedGemm, MemoryBound, Operator, OperatorGraph
from sartor.schedules.makespan import (
    UNIT_S,
    fuse_graph,
    makespan_bounds,
    makespan_floors,
    schedule_problem,
    schedule_problems,
)
from sartor.schedules.problem import violations
from sartor.schedules.solve import solve
from sartor.units import Floats
from strategies import shapes


@settings(max_examples=times(15, 40), deadline=None)
@given(shapes(), accelerators(), st.booleans(), st.sampled_from((1, 2)))
def test_floor_bound_optimum_and_running_in_turn_stand_in_this_order(
    shape: TransformerShape, accelerator: Accelerator, backward: bool, tp: int
) -> None:
    layer = lower_layer(Workload(shape=shape, seq_len=64), ParallelDims(tp=tp))
    graph = layer.backward if backward else layer.forward
    bounds, floor = makespan_bounds(graph, accelerator), makespan_floors(graph, accelerator)
    found = solve(schedule_problem(graph, accelerator), 0)
    assert float(floor) / UNIT_S <= bounds.lower[0] * (1 + 1e-9)
    assert bounds.lower[0] <= found.makespan <= bounds.upper[0]


@settings(max_examples=times(15, 40), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    shapes(),
    accelerators(),
    st.booleans(),
    st.sampled_from((1, 2)),
    st.sampled_from((1, 8)),
    st.sampled_from((1, 2, 4)),
)
def test_no_block_beats_memory_buffer_links_and_arrays(
    shape: TransformerShape, accelerator: Accelerator, backward: bool, tp: int, microbatch: int, cp: int
) -> None:
    """In particular not with contexts in a ring, whose attention runs once for each part of the keys."""
    workload = Workload(shape=shape, seq_len=256, microbatch_size=microbatch)
    layer = lower_layer(workload, ParallelDims(tp=tp, cp=cp))
    graph = layer.backward if backward else layer.forward
    found = solve(schedule_problem(graph, accelerator), 0)
    for what, seconds in compulsory_s(graph, accelerator).items():
        assert found.makespan * UNIT_S >= seconds * (1 - 1e-9), what


def test_a_schedule_waits_for_memory_where_operators_side_by_side_would_not() -> None:
    graph = lower_layer(Workload(shape=_gpt(), seq_len=512), ParallelDims(tp=2)).backward
    slow = replace(TPU, num_stacks=1, stack_bytes_per_s=17e9)
    problem = schedule_problem(graph, slow)
    waits, free = solve(problem, 0), solve(replace(problem, shared=()), 0)
    assert free.makespan < waits.makespan == waits.lower_bound == problem.shared_time
    assert (waits.held_by, free.held_by) == ("hbm", "")
    assert "hbm needs" in violations(problem, free.operators, free.makespan)[0]
    assert makespan_bounds(graph, slow).lower[0] == waits.makespan


def test_every_candidate_is_bounded_as_if_it_were_alone() -> None:
    graph = lower_layer(Workload(shape=_gpt(), seq_len=512), ParallelDims(tp=2)).backward
    index = np.random.default_rng(3).choice(29_360, 12, replace=False)
    grid = published_grid()
    some = taken(grid.accelerators, np.flatnonzero(grid.kept)[index])
    together = makespan_bounds(graph, some)
    for i, problem in enumerate(schedule_problems(graph, some)):
        alone = makespan_bounds(graph, taken(some, i))
        assert (alone.lower[0], alone.upper[0]) == (together.lower[i], together.upper[i])
        assert together.upper[i] == sum(min(op.latency, op.intra_latency) for op in problem.operators)


def compulsory_s(graph: OperatorGraph, a: Accelerator) -> dict[str, Floats]:
    """Seconds at peak rate for what a block must move, by the operators' own counts: nothing moved twice."""
    hbm: Floats = 0.0
    buffer: Floats = 0.0
    links: Floats = 0.0
    arrays: Floats = 0.0
    for op in fuse_graph(graph).operators:
        if isinstance(op, Collective):
            links += op.count * link_time_s(op, a)
            continue
        product = op.product if isinstance(op, Fused) else op
        hbm += op.count * op_bytes(op) / a.hbm_bytes_per_s
        if not isinstance(product, MemoryBound):
            arrays += op.count * product.flops / a.peak_flops_per_s
        if isinstance(product, Gemm | GroupedGemm):  # what gradients were is added in memory, not in the buffer
            product = replace(product, out_dtype=None, accumulates=False)
        if not isinstance(product, Attention):  # what attention keeps in the global buffer depends on its tiles
            buffer += op.count * product.bytes_moved / a.global_buffer_bytes_per_s
    return {"hbm": hbm, "buffer": buffer, "links": links, "arrays": arrays}


def op_bytes(op: Operator | Fused) -> Floats:
    """Bytes through memory; a fused operator does not read back what its GEMM wrote."""
    if not isinstance(op, Fused):
        return op.bytes_moved
    read_back = op.epilogue.dtype.bytes * op.product.batch * op.product.m * op.product.n
    return op.product.bytes_moved + np.maximum(op.epilogue.bytes_moved - read_back, 0.0)


def _gpt() -> TransformerShape:
    return edit_fields(load_model("gpt2-small"), {"vocab_size": 1024})[0]
