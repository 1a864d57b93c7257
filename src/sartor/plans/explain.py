"""What would explain a measured run: the plans that would give its step and memory, where it does not say its own, and
else which single changed fact brings the prediction of its plan closest.

Everything is priced by the same ``step`` and ``footprint`` as any plan. Seconds count in units of the step's own
uncertainty, bytes in units of ``MEMORY_SIGMA``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.cost import interval_80
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.model.plan import AXES, DIMS, SEARCHED
from sartor.model.training import Recipe, Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import AttentionKernel, Loss
from sartor.plans.evaluate import TIMED, Pricer, priced
from sartor.plans.result import PricedPlan
from sartor.plans.search import make_pricer
from sartor.plans.space import (
    axes_of,
    chunks,
    plan_at,
    plan_space,
    size_of,
    stage_layers,
    structures,
    take,
    to_plan,
    with_switches,
)
from sartor.step.footprint import footprint
from sartor.step.measured_run import MeasuredRun
from sartor.step.mechanisms.mechanism import Rows
from sartor.step.question import supports
from sartor.step.results import Footprint
from sartor.step.step import step
from sartor.units import Floats

MEMORY_SIGMA = 0.10
"""Standard deviation of the logarithm of predicted over measured peak memory (docs/concepts/memory.md: half of the
published runs are within 5 to 8%)."""
WORTH = 2.0
"""A change is reported only if it lowers the misfit by this much (in squared standard deviations)."""
EQUAL = 1.0
"""Changes whose misfits differ by less cannot be distinguished."""
AGREES = 4.0
"""Misfit up to which a prediction agrees with a run: two standard deviations, in step time and memory combined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A prediction with one fact changed, and its distance from the measured run."""

    field: str
    """Empty if nothing is changed."""
    value: str
    priced: PricedPlan
    misfit: float
    """Squared distance in standard deviations, of step time and memory together."""


def explanations(
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    measured: MeasuredRun,
    *,
    stated: Collection[str] = (),
    calibration: Calibration | None = None,
    alone: bool = False,
) -> tuple[Explanation, ...]:
    """The plan as it is, then (unless ``alone``) every single change of a fact not in ``said``, closest first.

    Raises ``InputError`` if the plan itself cannot be priced.
    """
    base = _explained("", "", job, plan, cluster, measured, calibration)
    others = list[Explanation]()
    for name, value, new_job, new_plan in () if alone else _changes(job, plan, cluster):
        if name in stated:
            continue
        try:
            others.append(_explained(name, value, new_job, new_plan, cluster, measured, calibration))
        except InputError:
            continue
    return (
        base,
        *sorted(
            (explanation for explanation in others if _differs(explanation, base)),
            key=lambda explanation: explanation.misfit,
        ),
    )


def _differs(first: Explanation, second: Explanation) -> bool:
    """Whether a change affects the prediction at all."""
    return abs(first.misfit - second.misfit) > 1e-9 * max(second.misfit, 1.0)


def nearest(explanations: tuple[Explanation, ...]) -> tuple[Explanation, ...]:
    """The change that explains the run best, and those indistinguishable from it; empty if none improves enough."""
    base, *others = explanations
    if not others or base.misfit - others[0].misfit < WORTH:
        return ()
    return tuple(explanation for explanation in others if explanation.misfit < others[0].misfit + EQUAL)


def _squared(seen: float, predicted: Floats, sigma: Floats) -> Floats:
    """Squared distance of a prediction from a measured value, in standard deviations of its logarithm."""
    return ((np.log(predicted) - math.log(seen)) / np.maximum(sigma, 1e-3)) ** 2


def memory_differs(seen: float, predicted: float) -> bool:
    """Whether a measured peak [bytes] lies outside the 80% interval of the predicted one; False where none was."""
    low, high = interval_80(predicted, MEMORY_SIGMA)
    return seen > 0 and not low <= seen <= high


def _memory_misfit(footprint: Footprint, measured: MeasuredRun) -> Floats | None:
    """Squared distance of the peak; None if it was not measured. One peak of the two is enough: they go together."""
    if measured.allocated_bytes > 0:
        return _squared(measured.allocated_bytes, footprint.allocated_bytes, MEMORY_SIGMA)
    return (
        _squared(measured.reserved_bytes, footprint.reserved_bytes, MEMORY_SIGMA)
        if measured.reserved_bytes > 0
        else None
    )


def _explained(
    name: str,
    value: str,
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    measured: MeasuredRun,
    calibration: Calibration | None,
) -> Explanation:
    whole = PricedPlan(plan=plan, step=step(job, plan, cluster, calibration), footprint=footprint(job, plan, cluster))
    if not math.isfinite(whole.step_s):
        raise InputError(name or "plan", value, "cannot be priced")
    return _as_explanation(name, value, whole, measured)


def _as_explanation(name: str, value: str, whole: PricedPlan, measured: MeasuredRun) -> Explanation:
    misfit = _squared(measured.step_s, whole.step_s, float(whole.step.log_sigma))
    misfit += _memory_misfit(whole.footprint, measured) or 0.0
    return Explanation(field=name, value=value, priced=whole, misfit=float(misfit))


_Changed = tuple[str, str, TrainingJob, TrainingPlan]


def _changes(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> Iterator[_Changed]:
    """Single changes of facts beside the plan's axes that logs and launch files often omit."""
    for recipe in _recipes(job, cluster):
        yield "dtype", recipe.value, replace(job, recipe=recipe), plan
    unfused = job.attention_kernel is AttentionKernel.UNFUSED
    kernel = AttentionKernel.FLASH if unfused else AttentionKernel.UNFUSED
    yield "attention", kernel.value, replace(job, attention_kernel=kernel), plan
    for name in ("fused_kernels", "dp_overlap", "tp_overlap"):
        switched: Any = {name: not getattr(job.trainer, name)}
        yield name, str(switched[name]).lower(), replace(job, trainer=replace(job.trainer, **switched)), plan
    loss = Loss.UNFUSED if job.trainer.fused_loss else Loss.FUSED
    yield "fused_loss", str(bool(loss)).lower(), replace(job, trainer=replace(job.trainer, fused_loss=loss)), plan


