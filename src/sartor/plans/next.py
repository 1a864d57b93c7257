"""Plans beside the best one: what to try next, priced with the same step, the simplest plan about as fast, and why not
another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.model.plan import AXES, STRUCTURE, AxisKind
from sartor.model.training import (
    ContextParallel,
    OffloadModule,
    Optimizer,
    Recipe,
    Recompute,
    TrainingJob,
    TrainingPlan,
)
from sartor.operators import DType
from sartor.plans.evaluate import Pricer
from sartor.plans.fixed import module_sets, modules_named, named_values, offload_sets
from sartor.plans.result import PlanSearch, PricedPlan
from sartor.plans.search import HeldPlan, fastest_plan, make_pricer, search_plans
from sartor.plans.space import axes_of, plan_space, size_of, structures, take, with_switches
from sartor.step.mechanisms.mechanism import Rows
from sartor.units import Array

WORTH = 0.01
"""Smallest gain in tokens per second worth proposing."""
WORTH_ANOTHER_BATCH = 0.03
"""Smallest gain in tokens per second for which another global batch is named."""
NEAR_BATCH = 0.25
"""Largest relative change of the global batch: a larger one is another training."""
FEW_LEFT = 8
"""Devices over replicas, a power of two up to a node's: tensor or pipeline parallelism takes them without loss."""
ROOMY = 0.9
"""A plan that uses less than this share of memory counts as roomy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """A change of job or trainer for the best plan, and its tokens per second relative to now."""

    change: str
    speedup: float
    step_s: float


def next_steps(pricer: Pricer, best: PricedPlan) -> tuple[NextStep, ...]:
    """Changes that pay off, best first, such as tensor-parallel overlap, an 8-bit recipe, a larger global batch."""
    job, plan = pricer.job, best.plan
    now = job.tokens_per_step / best.step_s
    steps = []
    for words, changed, new_plan in (
        *_trainer(job, plan),
        *_offload(pricer, plan),
        *_recipe(pricer, plan),
        *_batch(job, plan),
    ):
        changed_pricer = replace(pricer, job=changed)
        if float(changed_pricer.footprint(new_plan).device_bytes) <= pricer.limit_bytes:
            step_s = float(changed_pricer.step(new_plan).step_s)
        elif changed.recipe is job.recipe:
            continue
        else:  # copies in 8 bits take memory
            axes, devices = axes_of(plan), int(plan.num_devices)
            held = HeldPlan(
                job=changed, cluster=pricer.cluster, num_devices=devices, axes=axes, kept_free=pricer.headroom
            )
            step_s = float(_priced(held, pricer.calibration)[1].min(initial=math.inf))
            words += ", on a near plan with more room (a search with it may find a better one)"
        speedup = changed.tokens_per_step / step_s / now
        if speedup >= 1 + WORTH:
            steps.append(NextStep(change=words, speedup=speedup, step_s=step_s))
    return tuple(sorted(steps, key=lambda step: -step.speedup))


def _trainer(job: TrainingJob, plan: TrainingPlan) -> Iterator[tuple[str, TrainingJob, TrainingPlan]]:
    trainer = job.trainer
    if int(plan.dims.tp) > 1 and not trainer.tp_overlap:
        words = "overlap tensor-parallel traffic with the matrix multiplications it feeds (Megatron --tp-comm-overlap)"
        yield words, replace(job, trainer=replace(trainer, tp_overlap=True)), plan
    if int(plan.dims.ep) > 1 and not trainer.dispatch_once:
        words = "send a token once to each node (DeepEP; Megatron --moe-enable-deepep)"
        yield words, replace(job, trainer=replace(trainer, dispatch_once=True)), plan
    if int(plan.dims.ep) > 1 and int(plan.virtual_stages) > 1 and not trainer.ep_overlap:
        words = "hide experts' exchange behind another microbatch (Megatron --overlap-moe-expert-parallel-comm)"
        yield words, replace(job, trainer=replace(trainer, ep_overlap=True)), plan
    if int(plan.dims.cp) > 1:
        for kind in ContextParallel:
            heads_split = int(job.shape.num_heads) % (int(plan.dims.tp) * int(plan.dims.cp)) == 0
            if kind is not job.context_parallel and (heads_split or kind is not ContextParallel.ALL_TO_ALL):
                words = f"exchange of context parallelism by {kind.value} (--fix context_parallel={kind.value})"
                yield words, replace(job, context_parallel=kind), plan
    if int(plan.recompute) == Recompute.FULL and not trainer.shards_fully:
        for words in module_sets(job)[1:]:
            chosen = replace(plan, recompute=Recompute.SELECTIVE, recompute_layers=-1)
            fix = f"recompute {words.replace('+', ' ')} alone (--fix recompute=selective,recompute_modules={words})"
            yield fix, replace(job, recompute_modules=modules_named(words)), chosen
    narrows = int(plan.zero_stage) in trainer.narrow_moments and job.optimizer is Optimizer.ADAM
    if job.moments_dtype is DType.FP32 and narrows:
        words = "Adam's moments in bf16 (--fix moments_dtype=bf16; Megatron --use-precision-aware-optimizer)"
        yield words, replace(job, moments_dtype=DType.BF16), plan
    if not trainer.cuda_graphs:
        yield "CUDA graphs", replace(job, trainer=replace(trainer, cuda_graphs=True)), plan


def _offload(pricer: Pricer, plan: TrainingPlan) -> Iterator[tuple[str, TrainingJob, TrainingPlan]]:
    """Offloading instead of recomputation: the fewest offloaded inputs that make the plan fit."""
    job = pricer.job
    if int(plan.recompute) != Recompute.FULL or job.offload_modules or job.trainer.always_again:
        return
    stashed = replace(plan, recompute=Recompute.NONE, recompute_layers=-1)
    for words in offload_sets(job)[1:]:
        modules = frozenset(OffloadModule(word) for word in words.split("+"))
        moved = replace(job, offload_modules=modules)
        alone = OffloadModule.LAYER in modules and int(plan.dims.pp) > 1
        if not alone and float(replace(pricer, job=moved).footprint(stashed).device_bytes) <= pricer.limit_bytes:
            fix = f"--fix recompute=none,offload_modules={words}"
            yield (
                f"keep the inputs of {words.replace('+', ' ')} in host memory, recompute nothing ({fix})",
                moved,
                stashed,
            )
            return


def _recipe(pricer: Pricer, plan: TrainingPlan) -> Iterator[tuple[str, TrainingJob, TrainingPlan]]:
    job, rates = pricer.job, [gpu.peak_flops_per_s for gpu in pricer.cluster.gpus]
    if job.recipe not in (Recipe.BF16, Recipe.FP16) or job.shape.traced is not None:
        return
    recipes = ((DType.FP8, Recipe.FP8_CURRENT), (DType.MXFP8, Recipe.MXFP8))
    for dtype, recipe in recipes:
        if all(peaks.get(dtype, 0.0) > peaks.get(job.recipe.dtype, 0.0) for peaks in rates):
            yield f"train in 8 bits (--dtype {recipe.value}), if the loss allows", replace(job, recipe=recipe), plan


def _batch(job: TrainingJob, plan: TrainingPlan) -> Iterator[tuple[str, TrainingJob, TrainingPlan]]:
    doubled = replace(job, global_batch_size=2 * job.global_batch_size)
    words = f"a global batch of {doubled.global_batch_size} sequences, if convergence allows"
    yield words, doubled, replace(plan, num_microbatches=2 * int(plan.num_microbatches))


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedBatch:
    """A global batch that the devices divide: its fastest plan, and its tokens per second relative to now."""

    global_batch_size: int
    speedup: float
    priced: PricedPlan


def divided_batches(
    job: TrainingJob,
    cluster: Cluster,
    best: PricedPlan,
    fixed: Mapping[str, int | str] | Mapping[str, int],
    calibration: Calibration | None,
    headroom: float | None,
) -> tuple[DividedBatch, ...]:
    """Batches near the job's, which the devices of its ``best`` plan do not divide, that train faster, best first."""
    faster, num_devices = [], int(best.plan.num_devices)
    for batch in _near_batches(job.global_batch_size, num_devices):
        variant, plan = replace(job, global_batch_size=batch), None
        with suppress(InputError):  # a stated axis that this batch does not allow
            plan = fastest_plan(variant, cluster, num_devices, fixed, calibration=calibration, headroom=headroom)
        if plan is not None:
            speedup = (variant.tokens_per_step / plan.step_s) / (job.tokens_per_step / best.step_s)
            faster.append(DividedBatch(global_batch_size=batch, speedup=speedup, priced=plan))
    worth = [batch for batch in faster if batch.speedup >= 1 + WORTH_ANOTHER_BATCH]
    return tuple(sorted(worth, key=lambda batch: (-round(batch.speedup, 2), batch.global_batch_size)))


