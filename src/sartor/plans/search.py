"""The search over plans: every legal way to spread a job over devices is priced in a stream; the best is proved.

There is no sampling and no heuristic pruning: a plan is left out only if it violates a condition or does not fit in
memory, and both are counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.gpu import Gpu
from sartor.interrupts import report
from sartor.model.lower.setting import check
from sartor.model.plan import AXES, DIMS, STRUCTURE
from sartor.model.shape import TransformerShape, blocks
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.plans.evaluate import (
    Evaluated,
    Footprints,
    Pricer,
    Steps,
    distinct_but_recompute,
    evaluate,
    fewest_recomputed,
    hopeful,
    one_change,
    partly_recomputed,
    priced,
    reason_against,
    tightest,
    timed,
    weighed,
)
from sartor.plans.fixed import check_fixed, impossible_axis
from sartor.plans.front import KEYS, Kept, chosen, empty, first_of, joined, keys_of
from sartor.plans.result import PlanPoints, PlanSearch, PlanStatus, PricedPlan
from sartor.plans.space import (
    CHUNK,
    PlanSpace,
    axes_of,
    chunks,
    plan_at,
    plan_space,
    size_of,
    structures,
    take,
    with_switches,
)
from sartor.plans.stages import WORTH, Placed, place_layers, some_placed_fits
from sartor.step.block_times import compute_factors
from sartor.step.coefficients import InRun, coefficients_for, in_a_run
from sartor.step.footprint import FIT_PROBABILITY, every_stage, margin, usable_bytes
from sartor.step.question import as_trained, kernels_of, padded_shape
from sartor.units import distinct

FRONT = 60
"""Points of the front that are priced in detail, evenly spaced along it."""

FRONTS = 1000
"""Number of fastest plans (front and best of each dims) tried with every number of recomputed layers."""

Progress = Callable[[int, int], None]
"""Called with the number of structures done and in total."""


def search_plans(
    job: TrainingJob,
    cluster: Cluster,
    num_devices: int,
    fixed: Mapping[str, int | str] | Mapping[str, int] | None = None,
    *,
    top: int = 10,
    uneven: bool = True,
    calibration: Calibration | None = None,
    progress: Progress | None = None,
    steps: Steps | None = None,
    footprints: Footprints | None = None,
    headroom: float | None = None,
    explain: bool = True,
) -> PlanSearch:
    """The plan with the shortest predicted step among all that fit, the next best of other dims, and the front.

    ``fixed`` sets axes (`sartor.model.plan.AXES`) to one value each. ``headroom`` is the share of memory to leave free
    (default: `usual_headroom`); ``explain`` adds what would fit if nothing does. ``uneven`` False keeps stages as even
    as possible. ``steps`` and ``footprints`` replace ``training.step`` and ``training.footprint`` in tests. Raises
    ``InputError`` for a fixed value that no plan on ``num_devices`` can have.
    """
    started = time.perf_counter()
    where = cluster.reached(num_devices)
    pricer = make_pricer(job, where, calibration, steps, footprints, headroom)
    fixed_axes = check_fixed(job, num_devices, fixed or {})
    space = plan_space(job, num_devices, fixed_axes)
    kept, rejected = _stream(pricer, space, progress, top)
    placed, best = _best(pricer, kept, top, uneven and not job.trainer.one_program)
    lean = priced(pricer, kept.leanest.rows)[0] if kept.evaluated and not best else None
    return PlanSearch(
        job=job,
        cluster=where,
        num_devices=num_devices,
        fixed=fixed_axes,
        status=PlanStatus.OPTIMAL if best else PlanStatus.INFEASIBLE,
        best=best[0] if best else None,
        top=best,
        front=_front(pricer, kept),
        points=PlanPoints(rows=kept.best.rows, step_s=kept.best.step_s, device_bytes=kept.best.device_bytes),
        space_size=space.size,
        evaluated=kept.evaluated,
        refined=kept.refined,
        fitting=kept.fitting,
        rejected=dict(sorted(rejected.items(), key=lambda item: (-item[1], item[0]))),
        placed=placed.tried,
        unplaced=placed.left,
        tightest=tightest(replace(pricer, cluster=cluster), num_devices, fixed_axes, lean, rejected)
        if explain and not best
        else None,
        headroom=pricer.headroom,
        wall_s=time.perf_counter() - started,
    )


def fastest_plan(
    job: TrainingJob,
    cluster: Cluster,
    num_devices: int,
    fixed: Mapping[str, int | str] | Mapping[str, int] | None = None,
    *,
    calibration: Calibration | None = None,
    headroom: float | None = None,
) -> PricedPlan | None:
    """`search_plans(...).best` alone, without runners-up, front and explanations; None if no plan fits.

    Raises ``InputError`` for fixed values that no plan on ``num_devices`` can have.
    """
    pricer = make_pricer(job, cluster.reached(num_devices), calibration, headroom=headroom)
    axes = check_fixed(job, num_devices, fixed or {})
    best, front, rejected = _fastest(pricer, plan_space(job, num_devices, axes))
    if not front.evaluated:
        raise _impossible(job, num_devices, axes, rejected)
    return best


def leanest_plan(
    job: TrainingJob,
    cluster: Cluster,
    num_devices: int,
    fixed: Mapping[str, int | str] | Mapping[str, int] | None = None,
    *,
    calibration: Calibration | None = None,
    headroom: float | None = None,
) -> PricedPlan:
    """The plan with the fewest bytes on its fullest device, whether it fits or not.

    Raises ``InputError`` where the fixed values have no plan together, with the condition that they violate.
    """
    pricer = make_pricer(job, cluster.reached(num_devices), calibration, headroom=headroom)
    axes = check_fixed(job, num_devices, fixed or {})
    front, rejected = Kept(), dict[str, int]()
    _weighed_points(pricer, plan_space(job, num_devices, axes), front, rejected)
    if not front.evaluated:
        raise _impossible(job, num_devices, axes, rejected)
    return priced(pricer, front.leanest.rows)[0]


def no_plan_error(search: PlanSearch) -> InputError | None:
    """The error of a search whose fixed values have no plan together, whatever fits; None if they have one."""
    if search.evaluated:
        return None
    return _impossible(search.job, search.num_devices, search.fixed, search.rejected)


def best_or_leanest(pricer: Pricer, space: PlanSpace) -> tuple[PricedPlan | None, Mapping[str, int]]:
    """The fastest plan of a space that fits, else the leanest (None if there is none), and what was rejected."""
    best, front, rejected = _fastest(pricer, space)
    if best is None and front.evaluated:
        best = priced(pricer, front.leanest.rows)[0]
    return best, rejected


def _impossible(job: TrainingJob, num_devices: int, axes: Mapping[str, int], rejected: Mapping[str, int]) -> InputError:
    """The error for values that no plan has: the one at fault alone, or what they violate together."""
    words = {name: AXES[name].word(value) for name, value in axes.items() if value != (name in STRUCTURE)}
    plan = ",".join(f"{name}={word}" for name, word in words.items())
    alone = impossible_axis(job, num_devices, axes)
    why = reason_against(job, num_devices, axes, rejected)
    near = one_change(job, num_devices, axes)
    if not alone and len(words) == 1:
        name, word = next(iter(words.items()))
        return InputError(name, word, why, near.replace(f"{name}=", ""))
    return alone or InputError("plan", plan or "one device", why, near)


def fewest_devices(job: TrainingJob, cluster: Cluster, headroom: float | None = None) -> int:
    """A lower bound on the devices that any plan without optimizer offload needs: their memory holds at least one copy
    of weights, gradients and optimizer states."""
    alone = TrainingPlan(dims=ParallelDims())
    bytes_whole = every_stage(job, alone, cluster).held
    share = usual_headroom(cluster) if headroom is None else checked_headroom(headroom)
    room = (1 - share) * usable_bytes(cluster) - bytes_whole.context.max()
    states = float((bytes_whole.weights + bytes_whole.grads + bytes_whole.optimizer).max())
    return max(1, math.ceil(states / max(float(room), 1.0)))


def _best(pricer: Pricer, leaders: Kept, top: int, uneven: bool = True) -> tuple[Placed, tuple[PricedPlan, ...]]:
    """The fastest plans that were kept, with layers unevenly placed on stages if that pays off."""
    placed = (
        place_layers(pricer, leaders.open, leaders.best, leaders.worst_s)
        if uneven
        else Placed(plans=(), tried=0, left=0)
    )
    even_s = dict(zip(keys_of(leaders.best.rows), leaders.best.step_s.tolist(), strict=True))
    return placed, _merged(_top(pricer, leaders, top), placed.plans, even_s, top)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPlan:
    """A job on a cluster with one plan: every axis of the search is fixed."""

    job: TrainingJob
    cluster: Cluster
    num_devices: int
    axes: Mapping[str, int]
    assumed: bool = False
    """The number of devices is a default, not given by the user."""
    kept_free: float | None = None
    """Share of memory to leave free; None: the default of a search."""
    spread: tuple[float, float] = (1.0, 1.0)
    """Of the price (`PricedPlan.spread`)."""
    searched: PricedPlan | None = field(default=None, compare=False, repr=False)
    """The plan as the search that chose it priced it with the package's calibration, to price it once."""
    launched: TrainingPlan | None = field(default=None, compare=False, repr=False)
    """The plan of a launch file, which places its layers itself."""

    @property
    def headroom(self) -> float:
        return usual_headroom(self.cluster) if self.kept_free is None else checked_headroom(self.kept_free)

    def price(self, calibration: Calibration | None = None) -> PricedPlan:
        """The plan's step and memory, whether it fits or not, priced like `search_plans` with all of ``axes`` fixed:
        with layers unevenly placed on stages if that is faster.

        Raises ``InputError`` for an impossible plan, with the condition it violates.
        """
        if self.searched is not None and calibration is None:
            return replace(self.searched, spread=self.spread)
        split = ParallelDims(tp=self.axes["tp"], ep=self.axes["ep"])
        check(as_trained(self.job, split), split)
        if self.launched is not None:
            return replace(self._as_launched(self.launched, calibration), spread=self.spread)
        pricer = make_pricer(self.job, self.cluster, calibration, headroom=self.headroom)
        plan, rejected = best_or_leanest(pricer, plan_space(self.job, self.num_devices, self.axes))
        if plan is None:
            raise _impossible(self.job, self.num_devices, self.axes, rejected)
        return replace(plan, spread=self.spread)

    def _as_launched(self, plan: TrainingPlan, calibration: Calibration | None) -> PricedPlan:
        """The step and memory of the launch's plan with today's axes; layers stay where the file puts them."""
        from sartor.step.footprint import footprint
        from sartor.step.step import step

        if axes_of(plan) != self.axes:
            layers, chunks = plan.stage_layers, (plan.dims.pp, plan.virtual_stages)
            plan = plan_at(self.job, {name: np.array([value]) for name, value in self.axes.items()}, 0)
            plan = replace(plan, stage_layers=layers if (plan.dims.pp, plan.virtual_stages) == chunks else None)
        if plan.stage_layers is not None and sum(plan.stage_layers) != self.job.shape.num_layers:
            plan = replace(plan, stage_layers=None)
        return PricedPlan(
            plan=plan,
            step=step(self.job, plan, self.cluster, calibration),
            footprint=footprint(self.job, plan, self.cluster),
        )

    @property
    def limit_bytes(self) -> float:
        """Bytes that the predicted peak may have on a device."""
        return (1 - self.headroom) * usable_bytes(self.cluster)

    @property
    def room_bytes(self) -> float:
        """Bytes of a device that the run may fill."""
        return room_bytes(self.cluster, self.headroom)

    def split(self, **degrees: int) -> HeldPlan:
        """The same plan with other degrees of tensor, expert and pipeline parallelism, and as many replicas."""
        axes = {**self.axes, **degrees}
        axes["sequence_parallel"] = min(axes["sequence_parallel"], int(axes["tp"] > 1))
        devices = math.prod(axes[name] for name in DIMS)
        return replace(self, axes=axes, num_devices=devices, cluster=self.cluster.reached(devices), searched=None)

    def with_shape(self, shape: TransformerShape) -> HeldPlan:
        """The same training of another model, with the vocabulary padded by the trainer."""
        return replace(self, job=replace(self.job, shape=padded_shape(shape, self.job.trainer)), searched=None)

    def in_run(
        self, priced: PricedPlan, gpu: Gpu, calibration: Calibration | None = None, searched: Collection[str] = ()
    ) -> InRun:
        """A device of the priced plan as `InRun`; ``calibration`` replaces the packaged one, and ``searched`` are the
        axes that the plan's search chose."""
        job, constants = self.job, coefficients_for(self.job, gpu)
        waiting = 0.0 if job.trainer.lockstep else float(constants.waiting(priced.plan.num_devices))
        return InRun(
            calibration=in_a_run(calibration or load_calibration(gpu), constants),
            kernels=kernels_of(job, self.cluster),
            whole=priced.whole(waiting),
            compute_factors=compute_factors([block.kind for block in blocks(job.shape)], job.trainer, constants),
            step_with=partial(self._step_with, calibration, frozenset(searched)),
            searched=frozenset(searched),
        )

    def _step_with(
        self,
        calibration: Calibration | None,
        searched: frozenset[str],
        shape: TransformerShape | None,
        changed: Mapping[str, int],
    ) -> float | None:
        reshaped = self if shape is None else self.with_shape(shape)
        try:
            if not changed:
                return reshaped.price(calibration).step_s
            fixed = {name: value for name, value in self.axes.items() if name not in searched and name != "dp"}
            if fixed.get("tp", 1) == 1 or changed.get("tp") == 1:
                fixed.pop("sequence_parallel", None)
            axes = {**fixed, **changed}
            fastest = fastest_plan(
                reshaped.job, self.cluster, self.num_devices, axes, calibration=calibration, headroom=self.headroom
            )
        except InputError:
            return None
        return None if fastest is None else fastest.step_s


