"""Solve a placement problem, check the plan independently, and price the expert's strategy; without a solution, say
which memory and how many devices would suffice.

With extended terms every case is bounded first, then solved in order of its bound. A case is a width, a number of
copies, an interleaving and a ZeRO stage. Given these, every term is a cost of single stages: loads depend on the tiers
a stage's tensors cross, which follow from the number of stages after it; memory depends on the copies; the gradient
reduction is bounded by masking stages that take longer. So the recurrence of
:mod:`sartor.placement.dynamic_programming` solves a case exactly. The plain recurrence without memory limits, on the
fastest links and devices, bounds all cases in one pass; cases with a bound no better than the best answer are skipped.

The bound: with unlimited devices of the fastest kind, the fastest links and no memory limit, the recurrence is solved
once per width and bounds every case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf, isclose, isfinite

import numpy as np

from sartor.errors import InputError
from sartor.placement.case import Case, CasePipeline, WidthTables, pipelines, slowed, zero_bytes
from sartor.placement.check import fixed_strategy_stages, price, price_with_terms
from sartor.placement.dynamic_programming import Bottlenecks, Counts, Kind, least_bottlenecks, trace
from sartor.placement.plain import least_bytes, plain_kinds, solve
from sartor.placement.problem import (
    DeviceType,
    Network,
    PlacedLayer,
    Placement,
    PlacementProblem,
    PlacementStatus,
    PlacementTerms,
    Plan,
    Stage,
    Tier,
    TightestLimit,
    Width,
    copies_together,
)
from sartor.placement.tabulate import StageSums, States, find_states, held_bytes, max_positions, stage_sums, tabulate
from sartor.units import Array, ceil_div, distinct, format_bytes


def solve_with_terms(problem: PlacementProblem, terms: PlacementTerms) -> Plan | None:
    """The fastest plan under ``terms``, priced by the checker, or None if nothing fits."""
    _check_size(problem, terms)
    states, network = find_states(problem), _network_of(problem, terms)
    tables = [WidthTables(problem, width, states, network) for width in problem.widths]
    cases = sorted(_bounded_cases(problem, terms, tables), key=lambda bounded_case: bounded_case[0])
    best: _Solved | None = None
    for bound, index, copies, v, zero in cases:
        below = best.time_s if best else inf
        if bound >= below:
            break
        case = Case(tables[index], copies, v, zero)
        best = _solve_case(case, problem, terms, below) or best
    return _checked_plan(best, problem, terms) if best else None


def _network_of(problem: PlacementProblem, terms: PlacementTerms) -> Network:
    single = Tier(size=problem.num_devices, bytes_per_s=problem.link_bytes_per_s)
    return Network(tiers=terms.tiers or (single,), resync_factor=terms.resync_factor)


MAX_COPIES = 65_536
"""Most data-parallel copies that are tried."""


def _check_size(problem: PlacementProblem, terms: PlacementTerms) -> None:
    total = sum(device_type.num_devices for device_type in _types_of(problem, terms))
    if min(total, problem.num_microbatches) > MAX_COPIES:
        must = f"with terms, devices or microbatches must be at most {MAX_COPIES}"
        raise InputError("maxDevices", total, must, str(MAX_COPIES))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """A solved case: the cuts between its stages and the device type of each."""

    time_s: float
    case: Case
    cuts: list[int]
    devices: list[DeviceType]


def _checked_plan(solved: _Solved, problem: PlacementProblem, terms: PlacementTerms) -> Plan:
    case, states = solved.case, solved.case.tables.states
    width = case.tables.width
    stages = []
    for i, j, device in zip(solved.cuts[:-1], solved.cuts[1:], solved.devices, strict=True):
        alone = not case.tables.sums.is_split[i, j] and case.virtual_stages == 1
        count = 1 if alone else case.tables.group_devices
        stages.append(Stage(layers=states.layers(i, j), devices=count, load_s=0.0, device_type=device.name))
    plan = Plan(
        tensor_parallel=width.tensor_parallel,
        context_parallel=width.context_parallel,
        expert_parallel=width.expert_parallel,
        data_parallel=case.copies,
        stages=tuple(stages),
        time_per_batch_s=solved.time_s,
        virtual_stages=case.virtual_stages,
        zero_stage=case.zero_stage,
    )
    priced = price_with_terms(problem, terms, plan)
    assert not priced.faults, f"the checker refuses the plan: {priced.faults}"
    assert isclose(priced.time_per_batch_s, solved.time_s, rel_tol=1e-9), (priced.time_per_batch_s, solved.time_s)
    return priced.plan


def _solve_case(case: Case, problem: PlacementProblem, terms: PlacementTerms, below: float) -> _Solved | None:
    """The best plan of a case if it beats ``below``."""
    best = None
    for pipeline in pipelines(case, problem, _types_of(problem, terms)):
        solver = _every_stage_agrees if terms.resync_every_stage else _first_stage_agrees
        solved = solver(case, pipeline, best.time_s if best else below)
        best = solved or best
    return best


def _first_stage_agrees(case: Case, pipeline: CasePipeline, below: float) -> _Solved | None:
    """Only the first stage pays for gradient reduction; it is added when that stage is chosen."""
    bottlenecks = _fill(case, pipeline, inf, below)
    resync = case.virtual_stages * case.resync_s[0]
    best: tuple[float, Counts, int] | None = None
    for counts, first in bottlenecks.first.items():
        times = first * pipeline.rounds(counts) + resync
        end = int(times.argmin())
        if times[end] < below:
            below = float(times[end])
            best = (below, counts, end)
    return _solved(case, pipeline, bottlenecks, *best) if best else None


def _every_stage_agrees(case: Case, pipeline: CasePipeline, below: float) -> _Solved | None:
    """The exact trade-off between bottleneck and longest resync, starting from the best bottleneck.

    For each bottleneck time, bisection over the existing resyncs finds the smallest resync limit that keeps it; then
    the limit is lowered to where a longer bottleneck could pay off.
    """
    sums, v = case.tables.sums, case.virtual_stages
    values = distinct(case.resync_s[sums.is_stage])
    best: _Solved | None = None
    high = len(values) - 1
    while high >= 0:
        bottlenecks, least_s, counts = _least(case, pipeline, values[high], below)
        if counts is None or not least_s + v * values[0] < below:
            break
        low, top = 0, high
        while low < top:
            middle = (low + top) // 2
            tried, at_most, tried_counts = _least(case, pipeline, values[middle], below)
            if at_most <= least_s:
                top, bottlenecks, counts = middle, tried, tried_counts
            else:
                low = middle + 1
        time_s = least_s + v * float(values[top])
        if time_s < below and counts is not None:
            below = time_s
            end = int(bottlenecks.first[counts].argmin())
            best = _solved(case, pipeline, bottlenecks, time_s, counts, end)
        high = min(top - 1, int(np.searchsorted(values, (below - least_s) / v)) - 1)
    return best


def _least(case: Case, pipeline: CasePipeline, limit: float, below: float) -> tuple[Bottlenecks, float, Counts | None]:
    """Smallest pipeline time, without resync, of stages with a resync within ``limit``."""
    bottlenecks = _fill(case, pipeline, limit, below)
    times = {counts: float(first.min()) * pipeline.rounds(counts) for counts, first in bottlenecks.first.items()}
    counts = min(times, key=lambda option: times[option], default=None)
    return bottlenecks, times[counts] if counts is not None else inf, counts


def _fill(case: Case, pipeline: CasePipeline, limit: float, below: float) -> Bottlenecks:
    """Solve the recurrence without stages so slow that the batch would take more than ``below``."""
    sizes = case.tables.states.sizes
    kinds = pipeline.kinds(limit, below / pipeline.least_rounds * (1 + 1e-9))
    return least_bottlenecks(kinds, sizes, pipeline.max_stages, pipeline.max_devices)


def _solved(
    case: Case, pipeline: CasePipeline, bottlenecks: Bottlenecks, time_s: float, counts: Counts, end: int
) -> _Solved:
    cuts, kinds = trace(bottlenecks, counts, end)
    return _Solved(time_s=time_s, case=case, cuts=cuts, devices=[pipeline.types[k] for k in kinds])


def _bounded_cases(
    problem: PlacementProblem, terms: PlacementTerms, tables: list[WidthTables]
) -> Iterator[tuple[float, int, int, int, int]]:
    """``(bound, width index, copies, virtual stages, ZeRO stage)`` of every case with a finite bound."""
    types = _types_of(problem, terms)
    total = sum(entry.num_devices for entry in types)
    copies = np.arange(1, min(total, problem.num_microbatches) + 1)
    for index, entry in enumerate(tables):
        allowed = copies * entry.width.context_parallel % entry.width.expert_parallel == 0
        allowed &= problem.shares(copies)
        relaxed = _relaxed_bottlenecks(problem, types, entry)
        for v in sorted({1, *terms.virtual_stages}):
            for zero in sorted({0, *terms.zero_stages}):
                bounds = _bounds(problem, types, entry, relaxed, copies, v, zero)
                for d in copies[allowed & np.isfinite(bounds)]:
                    yield float(bounds[d - 1]), index, int(d), v, zero


def _relaxed_bottlenecks(
    problem: PlacementProblem, types: tuple[DeviceType, ...], tables: WidthTables
) -> dict[tuple[int, int], float]:
    """Least bottleneck by (stages, devices) in the relaxed problem."""
    num_layers = len(tables.states.order)
    enough = num_layers * tables.width.devices
    width = slowed(tables.width, min(device_type.slowdown for device_type in types))
    easy = replace(
        problem,
        memory_bytes=1e300,
        num_devices=enough,
        link_bytes_per_s=max(tier.bytes_per_s for tier in tables.network.tiers),
    )
    states = tables.states
    kinds = plain_kinds(easy, tabulate(easy, width, states))
    bottlenecks = least_bottlenecks(kinds, states.sizes, num_layers, enough)
    least_bottleneck: dict[tuple[int, int], float] = {}
    for counts, first in bottlenecks.first.items():
        key = sum(counts), bottlenecks.devices(counts)
        least_bottleneck[key] = min(least_bottleneck.get(key, inf), float(first.min()))
    return least_bottleneck


def _bounds(
    problem: PlacementProblem,
    types: tuple[DeviceType, ...],
    tables: WidthTables,
    relaxed: dict[tuple[int, int], float],
    copies: Array,
    v: int,
    zero: int,
) -> Array:
    """A lower bound on the time for each number of copies; infinite if none can fit.

    Besides the relaxed bottlenecks, it uses that ``chunks`` stages must hold the model once: ``v * states + activations
    <= chunks * memory``.
    """
    total = sum(device_type.num_devices for device_type in types)
    keys = np.array(list(relaxed))
    chunks, devices, least_s = keys[:, :1], keys[:, 1:], np.array(list(relaxed.values()))[:, None]
    if v > 1:
        devices = chunks // v * tables.group_devices
    num_stages = chunks // v
    needed_bytes = v * _model_state_bytes(problem, tables, copies, zero) + tables.sums.activation_bytes[0, -1]
    roomy = chunks * max(device_type.memory_bytes for device_type in types) * (1 + 1e-9) >= needed_bytes
    per_copy = ceil_div(problem.num_microbatches, copies)
    if len(types) > 1:
        least_s = np.maximum(least_s, _work_bound(problem, types, tables, copies, num_stages))
    possible = (chunks % v == 0) & (devices * copies <= total) & roomy
    if v > 1:
        possible &= per_copy % np.maximum(num_stages, 1) == 0
    return np.asarray(np.where(possible, least_s * (v * per_copy + num_stages - 1), inf).min(axis=0))


def _work_bound(
    problem: PlacementProblem, types: tuple[DeviceType, ...], tables: WidthTables, copies: Array, num_stages: Array
) -> Array:
    """Least bottleneck if stages use the fastest devices first and work is split perfectly by speed.

    With recomputation all but the last stage run their forward twice; the last one's is at most the share ``last`` of
    what a device does in one bottleneck.
    """
    layers = tables.width.layers
    work = sum(x.forward_s + x.backward_s for x in layers)
    last = 0.0
    if problem.recompute:
        work += sum(x.forward_s for x in layers)
        last = max(x.forward_s / ((x.forward_s + x.backward_s) or 1.0) for x in layers)
    stage_devices = 1 if tables.has_unsplit else tables.group_devices
    speed, left = np.zeros(np.broadcast_shapes(copies.shape, num_stages.shape)), num_stages + 0 * copies
    for device in sorted(types, key=lambda device_type: device_type.slowdown):
        taken = np.minimum(left, device.num_devices // (copies * stage_devices))
        speed, left = speed + taken / device.slowdown, left - taken
    fastest = 1 / min(device_type.slowdown for device_type in types)
    return np.where(left > 0, inf, work / np.maximum(speed + last * fastest, 1e-300))


def _model_state_bytes(problem: PlacementProblem, tables: WidthTables, copies: Array, zero: int) -> Array:
    """Least bytes of parameters, gradients and optimizer states of the whole model, for each number of copies."""
    width, param = tables.width, tables.sums.param_bytes[0, -1]
    experts = tables.sums.expert_param_bytes[0, -1]
    ranks = copies * width.context_parallel
    shared = (param - experts) / ranks + experts / np.maximum(1, ranks // width.expert_parallel)
    return zero_bytes(param, shared, problem.states, zero)


def place(problem: PlacementProblem, terms: PlacementTerms | None = None) -> Placement:
    """The fastest placement, or the tightest constraint if none fits.

    The answer is exact for the published cost model, or for its extension with ``terms``
    (docs/concepts/placement.md): no other tensor width, number of copies and cut into stages is faster. The plan is
    re-priced by :mod:`sartor.placement.check` before it is returned.

    Raises
    ------
    InputError
        If a branching layer graph has more downsets than can be tabulated.
    """
    start = time.perf_counter()
    plan = solve_with_terms(problem, terms) if terms else solve(problem)
    solve_s = time.perf_counter() - start
    fixed_s = _fixed_strategy_time_with_terms(problem, terms) if terms else _fixed_strategy_time(problem)
    return Placement(
        status=PlacementStatus.OPTIMAL if plan else PlacementStatus.INFEASIBLE,
        plan=plan,
        fixed_strategy_time_per_batch_s=fixed_s,
        checked=True,
        solve_s=solve_s,
        tightest=None if plan else _tightest(problem, terms),
    )


def _fixed_strategy_time_with_terms(problem: PlacementProblem, terms: PlacementTerms) -> float | None:
    """The time of the expert's strategy; None if it does not fit or there are several device types."""
    fixed, stages = problem.fixed, fixed_strategy_stages(problem)
    if fixed is None or stages is None or terms.device_types:
        return None
    width = next(width for width in problem.widths if width.tensor_parallel == fixed.tensor_parallel)
    split = {layer.id for layer in width.layers if layer.is_split}
    plan = Plan(
        tensor_parallel=width.tensor_parallel,
        context_parallel=width.context_parallel,
        expert_parallel=width.expert_parallel,
        data_parallel=fixed.data_parallel,
        stages=tuple(
            Stage(layers=tuple(ids), devices=width.devices if split & set(ids) else 1, load_s=0.0) for ids in stages
        ),
        time_per_batch_s=0.0,
    )
    priced = price_with_terms(problem, terms, plan)
    return None if priced.faults else priced.time_per_batch_s


