"""Layer placement: if an even split makes one stage slower than the rest, finds a better split.

A pipeline's stages cut a chain of embedding, layers and head. The dynamic program of ``placement`` finds the split with
the smallest maximum load over all cuts, given each rank's memory with its microbatches in flight; this is exact for
1F1B without interleaving. Interleaved plans get the same numbers of layers per device, spread over their chunks; in a V
the first device also holds the head. Every split is then priced as a whole, and is used only if its step is shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sartor.model.shape import BlockKind, blocks, layer_order
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.placement.dynamic_programming import Kind, least_bottlenecks, trace
from sartor.plans.evaluate import Evaluated, Pricer
from sartor.plans.front import KEYS, chosen, keys_of, order
from sartor.plans.result import PricedPlan
from sartor.plans.space import CHUNK, plan_at, size_of, to_plan
from sartor.step.footprint import footprint_each
from sartor.step.results import Footprint
from sartor.step.stage_table import StageLoads, block_loads, held_bytes
from sartor.step.stages import distinct_rows, is_v_shaped
from sartor.step.step import step_each
from sartor.units import Array, IntArray, ceil_div, remembered

BATCH = 24
"""Plans placed together: more share what they have in common, but more are placed in vain."""
OTHERS = 24
"""Further sets of dims for which the plan with the best bound is tried."""
TRIED = 96
"""Most plans whose layers are placed, those with the largest possible gain first."""
WORTH = 1e-3
"""Smallest share of the step that an uneven split must save over an even one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Result of the placement: plans with ``stage_layers``, fastest first, plans tried, and promising plans left."""

    plans: tuple[PricedPlan, ...]
    tried: int
    left: int


def place_layers(pricer: Pricer, open_: Evaluated, even: Evaluated, worst_s: float = 0.0) -> Placed:
    """Place the layers of the ``open_`` plans with ``bound_s`` below the best known step, lowest bound first, until no
    bound is below the best found; then of the most promising plan of every other set of dims that could be below
    ``worst_s``, so that the runners-up are also shown at their best. ``even`` has the fastest plan of every set of dims
    with even stages, fastest first: a placed plan that is not `WORTH` faster than that of its dims is left out."""
    if not size_of(open_.rows):
        return Placed(plans=(), tried=0, left=0)
    ranked = chosen(open_, order(open_, ("bound_s",)))
    bounds, dims = ranked.bound_s, keys_of(ranked.rows)
    best_s = float(even.step_s[0]) if len(even.step_s) else np.inf
    below_s = dict(zip(keys_of(even.rows), (even.step_s * (1 - WORTH)).tolist(), strict=True))
    plans: list[PricedPlan] = []
    tried: list[int] = []

    def faster(index: int, candidates: list[PricedPlan]) -> None:
        """Add a row's candidates that are faster than all plans of its dims so far."""
        for plan in candidates:
            if plan.step_s < min(max(best_s, worst_s), below_s.get(dims[index], np.inf)):
                plans.append(plan)
                below_s[dims[index]] = plan.step_s

    for start in range(0, min(TRIED, len(bounds)), BATCH):
        if bounds[start] >= best_s * (1 - WORTH):
            break
        batch = np.arange(start, min(start + BATCH, TRIED, len(bounds)))
        for index, candidates in place_rows(pricer, ranked, batch):
            if bounds[index] >= best_s * (1 - WORTH):
                break
            tried.append(index)
            faster(index, candidates)
            best_s = min([best_s, *(plan.step_s for plan in plans)])
    left = int((np.delete(bounds, tried) < best_s * (1 - WORTH)).sum())
    limits = np.array([min(worst_s, below_s.get(key, np.inf)) for key in dims])
    below = bounds < limits
    below[tried] = False
    others = _first_of_dims(ranked, np.flatnonzero(below))
    for index, candidates in place_rows(pricer, ranked, others):
        faster(index, candidates)
    return Placed(plans=tuple(sorted(plans, key=lambda p: p.step_s)), tried=len(tried) + len(others), left=left)


