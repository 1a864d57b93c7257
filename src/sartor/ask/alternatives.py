"""What a question leaves open beside its plan: other plausible values of facts that were not stated, their prices, and
the verdicts that they turn.

One table (`open_fields`) says which facts of a training run are open and what else they may be: the trainer, the
switches that its users set either way, the kind of context parallelism, the kernel of attention. The run is priced with
each value alone, and with all those together that alone make it faster or slower, leaner or fuller: the extreme corners
of their product. A chip is open in the keys that its file leaves out: its tensor cores' private buffer alone can
change a step by a factor of two.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np

from sartor.answers.estimate import ModelEstimate, Question
from sartor.cost.correction.calibration import Calibration
from sartor.cost.cost import interval_80
from sartor.cost.uncertainty import covering
from sartor.errors import InputError
from sartor.hardware.accelerator_catalog import datasheet_of, ratios_to_default, template_value, with_key
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import usual_cluster
from sartor.hardware.gpu import Gpu
from sartor.model.plan import AXES
from sartor.model.shape import TransformerShape
from sartor.model.training import Trainer, TrainingJob, TrainingPlan
from sartor.model.workload import AttentionKernel, ContextParallel
from sartor.plans.fixed import SWITCHED, other_settings, settings, with_switches
from sartor.plans.search import HeldPlan
from sartor.plans.space import broken, rows_of, size_of, stops, take, to_plan
from sartor.run.fields import FIELDS, Origin, Run, Turn
from sartor.step.footprint import footprint, in_doubt, usable_bytes
from sartor.step.mechanisms.mechanism import Rows
from sartor.step.question import UNFUSED_GENERATIONS, padded_shape
from sartor.step.results import StepEstimate
from sartor.step.stages import ChunkLayers
from sartor.step.step import step
from sartor.step.trainers import trainer_named
from sartor.units import Array, BoolArray, FloatArray, distinct, format_bytes, format_seconds

MOVES = 0.1
"""Smallest relative change of the time for which a value that was not stated is named above the answer."""
Change = Callable[[TrainingJob], TrainingJob]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The price of a run with another plausible value of a field that was not stated, or of several."""

    values: Mapping[str, str]
    step_s: float
    log_sigma: float
    """Deviation of ln(seconds) of its step."""
    peak_bytes: float
    """Of the fullest device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """A run with its open fields, and its price with their other values."""

    run: Run
    alternatives: tuple[Alternative, ...] = ()
    spread: tuple[float, float] = (1.0, 1.0)
    """The shortest and the longest step of them, relative to the run's own."""
    turns: tuple[Turn, ...] = ()
    """Values that would turn whether it fits or, if it does, move its time by `MOVES`."""


def weighed(
    run: Run,
    shape: TransformerShape,
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    *,
    limit_bytes: float,
    closed: Container[str] = (),
    record: Callable[[str], Trainer] | None = None,
) -> Weighed:
    """A run's plan priced with every other plausible value of what neither the run nor ``closed`` (names of fields and
    switches) states; ``shape`` has the vocabulary as it is written, and ``limit_bytes`` is what a device may hold.
    ``record`` gives the trainer of a name; None: as in the launch files that sartor writes."""
    layers = [plan.stage_layers], np.zeros(1, np.int64)
    of_plan = (rows_of(plan), cluster, calibration, layers)
    fields, base, others = _prices(run, shape, job, *of_plan, closed, record)
    of_chips, reach = _of_chips(run, job, plan, cluster, calibration)
    if not fields:
        return Weighed(run=run, spread=reach, turns=of_chips)
    alternatives = tuple(other.alone for other in others if np.isfinite(other.step_s[0]))
    low, high = _spread(base, others)
    return Weighed(
        run=reduce(_with_field, fields, run),
        alternatives=alternatives,
        spread=(min(float(low[0]), reach[0]), max(float(high[0]), reach[1])),
        turns=(*_turns(base.alone, alternatives, fields, _judge(run, cluster, limit_bytes)), *of_chips),
    )