def _fixed_strategy_time(problem: PlacementProblem) -> float | None:
    """The time of the expert's strategy; None if there is none or it does not fit."""
    stages = fixed_strategy_stages(problem)
    if problem.fixed is None or stages is None:
        return None
    width = next(width for width in problem.widths if width.tensor_parallel == problem.fixed.tensor_parallel)
    priced = price(problem, width, stages, problem.fixed.data_parallel)
    return None if priced.faults else priced.time_per_batch_s


def _tightest(problem: PlacementProblem, terms: PlacementTerms | None) -> TightestLimit:
    """The tightest constraint; with terms, that of the problem without them."""
    if terms is None:
        return find_tightest(problem)
    types = _types_of(problem, terms)
    pooled = replace(
        problem,
        num_devices=sum(device_type.num_devices for device_type in types),
        memory_bytes=max(device_type.memory_bytes for device_type in types),
    )
    tightest = find_tightest(pooled)
    return replace(tightest, message=f"no case fits under the terms given; without them, {tightest.message}")


def _types_of(problem: PlacementProblem, terms: PlacementTerms) -> tuple[DeviceType, ...]:
    single = DeviceType(name="", num_devices=problem.num_devices, memory_bytes=problem.memory_bytes)
    return terms.device_types or (single,)


def find_tightest(problem: PlacementProblem) -> TightestLimit:
    """The nearest feasible problem; both numbers are exact, from the recurrence with other costs. Copies that share
    optimizer states (ZeRO 1) are tried in powers of two, so there both are enough, but not always the least."""
    states = find_states(problem)
    least_bytes, least_devices = inf, inf
    for width in problem.widths:
        sums, fewest = stage_sums(width, states), copies_together(width.expert_parallel, width.context_parallel)
        most_copies = min(problem.num_devices, problem.num_microbatches) if problem.zero_stage else 1
        several = [2**i * fewest for i in range(max(most_copies // fewest, 1).bit_length())]
        for copies in [count for count in several if problem.shares(count)] if most_copies > 1 else [1]:
            least_bytes = min(least_bytes, _least_memory(problem, width, states, sums, copies))
            least_devices = min(least_devices, _least_devices(problem, width, states, sums, copies))
    layer = _layer_that_fits_nowhere(problem)
    devices = int(least_devices) if isfinite(least_devices) else None
    return TightestLimit(
        least_memory_bytes=least_bytes if isfinite(least_bytes) else None,
        least_devices=devices,
        layer=layer.id if layer else None,
        message=_sentence(problem, least_bytes, devices, layer),
    )


def _least_memory(problem: PlacementProblem, width: Width, states: States, sums: StageSums, copies: int) -> float:
    """Smallest memory per device with which this many copies fit: a bottleneck of bytes."""
    stage_bytes = np.where(sums.is_stage, held_bytes(problem, sums, width, copies), inf)
    stash = sums.entering_bytes if problem.recompute else sums.activation_bytes
    kinds = _kinds(
        width, states, sums, lambda mask: lambda counts: np.where(mask, stage_bytes + (sum(counts) - 1) * stash, inf)
    )
    devices = problem.num_devices // copies
    bottlenecks = least_bottlenecks(kinds, states.sizes, min(len(states.order), devices), devices)
    return min((float(first.min()) for first in bottlenecks.first.values()), default=inf)


def _least_devices(problem: PlacementProblem, width: Width, states: States, sums: StageSums, copies: int) -> float:
    """Fewest devices with the given memory that hold this many copies; infinite if no number does."""
    positions = max_positions(problem, sums, width, copies)
    kinds = _kinds(
        width, states, sums, lambda mask: lambda counts: np.where(mask & (positions >= sum(counts)), 0.0, inf)
    )
    num_layers = len(states.order)
    bottlenecks = least_bottlenecks(kinds, states.sizes, num_layers, num_layers * width.devices)
    fit = (bottlenecks.devices(counts) for counts, first in bottlenecks.first.items() if np.isfinite(first).any())
    return copies * min(fit, default=inf)


def _kinds(
    width: Width, states: States, sums: StageSums, cost: Callable[[Array], Callable[[Counts], Array]]
) -> list[Kind]:
    split = sums.is_split
    masks = ((width.devices, sums.is_stage & split), (1, sums.is_stage & ~split))
    return [Kind(devices=devices, limit=len(states.order), cost_at=cost(mask)) for devices, mask in masks if mask.any()]


@dataclass(frozen=True, slots=True)
class _Need:
    needed_bytes: float
    width: Width
    layer: PlacedLayer


def _layer_that_fits_nowhere(problem: PlacementProblem) -> PlacedLayer | None:
    """The largest layer, at the width where it is smallest, if it does not fit on a device by itself."""

    def needs(width: Width) -> _Need:
        bytes_by_layer = {x.id: least_bytes(problem, width, x) for x in width.layers}
        worst = max(width.layers, key=lambda x: bytes_by_layer[x.id])
        return _Need(bytes_by_layer[worst.id], width, worst)

    smallest_need = min((needs(width) for width in problem.widths), key=lambda need: need.needed_bytes)
    return smallest_need.layer if smallest_need.needed_bytes > problem.memory_bytes else None


def _sentence(problem: PlacementProblem, least_bytes: float, devices: int | None, layer: PlacedLayer | None) -> str:
    has = f"maxMemoryPerDevice={problem.memory_bytes:.12g} on maxDevices={problem.num_devices}"
    why = "no cut into stages fits"
    if layer:
        why = f"layer {layer.id} alone is larger than a device at every width"
    elif not isfinite(least_bytes):
        why = "every width takes more devices than there are"
    would = []
    if isfinite(least_bytes):
        would.append(f"at least {least_bytes:.12g} bytes ({format_bytes(least_bytes)}) per device on these devices")
    if devices is not None:
        would.append(f"at least {devices} devices of this memory")
    return f"{has}: {why}; it takes {', or '.join(would)}" if would else f"{has}: {why}"