def make_pricer(
    job: TrainingJob,
    cluster: Cluster,
    calibration: Calibration | None = None,
    steps: Steps | None = None,
    footprints: Footprints | None = None,
    headroom: float | None = None,
) -> Pricer:
    """A pricer with the step and footprint functions of ``sartor.step``."""
    from sartor.step import footprint as memory
    from sartor.step import step as time_of

    return Pricer(
        job=job,
        cluster=cluster,
        steps=steps or time_of.step,
        footprints=footprints or memory.footprint,
        calibration=calibration,
        headroom=usual_headroom(cluster) if headroom is None else checked_headroom(headroom),
    )


def usual_headroom(cluster: Cluster) -> float:
    """Default headroom: what a plan on GPUs leaves free to fit with the usual probability; 0 for a user's own chips."""
    return margin(FIT_PROBABILITY) if cluster.gpu.accelerator is None else 0.0


def room_bytes(cluster: Cluster, headroom: float) -> float:
    """Bytes of a device that a run may fill: the usual headroom is for the error of the peak alone."""
    return usable_bytes(cluster) * (1.0 if headroom == usual_headroom(cluster) else 1 - headroom)


def checked_headroom(headroom: float) -> float:
    """The headroom if it is a valid share. Raises ``InputError`` otherwise."""
    if 0 <= headroom < 1:
        return headroom
    raise InputError("headroom", headroom, "must be a share of memory, from 0 to below 1", "0.05")