def _recipes(job: TrainingJob, cluster: Cluster) -> Iterable[Recipe]:
    """Other precisions that the devices support: 16 bits instead of 8, and 8 instead of 16."""
    half, narrow = (Recipe.BF16, Recipe.FP16), (Recipe.FP8_CURRENT, Recipe.FP8_DELAYED, Recipe.MXFP8)
    recipes = narrow if job.recipe in half else half[:1]
    return [recipe for recipe in recipes if all(supports(recipe, gpu) for gpu in cluster.gpus)]


# ------------------------------------------------------------------------------------ a plan that is not stated

DERIVED = frozenset(name for name, row in AXES.items() if row.derived)
EXAMPLES = 16
"""Most explaining plans that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPlan:
    """What a run does not say of its plan, and the plans that would give its step and memory."""

    fields: tuple[str, ...] = ()
    """Axes that nothing states, and of which legal plans have several values; empty: the plan is known."""
    num_plans: int = 0
    """Legal plans with the stated axes."""
    num_explaining: int = 0
    explaining: tuple[PricedPlan, ...] = ()
    """The likeliest of them with each value of each open axis: the trainer's usual one first, then the likeliest."""
    agreed: Mapping[str, str] = field(default_factory=dict)
    """Values of open axes that all of them have."""
    first_is_usual: bool = False
    """Whether the first is what the trainer's own defaults make."""


def open_plan(
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    measured: MeasuredRun,
    *,
    stated: Collection[str],
    calibration: Calibration | None = None,
) -> OpenPlan:
    """Which axes of ``plan`` are not in ``stated``, and which plans with the stated ones agree with the run: their 80%
    interval holds its step, and their misfit is at most ``AGREES``; if no memory was measured, they fit."""
    if {*SEARCHED} <= {*stated, *DERIVED}:
        return OpenPlan()
    fixed = {name: value for name, value in axes_of(plan).items() if name in stated}
    by_operator = replace(job, trainer=replace(job.trainer, checkpoints_operators=True))
    jobs = [job, by_operator] if job.trainer.shards_fully and "recompute" not in stated else [job]
    pricers = [make_pricer(job_variant, cluster, calibration, headroom=0.0) for job_variant in jobs]
    parts, values, legal = list[Rows](), {axis: set[int]() for axis in SEARCHED}, 0
    off = {name: AXES[name].plain[0] for name in DERIVED if name not in DIMS}
    for variant, pricer in enumerate(pricers):
        near = list[Rows]()
        for rows in _legal(pricer.job, int(plan.num_devices), {**off, **fixed}):
            legal += size_of(rows)
            for axis, seen in values.items():
                seen.update(np.unique(rows[axis]).tolist())
            near.append(_of_its_memory(pricer, {**rows, "variant": np.full(size_of(rows), variant)}, measured))
        together = _joined(near)
        pieces = (take(together, slice(i, i + TIMED)) for i in range(0, size_of(together), TIMED))
        parts += [_of_its_step(pricer, piece, measured) for piece in pieces]
    fields = tuple(
        axis for axis in SEARCHED if axis not in {*stated, *DERIVED} and (len(values[axis]) > 1 or not legal)
    )
    ranked = _joined(parts)
    usual = {**{axis: AXES[axis].plain[0] for axis in fields if AXES[axis].odds}, **dict(job.trainer.usual_axes)}
    is_usual = np.full(size_of(ranked), bool(job.trainer.usual_axes))
    for axis in fields if size_of(ranked) else ():
        is_usual &= ranked[axis] == usual.get(axis, ranked[axis])
    order = np.lexsort((ranked["unlikeliness"], ~is_usual))
    ranked, is_usual = take(ranked, order), is_usual[order]
    first = {int(i) for axis in fields for i in np.unique(ranked.get(axis, ()), return_index=True)[1]}
    return OpenPlan(
        fields=fields,
        num_plans=legal,
        num_explaining=size_of(ranked),
        explaining=tuple(_example(pricers, take(ranked, slice(i, i + 1))) for i in sorted(first)[:EXAMPLES]),
        first_is_usual=bool(is_usual[:1].any()),
        agreed={axis: AXES[axis].word(int(ranked[axis][0])) for axis in fields if first and not np.ptp(ranked[axis])},
    )


