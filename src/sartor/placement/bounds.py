"""Lower bounds on the time of every case, in one pass.

A case is a width, a number of copies, an interleaving and a ZeRO stage. The relaxed problem has unlimited devices of
the fastest kind, the fastest links and no memory limit; its recurrence is solved once per width and bounds every case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np

from sartor.placement.case import WidthTables, slowed, zero_bytes
from sartor.placement.dynamic_programming import least_bottlenecks
from sartor.placement.plain import plain_kinds
from sartor.placement.problem import PlacementProblem
from sartor.placement.tabulate import tabulate
from sartor.placement.terms import DeviceType, PlacementTerms, types_of
from sartor.units import Array, ceil_div


def bounded_cases(
    problem: PlacementProblem, terms: PlacementTerms, tables: list[WidthTables]
) -> Iterator[tuple[float, int, int, int, int]]:
    """``(bound, width index, copies, virtual stages, ZeRO stage)`` of every case with a finite bound."""
    types = types_of(problem, terms)
    total = sum(each.num_devices for each in types)
    copies = np.arange(1, min(total, problem.num_microbatches) + 1)
    for index, each in enumerate(tables):
        allowed = copies * each.width.context_parallel % each.width.expert_parallel == 0
        allowed &= problem.shares(copies)
        relaxed = _relaxed_bottlenecks(problem, types, each)
        for v in sorted({1, *terms.virtual_stages}):
            for zero in sorted({0, *terms.zero_stages}):
                bounds = _bounds(problem, types, each, relaxed, copies, v, zero)
                for d in copies[allowed & np.isfinite(bounds)]:
                    yield float(bounds[d - 1]), index, int(d), v, zero


def _relaxed_bottlenecks(
    problem: PlacementProblem, types: tuple[DeviceType, ...], tables: WidthTables
) -> dict[tuple[int, int], float]:
    """Least bottleneck by (stages, devices) in the relaxed problem."""
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
    """A lower bound on the time for each number of copies; infinite if none can fit.

    Besides the relaxed bottlenecks, it uses that ``chunks`` stages must hold the model once: ``v * states + activations
    <= chunks * memory``.
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
    each = 1 if tables.has_unsplit else tables.group_devices
    speed, left = np.zeros(np.broadcast_shapes(copies.shape, num_stages.shape)), num_stages + 0 * copies
    for device in sorted(types, key=lambda one: one.slowdown):
        taken = np.minimum(left, device.num_devices // (copies * each))
        speed, left = speed + taken / device.slowdown, left - taken
    fastest = 1 / min(one.slowdown for one in types)
    return np.where(left > 0, inf, work / np.maximum(speed + last * fastest, 1e-300))


def _model_state_bytes(problem: PlacementProblem, tables: WidthTables, copies: Array, zero: int) -> Array:
    """Least bytes of parameters, gradients and optimizer states of the whole model, for each number of copies."""
    width, param = tables.width, tables.sums.param_bytes[0, -1]
    experts = tables.sums.expert_param_bytes[0, -1]
    ranks = copies * width.context_parallel
    shared = (param - experts) / ranks + experts / np.maximum(1, ranks // width.expert_parallel)
    return zero_bytes(param, shared, problem.states, zero)
