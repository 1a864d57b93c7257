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

from sartor.answers.estimate import ModelEstimate, Question
from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.accelerator_catalog import datasheet_of, ratio_to_default, template_value, with_key
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import usual_cluster
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.model.plan import AXES
from sartor.model.shape import TransformerShape
from sartor.model.training import Trainer, TrainingJob, TrainingPlan
from sartor.model.workload import AttentionKernel, ContextParallel
from sartor.plans.fixed import SWITCHED, other_settings, settings, with_switches
from sartor.plans.search import HeldPlan
from sartor.plans.space import axes_of, broken
from sartor.run.fields import FIELDS
from sartor.run.run import Origin, Run, Turn
from sartor.step.footprint import footprint
from sartor.step.question import padded_shape
from sartor.step.results import PEAK_ERROR, near_limit
from sartor.step.step import step
from sartor.step.trainers import trainer_named
from sartor.units import format_bytes, format_seconds

MOVES = 0.1
"""Smallest relative change of the time for which a value that was not stated is named above the answer."""
UNFUSED_GENERATIONS = ("pascal", "volta")
"""GPUs for which FlashAttention has no kernels: it begins with Turing (its README, version 1; recalled)."""

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
    fields = tuple(open_fields(run, shape, job, plan, cluster.gpu, closed, record))
    if not fields:
        return Weighed(run=run)
    price = _Pricer(
        job=job,
        plan=plan,
        cluster=cluster,
        calibration=calibration,
        zero_stages=(int(plan.zero_stage), *_other_stages(run, closed)),
        broken=frozenset(broken(job, plan)),
    )
    base = price({}, ())
    assert base is not None
    alone = [priced for f in fields for word, change in f.others.items() if (priced := price({f.name: word}, [change]))]
    alternatives = (*alone, *_corners(fields, alone, base, price))
    ratios = [alternative.step_s / base.step_s for alternative in (base, *alternatives)]
    return Weighed(
        run=reduce(_with_field, fields, run),
        alternatives=alternatives,
        spread=(min(ratios), max(ratios)),
        turns=tuple(_turns(base, alternatives, limit_bytes, {field.name: field for field in fields})),
    )


# -- the table -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenField:
    """A fact that was not stated, and the change of the job for every other plausible value."""

    name: str
    value: str
    others: Mapping[str, Change]
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
    plan: TrainingPlan,
    gpu: Gpu,
    closed: Container[str] = (),
    record: Callable[[str], Trainer] | None = None,
) -> Iterator[_OpenField]:
    """The facts of a run on a plan that nothing states and that could have another value there."""
    trainer, axes, words = job.trainer, axes_of(plan), settings(job)

    def is_open(name: str) -> bool:
        return name not in closed and not run.states(name)

    if is_open("framework") and "framework" in run and (names := run.facts["framework"].alternatives):
        others: dict[str, Change] = {
            name: _trainer(name, shape, run, record or partial(trainer_named, gpu=gpu)) for name in names
        }
        yield _OpenField(name="framework", value=run.get("framework"), others=others)
    for name in filter(is_open, trainer.varies):
        if SWITCHED[name].affects(job, axes):
            others = {word: _setting(name, word) for word in other_settings(job, name)}
            yield _OpenField(name=name, value=words[name], others=others, place="--fix")
    for variant in trainer.variants:
        if is_open(variant.name) and axes["zero_stage"] >= variant.least_zero:
            others = {variant.word: _habits(variant.changes)}
            yield _OpenField(name=variant.name, value=variant.usual, others=others, place="the trainer's file:")
    if sizes := run.facts["vocab_size"].alternatives if "vocab_size" in run else ():
        others = {str(size): _vocabulary(size) for size in sizes}
        yield _OpenField(name="vocab_size", value=str(run.get("vocab_size")), others=others, place="the launch file:")
    if axes["cp"] > 1 and not trainer.lockstep and is_open("context_parallel"):
        kinds = (kind for kind in ContextParallel if kind is not job.context_parallel)
        others = {kind.value: _of_job(context_parallel=kind) for kind in kinds}
        yield _OpenField(name="context_parallel", value=job.context_parallel.value, others=others)
    if job.attention_kernel is AttentionKernel.FLASH and gpu.generation in UNFUSED_GENERATIONS and is_open("attention"):
        unfused: dict[str, Change] = {"unfused": _of_job(attention_kernel=AttentionKernel.UNFUSED)}
        yield _OpenField(name="attention", value="flash", others=unfused)


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


def _of_job(**changes: AttentionKernel | ContextParallel) -> Change:
    return lambda job: replace(job, **changes)  # type: ignore[arg-type]


def _vocabulary(size: int) -> Change:
    return lambda job: replace(job, shape=replace(job.shape, vocab_size=size))


def _habits(changes: JsonMap) -> Change:
    return lambda job: replace(job, trainer=replace(job.trainer, memory=replace(job.trainer.memory, **changes)))


def _with_field(run: Run, field: _OpenField) -> Run:
    if field.name not in run:
        run = run.with_(Origin.USUAL, "the trainer's users set it either way", **{field.name: field.value})
    return run.among(field.name, *field.others)