def spreads(
    run: Run,
    shape: TransformerShape,
    job: TrainingJob,
    rows: Rows,
    cluster: Cluster,
    calibration: Calibration | None,
    layers: ChunkLayers,
) -> tuple[Run, FloatArray, FloatArray]:
    """`weighed` for several plans (rows of axes): the run with what is open in one of them, and the shortest and the
    longest step of each relative to its own [plans]."""
    fields, base, others = _prices(run, shape, job, rows, cluster, calibration, layers)
    return reduce(_with_field, fields, run), *_spread(base, others if fields else ())


# -- the table -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenField:
    """A fact that was not stated, and the change of the job for every other plausible value."""

    name: str
    value: str
    others: Mapping[str, Change]
    where: BoolArray
    """The plans in which it could have another value."""
    place: str = ""
    """What states it, if no option of its own."""

    @property
    def settled_by(self) -> str:
        """``--framework megatron|nemo|torchtitan``, ``--fix deepep=off|on``."""
        words = "|".join((self.value, *self.others))
        return f"{self.place} {self.name}={words}" if self.place else f"{FIELDS[self.name].flag} {words}"


def open_fields(
    run: Run,
    shape: TransformerShape,
    job: TrainingJob,
    rows: Rows,
    gpu: Gpu,
    closed: Container[str] = (),
    record: Callable[[str], Trainer] | None = None,
    full: BoolArray | None = None,
) -> Iterator[_OpenField]:
    """The facts of a run that nothing states and that could have another value on some of its plans (rows of axes);
    switches that save memory only on plans that are too ``full``."""
    trainer, words, everywhere = job.trainer, settings(job), np.full(size_of(rows), fill_value=True)

    def is_open(name: str) -> bool:
        return name not in closed and not run.states(name)

    if is_open("framework") and "framework" in run and (names := run.facts["framework"].alternatives):
        others: dict[str, Change] = {
            name: _trainer(name, shape, run, record or partial(trainer_named, gpu=gpu)) for name in names
        }
        yield _OpenField(name="framework", value=run.get("framework"), others=others, where=everywhere)
    saving = () if full is None else trainer.saving
    for name in filter(is_open, (*trainer.varies, *saving)):
        where = SWITCHED[name].affects(job, rows)
        where = where & full if full is not None and name in saving else where
        if where.any():
            others = {word: _setting(name, word) for word in other_settings(job, name)}
            yield _OpenField(name=name, value=words[name], others=others, where=where, place="--fix")
    if sizes := run.facts["vocab_size"].alternatives if "vocab_size" in run else ():
        others, place = {str(size): _vocabulary(size) for size in sizes}, "the launch file:"
        value = str(run.get("vocab_size"))
        yield _OpenField(name="vocab_size", value=value, others=others, where=everywhere, place=place)
    if (where := rows["cp"] > 1).any() and not trainer.lockstep and is_open("context_parallel"):
        kinds = (kind for kind in ContextParallel if kind is not job.context_parallel)
        others = {kind.value: _of_job(context_parallel=kind) for kind in kinds}
        yield _OpenField(name="context_parallel", value=job.context_parallel.value, others=others, where=where)
    if job.document_len and is_open("document_len"):
        whole: dict[str, Change] = {"all": _of_job(document_len=0)}
        yield _OpenField(
            name="document_len", value=str(job.document_len), others=whole, where=everywhere, place="--fix"
        )
    if job.attention_kernel is AttentionKernel.FLASH and gpu.generation in UNFUSED_GENERATIONS and is_open("attention"):
        unfused: dict[str, Change] = {"unfused": _of_job(attention_kernel=AttentionKernel.UNFUSED)}
        yield _OpenField(name="attention", value="flash", others=unfused, where=everywhere)


def _trainer(name: str, shape: TransformerShape, run: Run, record: Callable[[str], Trainer]) -> Change:
    """The job under another trainer, as a question that names it has it."""

    def changed(job: TrainingJob) -> TrainingJob:
        trainer = record(name)
        kind = job.context_parallel if run.states("context_parallel") else trainer.usual_context_parallel
        trainer = replace(trainer, fused_kernels=trainer.fused_kernels and job.trainer.fused_kernels)
        changed = replace(job, shape=padded_shape(shape, trainer), trainer=trainer, context_parallel=kind)
        return with_switches(changed, run, ())[0]

    return changed


