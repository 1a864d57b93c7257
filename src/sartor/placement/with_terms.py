"""The fastest placement under richer terms: every case bounded first, then solved best bound first.

A case is a width, a number of copies, an interleaving and a ZeRO stage. With these given, every term is a cost of
single stages: loads depend on the tiers a stage's tensors cross, which follow from how many stages run after it;
what fits depends on the copies; the agreement on gradients is bounded by masking stages that take longer. So the
recurrence of :mod:`sartor.placement.dynamic_programming` solves a case exactly. The plain recurrence without memory
limits, on the fastest links and devices, bounds all cases in one pass; cases whose bound is no better than the best
answer are never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from math import inf, isclose

import numpy as np

from sartor.errors import InputError
from sartor.placement.case import Case, WidthTables, slowed, zero_bytes
from sartor.placement.check_terms import price_with_terms
from sartor.placement.dynamic_programming import Bottlenecks, Counts, Kind, least_bottlenecks, less_one, trace
from sartor.placement.pipeline import slots
from sartor.placement.plain import plain_kinds
from sartor.placement.plan import Plan, Stage
from sartor.placement.problem import PlacementProblem
from sartor.placement.tabulate import Array, find_states, tabulate
from sartor.placement.terms import DeviceType, Network, PlacementTerms, network_of, types_of
from sartor.units import ceil_div


def solve_with_terms(problem: PlacementProblem, terms: PlacementTerms) -> Plan | None:
    """The fastest plan under ``terms``, priced by the checker, or None where nothing fits."""
    _check_size(problem, terms)
    states, network = find_states(problem), network_of(problem, terms)
    tables = [WidthTables(problem, width, states, network) for width in problem.widths]
    cases = sorted(_bounded_cases(problem, terms, tables), key=lambda each: each[0])
    best: _Found | None = None
    for bound, index, copies, v, zero in cases:
        below = best.time_s if best else inf
        if bound >= below:
            break
        case = Case(tables[index], copies, v, zero)
        best = _solve_case(case, problem, terms, below) or best
    return _checked_plan(best, problem, terms) if best else None


MAX_COPIES = 65_536
"""Data-parallel copies that are looked at one by one."""


def _check_size(problem: PlacementProblem, terms: PlacementTerms) -> None:
    total = sum(each.num_devices for each in types_of(problem, terms))
    if min(total, problem.num_microbatches) > MAX_COPIES:
        must = f"with terms, devices or microbatches must be at most {MAX_COPIES}"
        raise InputError("maxDevices", total, must, str(MAX_COPIES))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A solved case: the cuts between its stages and the type of device of each."""

    time_s: float
    case: Case
    cuts: list[int]
    devices: list[DeviceType]


def _checked_plan(found: _Found, problem: PlacementProblem, terms: PlacementTerms) -> Plan:
    case, states = found.case, found.case.tables.states
    width = case.tables.width
    stages = []
    for i, j, device in zip(found.cuts[:-1], found.cuts[1:], found.devices, strict=True):
        alone = not case.tables.sums.is_split[i, j] and case.virtual_stages == 1
        count = 1 if alone else case.tables.group_devices
        stages.append(Stage(layers=states.layers(i, j), devices=count, load_s=0.0, device_type=device.name))
    plan = Plan(
        tensor_parallel=width.tensor_parallel,
        context_parallel=width.context_parallel,
        expert_parallel=width.expert_parallel,
        data_parallel=case.copies,
        stages=tuple(stages),
        time_per_batch_s=found.time_s,
        virtual_stages=case.virtual_stages,
        zero_stage=case.zero_stage,
    )
    priced = price_with_terms(problem, terms, plan)
    assert not priced.faults, f"the checker refuses the plan: {priced.faults}"
    assert isclose(priced.time_per_batch_s, found.time_s, rel_tol=1e-9), (priced.time_per_batch_s, found.time_s)
    return priced.plan


# Bounds -----------------------------------------------------------------------------------------------------------


def _bounded_cases(
    problem: PlacementProblem, terms: PlacementTerms, tables: list[WidthTables]
) -> Iterator[tuple[float, int, int, int, int]]:
    """``(bound, width index, copies, virtual stages, ZeRO stage)`` of every case that its bound leaves possible."""
    types = types_of(problem, terms)
    total = sum(each.num_devices for each in types)
    copies = np.arange(1, min(total, problem.num_microbatches) + 1)
    for index, each in enumerate(tables):
        allowed = copies * each.width.context_parallel % each.width.expert_parallel == 0
        relaxed = _relaxed_bottlenecks(problem, types, each)
        for v in sorted({1, *terms.virtual_stages}):
            for zero in sorted({0, *terms.zero_stages}):
                bounds = _bounds(problem, types, each, relaxed, copies, v, zero)
                for d in copies[allowed & np.isfinite(bounds)]:
                    yield float(bounds[d - 1]), index, int(d), v, zero


