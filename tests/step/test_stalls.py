"""Longest paths of interleaved pipelines: equal to the event simulation, whatever chunks hold, for one and for many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.editing import edit
from sartor.model.training import PipelineSchedule, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.step import pipeline_laws
from sartor.step.orders import PipelineTimes, simulate
from sartor.step.pipeline_laws import ROUNDS, Chunks, longest_paths, stall_s
from sartor.step.stages import stage_counts
from sartor.step.step import step, step_each

CLUSTER = load_cluster("dgx-h100", 64)


def simulated(forward: np.ndarray, backward: np.ndarray, m: int) -> float:
    times = PipelineTimes(forward_s=forward, dgrad_s=backward, wgrad_s=np.zeros_like(forward))
    return max(event.end_s for event in simulate(PipelineSchedule.ONE_F_ONE_B, times, m))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(2, 5), st.integers(1, 4), st.integers(0, 1000))
def test_the_longest_path_is_as_long_as_the_simulation(pp: int, virtual: int, rounds: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    forward, backward = draw.uniform(0.5, 2.0, (2, 3, pp, virtual))
    found = longest_paths(forward, backward, rounds * pp)
    for i in range(3):
        assert found.makespan_s[i] == simulated(forward[i], backward[i], rounds * pp)
        along = (found.tasks[i] * np.stack([forward[i], backward[i]])).sum()
        assert along == pytest.approx(found.makespan_s[i])


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(1, 3), st.integers(0, 1000))
def test_few_paths_price_any_durations_as_the_simulation_does(pp: int, virtual: int, rounds: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    layers = draw.integers(1, 4, (pp, virtual))
    counts = np.zeros((pp, virtual, 3), dtype=np.int64)
    counts[..., 1], counts[0, 0, 0], counts[-1, -1, 2] = layers, 1, 1
    chunks = Chunks(counts=counts, is_layer=np.array([False, True, False]))
    seconds = np.stack([draw.uniform(0.02, 1, 5), draw.uniform(0.5, 2, 5), draw.uniform(0.05, 8, 5)])
    beyond = stall_s(chunks, seconds, np.full(5, rounds * pp))
    for i in range(5):
        busy = counts @ seconds[:, i]
        whole = busy.sum(axis=1)
        closed = rounds * pp * whole.max() + (whole.sum() - whole.max()) / virtual
        want = simulated(busy / 3, busy * 2 / 3, rounds * pp)
        assert closed + beyond[i] <= want * (1 + 1e-9)  # every path is one of the simulation's
        assert closed + beyond[i] == pytest.approx(want, rel=0.01)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(2, 4), st.integers(4, 12), st.integers(0, 1000))
def test_the_slowest_device_works_for_all_microbatches_however_many(
    pp: int, virtual: int, rounds: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    counts = np.zeros((pp, virtual, 3), dtype=np.int64)
    counts[..., 1], counts[0, 0, 0], counts[-1, -1, 2] = draw.integers(1, 6, (pp, virtual)), 1, 1
    seconds = np.array([[draw.uniform(0.02, 1)], [1.0], [draw.uniform(0.05, 5)]])
    chunks = Chunks(counts=counts, is_layer=np.array([False, True, False]), exact=True)
    check_bubble(chunks, seconds, rounds)


def check_bubble(chunks: Chunks, seconds: np.ndarray, rounds: int) -> None:
    pp, virtual = chunks.counts.shape[:2]
    busy = (chunks.counts @ seconds)[..., 0]
    most = busy.sum(axis=1).max()
    closed = rounds * pp * most + (busy.sum() - most) / virtual
    found = closed + stall_s(chunks, seconds, np.array([rounds * pp]))[0]
    above = 1e-9 if rounds <= ROUNDS[-1] else 0.1  # further rounds are extrapolated: 3 of 500 above, 4.6% at most
    assert rounds * pp * most - 1e-9 <= found <= simulated(busy / 3, busy * 2 / 3, rounds * pp) * (1 + above)


def test_layers_placed_for_many_rounds_leave_no_negative_bubble() -> None:
    # Llama 3 8B on eight RTX 4090: the second round is bound by another path than those that follow.
    counts = np.array([[[1, 3, 0], [0, 4, 0]], *[[[0, 5, 0], [0, 4, 0]]] * 2, [[0, 4, 0], [0, 3, 1]]])
    chunks = Chunks(counts=counts, is_layer=np.array([False, True, False]), exact=True)
    check_bubble(chunks, np.array([[0.0028], [0.0464], [0.0682]]), 16)


@pytest.mark.parametrize(("pp", "virtual", "layers"), [(4, 3, 16), (4, 5, 27), (2, 7, 32), (8, 3, 61)])
def test_rounds_beyond_the_third_add_what_the_third_did(pp: int, virtual: int, layers: int) -> None:
    shape = edit(load_model("llama3-8b"), num_layers=layers)
    counts = stage_counts(shape, pp, virtual)
    seconds = np.array([[0.05], [1.0], [2.3]])
    chunks = Chunks(counts=counts, is_layer=np.array([False, True, False]))
    busy = (counts @ seconds)[..., 0]
    whole, rounds = busy.sum(axis=1), 11
    closed = rounds * pp * whole.max() + (whole.sum() - whole.max()) / virtual
    want = simulated(busy / 3, busy * 2 / 3, rounds * pp)
    assert closed + stall_s(chunks, seconds, np.array([rounds * pp]))[0] == pytest.approx(want, rel=1e-3)


def test_plans_priced_together_are_priced_as_alone() -> None:
    """A plan's price does not depend on its company: arrays, and plans with layers of their own."""
    job = TrainingJob(shape=edit(load_model("llama3-8b"), num_layers=18), seq_len=1024, global_batch_size=64)
    plan = TrainingPlan(dims=ParallelDims(pp=4, dp=4), num_microbatches=16, virtual_stages=4)
    many = step(job, replace(plan, microbatch_size=np.array([1, 2, 4])), CLUSTER)
    for i, size in enumerate((1, 2, 4)):
        assert step(job, replace(plan, microbatch_size=size), CLUSTER).step_s == many.step_s[i]
    placed = [replace(plan, stage_layers=(*[1] * k, 3, *[1] * (15 - k))) for k in (0, 7, 15)]
    for one, found in zip(placed, step_each(job, placed, CLUSTER), strict=True):
        assert step(job, one, CLUSTER) == found
    assert step_each(job, [], CLUSTER) == []


