"""Bounds for many devices at once never exceed what the exact placement answers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.placement.check import price
from sartor.placement.many import ChainSet, batch_time_bounds
from sartor.placement.place import place
from sartor.placement.problem import Edge, PlacedLayer, PlacedOptimizer, PlacementProblem, Width

SECONDS = st.floats(0.01, 2.0)


def as_problem(chain: ChainSet, problem: PlacementProblem) -> PlacementProblem:
    parts = [part for part, count in enumerate(chain.num_of) for _ in range(count)]
    layers = tuple(
        PlacedLayer(
            id=i,
            param_bytes=float(chain.param_bytes[part]),
            activation_bytes=float(chain.activation_bytes[part]),
            forward_s=float(chain.forward_s[part, 0]),
            backward_s=float(chain.backward_s[part, 0]),
            is_split=chain.devices > 1,
            expert_param_bytes=0.0 if chain.expert_param_bytes is None else float(chain.expert_param_bytes[part]),
        )
        for i, part in enumerate(parts)
    )
    edges = tuple(Edge(source=i, dest=i + 1, size_bytes=chain.boundary_bytes) for i in range(len(parts) - 1))
    return replace(problem, widths=(_width(chain, layers, edges),))


def _width(chain: ChainSet, layers: tuple[PlacedLayer, ...], edges: tuple[Edge, ...]) -> Width:
    return Width(
        tensor_parallel=chain.devices // chain.context_parallel,
        context_parallel=chain.context_parallel,
        expert_parallel=chain.expert_parallel,
        layers=layers,
        edges=edges,
        tied_bytes=chain.tied_bytes,
    )


@st.composite
def instances(draw: st.DrawFn) -> tuple[ChainSet, PlacementProblem]:
    counts = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=2)))
    parts = len(counts) + 2

    def many(values: st.SearchStrategy[float]) -> Any:
        return np.array(draw(st.lists(values, min_size=parts, max_size=parts)))

    param_bytes = many(st.integers(0, 40).map(lambda x: x / 10))
    contexts = draw(st.sampled_from((1, 1, 2, 3)))
    of_experts = draw(st.sampled_from((0.0, 0.5, 1.0)))
    tied = draw(st.sampled_from((0.0, 0.5, 1.0))) * (1 - of_experts) * min(param_bytes[0], param_bytes[-1])
    chain = ChainSet(
        devices=draw(st.sampled_from((1, 2))) * contexts,
        context_parallel=contexts,
        expert_parallel=draw(st.sampled_from((1, 1, 2, 3, 4))),
        expert_param_bytes=param_bytes * of_experts,
        tied_bytes=tied,
        counts=counts,
        forward_s=many(SECONDS)[:, None],
        backward_s=many(SECONDS)[:, None],
        param_bytes=param_bytes,
        activation_bytes=many(st.integers(0, 40).map(lambda x: x / 10)),
        boundary_bytes=draw(st.integers(0, 20)) / 10,
    )
    problem = PlacementProblem(
        widths=(
            Width(
                tensor_parallel=1, layers=(PlacedLayer(**dict.fromkeys(_NUMBERS, 0.0), id=0, is_split=False),), edges=()
            ),
        ),
        memory_bytes=draw(st.floats(5.0, 200.0)),
        num_devices=draw(st.integers(1, 24)),
        link_bytes_per_s=draw(st.floats(0.5, 20.0)),
        num_microbatches=draw(st.integers(1, 40)),
        recompute=draw(st.booleans()),
        optimizer=PlacedOptimizer.ADAM,
        optimizer_copies=draw(st.sampled_from((None, 6.0))),
        resync_factor=draw(st.sampled_from((2.0, 4.0))),
        update_s_per_byte=draw(st.sampled_from((0.0, 0.1, 1.0))),
        zero_stage=draw(st.sampled_from((0, 1))),
        even_copies=draw(st.booleans()),
    )
    return chain, problem


_NUMBERS = ("param_bytes", "activation_bytes", "forward_s", "backward_s")


@settings(max_examples=300, deadline=None)
@given(instances())
def test_no_placement_beats_the_bound_and_infeasible_means_infeasible(asked: tuple[ChainSet, PlacementProblem]) -> None:
    chain, problem = asked
    bound = batch_time_bounds(chain, problem, problem.link_bytes_per_s, problem.update_s_per_byte)[0]
    answer = place(as_problem(chain, problem)).plan
    if answer is None:
        return
    assert bound <= answer.time_per_batch_s * (1 + 1e-9)


@settings(max_examples=150, deadline=None)
@given(instances())
def test_every_cut_in_every_number_of_copies_priced_by_the_checker_is_no_faster(
    asked: tuple[ChainSet, PlacementProblem],
) -> None:
    """Also with copies that share optimizer states (ZeRO 1), context parallelism and experts."""
    chain, problem = asked
    problem = as_problem(chain, problem)
    width, num = problem.widths[0], len(problem.widths[0].layers)
    least = np.inf
    for chosen in product((False, True), repeat=num - 1):
        ends = [0, *(i + 1 for i, cut in enumerate(chosen) if cut), num]
        if (len(ends) - 1) * chain.devices > problem.num_devices:
            continue
        stages = [tuple(range(a, b)) for a, b in pairwise(ends)]
        for copies in range(1, problem.num_devices // ((len(ends) - 1) * chain.devices) + 1):
            priced = price(problem, width, stages, copies)
            if not priced.faults:
                least = min(least, priced.time_per_batch_s)
    found = place(problem).plan
    assert (found is None) == np.isinf(least)
    if found is not None:
        assert abs(found.time_per_batch_s - least) <= 1e-9 * least


def test_the_bound_of_one_kind_of_layer_is_within_a_hundredth_where_gradients_are_free() -> None:
    rng = np.random.default_rng(1)
    ratios = []
    for _ in range(60):
        chain = ChainSet(
            devices=1,
            counts=(24,),
            forward_s=rng.uniform(0.5, 1.5, (3, 1)),
            backward_s=rng.uniform(0.5, 1.5, (3, 1)),
            param_bytes=np.array([1.0, 2.0, 1.0]),
            activation_bytes=np.array([1.0, 2.0, 1.0]),
            boundary_bytes=0.1,
        )
        base = PlacementProblem(
            widths=as_problem(chain, _ROOMY).widths,
            memory_bytes=float(rng.uniform(30, 200)),
            num_devices=64,
            link_bytes_per_s=10.0,
            num_microbatches=128,
            recompute=bool(rng.integers(2)),
            optimizer=PlacedOptimizer.ADAM,
            resync_factor=0.0,
        )
        plan = place(as_problem(chain, base)).plan
        bound = batch_time_bounds(chain, base, 10.0)[0]
        assert (plan is None) == bool(np.isinf(bound))
        if plan is not None:
            ratios.append(bound / plan.time_per_batch_s)
    assert min(ratios) > 0.99
    assert max(ratios) <= 1 + 1e-9


def test_a_candidate_is_bounded_as_if_it_were_alone() -> None:
    rng = np.random.default_rng(2)
    chain = ChainSet(
        devices=2,
        counts=(10,),
        forward_s=rng.uniform(0.5, 1.5, (3, 7)),
        backward_s=rng.uniform(0.5, 1.5, (3, 7)),
        param_bytes=np.array([1.0, 2.0, 1.0]),
        activation_bytes=np.array([1.0, 2.0, 1.0]),
        boundary_bytes=0.1,
    )
    together = batch_time_bounds(chain, _ROOMY, 10.0)
    for i in range(7):
        one = replace(chain, forward_s=chain.forward_s[:, i : i + 1], backward_s=chain.backward_s[:, i : i + 1])
        alone = batch_time_bounds(one, _ROOMY, 10.0)[0]
        assert together[i] <= alone * (1 + 1e-9)
        assert together[i] >= alone * 0.99


_ROOMY = PlacementProblem(
    widths=(
        Width(tensor_parallel=1, layers=(PlacedLayer(**dict.fromkeys(_NUMBERS, 0.0), id=0, is_split=False),), edges=()),
    ),
    memory_bytes=60.0,
    num_devices=32,
    link_bytes_per_s=10.0,
    num_microbatches=64,
    recompute=True,
    optimizer=PlacedOptimizer.ADAM,
)