def _fastest(pricer: Pricer, space: PlanSpace) -> tuple[PricedPlan | None, Kept, dict[str, int]]:
    """The fastest plan of a space that fits, the plans kept, and counts of rejected points. Nothing is timed if no plan
    fits: most numbers of devices that are tried are too few."""
    uneven, rejected, front = not pricer.job.trainer.one_program, dict[str, int](), Kept()
    plans = _weighed_points(pricer, space, front, rejected)
    if not front.fitting and not (uneven and some_placed_fits(pricer, plans)):
        return None, front, rejected
    _time(pricer, space, front, plans)
    _, best = _best(pricer, front, 1, uneven)
    return best[0] if best else None, front, rejected


def _stream(pricer: Pricer, space: PlanSpace, progress: Progress | None, top: int) -> tuple[Kept, dict[str, int]]:
    """Price every legal point of the space chunk by chunk; the plans kept, and counts of rejected points."""
    rejected, front = dict[str, int](), Kept(top=top)
    plans = _weighed_points(pricer, space, front, rejected, progress)
    _time(pricer, space, front, plans)
    if progress:
        total = size_of(structures(pricer.job, space).rows)
        progress(total, total)
    for reason, count in front.over.items():
        rejected[reason] = rejected.get(reason, 0) + count
    return front, rejected