def _near_batches(batch: int, num_devices: int) -> tuple[int, ...]:
    """The nearest multiples below and above a batch of the devices, or of half of them, a quarter ... if none is near;
    none if these divide the batch.

    >>> _near_batches(512, 60), _near_batches(512, 64)
    ((480, 540), ())
    """
    left = num_devices // math.gcd(num_devices, batch)
    if left <= FEW_LEFT and left & (left - 1) == 0:
        return ()
    unit = num_devices
    while batch % unit:
        below = batch // unit * unit
        near = tuple(size for size in (below, below + unit) if abs(size / batch - 1) <= NEAR_BATCH)
        if near or unit % 2:
            return near
        unit //= 2
    return ()


def roomier(search: PlanSearch, limit_bytes: float) -> PricedPlan | None:
    """The fastest plan of the front that leaves a tenth of the memory free, if the best plan does not."""
    if search.best is None or search.best.peak_bytes <= ROOMY * limit_bytes:
        return None
    return next((plan for plan in search.front if plan.peak_bytes <= ROOMY * limit_bytes), None)


LOOKED_AT = 4
"""Sets of dims for which the plainest plans are priced too."""

CLOSE = 0.05
RIGHT = 0.7
"""Two plans of one model on one machine share most of their error, so the interval of one step says little about which
is faster. Of 87 pairs of published runs predicted less than `CLOSE` apart by a fit without their source, the share
`RIGHT` is ranked correctly (69%); of 185 further apart, 92% (lab/plan_pairs.py, 2026-11-28)."""

