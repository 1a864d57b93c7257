"""Layers placed on stages: where an even split leaves one stage slower than the rest, the split that does not.

The stages of a pipeline cut a chain: embedding, layers, head. Its split with the least largest load is found by the
dynamic program of the room ``placement`` over every cut, under the memory each rank has with the microbatches it keeps
in flight; that is exact for 1F1B without interleaving. Interleaved plans get the same numbers of layers per device,
spread over their chunks; in a V the first device holds the head as well. Every split is then priced as a whole, and
counts only if its step is shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from sartor.model.blocks import BlockKind, blocks, layer_order
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.plans.evaluate import Evaluated, Pricer
from sartor.plans.front import KEYS, chosen, order
from sartor.plans.result import PricedPlan
from sartor.plans.space import plan_at, size_of, to_plan
from sartor.step.results import StepEstimate
from sartor.step.stage_loads import StageLoads, block_loads, held_bytes
from sartor.step.stages import is_v_shaped
from sartor.step.step import step_each
from sartor.units import Array, ceil_div

BATCH = 8
OTHERS = 24
"""Further sets of dims whose best bound is tried."""
TRIED = 96
"""Plans whose layers are placed at most, those first that could gain most."""
WORTH = 1e-3
"""Least share of the step that an uneven split must save to be preferred to an even one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What placing found: plans with ``stage_layers``, fastest first, and whether some candidate was left untried."""

    plans: tuple[PricedPlan, ...]
    tried: int
    left: int


def place_layers(pricer: Pricer, open_: Evaluated, best_s: float, worst_s: float = 0.0) -> Placed:
    """Place the layers of the plans of ``open_`` whose ``bound_s`` is below the best step known, nearest bound first,
    until no bound is below the best found; then of the most promising plan of every other set of dims that could be
    below ``worst_s``, so that those shown beside the best are not shown at less than their worth."""
    if not size_of(open_.rows):
        return Placed(plans=(), tried=0, left=0)
    ranked = chosen(open_, order(open_, ("bound_s",)))
    bounds = ranked.bound_s
    found: list[PricedPlan] = []
    tried: list[int] = []
    for start in range(0, min(TRIED, len(bounds)), BATCH):
        if bounds[start] >= best_s * (1 - WORTH):
            break
        batch = np.arange(start, min(start + BATCH, TRIED, len(bounds)))
        for index, plans in _place(pricer, ranked, batch, max(best_s, worst_s)):
            if bounds[index] >= best_s * (1 - WORTH):
                break
            tried.append(index)
            found += plans
            best_s = min([best_s, *(plan.step_s for plan in plans)])
    left = int((np.delete(bounds, tried) < best_s * (1 - WORTH)).sum())
    others = _first_of_dims(ranked, np.setdiff1d(np.flatnonzero(bounds < worst_s), tried))
    for _, plans in _place(pricer, ranked, others, worst_s):
        found += plans
    return Placed(plans=tuple(sorted(found, key=lambda p: p.step_s)), tried=len(tried) + len(others), left=left)


def _place(pricer: Pricer, ranked: Evaluated, index: Array, below_s: float) -> Iterator[tuple[int, list[PricedPlan]]]:
    """Rows one after the other with what placing their layers makes of them below ``below_s``; their blocks are priced
    together."""
    if not len(index):
        return
    plans = to_plan(pricer.job, {name: values[index] for name, values in ranked.rows.items()})
    loads = block_loads(pricer.job, plans, pricer.cluster, pricer.calibration, pricer.blocks_known)
    of_row = [
        [replace(plan, stage_layers=each) for each in splits(pricer, plan, weights)]
        for plan, weights in zip((plan_at(pricer.job, ranked.rows, i) for i in index.tolist()), loads, strict=True)
    ]
    every_plan = [plan for placed in of_row for plan in placed]
    steps = iter(step_each(pricer.job, every_plan, pricer.cluster, pricer.calibration, pricer.blocks_known))
    for i, placed in zip(index.tolist(), of_row, strict=True):
        every = [_fitting(pricer, plan, next(steps), below_s) for plan in placed]
        yield i, [priced for priced in every if priced is not None]


def _fitting(pricer: Pricer, plan: TrainingPlan, step: StepEstimate, below_s: float) -> PricedPlan | None:
    if step.step_s >= below_s:
        return None
    footprint = pricer.footprint(plan)
    if float(footprint.device_bytes) > pricer.limit_bytes:
        return None
    return PricedPlan(plan=plan, step=step, footprint=footprint)


def _first_of_dims(ranked: Evaluated, index: Array) -> Array:
    """Of the rows ``index`` the first of every set of dims."""
    keys = np.stack([ranked.rows[name][index] for name in KEYS])
    _, first = np.unique(keys, axis=1, return_index=True)
    return np.asarray(index[np.sort(first)][:OTHERS])


def splits(pricer: Pricer, plan: TrainingPlan, loads: StageLoads) -> Iterator[tuple[int, ...]]:
    """Splits worth pricing: the least bottleneck, and if memory forbids it, the least that memory allows."""
    pp, chunks = int(plan.dims.pp), int(plan.virtual_stages)
    v_shaped = bool(is_v_shaped(plan.schedule, pp, chunks))
    chain = Chain.of(pricer.job, v_shaped=v_shaped)
    if chain.size < pp:
        return
    free = least_bottleneck(chain, loads, pp)
    if free is None:
        return
    if chunks > 1:
        yield from _bent(free) if v_shaped else _spread(free, pp, chunks)
        return
    yield free
    bound = replace(plan, stage_layers=free)
    if float(pricer.footprint(bound).device_bytes) > pricer.limit_bytes:
        fitting = least_bottleneck(chain, loads, pp, memory=(pricer, plan))
        if fitting is not None:
            yield fitting


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A model as a row of pieces a pipeline may cut between: embedding, every layer, MTP modules with the head. In a V
    these last lie on the first device: they count with the embedding."""

    passed: Array
    """[size + 1, K]: how many of each of `blocks` lie before each cut."""
    is_layer: Array

    @property
    def size(self) -> int:
        return len(self.passed) - 1

    @staticmethod
    def of(job: TrainingJob, *, v_shaped: bool = False) -> Chain:
        kinds, layers = blocks(job.shape), layer_order(job.shape)
        table = np.zeros((len(layers) + (1 if v_shaped else 2), len(kinds)), dtype=np.int64)
        table[np.arange(len(layers)) + 1, layers] = 1
        for i, block in enumerate(kinds):
            if block.kind is not BlockKind.LAYER:
                table[0 if v_shaped or block.kind is BlockKind.EMBEDDING else -1, i] = int(block.count)
        is_layer = np.array([block.kind is BlockKind.LAYER for block in kinds])
        return Chain(
            passed=np.concatenate([np.zeros((1, len(kinds)), np.int64), table.cumsum(axis=0)]), is_layer=is_layer
        )

    def layers_between(self, cuts: Iterable[int]) -> tuple[int, ...]:
        held = np.diff(self.passed[list(cuts)], axis=0)
        return tuple(int(n) for n in held[:, self.is_layer].sum(axis=1))


