"""Richer terms: the answer is the best of all under them, the plain one where they are off, and never worse than it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from placement.brute_force import partitions
from placement.instances import random_chain, random_graph, uniform_chain
from sartor.errors import InputError
from sartor.placement.check import price_with_terms
from sartor.placement.place import solve_with_terms
from sartor.placement.plain import solve
from sartor.placement.problem import DeviceType, PlacementProblem, PlacementTerms, Plan, Stage, Tier

CLOSE = 1e-9


def best_time(problem: PlacementProblem, terms: PlacementTerms) -> float:
    """Every plan there is, priced by the checker."""
    times = (price_with_terms(problem, terms, plan) for plan in all_plans(problem, terms))
    return min((priced.time_per_batch_s for priced in times if not priced.faults), default=inf)


def all_plans(problem: PlacementProblem, terms: PlacementTerms) -> Iterator[Plan]:
    total = sum(each.num_devices for each in terms.device_types) or problem.num_devices
    names = [each.name for each in terms.device_types] or [""]
    for width in problem.widths:
        split = {layer.id for layer in width.layers if layer.is_split}
        needs = {layer.id: {e.source for e in width.edges if e.dest == layer.id} for layer in width.layers}
        for stages in partitions(frozenset(), needs):
            for types, v in product(product(names, repeat=len(stages)), sorted({1, *terms.virtual_stages})):
                if len(stages) % v or len(stages) == v > 1:
                    continue
                counts = [width.devices if split and (v > 1 or split & stage) else 1 for stage in stages]
                chunks = tuple(
                    Stage(layers=tuple(sorted(stage)), devices=count, load_s=0.0, device_type=name)
                    for stage, count, name in zip(stages, counts, types, strict=True)
                )
                for d, zero in product(range(1, total + 1), sorted({0, *terms.zero_stages})):
                    yield Plan(
                        tensor_parallel=width.tensor_parallel,
                        context_parallel=width.context_parallel,
                        expert_parallel=width.expert_parallel,
                        data_parallel=d,
                        stages=chunks,
                        time_per_batch_s=0.0,
                        virtual_stages=v,
                        zero_stage=zero,
                    )


def random_terms(rng: np.random.Generator, problem: PlacementProblem) -> PlacementTerms:
    fast, slow = problem.link_bytes_per_s * 4, problem.link_bytes_per_s / 2
    tiers = (
        Tier(size=int(rng.integers(1, 5)), bytes_per_s=fast, latency_s=float(rng.choice([0.0, 0.1]))),
        Tier(size=1000 * 60, bytes_per_s=slow, latency_s=float(rng.choice([0.0, 0.3]))),
    )
    types = (
        DeviceType(name="a", num_devices=int(rng.integers(1, 5)), memory_bytes=problem.memory_bytes),
        DeviceType(name="b", num_devices=int(rng.integers(1, 5)), memory_bytes=2 * problem.memory_bytes, slowdown=1.5),
    )
    several = bool(rng.random() < 0.4)
    return PlacementTerms(
        resync_every_stage=bool(rng.random() < 0.6),
        tiers=tiers if rng.random() < 0.7 else (),
        device_types=types if several else (),
        virtual_stages=(1,) if several or rng.random() < 0.5 else (1, 2),
        zero_stages=tuple(rng.choice([0, 1, 2, 3], 2, replace=False).tolist()) if rng.random() < 0.5 else (0,),
        resync_factor=float(rng.choice([2.0, 4.0])),
    )


def widened(rng: np.random.Generator, problem: PlacementProblem) -> PlacementProblem:
    """Some widths with context and expert parallelism, some parameters in experts."""
    widths = []
    for width in problem.widths:
        cp, ep = (1, 1) if rng.random() < 0.5 else (int(rng.integers(1, 3)), int(rng.integers(1, 3)))
        share = float(rng.choice([0.0, 0.5, 1.0]))
        layers = tuple(replace(x, expert_param_bytes=share * x.param_bytes) for x in width.layers)
        tied = (1 - share) * width.tied_bytes
        widths.append(replace(width, layers=layers, context_parallel=cp, expert_parallel=ep, tied_bytes=tied))
    return replace(problem, widths=tuple(widths))


@pytest.mark.parametrize("block", range(10))
def test_no_plan_with_terms_is_faster(block: int) -> None:
    feasible = 0
    for seed in range(12):
        rng = np.random.default_rng([11, block, seed])
        make = random_chain if seed % 3 else random_graph
        problem = make(rng, int(rng.integers(2, 5)))
        few = min(problem.num_devices, 8)
        problem = widened(rng, replace(problem, num_devices=few, widths=problem.widths[:2], fixed=None))
        terms = random_terms(rng, problem)
        expected = best_time(problem, terms)
        plan = solve_with_terms(problem, terms)
        found = plan.time_per_batch_s if plan else inf
        assert found == (expected if expected == inf else pytest.approx(expected, rel=CLOSE)), seed
        feasible += expected < inf
    assert feasible > 3


seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(2, 7))
def test_terms_that_are_off_leave_the_published_answer(seed: int, size: int) -> None:
    problem = random_chain(np.random.default_rng(seed), size)
    plan, plain = solve_with_terms(problem, PlacementTerms()), solve(problem)
    assert (plan is None) == (plain is None)
    if plan and plain:
        assert plan.time_per_batch_s == pytest.approx(plain.time_per_batch_s, rel=CLOSE)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(2, 7), st.sampled_from((2, 3, 4)), st.sampled_from((0.0, 0.5, 1.0)))
def test_copies_that_share_experts_cost_the_same_with_and_without_terms(
    seed: int, size: int, experts: int, share: float
) -> None:
    problem = random_chain(np.random.default_rng(seed), size)
    widths = tuple(
        replace(
            width,
            expert_parallel=experts,
            tied_bytes=(1 - share) * width.tied_bytes,
            layers=tuple(replace(x, expert_param_bytes=share * x.param_bytes) for x in width.layers),
        )
        for width in problem.widths
    )
    shared = replace(problem, widths=widths, fixed=None)
    plan, plain = solve_with_terms(shared, PlacementTerms(resync_factor=shared.resync_factor)), solve(shared)
    assert (plan is None) == (plain is None)
    if plan and plain:
        assert plan.time_per_batch_s == pytest.approx(plain.time_per_batch_s, rel=CLOSE)
        assert plain.data_parallel % experts == 0
        assert plain.expert_parallel == experts


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(2, 7))
def test_never_worse_than_the_plain_plan_in_the_same_network(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_chain(rng, size)
    terms = replace(random_terms(rng, problem), device_types=())
    plain, plan = solve(problem), solve_with_terms(problem, terms)
    assume(plain is not None)
    priced = price_with_terms(problem, terms, plain)
    assert priced.faults == ()
    assert plan is not None
    assert plan.time_per_batch_s <= priced.time_per_batch_s * (1 + CLOSE)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(2, 6), st.floats(1, 5))
def test_faster_tiers_are_never_worse(seed: int, size: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    problem = random_chain(rng, size)
    terms = random_terms(rng, problem)
    faster = replace(
        terms,
        tiers=tuple(
            replace(tier, bytes_per_s=tier.bytes_per_s * factor, latency_s=tier.latency_s / factor)
            for tier in terms.tiers
        ),
    )
    before, after = solve_with_terms(problem, terms), solve_with_terms(problem, faster)
    assert before is None or (after and after.time_per_batch_s <= before.time_per_batch_s * (1 + CLOSE))


def test_interleaving_halves_the_bubble() -> None:
    # 8 layers of 3 s on 4 devices, 4 microbatches, one copy (nodes so far apart that copies never pay).
    # 4 stages of 6 s: 6 x (4 + 3) = 42; in 8 chunks of 3 s: 3 x (2 x 4 + 3) = 33.
    problem = uniform_chain(8, num_devices=4, num_microbatches=4, link_bytes_per_s=1e9)
    heavy = tuple(replace(x, param_bytes=1e9) for x in problem.widths[0].layers)
    edges = tuple(replace(e, size_bytes=0.0) for e in problem.widths[0].edges)
    problem = replace(problem, memory_bytes=1e12, widths=(replace(problem.widths[0], layers=heavy, edges=edges),))
    terms = PlacementTerms(virtual_stages=(1, 2), resync_factor=1000.0)
    once, twice = solve_with_terms(problem, PlacementTerms(resync_factor=1000.0)), solve_with_terms(problem, terms)
    assert once is not None
    assert twice is not None
    assert once.time_per_batch_s == pytest.approx(42)
    assert (twice.time_per_batch_s, twice.virtual_stages, twice.num_stages) == (pytest.approx(33), 2, 4)


def test_zero_fits_what_the_copies_alone_do_not() -> None:
    # One layer of 10 bytes with Adam: 30 + 1 bytes; over two copies ZeRO 1 holds 10/2 + 20 + 1 = 26.
    layer = uniform_chain(1, num_devices=2, num_microbatches=2).widths[0].layers[0]
    problem = uniform_chain(1, num_devices=2, num_microbatches=2, memory_bytes=27.0)
    problem = replace(
        problem,
        widths=(replace(problem.widths[0], layers=(replace(layer, param_bytes=10.0),)),),
        optimizer=type(problem.optimizer).ADAM,
    )
    assert solve_with_terms(problem, PlacementTerms()) is None
    plan = solve_with_terms(problem, PlacementTerms(zero_stages=(0, 1)))
    assert plan is not None
    assert (plan.zero_stage, plan.data_parallel) == (1, 2)


def test_a_slow_pool_takes_fewer_layers() -> None:
    # 9 layers of 3 s: six on a fast device (18 s), three on one half as fast (18 s).
    problem = uniform_chain(9, num_devices=1, num_microbatches=100, link_bytes_per_s=1e12)
    types = (
        DeviceType(name="fast", num_devices=1, memory_bytes=1e9),
        DeviceType(name="slow", num_devices=1, memory_bytes=1e9, slowdown=2.0),
    )
    plan = solve_with_terms(problem, PlacementTerms(device_types=types))
    assert plan is not None
    assert sorted((stage.device_type, len(stage.layers)) for stage in plan.stages) == [("fast", 6), ("slow", 3)]
    assert plan.time_per_batch_s == pytest.approx(18 * 101, rel=1e-6)


def test_agreement_goes_tier_by_tier() -> None:
    # 8 copies on nodes of 4: within 2 (3/4) 8 B / 100, then a quarter of the bytes between two nodes: 2 (1/2) 2 B / 1.
    problem = uniform_chain(1, num_devices=8, num_microbatches=8)
    layer = replace(problem.widths[0].layers[0], param_bytes=8.0)
    problem = replace(problem, widths=(replace(problem.widths[0], layers=(layer,)),))
    tiers = (Tier(size=4, bytes_per_s=100.0), Tier(size=8, bytes_per_s=1.0))
    terms = PlacementTerms(tiers=tiers, resync_factor=2.0)
    stage = Stage(layers=(0,), devices=1, load_s=0.0)
    plan = Plan(tensor_parallel=1, data_parallel=8, stages=(stage,), time_per_batch_s=0.0)
    assert price_with_terms(problem, terms, plan).time_per_batch_s == pytest.approx(3 + 0.12 + 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PlacementTerms(tiers=(Tier(size=8, bytes_per_s=0.0),)), "bandwidth of a tier=0.0"),
        (lambda: PlacementTerms(tiers=(Tier(size=8, bytes_per_s=1.0), Tier(size=12, bytes_per_s=1.0))), "multiple"),
        (lambda: PlacementTerms(zero_stages=(4,)), "zeroStages=4"),
        (lambda: PlacementTerms(virtual_stages=(0,)), "virtualStages=0"),
        (lambda: PlacementTerms(resync_factor=float("nan")), "resyncFactor=nan"),
        (
            lambda: PlacementTerms(
                device_types=tuple(DeviceType(name=n, num_devices=1, memory_bytes=1.0) for n in "aa")
            ),
            "unique",
        ),
    ],
)
def test_terms_that_make_no_sense_are_named(make, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()