def _other_stages(run: Run, closed: Container[str] = ()) -> tuple[int, ...]:
    """ZeRO stages that another trainer may have instead of the plan's, the likeliest first."""
    stated = run.states("zero_stage") or "zero_stage" in closed
    return () if stated else AXES["zero_stage"].common or ()


def under_other_trainers(
    run: Run, shape: TransformerShape, held: HeldPlan, calibration: Calibration | None
) -> Iterator[tuple[str, HeldPlan]]:
    """The run's plan, priced, under each other plausible trainer that can run it; ``shape`` as in `weighed`."""
    for name in run.facts["framework"].alternatives if "framework" in run else ():
        for stage in (held.axes["zero_stage"], *_other_stages(run)):
            with suppress(InputError):
                job = _trainer(name, shape, run, partial(trainer_named, gpu=held.cluster.gpu))(held.job)
                if not broken(held.job, plan := held.price().plan) and broken(job, replace(plan, zero_stage=stage)):
                    continue
                trained = replace(held, job=job, axes={**held.axes, "zero_stage": stage}, searched=None)
                yield name, replace(trained, searched=trained.price(calibration))
                break


def _setting(name: str, word: str) -> Change:
    return lambda job: other_settings(job, name).get(word, job)


def _of_job(**changes: AttentionKernel | ContextParallel | int) -> Change:
    return lambda job: replace(job, **changes)  # type: ignore[arg-type]


def _vocabulary(size: int) -> Change:
    return lambda job: replace(job, shape=replace(job.shape, vocab_size=size))


def _with_field(run: Run, field: _OpenField) -> Run:
    if field.name not in run:
        run = run.with_(Origin.USUAL, "the trainer's users set it either way", **{field.name: field.value})
    return run.among(field.name, *field.others)


# -- prices --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _AlternativePrices:
    """What plans cost with other values of some fields [rows]; nan where such a run is not possible or not asked."""

    values: Mapping[str, str]
    step_s: FloatArray
    log_sigma: FloatArray
    peak_bytes: FloatArray

    @property
    def alone(self) -> Alternative:
        """Of a single plan."""
        figures = {name: float(getattr(self, name)[0]) for name in _FIGURES}
        return Alternative(values=self.values, **figures)


_FIGURES = ("step_s", "log_sigma", "peak_bytes")


def _prices(
    run: Run,
    shape: TransformerShape,
    job: TrainingJob,
    rows: Rows,
    cluster: Cluster,
    calibration: Calibration | None,
    layers: ChunkLayers,
    closed: Container[str] = (),
    record: Callable[[str], Trainer] | None = None,
) -> tuple[tuple[_OpenField, ...], _AlternativePrices, tuple[_AlternativePrices, ...]]:
    """The open fields of plans, the plans' own prices, and those with each other value and in the extreme corners."""
    full = None
    if job.trainer.saving:
        full = np.asarray(footprint(job, to_plan(job, rows), cluster, layers).device_bytes > usable_bytes(cluster))
    fields = tuple(open_fields(run, shape, job, rows, cluster.gpu, closed, record, full))
    price = _Pricer(
        job=job,
        rows=rows,
        layers=layers,
        cluster=cluster,
        calibration=calibration,
        zero_stages=_other_stages(run, closed),
        stopped=stops(job, rows),
    )
    base = price({}, (), np.full(size_of(rows), bool(fields)))
    alone = [price({f.name: word}, [change], f.where) for f in fields for word, change in f.others.items()]
    return fields, base, (*alone, *_corners(fields, alone, base, price))