def least_bottleneck(
    chain: Chain, loads: StageLoads, pp: int, memory: tuple[Pricer, TrainingPlan] | None = None
) -> tuple[int, ...] | None:
    """Layers per stage with the least largest load on ``pp`` stages, each within its memory where that is asked; None
    where nothing fits."""
    from sartor.placement.dynamic_programming import Kind, least_bottlenecks, trace  # uneven stages alone need it

    start, end = np.triu_indices(chain.size + 1, k=1)
    counts = chain.passed[end] - chain.passed[start]
    stage_in = {pool: stage for stage, pool in enumerate(loads.pool_of[:pp].tolist())}
    in_pool = {pool: loads.of(counts, stage) for pool, stage in stage_in.items()}

    def cost_of(stage: int) -> Array:
        costs = np.full((chain.size + 1, chain.size + 1), np.inf)
        costs[start, end] = in_pool[int(loads.pool_of[stage])]
        if memory is not None:
            pricer, plan = memory
            held = held_bytes(pricer.job, plan, pricer.cluster, counts, stage)
            costs[start, end] = np.where(held <= pricer.limit_bytes, costs[start, end], np.inf)
        return costs

    alike = memory is None and len(in_pool) == 1
    tables = [cost_of(0)] * pp if alike else [cost_of(stage) for stage in range(pp)]
    kind = Kind(devices=1, limit=pp, cost_at=lambda left: tables[pp - sum(left)])
    found = least_bottlenecks([kind], np.arange(chain.size + 1), pp, pp)
    first = found.first.get((pp,))
    if first is None or np.isinf(first).all():
        return None
    cuts, _ = trace(found, (pp,), int(np.argmin(first)))
    return chain.layers_between(cuts)


def _spread(per_device: tuple[int, ...], pp: int, chunks: int) -> Iterator[tuple[int, ...]]:
    """Layers per device over its chunks as evenly as can be, in the order chunks are passed. Only the first chunk,
    which holds the embedding, and the last, with the head, may hold no layer."""
    least = [chunks - (d in (0, pp - 1)) for d in range(pp)]
    if any(n < fewest for n, fewest in zip(per_device, least, strict=True)):
        return
    late = [c if d else chunks - 1 - c for c in range(chunks) for d in range(pp)]  # who waits longest for a layer
    yield tuple(ceil_div(per_device[i % pp] - late[i], chunks) for i in range(pp * chunks))


def _bent(per_device: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The same in a V: the first chunks there and the second ones back. Only the first device's may hold no layer."""
    if min(per_device[1:]) >= 2:
        there = [ceil_div(n, 2) for n in per_device]
        yield (*there, *(n - first for n, first in zip(per_device[::-1], there[::-1], strict=True)))