# -- prices --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pricer:
    """Prices a plan under changes of its job; what changes share is priced once."""

    job: TrainingJob
    plan: TrainingPlan
    cluster: Cluster
    calibration: Calibration | None
    zero_stages: tuple[int, ...]
    """The plan's, and if nothing states it those that another trainer may have instead, the likeliest first."""
    broken: frozenset[str]
    """Why the plan cannot run under the job itself."""

    def __call__(self, values: Mapping[str, str], changes: Iterable[Change]) -> Alternative | None:
        """The plan's step and memory with these changes; None where such a run is not possible."""
        try:
            job = reduce(lambda job, change: change(job), changes, self.job)
        except InputError:  # the trainer has no such switch
            return None
        for stage in self.zero_stages:
            plan = replace(self.plan, zero_stage=stage)
            if not self.broken.issuperset(broken(job, plan)):
                continue
            try:
                estimate = step(job, plan, self.cluster, self.calibration)
            except InputError:
                return None
            peak_bytes = float(footprint(job, plan, self.cluster).device_bytes)
            log_sigma = float(estimate.log_sigma)
            return Alternative(values=values, step_s=float(estimate.step_s), log_sigma=log_sigma, peak_bytes=peak_bytes)
        return None


def _corners(
    fields: Iterable[_OpenField], alone: Sequence[Alternative], base: Alternative, price: _Pricer
) -> Iterator[Alternative]:
    """The run with all values together that alone make it faster, slower, leaner or fuller; under its own trainer,
    since another one has switches of its own."""
    changes = {field.name: field.others for field in fields if field.name != "framework"}
    corners = list[dict[str, str]]()
    for figure, sign in (("step_s", 1), ("step_s", -1), ("peak_bytes", 1), ("peak_bytes", -1)):
        corner: dict[str, str] = {}
        for other in sorted(alone, key=lambda other: sign * float(getattr(other, figure))):
            if sign * getattr(other, figure) < sign * getattr(base, figure) and other.values.keys() <= changes.keys():
                corner = {**other.values, **corner}
        if len(corner) > 1 and corner not in corners:
            corners.append(corner)
    for corner in corners:
        if priced := price(corner, [changes[name][word] for name, word in corner.items()]):
            yield priced


# -- verdicts ------------------------------------------------------------------------------------------------------


def _turns(
    base: Alternative, alternatives: Sequence[Alternative], limit_bytes: float, fields: Mapping[str, _OpenField]
) -> Iterator[Turn]:
    """Values that turn whether the plan fits, or may fit: those that do alone, else the corner that does. If it fits,
    also those that move its time."""
    fits = base.peak_bytes <= limit_bytes
    reach_bytes = limit_bytes if fits or near_limit(base.peak_bytes, limit_bytes) else (1 + PEAK_ERROR) * limit_bytes
    turned = [alternative for alternative in alternatives if (alternative.peak_bytes <= reach_bytes) != fits]
    for alternative in [alternative for alternative in turned if len(alternative.values) == 1] or turned[:1]:
        word = "does not fit" if fits else "fits" if alternative.peak_bytes <= limit_bytes else "may fit"
        figures = {"peak_bytes": alternative.peak_bytes, "step_s": alternative.step_s}
        verdict = f"{word}, {format_bytes(alternative.peak_bytes)}"
        names, words = " and ".join(alternative.values), " and ".join(alternative.values.values())
        turn = Turn(field=names, value=words, verdict=verdict, figures=figures)
        yield _settled(turn, alternative, fields)
    for alternative in alternatives if fits else ():
        for (name, word), *more in [list(alternative.values.items())]:
            for turn in () if more else turn_of_time(name, word, alternative.step_s, base.step_s):
                yield _settled(turn, alternative, fields)


def _settled(turn: Turn, alternative: Alternative, fields: Mapping[str, _OpenField]) -> Turn:
    """The turn with the values that were taken, and with what states them."""
    turned = [fields[name] for name in alternative.values]
    usual = " and ".join(field.value for field in turned)
    return replace(turn, usual=usual, settled_by="; ".join(field.settled_by for field in turned))


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


def with_template_turns(
    question: Question, answer: ModelEstimate, price: Callable[[Question], ModelEstimate]
) -> Question:
    """The question of an answer with other plausible values of keys that the chip's file leaves out and that change
    the time by `MOVES`, the largest change first; ``price`` answers a question. A plausible value is as far from its
    default as a chip of the catalogue sets it."""
    chip, keys, time_s = question.gpu.accelerator, question.gpu.template_keys, float(answer.time_s)
    turns: list[Turn] = []
    for key in keys:
        if chip is None or (key == "num_links" and "link_gb_per_s" in keys):
            continue  # both are one rate
        default = template_value(chip, key)
        if isinstance(default, str):
            continue
        ratio, like = ratio_to_default(key)
        value = default * ratio
        changed = replace(datasheet_of(with_key(chip, key, value)), template_keys=keys)
        seconds = float(price(_on(question, changed)).time_s)
        compared = f" (default: {default:g}; {like} has {ratio:.3g} times its default)"
        turns += turn_of_time(key, int(value) if value == int(value) else value, seconds, time_s, compared)
    turns.sort(key=lambda turn: -abs(turn.figures["ratio"] - 1))
    return replace(question, depends_on=(*question.depends_on, *turns))


def _on(question: Question, gpu: Gpu) -> Question:
    """The question on another chip, with the plan unchanged; a network that was assumed is the other chip's own."""
    held = question.held
    if held is None:
        return replace(question, gpu=gpu)
    cluster = held.cluster
    if question.run.states("cluster"):
        pools = tuple(replace(pool, gpu=gpu) if pool.gpu == question.gpu else pool for pool in cluster.others)
        cluster = replace(cluster, gpu=gpu if cluster.gpu == question.gpu else cluster.gpu, others=pools)
    else:
        cluster = usual_cluster(gpu).reached(held.num_devices)
    return replace(question, gpu=gpu, held=replace(held, cluster=cluster, searched=None))