def _spread(base: _AlternativePrices, others: Sequence[_AlternativePrices]) -> tuple[FloatArray, FloatArray]:
    """The shortest and the longest step relative to the plan's own."""
    ratios = [np.ones_like(base.step_s), *(other.step_s / base.step_s for other in others)]
    return np.fmin.reduce(ratios), np.fmax.reduce(ratios)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pricer:
    """Prices plans under changes of their job; what changes share is priced once."""

    job: TrainingJob
    rows: Rows
    layers: ChunkLayers
    cluster: Cluster
    calibration: Calibration | None
    zero_stages: tuple[int, ...]
    """Those that another trainer may have instead of the plan's, the likeliest first; none if it is stated."""
    stopped: Mapping[str, BoolArray]
    """Why plans cannot run under the job itself."""

    def __call__(self, values: Mapping[str, str], changes: Iterable[Change], where: BoolArray) -> _AlternativePrices:
        """Step and memory of the plans ``where`` asked with these changes."""
        prices = _AlternativePrices(values=values, **{name: np.full(len(where), np.nan) for name in _FIGURES})
        try:
            job = reduce(lambda job, change: change(job), changes, self.job)
        except InputError:  # the trainer has no such switch
            return prices
        for stage in (None, *self.zero_stages):
            if not where.any():
                break
            rows = self.rows if stage is None else self.rows | {"zero_stage": np.full(len(where), stage)}
            stopped = [new & ~self.stopped.get(reason, np.False_) for reason, new in stops(job, rows).items()]
            runs = where & ~np.any(stopped, axis=0)
            where = where & ~runs
            if runs.any():
                self._enter(prices, job, rows, runs)
        return prices

    def _enter(self, prices: _AlternativePrices, job: TrainingJob, rows: Rows, runs: BoolArray) -> None:
        plans, layers = to_plan(job, take(rows, runs)), (self.layers[0], self.layers[1][runs])
        estimate = step(job, plans, self.cluster, self.calibration, layers=layers)
        prices.step_s[runs], prices.log_sigma[runs] = estimate.step_s, estimate.log_sigma
        prices.peak_bytes[runs] = footprint(job, plans, self.cluster, layers).device_bytes


def _corners(
    fields: Iterable[_OpenField], alone: Sequence[_AlternativePrices], base: _AlternativePrices, price: _Pricer
) -> Iterator[_AlternativePrices]:
    """The plans with all values together that alone make them faster, slower, leaner or fuller; under their own
    trainer, since another one has switches of its own."""
    changes = {field.name: field.others for field in fields if field.name != "framework"}
    names = [next(iter(other.values)) for other in alone]
    corners = dict[frozenset[int], tuple[list[int], BoolArray]]()
    for figure, sign in (("step_s", 1), ("step_s", -1), ("peak_bytes", 1), ("peak_bytes", -1)) if changes else ():
        figures = [sign * getattr(other, figure) for other in alone]
        chosen = _improving(figures, names, [*changes], sign * getattr(base, figure))
        for corner in distinct(chosen, axis=0):
            where = np.all(chosen == corner, axis=1)
            members = sorted(corner[corner >= 0].tolist(), key=lambda i: figures[i][int(np.argmax(where))])[::-1]
            if len(members) > 1:
                members, before = corners.get(frozenset(members), (members, np.zeros_like(where)))
                corners[frozenset(members)] = members, where | before
    for members, where in corners.values():
        values = {name: word for i in members for name, word in alone[i].values.items()}
        yield price(values, [changes[name][word] for name, word in values.items()], where)


def _improving(figures: Sequence[FloatArray], names: Sequence[str], wanted: Sequence[str], least: FloatArray) -> Array:
    """The alternative of each of the ``wanted`` fields that has the least figure, if one is below the plan's own
    [plans, fields]; -1 if none. ``figures`` of the alternatives, and the ``names`` of their fields."""
    chosen = np.full((len(least), len(wanted)), -1)
    lowest = np.repeat(least[:, None], len(wanted), axis=1)
    for i, (name, figure) in enumerate(zip(names, figures, strict=True)):
        if name in wanted:
            column = wanted.index(name)
            lower = figure < lowest[:, column]
            chosen[lower, column], lowest[lower, column] = i, figure[lower]
    return chosen


# -- verdicts ------------------------------------------------------------------------------------------------------


