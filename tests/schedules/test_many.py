"""Bounds of one layer on many accelerators: floor <= bound <= what is proved <= running in turn."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerators import accelerators
from sartor.cost.chip.area import published_grid
from sartor.designs.space import taken
from sartor.hardware.accelerator import Accelerator
from sartor.model.edit import edit_fields
from sartor.model.lower.layer_graph import lower_layer
from sartor.model.parallel import ParallelDims
from sartor.model.shape import TransformerShape
from sartor.model.workload import Workload
from sartor.model.zoo import load_model
from sartor.schedules.from_graph import UNIT_S, schedule_problem, schedule_problems
from sartor.schedules.many import makespan_bounds, makespan_floors
from sartor.schedules.solve import solve
from strategies import shapes


@settings(max_examples=40, deadline=None)
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


def _gpt() -> TransformerShape:
    return edit_fields(load_model("gpt2-small"), {"vocab_size": 1024})[0]