def _relaxed_bottlenecks(
    problem: PlacementProblem, types: tuple[DeviceType, ...], tables: WidthTables
) -> dict[tuple[int, int], float]:
    """Least bottleneck by (stages, devices) if nothing took memory, links were the fastest, devices too, and many."""
    num_layers = len(tables.states.order)
    enough = num_layers * tables.width.devices
    width = slowed(tables.width, min(each.slowdown for each in types))
    easy = replace(
        problem,
        memory_bytes=1e300,
        num_devices=enough,
        link_bytes_per_s=max(tier.bytes_per_s for tier in tables.network.tiers),
    )
    states = tables.states
    kinds = plain_kinds(easy, tabulate(easy, width, states))
    found = least_bottlenecks(kinds, states.sizes, num_layers, enough)
    least: dict[tuple[int, int], float] = {}
    for counts, first in found.first.items():
        key = sum(counts), found.devices(counts)
        least[key] = min(least.get(key, inf), float(first.min()))
    return least


def _bounds(
    problem: PlacementProblem,
    types: tuple[DeviceType, ...],
    tables: WidthTables,
    relaxed: dict[tuple[int, int], float],
    copies: Array,
    v: int,
    zero: int,
) -> Array:
    """A time that no plan of each number of copies beats; infinite where none can fit.

    Beside the relaxed bottlenecks it uses that ``chunks`` stages must hold the model once:
    ``v * states + activations <= chunks * memory``.
    """
    total = sum(each.num_devices for each in types)
    keys = np.array(list(relaxed))
    chunks, devices, least = keys[:, :1], keys[:, 1:], np.array(list(relaxed.values()))[:, None]
    if v > 1:
        devices = chunks // v * tables.group_devices
    num_stages = chunks // v
    held = v * _model_state_bytes(problem, tables, copies, zero) + tables.sums.activation_bytes[0, -1]
    roomy = chunks * max(each.memory_bytes for each in types) * (1 + 1e-9) >= held
    per_copy = ceil_div(problem.num_microbatches, copies)
    if len(types) > 1:
        least = np.maximum(least, _work_bound(problem, types, tables, copies, num_stages))
    possible = (chunks % v == 0) & (devices * copies <= total) & roomy
    if v > 1:
        possible &= per_copy % np.maximum(num_stages, 1) == 0
    return np.asarray(np.where(possible, least * (v * per_copy + num_stages - 1), inf).min(axis=0))