def _weighed_points(
    pricer: Pricer, space: PlanSpace, front: Kept, rejected: dict[str, int], progress: Progress | None = None
) -> Evaluated:
    """The legal points of the space that fit, or might with uneven stages, not timed yet. All legal ones are counted in
    ``front``, the others in ``rejected``."""
    structure_list = structures(pricer.job, space)
    rejected |= structure_list.rejected
    total, done, untimed = size_of(structure_list.rows), 0, [empty()]
    for chunk in chunks(structure_list.rows):
        report("pricing plans", done, total)
        if progress:
            progress(done, total)
        rows = with_switches(pricer.job, space, chunk, rejected)
        if size_of(rows):
            plans = weighed(pricer, rows)
            front.count(plans, plans.device_bytes <= pricer.limit_bytes)
            untimed.append(chosen(plans, hopeful(pricer, plans)))
        done += size_of(chunk)
    return joined(*untimed)


def _time(pricer: Pricer, space: PlanSpace, front: Kept, plans: Evaluated) -> None:
    """Add weighed plans to the front with their times, and plans near them that recompute only some layers."""
    prices = timed(pricer, plans)
    front.add(prices)
    if {"recompute", "recompute_layers"} & space.fixed.keys() or not pricer.job.trainer.recomputes_some_layers:
        return
    fewer = fewest_recomputed(pricer, prices, front.worst_s)
    if fewer is not None:
        front.add_refined(evaluate(pricer, fewer))
    _add_partly_recomputed(pricer, front)