def _turns(
    base: Alternative,
    alternatives: Sequence[Alternative],
    open_fields: Sequence[_OpenField],
    fit_of: Callable[[Alternative], int],
) -> Iterator[Turn]:
    """Values that turn whether the plan fits, or may fit: those that do alone, else the corner that does. If it fits,
    also those that move its time, or its memory by `FULLER`."""
    fields, of_base = {field.name: field for field in open_fields}, fit_of(base)
    fits, worse = of_base == 0, 1 if of_base == 0 else -1
    judged = [(other, fit_of(other)) for other in alternatives]
    turned = [(other, fit) for other, fit in judged if worse * fit > worse * of_base]
    for alternative, fit in [pair for pair in turned if len(pair[0].values) == 1] or turned[:1]:
        figures = {"peak_bytes": alternative.peak_bytes, "step_s": alternative.step_s}
        verdict = f"{FIT_WORDS[fit]}, {format_bytes(alternative.peak_bytes)}"
        names, value = ", ".join(alternative.values), _named(alternative.values)
        turn = Turn(field=names, value=value, verdict=verdict, figures=figures)
        yield _settled(turn, alternative, fields)
    for alternative in alternatives if fits else ():
        for (name, word), *more in [list(alternative.values.items())]:
            moved = () if more else turn_of_time(name, word, alternative.step_s, base.step_s)
            if not more and fit_of(alternative) == 0 and alternative.peak_bytes > FULLER * base.peak_bytes:
                verdict = f"fits, but needs {format_bytes(alternative.peak_bytes)}"
                figures = {"fuller_bytes": alternative.peak_bytes}
                moved = [Turn(field=name, value=word, verdict=verdict, figures=figures), *moved]
            for turn in moved:
                yield _settled(turn, alternative, fields)


FULLER = 1.5
"""Memory with another value of what is open, relative to the plan's own, from which it is said though both fit."""
FIT_WORDS = ("fits", "may fit", "does not fit")
"""What is said of a peak, the one with the most memory free first."""


def _judge(run: Run, cluster: Cluster, limit_bytes: float) -> Callable[[Alternative], int]:
    """What is said of an alternative's peak, as an index into `FIT_WORDS`; nothing that exceeds a stated share of
    memory may fit."""

    def fit_of(priced: Alternative) -> int:
        if priced.peak_bytes <= limit_bytes:
            return 0
        return 1 if not run.own_margin and in_doubt(priced.peak_bytes, cluster) else 2

    return fit_of


def _settled(turn: Turn, alternative: Alternative, fields: Mapping[str, _OpenField]) -> Turn:
    """The turn with the values that were taken, and with what states them."""
    turned = [fields[name] for name in alternative.values]
    usual = _named({field.name: field.value for field in turned})
    return replace(turn, usual=usual, settled_by="; ".join(field.settled_by for field in turned))


def _named(values: Mapping[str, str]) -> str:
    """The value of one field, or of several each with its name."""
    named = ", ".join(f"{name}={value}" for name, value in values.items())
    return named if len(values) > 1 else "".join(values.values())


def turn_of_time(name: str, value: object, seconds: float, time_s: float, compared: str = "") -> list[Turn]:
    """A value of a field that was not stated, if it changes the time by `MOVES`."""
    if abs(seconds / time_s - 1) < MOVES:
        return []
    verdict = f"{format_seconds(seconds)} instead of {format_seconds(time_s)}{compared}"
    return [Turn(field=name, value=value, verdict=verdict, figures={"time_s": seconds, "ratio": seconds / time_s})]


# -- a user's own chip ---------------------------------------------------------------------------------------------


def template_words(*gpus: Gpu) -> tuple[str, ...]:
    """``my_chip: tensor_core_sram_kib=32, ... (defaults: its file does not set them)``, for chips whose file leaves
    out keys."""
    return tuple(
        f"{gpu.name}: {', '.join(_values(gpu))} (defaults: its file does not set them)"
        for gpu in gpus
        if gpu.template_keys
    )


def _values(gpu: Gpu) -> Iterator[str]:
    assert gpu.accelerator is not None
    for key in gpu.template_keys:
        value = template_value(gpu.accelerator, key)
        yield f"{key}={value if isinstance(value, str) else f'{value:g}'}"