@pytest.mark.slow
def test_large_pipelines_walk_the_durations_of_their_plans_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the work nor the memory of a walk grows with the sampled durations, and the stalls are those of paths."""
    counts = stage_counts(edit(load_model("llama3-8b"), num_layers=300), 64, 4)
    chunks = Chunks(counts=counts, is_layer=np.array([False, True, False]))
    base = np.array([[0.05, 0.1, 0.02], [1.0, 0.9, 0.3], [2.3, 0.7, 0.4]])
    seconds, microbatches = np.concatenate([base, 2 * base], axis=1), np.full(6, 10 * 64)
    walked = list[tuple[int, int]]()

    def spy(tasks: Any, forward_s: np.ndarray, *rest: Any) -> np.ndarray:
        walked.append((int((tasks.kind < tasks.kind[0, 0]).sum()), len(forward_s)))
        return finished(tasks, forward_s, *rest)

    finished = pipeline_laws._finished
    monkeypatch.setattr(pipeline_laws, "_finished", spy)
    monkeypatch.setattr(pipeline_laws, "WALKED", 200_000)
    together = stall_s(chunks, seconds, microbatches)
    assert all(tasks * durations <= 200_000 for tasks, durations in walked)
    assert sum(durations for _, durations in walked) == 2 * 3  # two numbers of rounds, three distinct durations
    alone = [stall_s(chunks, seconds[:, [i]], microbatches[:1])[0] for i in range(6)]
    assert together.tolist() == alone
    monkeypatch.setattr(pipeline_laws, "SAMPLED", np.inf)
    assert together == pytest.approx(stall_s(chunks, seconds, microbatches), rel=1e-2, abs=0.1)
