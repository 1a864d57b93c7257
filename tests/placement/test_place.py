"""The placement is the best of all: against every enumerated one, the reference instances, and laws of the problem."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from effort import times
from placement.brute_force import best_time
from placement.instances import random_chain, random_graph, uniform_chain
from sartor.placement.check import price
from sartor.placement.place import place
from sartor.placement.plain import solve
from sartor.placement.problem import PlacementProblem, PlacementStatus
from sartor.read.problems_json import read_placement

CLOSE = 1e-9
SETTINGS = settings(max_examples=times(20, 60), deadline=None)
problems = st.builds(
    lambda seed, size, chain: (random_chain if chain else random_graph)(np.random.default_rng(seed), size),
    st.integers(0, 2**32 - 1),
    st.integers(2, 7),
    st.booleans(),
)


def time_of(problem: PlacementProblem) -> float:
    plan = solve(problem)
    return plan.time_per_batch_s if plan else inf


@pytest.mark.parametrize("block", range(times(8, 20)))
def test_no_placement_of_a_small_chain_is_faster(block: int) -> None:
    feasible = 0
    for seed in range(200):
        rng = np.random.default_rng([block, seed])
        problem = random_chain(rng, int(rng.integers(1, 9)))
        expected = best_time(problem)
        assert time_of(problem) == (expected if expected == inf else pytest.approx(expected, rel=CLOSE)), seed
        feasible += expected < inf
    assert 20 < feasible < 200, "both kinds of problems must be met"


@pytest.mark.parametrize("block", range(times(5, 10)))
def test_no_placement_of_a_small_branching_graph_is_faster(block: int) -> None:
    feasible = 0
    for seed in range(12):
        rng = np.random.default_rng([7, block, seed])
        problem = random_graph(rng, int(rng.integers(2, 6)))
        expected = best_time(problem)
        assert time_of(problem) == (expected if expected == inf else pytest.approx(expected, rel=CLOSE)), seed
        feasible += expected < inf
    assert feasible > 3


def reference_names() -> list[str]:
    folder = Path(__file__).resolve().parents[3] / "shared" / "reference" / "placement"
    return sorted(file.name.removesuffix(".expected.json") for file in folder.glob("*.expected.json")) or ["absent"]


@pytest.mark.parametrize("name", reference_names())
def test_reference_instances_get_the_public_programs_answers(shared_dir: Path, name: str) -> None:
    folder = shared_dir / "reference" / "placement"
    expected = json.loads((folder / f"{name}.expected.json").read_text())
    problem = read_placement(folder / f"{name}.json")
    found = place(problem)
    baseline = expected["fixed_strategy_time_per_batch"]
    assert found.fixed_strategy_time_per_batch_s == (baseline and pytest.approx(baseline, rel=CLOSE))
    if not expected["feasible"]:
        assert (found.status, found.plan) == (PlacementStatus.INFEASIBLE, None)
        return
    plan = found.plan
    assert plan is not None
    assert plan.time_per_batch_s == pytest.approx(expected["time_per_batch"], rel=CLOSE)
    width = next(width for width in problem.widths if width.tensor_parallel == plan.tensor_parallel)
    again = price(problem, width, [stage.layers for stage in plan.stages], plan.data_parallel)
    assert again.faults == ()
    assert again.time_per_batch_s == plan.time_per_batch_s


@SETTINGS
@given(problems, st.randoms(use_true_random=False))
def test_renaming_and_shuffling_layers_changes_nothing(problem: PlacementProblem, random) -> None:
    ids = [layer.id for layer in problem.widths[0].layers]
    names = dict(zip(ids, random.sample(range(-50, 1000), len(ids)), strict=True))

    def shuffled(items):
        return tuple(random.sample(items, len(items)))

    renamed = replace(
        problem,
        widths=tuple(
            replace(
                width,
                layers=shuffled([replace(layer, id=names[layer.id]) for layer in width.layers]),
                edges=shuffled([replace(e, source=names[e.source], dest=names[e.dest]) for e in width.edges]),
            )
            for width in problem.widths
        ),
    )
    assert time_of(renamed) == pytest.approx(time_of(problem), rel=CLOSE)


@SETTINGS
@given(problems, st.sampled_from([1e-3, 0.5, 4.0, 1e6]))
def test_another_unit_of_time_scales_the_answer(problem: PlacementProblem, unit: float) -> None:
    def slower(layer):
        return replace(layer, forward_s=layer.forward_s * unit, backward_s=layer.backward_s * unit)

    widths = tuple(replace(w, layers=tuple(slower(layer) for layer in w.layers)) for w in problem.widths)
    scaled = replace(problem, widths=widths, link_bytes_per_s=problem.link_bytes_per_s / unit)
    assert time_of(scaled) == pytest.approx(time_of(problem) * unit, rel=CLOSE)


@SETTINGS
@given(problems, st.integers(1, 6))
def test_more_devices_are_never_worse(problem: PlacementProblem, more: int) -> None:
    richer = replace(problem, num_devices=problem.num_devices + more)
    assert time_of(richer) <= time_of(problem) * (1 + CLOSE)


@SETTINGS
@given(problems, st.floats(1, 10))
def test_more_memory_is_never_worse(problem: PlacementProblem, factor: float) -> None:
    richer = replace(problem, memory_bytes=problem.memory_bytes * factor)
    assert time_of(richer) <= time_of(problem) * (1 + CLOSE)


@SETTINGS
@given(problems, st.floats(1, 10))
def test_more_bandwidth_is_never_worse(problem: PlacementProblem, factor: float) -> None:
    richer = replace(problem, link_bytes_per_s=problem.link_bytes_per_s * factor)
    assert time_of(richer) <= time_of(problem) * (1 + CLOSE)


@SETTINGS
@given(problems)
def test_a_further_width_is_never_worse(problem: PlacementProblem) -> None:
    assert time_of(problem) <= time_of(replace(problem, widths=problem.widths[:1], fixed=None)) * (1 + CLOSE)


@SETTINGS
@given(problems)
def test_the_expert_is_never_faster(problem: PlacementProblem) -> None:
    found = place(problem)
    assume(found.fixed_strategy_time_per_batch_s is not None)
    assert found.plan is not None
    assert found.plan.time_per_batch_s <= found.fixed_strategy_time_per_batch_s * (1 + CLOSE)


@SETTINGS
@given(problems)
def test_what_is_said_to_be_missing_is_exactly_missing(problem: PlacementProblem) -> None:
    tightest = place(problem).tightest
    if tightest is None:
        return
    if tightest.least_memory_bytes is None:
        assert solve(replace(problem, memory_bytes=1e9)) is None
    else:
        assert solve(replace(problem, memory_bytes=tightest.least_memory_bytes * (1 + CLOSE))) is not None
        assert solve(replace(problem, memory_bytes=tightest.least_memory_bytes * (1 - 1e-6))) is None
    if tightest.least_devices is not None:
        assert solve(replace(problem, num_devices=tightest.least_devices)) is not None
        fewer = tightest.least_devices - 1
        assert fewer == 0 or solve(replace(problem, num_devices=fewer)) is None


def test_one_layer_on_one_device_lasts_its_microbatches() -> None:
    # (1 s + 2 s) x 8 microbatches, nobody to agree with.
    assert time_of(uniform_chain(1, num_devices=1)) == 24.0


def test_two_equal_stages_beat_two_copies_only_when_agreeing_is_dear() -> None:
    # Two copies: 6 s x ceil(8/2) + 4 (1/2) x 2 B / rate; two stages: (3 s + transfer) x (8 + 1).
    cheap = uniform_chain(2, num_devices=2, num_microbatches=8)
    assert time_of(cheap) == pytest.approx(24 + 4 / 1e6)
    # Rate 1 B/s: copies cost 24 + 4 = 28; stages 4 s + ... last stage: 1 + 1 forward, 2 backward = 4; 4 x 9 = 36.
    assert time_of(replace(cheap, link_bytes_per_s=1.0)) == pytest.approx(28)
    # Rate 0.25 B/s: copies 24 + 16 = 40; each of two stages waits 4 s (7 s x 9 = 63); one device 48.
    assert time_of(replace(cheap, link_bytes_per_s=0.25)) == pytest.approx(40)
    # Rate 0.1 B/s: copies 24 + 40 = 64; one device 6 x 8 = 48.
    assert time_of(replace(cheap, link_bytes_per_s=0.1)) == pytest.approx(48)


def test_memory_grows_with_the_distance_from_the_end() -> None:
    # Two layers of 2 + 1 bytes; first of two stages keeps one more activation byte: 2 x 1 + 1 + 1 = 4.
    problem = uniform_chain(2, num_devices=2, num_microbatches=1, memory_bytes=4.0)
    plan = solve(problem)
    assert plan is not None
    assert plan.num_stages == 2
    assert solve(replace(problem, memory_bytes=3.9)) is None


def test_the_worked_example_of_the_docs() -> None:
    # docs/concepts/placement.md derives every figure: two copies of the stages 0 1 and 2 3 take 9.5 x 3 + 10 = 38.5 s.
    base = uniform_chain(4, num_devices=4, num_microbatches=4, memory_bytes=100.0, link_bytes_per_s=4.0)
    width = base.widths[0]
    layers = tuple(
        replace(x, param_bytes=10.0, activation_bytes=4.0, forward_s=f, backward_s=2 * f)
        for x, f in zip(width.layers, (1.0, 1.0, 2.0, 1.0), strict=True)
    )
    edges = tuple(replace(edge, size_bytes=2.0) for edge in width.edges)
    problem = replace(base, widths=(replace(width, layers=layers, edges=edges),))
    plan = solve(problem)
    assert plan is not None
    assert (plan.data_parallel, [stage.layers for stage in plan.stages]) == (2, [(0, 1), (2, 3)])
    assert [stage.load_s for stage in plan.stages] == [6.5, 9.5]
    assert plan.time_per_batch_s == 38.5
    others = {
        (1, ((0, 1, 2, 3),)): 60.0,
        (4, ((0, 1, 2, 3),)): 45.0,
        (1, ((0,), (1,), (2,), (3,))): 49.0,
        (1, ((0, 1), (2,), (3,))): 42.0,
    }
    for (copies, stages), time_s in others.items():
        assert price(problem, problem.widths[0], stages, copies).time_per_batch_s == time_s
    assert price(problem, problem.widths[0], ((0, 1), (2, 3)), 2).memory_bytes == (56.0, 48.0)
