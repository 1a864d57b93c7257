"""The made traces are what they claim: the predicted times, one fault of a known cost, and whole Kineto events."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from traces.kineto_made import FAULTS, RANKS, Made, healthy, simulate, step_s, strength_for, trace

QUIET = Made(noise=0.0, drift=0.0, steps=3)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_what_it_is_made_to_cost(fault: str) -> None:
    loss = step_s(replace(QUIET, fault=fault, strength=strength_for(fault))) / step_s(QUIET) - 1
    whole = {"recompute": 0.07, "prefetch_off": 0.2}  # whole layers; all or nothing
    assert 0.0499 <= loss <= whole.get(fault, 0.0501)


def test_a_quiet_run_takes_the_predicted_times_step_for_step() -> None:
    step, began = simulate(QUIET)[1]
    kernels = {w.name: 0.0 for w, *_ in step.rows}
    for w, _, begin, end in step.rows:
        assert float(end[0] - begin[0]) >= 0.999999 * w.time_s
        kernels[w.name] += w.time_s
    busy = sum(w.time_s for w in healthy() if w.kind == "compute")
    assert busy <= float(step.host[0] - began[0]) <= 1.1 * busy


def test_a_collective_ends_on_all_ranks_at_once() -> None:
    for w, _, begin, end in simulate(Made(seed=3))[2][0].rows:
        if w.kind in ("gather", "scatter"):
            assert len(set(end.tolist())) == 1
            assert begin.max() < end[0]


def test_every_kernel_has_its_launch_and_its_operator() -> None:
    events = trace(Made(seed=1, steps=2))["traceEvents"]
    kinds = Counter(event["cat"] for event in events)
    launches = {event["args"]["correlation"] for event in events if event["cat"] == "cuda_runtime"}
    ops = {event["args"]["External id"] for event in events if event["cat"] == "cpu_op"}
    kernels = [event["args"] for event in events if event["cat"] == "kernel"]
    assert kinds["kernel"] == 2 * len(healthy())
    assert all(args["correlation"] in launches and args["External id"] in ops for args in kernels)
    assert sum(event["name"].startswith("ProfilerStep#") for event in events) == 2


def test_ranks_of_one_run_differ_and_runs_of_one_seed_do_not() -> None:
    assert trace(Made(seed=2)) == trace(Made(seed=2))
    assert trace(Made(seed=2)) != trace(Made(seed=2, rank=RANKS - 1))