def _add_partly_recomputed(pricer: Pricer, leaders: Kept) -> None:
    """Add plans that recompute some layers, near plans of the front that recompute none or all."""
    both = joined(leaders.front, leaders.best)
    near = first_of(both, ("step_s", "device_bytes"), FRONTS)
    rows = partly_recomputed(pricer.job, distinct_but_recompute(near.rows))
    for start in range(0, size_of(rows), CHUNK):
        leaders.add_refined(evaluate(pricer, take(rows, slice(start, start + CHUNK))))


def _top(pricer: Pricer, leaders: Kept, top: int) -> list[PricedPlan]:
    return priced(pricer, first_of(leaders.best, ("step_s", "device_bytes"), top).rows)


def _merged(
    even: Sequence[PricedPlan], uneven: Sequence[PricedPlan], even_s: Mapping[tuple[int, ...], float], top: int
) -> tuple[PricedPlan, ...]:
    """The best of each (tp, pp, cp, dp, ep), fastest first; an uneven split only if it saves enough over the fastest
    even one of the same dims (``even_s``)."""
    plans = {tuple(int(getattr(plan.plan.dims, name)) for name in KEYS): plan for plan in even}
    step_s = dict(even_s)
    for plan in uneven:
        key = tuple(int(getattr(plan.plan.dims, name)) for name in KEYS)
        if plan.step_s < step_s.get(key, math.inf) * (1 - WORTH):
            plans[key], step_s[key] = plan, plan.step_s
    return tuple(sorted(plans.values(), key=lambda plan: plan.step_s)[:top])


def _front(pricer: Pricer, leaders: Kept) -> tuple[PricedPlan, ...]:
    count = size_of(leaders.front.rows)
    shown = distinct(np.linspace(0, max(count - 1, 0), min(FRONT, count)).round().astype(int))
    return tuple(priced(pricer, chosen(leaders.front, shown).rows))
