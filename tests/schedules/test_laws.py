"""Laws of schedules: bounds in order, core time conserved, and what must not change an optimum."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.schedules import Mode, ScheduleProblem, Solver, solve
from sartor.schedules.bounds import best_greedy, lower_bound, tails
from sartor.schedules.problem import violations
from sartor.schedules.split import canonical, contract, part, series
from schedules.instances import problems, random_problem

few = settings(max_examples=30, deadline=None)


@few
@given(problems())
def test_critical_path_and_work_per_core_are_below_the_optimum_and_that_below_greedy(small: ScheduleProblem) -> None:
    found, at_once = solve(small), solve(small, 0)
    block, _ = contract(small)
    kinds = list(zip(block.core_types, block.latency, block.intra_latency, strict=True))
    tensor = sum(min(single, split * small.num_tc) for kind, single, split in kinds if kind.needs_tensor_core)
    vector = sum(min(single, split * small.num_vc) for kind, single, split in kinds if kind.needs_vector_core)
    assert max(tails(block, block.serial), default=0) <= found.lower_bound
    assert max(tensor / small.num_tc, vector / small.num_vc) <= found.lower_bound == found.makespan
    assert at_once.lower_bound <= found.makespan <= at_once.makespan


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_known_already_a_bound_never_exceeds_the_optimum(seed: int) -> None:
    block, _ = contract(random_problem(seed, 7, 2, 2))
    best = solve(random_problem(seed, 7, 2, 2)).makespan
    sharing_block, _ = contract(random_problem(seed, 7, 2, 2, shared=True))
    shared_best = solve(random_problem(seed, 7, 2, 2, shared=True)).makespan
    assert best <= shared_best
    assert lower_bound(sharing_block, 2 * shared_best).value <= shared_best
    for upper in (best, best + 1, 2 * best):
        assert lower_bound(block, upper).value <= best


@few
@given(problems(max_size=6))
def test_busy_and_idle_core_time_is_makespan_times_cores(small: ScheduleProblem) -> None:
    found = solve(small, 0)
    for kind, count in (("tc", small.num_tc), ("vc", small.num_vc)):
        idle = 0
        for core in range(count):
            rows = [r for r in found.operators if core in (r.tensor_cores if kind == "tc" else r.vector_cores)]
            ends = [0, *(row.end for row in rows if row.end > row.start)]
            starts = [*(row.start for row in rows if row.end > row.start), found.makespan]
            idle += sum(start - end for start, end in zip(starts, ends, strict=True))
        assert found.busy[kind] + idle == found.makespan * count
        assert 0 <= found.utilization[kind] <= 1


@few
@given(problems(shared=True), st.integers(2, 1000))
def test_scaling_all_latencies_scales_the_makespan(small: ScheduleProblem, factor: int) -> None:
    scaled = tuple(
        replace(
            op,
            latency=op.latency * factor,
            intra_latency=op.intra_latency * factor,
            traffic=tuple((name, time * factor) for name, time in op.traffic),
        )
        for op in small.operators
    )
    assert solve(replace(small, operators=scaled)).makespan == factor * solve(small).makespan
    assert solve(replace(small, operators=scaled), 0).makespan == factor * solve(small, 0).makespan


@few
@given(problems(), st.randoms(use_true_random=False))
def test_names_and_order_of_operators_do_not_matter(small: ScheduleProblem, rng: random.Random) -> None:
    name = {op.id: f"operator {k}" for k, op in enumerate(rng.sample(small.operators, len(small.operators)))}
    renamed = [replace(op, id=name[op.id]) for op in small.operators]
    rng.shuffle(renamed)
    edges = [(name[a], name[b]) for a, b in small.edges]
    rng.shuffle(edges)
    other = replace(small, operators=tuple(renamed), edges=tuple(edges))
    assert solve(other).makespan == solve(small).makespan


@few
@given(problems())
def test_more_cores_are_never_worse(small: ScheduleProblem) -> None:
    best = solve(small).makespan
    assert solve(replace(small, num_tc=small.num_tc + 1)).makespan <= best
    assert solve(replace(small, num_vc=small.num_vc + 1)).makespan <= best


@few
@given(problems(), st.data())
def test_one_more_edge_is_never_better(small: ScheduleProblem, data: Any) -> None:
    if len(small.operators) < 2:
        return
    a, b = sorted(
        data.draw(st.lists(st.sampled_from(range(len(small.operators))), min_size=2, max_size=2, unique=True))
    )
    assert solve(replace(small, edges=(*small.edges, (a, b)))).makespan >= solve(small).makespan


@few
@given(problems(), problems())
def test_schedules_left_and_right_of_a_cut_add_up(left: ScheduleProblem, right: ScheduleProblem) -> None:
    cores = {"num_tc": 2, "num_vc": 2}
    left, right = replace(left, **cores), replace(right, **cores)
    far = {op.id: f"r{op.id}" for op in right.operators}
    joined = ScheduleProblem(
        operators=(*left.operators, *(replace(op, id=far[op.id]) for op in right.operators)),
        edges=(
            *left.edges,
            *((far[a], far[b]) for a, b in right.edges),
            *((a.id, far[b.id]) for a in left.operators for b in right.operators),
        ),
        **cores,
    )
    assert solve(joined).makespan == solve(left).makespan + solve(right).makespan


@pytest.mark.parametrize("seed", range(12))
def test_list_schedules_of_large_graphs_pass_the_checker_and_never_exceed_the_serial_ones(seed: int) -> None:
    large = random_problem(seed, 30 + 15 * seed, 1 + seed % 5, 1 + seed % 3, 0.2)
    found = solve(large, 0)
    real = [op for op in large.operators if op.takes_time]
    assert not violations(large, found.operators, found.makespan)
    assert found.makespan <= min(sum(op.latency for op in real), sum(op.intra_latency for op in real))
    assert found.lower_bound <= found.makespan


@pytest.mark.parametrize("seed", range(10))
def test_the_canonical_order_is_topological_and_the_same_for_every_numbering(seed: int) -> None:
    block, _ = contract(random_problem(seed, 12, 2, 2))
    one, order = canonical(block)
    assert all(not mask & ((1 << i) - 1) for i, mask in enumerate(one.after))
    assert sorted(order) == list(range(block.size))
    given_ = random_problem(seed, 12, 2, 2)
    turned = replace(given_, operators=tuple(reversed(given_.operators)), edges=tuple(reversed(given_.edges)))
    assert canonical(contract(turned)[0])[0] == one


@few
@given(problems(max_size=8))
def test_parts_in_series_are_chains_of_everything_before_everything_after(small: ScheduleProblem) -> None:
    block, _ = contract(small)
    parts = series(block)
    assert [k for positions in parts for k in positions] == list(range(block.size))
    for positions in parts:
        later = sum(1 << k for k in range(positions[-1] + 1, block.size))
        assert all(block.after[i] & later == later for i in positions)
        piece = part(block, positions)
        assert series(piece) == (tuple(range(piece.size)),)


def test_the_same_problem_always_gives_the_same_list_schedule() -> None:
    given_ = random_problem(3, 40, 4, 2)
    assert solve(given_, 0).operators == solve(given_, 0).operators


def test_fused_operators_get_paired_cores_where_pairs_are_free() -> None:
    rows = [row for seed in range(30) for row in _fused(random_problem(seed, 12, 3, 2))]
    paired = sum(row.tensor_cores == row.vector_cores for row in rows)
    assert rows
    assert paired >= 0.9 * len(rows)


def _fused(given_: ScheduleProblem) -> list[Any]:
    types = {op.id: op.core_type for op in given_.operators}
    found = solve(given_, 0, Solver.GREEDY)
    return [row for row in found.operators if types[row.id] == "TCandVC" and row.mode is Mode.SINGLE]


def test_greedy_never_exceeds_the_serial_order_of_shorter_modes() -> None:
    for seed in range(30):
        block, _ = contract(random_problem(seed, 15, 2, 2))
        assert best_greedy(block).makespan(block) <= sum(block.serial)