def _work_bound(
    problem: PlacementProblem, types: tuple[DeviceType, ...], tables: WidthTables, copies: Array, num_stages: Array
) -> Array:
    """Least bottleneck of stages on the fastest devices first, work split perfectly among them by speed.

    With recomputation all but the last stage run their forward twice; the last one's is at most the share ``last`` of
    what a device does in one bottleneck.
    """
    layers = tables.width.layers
    work = sum(x.forward_s + x.backward_s for x in layers)
    last = 0.0
    if problem.recompute:
        work += sum(x.forward_s for x in layers)
        last = max(x.forward_s / ((x.forward_s + x.backward_s) or 1.0) for x in layers)
    each = 1 if tables.has_unsplit else tables.group_devices
    speed, left = np.zeros(np.broadcast_shapes(copies.shape, num_stages.shape)), num_stages + 0 * copies
    for device in sorted(types, key=lambda one: one.slowdown):
        taken = np.minimum(left, device.num_devices // (copies * each))
        speed, left = speed + taken / device.slowdown, left - taken
    fastest = 1 / min(one.slowdown for one in types)
    return np.where(left > 0, inf, work / np.maximum(speed + last * fastest, 1e-300))


def _model_state_bytes(problem: PlacementProblem, tables: WidthTables, copies: Array, zero: int) -> Array:
    """Parameters, gradients and optimizer states of the whole model, at least, for each number of copies."""
    width, param = tables.width, tables.sums.param_bytes[0, -1]
    experts = tables.sums.expert_param_bytes[0, -1]
    ranks = copies * width.context_parallel
    shared = (param - experts) / ranks + experts / np.maximum(1, ranks // width.expert_parallel)
    return zero_bytes(param, shared, problem.optimizer.states, zero)


# One case ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pipeline:
    """Ways to run a case whose kinds of stages are fixed: ``kinds(limit, ceiling)`` admits stages with a resync up to
    ``limit`` and a load up to ``ceiling``.

    ``rounds(counts)`` is how many bottlenecks a batch lasts; infinite for counts that are no whole pipeline.
    """

    kinds: Callable[[float, float], list[Kind]]
    types: tuple[DeviceType, ...]
    rounds: Callable[[Counts], float]
    least_rounds: int
    max_stages: int
    max_devices: int


def _solve_case(case: Case, problem: PlacementProblem, terms: PlacementTerms, below: float) -> _Found | None:
    """The best plan of a case if it beats ``below``."""
    best = None
    for pipeline in _pipelines(case, problem, types_of(problem, terms)):
        solver = _every_stage_agrees if terms.resync_every_stage else _first_stage_agrees
        found = solver(case, pipeline, best.time_s if best else below)
        best = found or best
    return best


def _first_stage_agrees(case: Case, pipeline: _Pipeline, below: float) -> _Found | None:
    """Only the copies of the first stage agree: its resync is added where the first stage is chosen."""
    found = _fill(case, pipeline, inf, below)
    resync = case.virtual_stages * case.resync_s[0]
    best: tuple[float, Counts, int] | None = None
    for counts, first in found.first.items():
        times = first * pipeline.rounds(counts) + resync
        end = int(times.argmin())
        if times[end] < below:
            below = float(times[end])
            best = (below, counts, end)
    return _found(case, pipeline, found, *best) if best else None


def _every_stage_agrees(case: Case, pipeline: _Pipeline, below: float) -> _Found | None:
    """Bottleneck and longest resync traded off, exactly: from the best bottleneck down in resync.

    At each level of bottleneck time the smallest limit on the resync that keeps it is found by bisection over the
    resyncs there are; then the limit is lowered to where it could pay for a longer bottleneck.
    """
    sums, v = case.tables.sums, case.virtual_stages
    values = np.unique(case.resync_s[sums.is_stage])
    best: _Found | None = None
    high = len(values) - 1
    while high >= 0:
        found, least, counts = _least(case, pipeline, values[high], below)
        if counts is None or not least + v * values[0] < below:
            break
        low, top = 0, high
        while low < top:
            middle = (low + top) // 2
            tried, at_most, of = _least(case, pipeline, values[middle], below)
            if at_most <= least:
                top, found, counts = middle, tried, of
            else:
                low = middle + 1
        time_s = least + v * float(values[top])
        if time_s < below and counts is not None:
            below = time_s
            end = int(found.first[counts].argmin())
            best = _found(case, pipeline, found, time_s, counts, end)
        high = min(top - 1, int(np.searchsorted(values, (below - least) / v)) - 1)
    return best


def _least(case: Case, pipeline: _Pipeline, limit: float, below: float) -> tuple[Bottlenecks, float, Counts | None]:
    """Least pipeline time, resync aside, of stages whose resync is within ``limit``."""
    found = _fill(case, pipeline, limit, below)
    times = {counts: float(first.min()) * pipeline.rounds(counts) for counts, first in found.first.items()}
    counts = min(times, key=lambda each: times[each], default=None)
    return found, times[counts] if counts is not None else inf, counts


def _fill(case: Case, pipeline: _Pipeline, limit: float, below: float) -> Bottlenecks:
    """The recurrence, without stages so long that the batch would take more than ``below``."""
    sizes = case.tables.states.sizes
    kinds = pipeline.kinds(limit, below / pipeline.least_rounds * (1 + 1e-9))
    return least_bottlenecks(kinds, sizes, pipeline.max_stages, pipeline.max_devices)


def _found(case: Case, pipeline: _Pipeline, found: Bottlenecks, time_s: float, counts: Counts, end: int) -> _Found:
    cuts, kinds = trace(found, counts, end)
    return _Found(time_s=time_s, case=case, cuts=cuts, devices=[pipeline.types[k] for k in kinds])


# Kinds of stages --------------------------------------------------------------------------------------------------


def _pipelines(case: Case, problem: PlacementProblem, types: tuple[DeviceType, ...]) -> Iterator[_Pipeline]:
    num_layers, copies = len(case.tables.states.order), case.copies
    per_copy = ceil_div(problem.num_microbatches, copies)
    if case.virtual_stages == 1:
        for order in permutations(types):
            yield _one_chunk_each(case, order, lambda counts: slots(problem.num_microbatches, copies, sum(counts)))
        return
    v, a, device = case.virtual_stages, case.tables.group_devices, types[0]
    for num_stages in range(2, min(num_layers // v, device.num_devices // (a * copies)) + 1):
        if per_copy % num_stages == 0:
            yield _interleaved(case, device, num_stages, float(v * per_copy + num_stages - 1))


class _Masked:
    """Loads with what does not fit or takes too long to agree masked out; tables are kept by what they depend on."""

    def __init__(self, case: Case, limit: float, ceiling: float) -> None:
        self.case, self.limit, self.ceiling = case, limit, ceiling
        self._fits: dict[str, tuple[Array, Array]] = {}
        self._tables: dict[tuple[object, ...], Array] = {}

    def table(self, device: DeviceType, tiers: tuple[int, int], in_flight: int, split: bool | None) -> Array | None:
        if device.name not in self._fits:
            fits = self.case.microbatches_that_fit(device.memory_bytes)
            fits = np.where(self.case.resync_s <= self.limit, fits, 0)
            self._fits[device.name] = fits, np.unique(fits)
        fits, limits = self._fits[device.name]
        level = int(np.searchsorted(limits, in_flight))
        if level == len(limits):
            return None
        key = device.name, tiers, level, split
        if key not in self._tables:
            allowed = fits >= limits[level]
            if split is not None:
                allowed &= self.case.tables.sums.is_split == split
            loads = self.case.loads(device, *tiers)
            self._tables[key] = np.where(allowed & (loads <= self.ceiling), loads, inf)
        return self._tables[key]


@dataclass(frozen=True, slots=True)
class _Role:
    """A kind of stage: on a device type (its place in the order), split or not (None: all are alike), and whether
    the stage before it is on another type."""

    pool: int
    split: bool | None
    enters: bool
    devices: int


def _one_chunk_each(case: Case, order: tuple[DeviceType, ...], rounds: Callable[[Counts], float]) -> _Pipeline:
    """Stages on device types in this order, counted from the end."""
    tables, network = case.tables, case.tables.network
    splits = [(True, tables.width.devices), (False, 1)] if tables.has_unsplit else [(None, tables.group_devices)]
    roles = [
        _Role(pool, split, enters, devices)
        for pool in range(len(order))
        for enters in ((False, True) if len(order) > 1 else (False,))
        for split, devices in splits
    ]

    def kinds(limit: float, ceiling: float) -> list[Kind]:
        masked = _Masked(case, limit, ceiling)
        return [_kind(k, roles, case, order, network, masked) for k in range(len(roles))]

    return _Pipeline(
        kinds=kinds,
        types=tuple(order[role.pool] for role in roles),
        rounds=rounds,
        least_rounds=int(rounds((1,))),
        max_stages=len(tables.states.order),
        max_devices=sum(each.num_devices for each in order) // case.copies,
    )


def _kind(
    k: int, roles: list[_Role], case: Case, order: tuple[DeviceType, ...], network: Network, masked: _Masked
) -> Kind:
    role, copies = roles[k], case.copies
    device, reach = order[role.pool], copies * case.tables.group_devices

    def cost_at(counts: Counts) -> Array | None:
        behind = less_one(counts, k)
        if not _may_come_next(role, behind, roles):
            return None
        below = copies * sum(n * r.devices for n, r in zip(behind, roles, strict=True) if r.pool == role.pool)
        above = below + copies * role.devices
        if above > device.num_devices:
            return None
        out = network.tier_at(below, reach) if below else network.outermost
        into = network.outermost if role.enters else network.tier_at(above, reach)
        return masked.table(device, (into, out), sum(counts), role.split)

    most = 1 if role.enters else device.num_devices // (copies * role.devices)
    if role.split is False:
        most = min(most, sum(not layer.is_split for layer in case.tables.width.layers))
    return Kind(devices=role.devices, limit=min(most, len(case.tables.states.order)), cost_at=cost_at)


def _may_come_next(role: _Role, behind: Counts, roles: list[_Role]) -> bool:
    """Pools come in order; a pool is left by a stage entered from another one, and by nothing else."""
    for pool in {r.pool for n, r in zip(behind, roles, strict=True) if n}:
        entered = any(n and r.pool == pool and r.enters for n, r in zip(behind, roles, strict=True))
        if pool > role.pool or entered != (pool < role.pool):
            return False
    return True


def _interleaved(case: Case, device: DeviceType, num_stages: int, rounds: float) -> _Pipeline:
    """``v`` chunks on each of ``num_stages`` device groups; chunk e from the end is on group e mod num_stages."""
    v, a, copies, network = case.virtual_stages, case.tables.group_devices, case.copies, case.tables.network
    chunks, length = num_stages * v, copies * a
    around = network.tier_holding(0, length * num_stages - 1)

    def tier_between(group: int) -> int:
        """Tier from ``group`` up to the next one, around the end for the last."""
        return network.tier_at(length * (group + 1), length) if group < num_stages - 1 else around

    def kinds(limit: float, ceiling: float) -> list[Kind]:
        masked = _Masked(case, limit, ceiling)

        def cost_at(counts: Counts) -> Array | None:
            group = (counts[0] - 1) % num_stages
            in_flight = (v - 1) * num_stages + 2 * group + 1
            tiers = tier_between(group), tier_between((group - 1) % num_stages)
            return masked.table(device, tiers, in_flight, None)

        return [Kind(devices=1, limit=chunks, cost_at=cost_at)]

    return _Pipeline(
        kinds=kinds,
        types=(device,),
        rounds=lambda counts: rounds if counts[0] == chunks else inf,
        least_rounds=int(rounds),
        max_stages=chunks,
        max_devices=chunks,
    )