_BRINGING = tuple(row for row in AXES.values() if row.mechanism)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simpler:
    """A plan with fewer mechanisms than the best, how much slower it is predicted, and which mechanisms it drops."""

    priced: PricedPlan
    slower: float
    """Relative to the best plan's step."""
    without: tuple[str, ...]


def simpler(search: PlanSearch, calibration: Calibration | None = None) -> Simpler | None:
    """The plan with fewest mechanisms (a subset of the best plan's) whose step is less than `CLOSE` longer, since
    pairs that close are often ranked wrongly; None if no plan has fewer."""
    best = search.best
    if best is None or search.cluster.gpu.accelerator is not None:
        return None
    best_mechanisms = set(mechanisms(best.plan))
    near = [
        candidate
        for candidate in _candidates(search, best_mechanisms, calibration)
        if candidate.step_s < (1 + CLOSE) * best.step_s
    ]
    near = [candidate for candidate in near if best_mechanisms > set(mechanisms(candidate.plan))]
    if not near:
        return None
    few = min(near, key=lambda candidate: (len(mechanisms(candidate.plan)), candidate.step_s))
    without = tuple(word for word in mechanisms(best.plan) if word not in mechanisms(few.plan))
    return Simpler(priced=few, slower=few.step_s / best.step_s - 1, without=without)


def mechanisms(plan: TrainingPlan) -> tuple[str, ...]:
    """The mechanisms of a plan beyond replicas with a sharded optimizer."""
    words = [row.mechanism for row in _BRINGING if int(plan.columns[row.name]) not in row.plain]
    return (*words, "uneven stages") if plan.stage_layers and len(set(plan.stage_layers)) > 1 else tuple(words)


def _candidates(search: PlanSearch, best_mechanisms: set[str], calibration: Calibration | None) -> Iterator[PricedPlan]:
    """The best of every set of dims, and of the first few the plainest plans; none is searched for that could not have
    fewer mechanisms than those ``best_mechanisms``."""
    yield from search.top
    for priced in search.top[:LOOKED_AT]:
        plain = {row.name: row.plain[0] for row in _BRINGING if row.layout is not AxisKind.REFINED}
        plain |= {name: int(getattr(priced.plan.dims, name)) for name in ("tp", "pp", "dp", "cp", "ep")}
        plain["zero_stage"] = min(int(priced.plan.zero_stage), 2)
        for recompute in (Recompute.NONE, Recompute.FULL):
            fixed = {**plain, "recompute": int(recompute), **search.fixed}
            if best_mechanisms > _needed(fixed):
                yield from _plainest(search, fixed, calibration)