def likeliest(open_plan: OpenPlan, measured: MeasuredRun) -> tuple[Explanation, ...]:
    """The likeliest plan of those that would explain the run, as the one explanation; none if no plan would."""
    return tuple(_as_explanation("", "", whole, measured) for whole in open_plan.explaining[:1])


def _joined(parts: list[Rows]) -> Rows:
    if not parts:
        return {"unlikeliness": np.zeros(0)}
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _legal(job: TrainingJob, num_devices: int, fixed: Mapping[str, int]) -> Iterator[Rows]:
    """Every legal plan, in pieces. Where recomputation is by operator, those that have it, which is called selective;
    where a trainer has that, no other kind is."""
    space = plan_space(job, num_devices, fixed)
    for chunk in chunks(structures(job, space).rows):
        rows = with_switches(job, space, chunk, {})
        if job.trainer.checkpoints_operators:
            rows = take(rows, rows["recompute"] == Recompute.FULL)
            rows |= {"recompute": np.full(size_of(rows), int(Recompute.SELECTIVE))}
        elif job.trainer.shards_fully:
            rows = take(rows, rows["recompute"] != Recompute.SELECTIVE)
        if size_of(rows):
            yield rows


def _as_priced(job: TrainingJob, rows: Rows) -> Rows:
    """The rows with recomputation by operator as the step knows it."""
    if not job.trainer.checkpoints_operators:
        return rows
    half = np.maximum(stage_layers(job, rows) // 2, 1)
    return {**rows, "recompute": np.full(size_of(rows), int(Recompute.FULL)), "recompute_layers": half}


def _of_its_memory(pricer: Pricer, rows: Rows, measured: MeasuredRun) -> Rows:
    """The rows whose peak agrees with the run, with their misfit; those that fit, if none was measured."""
    footprint = pricer.footprint(to_plan(pricer.job, _as_priced(pricer.job, rows)))
    misfit = _memory_misfit(footprint, measured)
    if misfit is None:
        misfit = np.where(np.asarray(footprint.device_bytes) <= pricer.limit_bytes, 0.0, np.inf)
    rows = {**rows, "unlikeliness": np.array(np.broadcast_to(misfit, (size_of(rows),)))}
    return take(rows, rows["unlikeliness"] <= AGREES)


def _of_its_step(pricer: Pricer, rows: Rows, measured: MeasuredRun) -> Rows:
    """The rows whose step agrees with the run too, unusual values counted against them."""
    steps = pricer.step(to_plan(pricer.job, _as_priced(pricer.job, rows)))
    low_s, high_s = interval_80(steps.step_s, steps.log_sigma, steps.step_s * steps.mfu)
    misfit = rows["unlikeliness"] + _squared(measured.step_s, steps.step_s, steps.log_sigma)
    unlikely = (row for row in AXES.values() if row.odds)
    unusual = sum(np.where(rows[row.name] == row.plain[0], 0.0, row.odds) for row in unlikely)
    agrees = (low_s <= measured.step_s) & (measured.step_s <= high_s) & (misfit <= AGREES)
    return take({**rows, "unlikeliness": misfit + unusual}, agrees)


def _example(pricers: list[Pricer], row: Rows) -> PricedPlan:
    """One row with all parts of its price, and recomputation as a log or ``fix`` states it."""
    pricer, axes = pricers[int(row["variant"][0])], {axis: row[axis] for axis in AXES}
    return replace(priced(pricer, _as_priced(pricer.job, axes))[0], plan=plan_at(pricer.job, axes, 0))