def template_turns(gpu: Gpu, time_s: float, time_on: Callable[[Gpu], float]) -> tuple[Turn, ...]:
    """Other plausible values of keys that a chip's file leaves out and that change the time by `MOVES`, the largest
    change first; ``time_on`` gives the seconds on another chip. A plausible value is as far from its default as a chip
    of the catalogue sets it: the middle one of them, or the farthest if that alone changes the time."""
    chip, keys = gpu.accelerator, gpu.template_keys
    turns: list[Turn] = []
    for key in keys:
        if chip is None or (key == "num_links" and "link_gb_per_s" in keys):
            continue  # both are one rate
        default, ratios = template_value(chip, key), ratios_to_default(key)
        if isinstance(default, str) or not ratios:
            continue
        for ratio, like in (ratios[len(ratios) // 2], ratios[-1]):
            value = float(f"{default * ratio:g}")
            seconds = time_on(replace(datasheet_of(with_key(chip, key, value)), template_keys=keys))
            compared = f" (default: {default:g}; {like} has {ratio:.3g} times its default)"
            turned = tuple(turn_of_time(key, int(value) if value == int(value) else value, seconds, time_s, compared))
            if turned:
                turns += turned
                break
    return tuple(sorted(turns, key=lambda turn: -abs(turn.figures["ratio"] - 1)))


def template_corners(gpu: Gpu, turns: Sequence[Turn]) -> tuple[Gpu, ...]:
    """The chip with every key of its `template_turns` as fast as any chip of the catalogue sets it, relative to the
    default, and as slow: between them lies what the file may mean."""
    if gpu.accelerator is None or not turns:
        return ()
    slow = fast = gpu.accelerator
    for turn in turns:
        default = float(template_value(gpu.accelerator, turn.field))
        values = sorted(default * ratio for ratio in (1.0, *(ratio for ratio, _ in ratios_to_default(turn.field))))
        more_is_faster = (turn.figures["ratio"] < 1) == (float(turn.value) > default)
        ends = values if more_is_faster else values[::-1]
        slow, fast = with_key(slow, turn.field, ends[0]), with_key(fast, turn.field, ends[-1])
    return tuple(replace(datasheet_of(chip), template_keys=gpu.template_keys) for chip in (fast, slow))


def with_template_turns(answer: ModelEstimate, price: Callable[[Question], ModelEstimate]) -> ModelEstimate:
    """A pass with the `template_turns` of its chip, and intervals that hold those of the corners; ``price`` answers a
    question. A training run has them already (`weighed`)."""
    question = answer.question
    if question.held is not None or not question.gpu.template_keys:
        return answer

    def price_on(gpu: Gpu) -> ModelEstimate:
        return price(replace(question, gpu=gpu))

    turns = template_turns(question.gpu, float(answer.time_s), lambda gpu: float(price_on(gpu).time_s))
    corners = [price_on(gpu).microbatch for gpu in template_corners(question.gpu, turns)]
    return replace(
        answer,
        question=replace(question, depends_on=(*question.depends_on, *turns)),
        microbatch=covering(answer.microbatch, corners, intervals=True),
    )


def _of_chips(
    run: Run, job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Calibration | None
) -> tuple[tuple[Turn, ...], tuple[float, float]]:
    """The `template_turns` of a cluster's chips, with the plan unchanged, and the ends of the intervals at their
    corners relative to the step."""

    def step_on(gpu: Gpu, chip: Gpu) -> StepEstimate:
        there = _with_chip(cluster, gpu, chip, int(plan.num_devices), stated=run.states("cluster"))
        return step(job, plan, there, calibration)

    def step_s_on(gpu: Gpu, chip: Gpu) -> float:
        return float(step_on(gpu, chip).step_s)

    turns, ends = list[Turn](), [1.0]
    for gpu in (gpu for gpu in cluster.gpus if gpu.template_keys):
        step_s = step_s_on(gpu, gpu)
        of_chip = template_turns(gpu, step_s, partial(step_s_on, gpu))
        turns += of_chip
        corners = [step_on(gpu, chip) for chip in template_corners(gpu, of_chip)]
        intervals = [interval_80(there.step_s, there.log_sigma, there.step_s * there.mfu) for there in corners]
        ends += [float(end) / step_s for interval in intervals for end in interval]
    return tuple(turns), (min(ends), max(ends))


def _with_chip(cluster: Cluster, gpu: Gpu, chip: Gpu, num_devices: int, *, stated: bool) -> Cluster:
    """The cluster with ``chip`` in place of ``gpu``; a network that was not stated is the other chip's own."""
    if not stated:
        return usual_cluster(chip).reached(num_devices)
    pools = tuple(replace(pool, gpu=chip) if pool.gpu == gpu else pool for pool in cluster.others)
    return replace(cluster, gpu=chip if cluster.gpu == gpu else cluster.gpu, others=pools)