def _needed(fixed: Mapping[str, int]) -> set[str]:
    """Mechanisms that every plan with these fields has."""
    return {row.mechanism for row in _BRINGING if row.name in fixed and fixed[row.name] not in row.plain}


def _plainest(search: PlanSearch, fixed: Mapping[str, int], calibration: Calibration | None) -> tuple[PricedPlan, ...]:
    try:
        searched = search_plans(
            search.job,
            search.cluster,
            search.num_devices,
            fixed,
            top=1,
            uneven=False,
            calibration=calibration,
            headroom=search.headroom,
            explain=False,
        )
    except InputError:  # a trainer that has no such plan
        return ()
    return searched.top


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """A plan the user asked about, and the best one. ``reason`` is None if it is possible and just slower."""

    asked: str
    reason: str | None
    plan: PricedPlan | None
    """The fastest plan with the given values, the leanest if none fits, or the nearest possible one; None if none."""
    best: PricedPlan


def why_not(
    search: PlanSearch, asked: Mapping[str, int | str], calibration: Calibration | None = None
) -> WhyNot | None:
    """The plan with the ``asked`` values, compared with the best of a search; None if nothing fits at all.

    Raises `InputError` for an unknown axis or word.
    """
    values = named_values(asked, "why_not")
    if search.best is None:
        return None
    plan, reason = None, None
    try:
        searched = _search(search, values, calibration)
        tightest = searched.tightest
        plan = searched.best or (tightest.leanest if tightest else None)
        reason = tightest.message if tightest else None
    except InputError as error:
        reason = str(error).removeprefix("fix").lstrip(" =")
    words = ",".join(f"{name}={AXES[name].word(value)}" for name, value in values.items())
    plan = plan or _nearest(search, values, calibration)
    return WhyNot(asked=words, reason=reason, plan=plan, best=search.best)


def _search(search: PlanSearch, values: Mapping[str, int], calibration: Calibration | None) -> PlanSearch:
    free = {name: value for name, value in search.fixed.items() if name not in values}
    fixed = {**free, **values}
    return search_plans(search.job, search.cluster, search.num_devices, fixed, top=1, calibration=calibration)


def _nearest(search: PlanSearch, values: Mapping[str, int], calibration: Calibration | None) -> PricedPlan | None:
    """The possible plan nearest to an impossible one: one value is freed and ends up closest to the given one."""
    candidates: list[tuple[float, float, PricedPlan]] = []
    for name, value in values.items():
        rest = {axis: rest_value for axis, rest_value in values.items() if axis != name}
        for fixed in _held_near(search, rest, name, value):
            try:
                best = _search(search, fixed, calibration).best
            except InputError:
                continue
            if best is not None:
                candidates.append((_distance(best, name, value), best.step_s, best))
    if not candidates:
        fewer = dict(list(values.items())[:-1])
        return _nearest(search, fewer, calibration) if fewer else None
    return min(candidates, key=lambda rest_value: rest_value[:2])[2]


def _held_near(search: PlanSearch, rest: Mapping[str, int], name: str, value: int) -> list[Mapping[str, int]]:
    """Fixed values with ``name`` at its nearest possible values, or free if the axis has no order."""
    if name not in STRUCTURE:
        return [rest]
    legal = structures(search.job, plan_space(search.job, search.num_devices, rest)).rows[name]
    near = sorted(np.unique(legal).tolist(), key=lambda neighbour: abs(math.log(neighbour / value)))
    return [{**rest, name: int(neighbour)} for neighbour in near[:2]]


def _distance(priced: PricedPlan, name: str, value: int) -> float:
    """Distance of an axis from the given value, as a ratio."""
    return abs(math.log((int(priced.plan.columns[name]) + 1) / (value + 1)))


_RANKED = sorted((row for row in AXES.values() if row.fits_rank), key=lambda row: row.fits_rank)
NAMED = tuple(row.name for row in _RANKED)
"""Axes that may change, in the order to try them."""

FREE = (*NAMED, "dp", "sequence_parallel")

DOUBLINGS = 7
"""How often to double the devices of a typical run in search of a plan that fits."""
EQUAL = 0.02
"""Of plans whose steps differ by less, the one with the fewest changes wins (a choice)."""