def place_rows(pricer: Pricer, ranked: Evaluated, index: Array) -> Iterator[tuple[int, list[PricedPlan]]]:
    """Row indices with the row's plan under each split worth pricing, if it fits; what rows share is priced once."""
    fitting = _placed_that_fit(pricer, ranked, index) if len(index) else []
    plans = [plan for _, plan, _ in fitting]
    steps = step_each(pricer.job, plans, pricer.cluster, pricer.calibration)
    prices = [
        (row, PricedPlan(plan=plan, step=step, footprint=footprint))
        for (row, plan, footprint), step in zip(fitting, steps, strict=True)
    ]
    for i in index.tolist():
        yield i, [plan for row, plan in prices if row == i]


def some_placed_fits(pricer: Pricer, plans: Evaluated) -> bool:
    """Whether one of the plans, which do not fit with even stages, does with uneven ones; not known of more than
    `TRIED`, of which `place_layers` takes those with the best bounds."""
    size = size_of(plans.rows)
    starts = range(0, size, BATCH)
    return size > TRIED or any(
        _placed_that_fit(pricer, plans, np.arange(start, min(start + BATCH, size))) for start in starts
    )


def _placed_that_fit(pricer: Pricer, ranked: Evaluated, index: Array) -> list[tuple[int, TrainingPlan, Footprint]]:
    """Row, plan and memory under each split worth pricing that fits. Equal chunks are the even split, which has its
    price."""
    plans = to_plan(pricer.job, {name: values[index] for name, values in ranked.rows.items()})
    loads = block_loads(pricer.job, plans, pricer.cluster, pricer.calibration)
    of_row = [
        [replace(plan, stage_layers=split) for split in splits(pricer, plan, weights) if len(set(split)) > 1]
        for plan, weights in zip((plan_at(pricer.job, ranked.rows, i) for i in index.tolist()), loads, strict=True)
    ]
    every_plan = [plan for placed in of_row for plan in placed]
    row_of = np.repeat(index, [len(placed) for placed in of_row]).tolist()
    footprints = footprint_each(pricer.job, every_plan, pricer.cluster)
    return [
        (row, plan, footprint)
        for row, plan, footprint in zip(row_of, every_plan, footprints, strict=True)
        if float(footprint.device_bytes) <= pricer.limit_bytes
    ]


def _first_of_dims(ranked: Evaluated, index: Array) -> Array:
    """The first of the rows ``index`` for every set of dims."""
    keys = np.stack([ranked.rows[name][index] for name in KEYS])
    _, first = np.unique(keys, axis=1, return_index=True)
    return np.asarray(index[np.sort(first)][:OTHERS])


def splits(pricer: Pricer, plan: TrainingPlan, loads: StageLoads) -> Iterator[tuple[int, ...]]:
    """Splits worth pricing: the smallest bottleneck, and if that exceeds memory, the smallest that fits. None for
    chunks in lockstep, which are equal."""
    pp, chunks = int(plan.dims.pp), int(plan.virtual_stages)
    v_shaped = bool(is_v_shaped(plan.schedule, pp, chunks))
    chain = Chain.of(pricer.job, v_shaped=v_shaped)
    if chain.size < pp or (chunks > 1 and pricer.job.trainer.lockstep):
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """A model as a chain of pieces that a pipeline can cut: embedding, every layer, MTP modules with the head. In a V
    the last two are on the first device, so they count with the embedding."""

    passed: Array
    """[size + 1, K]: how many of each of `blocks` are before each cut."""
    is_layer: Array

    @property
    def size(self) -> int:
        return len(self.passed) - 1

    @staticmethod
    @remembered
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
        counts = np.diff(self.passed[list(cuts)], axis=0)
        return tuple(int(n) for n in counts[:, self.is_layer].sum(axis=1))


