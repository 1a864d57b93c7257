"""What the public placement program gets wrong or refuses (docs/concepts/placement.md), each shown to be right here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placement.brute_force import best_time
from placement.instances import uniform_chain
from sartor.placement.check import price_with_terms
from sartor.placement.place import place, solve_with_terms
from sartor.placement.plain import solve
from sartor.placement.problem import (
    Edge,
    FixedStrategy,
    PlacementProblem,
    PlacementStatus,
    PlacementTerms,
    Plan,
    Stage,
    Tier,
)


def with_edges(problem: PlacementProblem, *edges: tuple[int, int, float]) -> PlacementProblem:
    made = tuple(Edge(source=u, dest=v, size_bytes=size) for u, v, size in edges)
    return replace(problem, widths=tuple(replace(width, edges=made) for width in problem.widths))


def test_an_expert_strategy_that_does_not_fit_is_none_and_no_exit() -> None:
    # The public program exits with 1 here, although its search has succeeded.
    fixed = FixedStrategy(num_stages=4, tensor_parallel=1, data_parallel=4, num_transformer_layers=4)
    found = place(uniform_chain(4, num_devices=4, fixed=fixed))
    assert found.status is PlacementStatus.OPTIMAL
    assert found.plan is not None
    assert found.fixed_strategy_time_per_batch_s is None


def test_a_branching_layer_graph_is_placed() -> None:
    # Two towers of two layers that meet: the public program exits ("branching ... not supported").
    towers = with_edges(
        uniform_chain(5, num_devices=3, num_microbatches=20, memory_bytes=8.0),
        (0, 1, 1.0),
        (2, 3, 1.0),
        (1, 4, 1.0),
        (3, 4, 1.0),
    )
    plan = solve(towers)
    assert plan is not None
    assert plan.time_per_batch_s == pytest.approx(best_time(towers), rel=1e-12)


def test_a_chain_is_the_special_case_of_a_graph() -> None:
    chain = uniform_chain(6, num_devices=5, num_microbatches=9, link_bytes_per_s=3.0)
    # A lone layer that takes nothing turns the chain into a branching graph with the same answer.
    width = chain.widths[0]
    lone = replace(width.layers[0], id=99, param_bytes=0.0, activation_bytes=0.0, forward_s=0.0, backward_s=0.0)
    branching = replace(chain, widths=(replace(width, layers=(*width.layers, lone)),))
    one, other = solve(chain), solve(branching)
    assert one is not None
    assert other is not None
    assert other.time_per_batch_s == pytest.approx(one.time_per_batch_s, rel=1e-12)


def test_tensors_between_the_same_two_layers_add_up() -> None:
    # Graph extraction keeps the last tensor's size only; two tensors of 3 bytes take as long as one of 6.
    base = uniform_chain(2, num_devices=2, num_microbatches=20, link_bytes_per_s=5.0, memory_bytes=4.5)
    twice, once = solve(with_edges(base, (0, 1, 3.0), (0, 1, 3.0))), solve(with_edges(base, (0, 1, 6.0)))
    assert twice is not None
    assert once is not None
    assert twice.num_stages == 2
    assert twice.time_per_batch_s == once.time_per_batch_s


def test_copies_agree_on_every_stage_when_asked() -> None:
    # Two layers, the second with 1000 bytes: the publication lets its copies agree for free.
    problem = uniform_chain(2, num_devices=4, num_microbatches=8, memory_bytes=2010.0, link_bytes_per_s=100.0)
    width = problem.widths[0]
    problem = replace(
        problem,
        widths=(replace(width, layers=(width.layers[0], replace(width.layers[1], param_bytes=1000.0))),),
    )
    plan = Plan(
        tensor_parallel=1,
        data_parallel=2,
        stages=(Stage(layers=(0,), devices=1, load_s=0.0), Stage(layers=(1,), devices=1, load_s=0.0)),
        time_per_batch_s=0.0,
    )
    first = price_with_terms(problem, PlacementTerms(), plan).time_per_batch_s
    every = price_with_terms(problem, PlacementTerms(resync_every_stage=True), plan).time_per_batch_s
    # 4 x 1/2 x 1000 B / 100 B/s = 20 s instead of 4 x 1/2 x 1 B / 100 B/s = 0.02 s.
    assert every - first == pytest.approx(20 - 0.02)
    best = solve_with_terms(problem, PlacementTerms(resync_every_stage=True))
    assert best is not None
    assert best.time_per_batch_s <= every


def test_links_within_a_node_are_faster_than_between_nodes() -> None:
    # Copies inside a node of 2 agree over the fast links; the publication knows one bandwidth.
    problem = uniform_chain(1, num_devices=4, num_microbatches=4, link_bytes_per_s=1.0)
    tiers = (Tier(size=2, bytes_per_s=1000.0), Tier(size=4, bytes_per_s=1.0))
    plain, tiered = solve(problem), solve_with_terms(problem, PlacementTerms(tiers=tiers))
    assert plain is not None
    assert tiered is not None
    # Four copies: 3 s + 4 x 1/2 x 1 B / 1000 + 4 x 1/2 x 0.5 B / 1 = 4.002 s, before 3 s + 4 x 3/4 x 1 B / 1 = 6 s.
    assert tiered.time_per_batch_s == pytest.approx(4.002)
    assert plain.time_per_batch_s == pytest.approx(6.0)


def test_a_number_of_copies_that_does_not_divide_the_batch_pays_for_its_last_round() -> None:
    # 5 microbatches over 3 copies: the longest copy runs two, no copy runs 5/3.
    problem = uniform_chain(1, num_devices=3, num_microbatches=5)
    plan = solve(problem)
    assert plan is not None
    assert plan.time_per_batch_s == pytest.approx(6.0, rel=1e-5)
