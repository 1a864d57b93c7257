"""Search for shapes of the same size that run faster: price every point of the grid, then choose.

``search_shapes`` reads from top to bottom: the space around the baseline, its points of the same size, their times on
every device; then the choice, with intervals, quality notes and sensitivity. docs/concepts/shape-search.md has the
definitions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.model.counts import count_params
from sartor.model.lower.setting import Kernels
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.pareto import is_pareto
from sartor.shapes.evaluate import Evaluator
from sartor.shapes.mixes import Mix, priced_mixes
from sartor.shapes.near import build_space, grain_of
from sartor.shapes.pricing import PricedPoints, fastest, price
from sartor.shapes.quality import QualityGuard, freed_guard
from sartor.shapes.result import (
    Candidate,
    FrontPoint,
    ShapeSearch,
    SingleEdit,
    changes,
    shortlist,
    single_edits,
    stability,
)
from sartor.shapes.space import Space, same_size
from sartor.step.coefficients import InRun

__all__ = ["Candidate", "FrontPoint", "ShapeSearch", "SingleEdit", "phase_workload", "search_shapes"]

SMALLEST_EDIT_SHARE = 0.7
"""The smallest edit changes the fewest fields among shapes with this share of the best gain at equal work."""

DEFAULT_TOLERANCE = 0.01
"""Default for the largest relative change of the parameter count."""

SHORTLIST = 400
"""Most points priced again with their intervals."""


def search_shapes(
    workload: Workload,
    gpus: Sequence[Gpu],
    dims: ParallelDims | None = None,
    *,
    objective: Phase | None = None,
    params_tolerance: float = DEFAULT_TOLERANCE,
    freeze: Sequence[str] = (),
    free: Sequence[str] = (),
    top: int = 10,
    guard: QualityGuard | None = None,
    calibrations: Mapping[str, Calibration] | None = None,
    sigma_factor: float = 1.0,
    space: Space | None = None,
    runs: Mapping[str, InRun] | None = None,
    kernels: Kernels | None = None,
) -> ShapeSearch:
    """Find shapes of the same size as ``workload.shape`` that take less time for the same work.

    Exact within the grid: every combination of the space's values whose parameters are within ``params_tolerance`` (a
    share) is priced, for the ``objective`` (default: the workload's phase) on every GPU. ``freeze`` names fields that
    stay, ``free`` those that may change although they stay by default (``num_layers``); ``guard`` bounds what matters
    for quality; ``calibrations`` are by GPU name (default: looked up); ``sigma_factor`` widens intervals; ``space``
    replaces the default grid; ``runs`` are by GPU name the training runs that a microbatch is part of: seconds are
    then those of their steps; ``kernels`` are of the engine that runs inference. The same input gives the same output.
    Raises ``InputError``.

    Examples
    --------
    >>> found = search_shapes(workload, [load_gpu("a100")], ParallelDims())     # doctest: +SKIP
    >>> found.candidates[0].changed                                             # doctest: +SKIP
    {'num_heads': (32, 20), 'num_kv_heads': (32, 20), 'head_dim': (80, 128)}
    """
    started = time.perf_counter()
    if top < 1:
        raise InputError("top", top, "must be a positive integer", "10")
    guard, dims = freed_guard(guard or QualityGuard(), free), dims or ParallelDims()
    objective = objective or workload.phase
    devices, phases = _distinct(gpus), _phases(workload, objective)
    objective_workload = phases[objective]
    evaluator = Evaluator(
        dims=dims, calibrations=calibrations or {}, sigma_factor=sigma_factor, runs=runs or {}, kernels=kernels
    )
    space = space or build_space(
        objective_workload, dims, guard, freeze, free, grain=grain_of(devices), tolerance=params_tolerance
    )
    points = same_size(space, dims, params_tolerance, guard)
    if points.size == 1:
        _refuse_too_narrow(space, dims, params_tolerance, guard)
    priced = PricedPoints(
        points=points,
        prices=price(points, phases, objective, devices, evaluator),
        kinds=changes(points),
        workload=objective_workload,
        gpus=devices,
        evaluator=evaluator,
        guard=guard,
        baseline=evaluator.one(objective_workload, devices[0]),
    )
    mixes = priced_mixes(space, phases, objective, devices[0], evaluator, guard)
    return _answer(
        priced, mixes, top, started, (*space.assumptions, *_assumptions(phases, objective_workload, devices))
    )


def _distinct(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    if not gpus:
        raise InputError("gpu", "", "must name at least one device")
    return tuple({gpu.name: gpu for gpu in gpus}.values())


def _phases(workload: Workload, objective: Phase) -> dict[Phase, Workload]:
    """The workload in every phase its model has."""
    if workload.shape.encoder_only and objective is Phase.DECODE:
        raise InputError("objective", "decode", "an encoder-only model does not decode", "train or prefill")
    usual = (Phase.TRAIN, Phase.PREFILL) if workload.shape.encoder_only else tuple(Phase)
    return {phase: phase_workload(workload, phase) for phase in usual}


def phase_workload(workload: Workload, phase: Phase) -> Workload:
    """The same sequences in another phase; decoding adds one token after ``context_len`` (or else ``seq_len``)."""
    if phase is workload.phase:
        return workload
    if phase is Phase.DECODE:
        return replace(workload, phase=phase, context_len=workload.seq_len)
    seq_len = workload.context_len if workload.phase is Phase.DECODE else workload.seq_len
    return replace(workload, phase=phase, seq_len=seq_len or workload.seq_len, context_len=0)


def _refuse_too_narrow(space: Space, dims: ParallelDims, tolerance: float, guard: QualityGuard) -> None:
    """Raise if the requested tolerance is so narrow that it leaves only the model's own shape."""
    others = same_size(space, dims, DEFAULT_TOLERANCE, guard)
    if tolerance >= DEFAULT_TOLERANCE or others.size == 1:
        return
    change = np.abs(others.num_params / int(count_params(space.shape).total) - 1)
    nearest = float(np.ceil(change[change > 0].min() * 1e6) / 1e6)
    must = "no other shape is that near in size"
    raise InputError("params_tolerance", tolerance, must, f"{nearest:g}")


def _answer(
    priced: PricedPoints, mixes: tuple[Mix, ...], top: int, started: float, assumptions: tuple[str, ...]
) -> ShapeSearch:
    """The priced points to report."""
    prices, kinds = priced.prices, priced.kinds
    tried = shortlist(priced.points, kinds, prices.score, priced.size_change(), SHORTLIST)
    offered = priced.offered(tried)
    chosen = [int(offered.rows[row]) for row in offered.shown(top)]
    smallest = [int(offered.rows[offered.smallest_edit(SMALLEST_EDIT_SHARE)])] if chosen else []
    unsure = [] if chosen else [int(i) for i in tried[:1]]
    own_best = {
        gpu.name: fastest(times, kinds.count) for gpu, times in zip(priced.gpus, prices.equal_by_gpu, strict=True)
    }
    fair = fastest(1 + prices.regret, kinds.count)
    candidates = {i: priced.candidate(i) for i in sorted({*chosen, *own_best.values(), fair, *smallest, *unsure})}
    sure = [i for i in chosen if candidates[i].efficiency_low > 1]
    unsure = [] if sure else [i for i in (*chosen, *unsure) if candidates[i].efficiency_gain > 1][:1]
    smallest = [i for i in (*smallest, *sure[:1]) if i in sure]
    chosen = sure
    single = single_edits(kinds, prices.score)
    return ShapeSearch(
        workload=priced.workload,
        gpus=priced.gpus,
        baseline=priced.baseline,
        candidates=tuple(candidates[i] for i in chosen),
        front=_front(priced),
        smallest_edit=candidates[smallest[0]] if smallest else None,
        unsure=candidates[unsure[0]] if unsure else None,
        minimax=candidates[fair] if len(priced.gpus) > 1 else None,
        regret=float(prices.regret[fair]),
        best_per_gpu={name: candidates[i] for name, i in own_best.items()},
        mixes=mixes,
        single_edits=tuple(priced.single_edit(name, i) for name, i in single.items()),
        stability=stability(
            priced.workload,
            priced.gpus[0],
            priced.evaluator,
            [priced.fields(i) for i in chosen],
            [float(prices.work[i]) for i in chosen],
        ),
        grid_size=priced.points.space.size,
        evaluated=priced.points.size,
        wall_s=time.perf_counter() - started,
        assumptions=assumptions,
    )


def _front(priced: PricedPoints) -> tuple[FrontPoint, ...]:
    """Points that no other beats in training time, decode time, |parameter change| and changed fields, fastest
    first."""
    prices = priced.prices
    base = prices.baseline
    times = [
        np.round(seconds / seconds[base], 10)
        for phase, seconds in prices.by_phase.items()
        if phase in (Phase.TRAIN, Phase.DECODE)
    ]
    size = np.abs(priced.points.num_params - priced.points.num_params[base])
    front = np.flatnonzero(is_pareto(np.column_stack([*times, size, priced.kinds.count])))
    order = front[np.lexsort((priced.kinds.count[front], times[0][front]))]
    return tuple(priced.front_point(int(i)) for i in order)


def _assumptions(
    phases: Mapping[Phase, Workload], objective_workload: Workload, gpus: tuple[Gpu, ...]
) -> tuple[str, ...]:
    """Assumptions of the answer beyond those of the question."""
    others = [phase.value for phase in phases if phase is not objective_workload.phase]
    notes = (
        [f"{' and '.join(others)} times are for the same {objective_workload.microbatch_size} sequences"]
        if others
        else []
    )
    if len(gpus) > 1:
        notes.append(f"candidates are ranked for {gpus[0].name}, the first GPU; see per_gpu and minimax for the others")
    if "num_shared_experts" in objective_workload.shape.fields():
        notes.append("shared experts are as wide as routed ones")
    return tuple(notes)