def least_bottleneck(
    chain: Chain, loads: StageLoads, pp: int, memory: tuple[Pricer, TrainingPlan] | None = None
) -> tuple[int, ...] | None:
    """Layers per stage with the smallest maximum load on ``pp`` stages, within each stage's memory if ``memory`` is
    given; None if nothing fits."""
    counts, _ = _pieces(chain)
    pools = sorted(set(loads.pool_of[:pp].tolist()))
    stage_in = [int(np.flatnonzero(loads.pool_of[:pp] == pool)[0]) for pool in pools]
    costs = np.stack([loads.of(counts, stage) for stage in stage_in])
    if memory is None and len(pools) == 1:
        cuts = _least_cuts_alike(chain, pp, costs, growing=loads.pools[pools[0]].grows)
        return None if cuts is None else chain.layers_between(cuts)
    costs = costs[np.searchsorted(pools, loads.pool_of[:pp])]
    if memory is not None:
        pricer, plan = memory
        for some in np.array_split(np.arange(pp), ceil_div(pp * len(counts), CHUNK)):
            ranks = np.repeat(some, len(counts))
            bytes_of = held_bytes(pricer.job, plan, pricer.cluster, np.tile(counts, (len(some), 1)), ranks)
            costs[some] = np.where(bytes_of.reshape(len(some), -1) <= pricer.limit_bytes, costs[some], np.inf)
    cuts = _least_cuts(chain, pp, costs)
    return None if cuts is None else chain.layers_between(cuts)


def _least_cuts(chain: Chain, pp: int, costs: Array, *, growing: bool = False) -> tuple[int, ...] | None:
    """Cuts of a chain into ``pp`` stages with the smallest maximum of ``costs`` [stages, counts], of one stage where
    all are alike. None if no maximum is finite."""
    size = chain.size
    index = np.full((size + 1, size + 1), costs.shape[1])
    index[np.triu_indices(size + 1, k=1)] = _pieces(chain)[1]
    costs = np.pad(costs, ((0, 0), (0, 1)), constant_values=np.inf)  # of a piece without a layer
    table = lru_cache(maxsize=1)(lambda stage: costs[stage][index])
    kind = Kind(devices=1, limit=pp, cost_at=lambda left: table((pp - sum(left)) % len(costs)), growing=growing)
    found = least_bottlenecks([kind], np.arange(size + 1), pp, pp)
    first = found.first.get((pp,), np.full(1, np.inf))
    return None if np.isinf(first).all() else tuple(trace(found, (pp,), int(np.argmin(first)))[0])


_least_cuts_alike = remembered(_least_cuts)
"""`_least_cuts` of few costs; those of every stage are too many to be kept."""


@lru_cache(maxsize=4)
def _pieces(chain: Chain) -> tuple[IntArray, IntArray]:
    """The distinct counts of blocks in pieces [n, K], and the index of each piece, by its first and last cut."""
    start, end = np.triu_indices(chain.size + 1, k=1)
    rows, which = distinct_rows(list((chain.passed[end] - chain.passed[start]).T))
    return np.stack(rows, axis=1), which


def _spread(per_device: tuple[int, ...], pp: int, chunks: int) -> Iterator[tuple[int, ...]]:
    """Layers per chunk, spread evenly over each device's chunks, in model order. Only the first chunk (embedding) and
    the last (head) may have no layer."""
    chunks_least = [chunks - (d in (0, pp - 1)) for d in range(pp)]
    if any(n < fewest for n, fewest in zip(per_device, chunks_least, strict=True)):
        return
    late = [c if d else chunks - 1 - c for c in range(chunks) for d in range(pp)]  # higher: later to get a spare layer
    yield tuple(ceil_div(per_device[i % pp] - late[i], chunks) for i in range(pp * chunks))


def _bent(per_device: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Layers per chunk in a V: first chunks down, second chunks back. Only the first device's may have no layer."""
    if min(per_device[1:]) >= 2:
        halves = [ceil_div(n, 2) for n in per_device]
        yield (*halves, *(n - first for n, first in zip(per_device[::-1], halves[::-1], strict=True)))