def would_fit(run: HeldPlan, calibration: Calibration | None = None) -> tuple[Mapping[str, int | str], ...]:
    """For a plan that does not fit, the changes with which it would and its step is shortest, as one mapping.

    Where no change of `NAMED` is enough, the optimizer's states also go to the host's memory. The devices stay as they
    are. If they are a default, twice, four times, ... as many are tried until something fits, with as many more
    sequences, and both numbers are part of the change. Empty if nothing fits.
    """
    for wider in (offloads for plan in _wider(run) for offloads in _offloading(plan)):
        rows, step_s = _priced(wider, calibration)
        if size_of(rows):
            size = {"num_devices": wider.num_devices, "global_batch_size": wider.job.global_batch_size}
            return ((size if run.assumed else {}) | _change(run, rows, _cheapest(run, rows, step_s)),)
    return ()


def _wider(plan: HeldPlan) -> Iterator[HeldPlan]:
    yield plan
    for times in (2**k for k in range(1, DOUBLINGS + 1) if plan.assumed):
        devices, job = plan.num_devices * times, plan.job
        job = replace(job, global_batch_size=job.global_batch_size * times)
        yield replace(plan, job=job, num_devices=devices, cluster=plan.cluster.reached(devices))


def _offloading(plan: HeldPlan) -> Iterator[HeldPlan]:
    """The plan as it is, then with the optimizer's states in the host's memory."""
    yield plan
    if not plan.axes["optimizer_offload"]:
        yield replace(plan, axes={**plan.axes, "optimizer_offload": 1})


def _priced(plan: HeldPlan, calibration: Calibration | None) -> tuple[Rows, Array]:
    """All plans of the job on the same devices that change axes of `NAMED` only and fit, with the seconds of a step."""
    fixed = {name: value for name, value in plan.axes.items() if name not in FREE}
    space = plan_space(plan.job, plan.num_devices, fixed)
    rows = structures(plan.job, space).rows
    rows = take(rows, _wanted_structures(plan, rows))
    rows = with_switches(plan.job, space, rows, {})
    rows = take(rows, _wanted_switches(plan, rows))
    pricer = make_pricer(plan.job, plan.cluster, calibration, headroom=plan.headroom)
    if size_of(rows):
        rows = take(rows, pricer.memory(rows)[0] <= pricer.limit_bytes)
    return rows, pricer.seconds(rows)[0] if size_of(rows) else np.zeros(0)


def _wanted_structures(plan: HeldPlan, rows: Rows) -> Array:
    axes = plan.axes
    allowed = np.isin(rows["microbatch_size"], (1, axes["microbatch_size"]))
    for name in ("tp", "pp", "ep"):
        allowed &= rows[name] >= axes[name]
    return np.asarray(allowed & (rows["tp"] <= max(axes["tp"], plan.cluster.devices_per_node)))


def _wanted_switches(plan: HeldPlan, rows: Rows) -> Array:
    axes = plan.axes
    sequence = (rows["tp"] > 1) & (plan.job.seq_len % (rows["tp"] * rows["cp"]) == 0)
    sequence &= bool(axes["sequence_parallel"]) or axes["tp"] == 1
    sharded = (rows["zero_stage"] >= axes["zero_stage"]) | (rows["dp"] * rows["cp"] == 1)
    return np.asarray(sharded & (rows["sequence_parallel"] == sequence) & (rows["recompute"] >= axes["recompute"]))


def _cheapest(plan: HeldPlan, rows: Rows, step_s: Array) -> int:
    """Of the rows within `EQUAL` of the fastest, the one with the fewest and first changes of `NAMED`."""
    changed = np.stack([rows[name] != plan.axes[name] for name in NAMED])
    order = np.lexsort([step_s, 2 ** np.arange(len(NAMED)) @ changed, changed.sum(axis=0)])
    return int(order[np.argmax(step_s[order] <= (1 + EQUAL) * step_s.min())])


def _change(plan: HeldPlan, rows: Rows, index: int) -> dict[str, int | str]:
    names = (*NAMED, "optimizer_offload")
    shards = rows["dp"][index] * rows["cp"][index] > 1
    values = {name: int(rows[name][index]) for name in names if name != "zero_stage" or shards}
    return {name: AXES[name].shown(value) for name, value in values.items() if value != plan.axes[name]}
