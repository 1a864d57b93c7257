"""The job and plan behind a log, from its own dump of arguments, a launch file, or its facts and the caller's."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sartor.api.models import Model, read
from sartor.api.questions import checked_words, with_margin
from sartor.api.words import GpuLike, device_counts
from sartor.errors import NOT_GIVEN, InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import usual_cluster
from sartor.model.counts import LENGTHS, SAME, check_countable, counted
from sartor.model.plan import AXES, SEARCHED
from sartor.model.training import Recompute
from sartor.model.workload import usual_seq_len
from sartor.plans.fixed import SWITCHED, with_switches
from sartor.run.fields import FIELDS, Origin, Run, RunOnDevices, arguments_unsaid
from sartor.units import divisors

if TYPE_CHECKING:
    from sartor.answers.estimate import Question
    from sartor.ask.alternatives import Weighed
    from sartor.cost.correction.calibration import Calibration
    from sartor.hardware.gpu import Gpu
    from sartor.launch.plan import LaunchReading
    from sartor.model.counts import FlopConvention
    from sartor.model.shape import TransformerShape
    from sartor.model.training import TrainingJob, TrainingPlan
    from sartor.model.workload import ModelReading
    from sartor.plans.result import PricedPlan
    from sartor.traces.logs.run_log import RunLog

_OLD = re.compile(r"deepspeed|@20(1\d|2[0-2])")
"""Releases of Megatron, and its fork, that behave differently from what their arguments suggest."""
PLANNED = tuple(name for name in AXES if name != "dp")
"""Axes of a plan that a log or ``fix`` may specify."""
SIZES = ("global_batch_size", "seq_len", "num_devices")
LAUNCHED = frozenset({*PLANNED, "dtype", "dp_overlap", "tp_overlap", "fused_loss"})
"""Facts that a complete launch leaves in no doubt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedPlan:
    """A job and its plan, which facts were given, and what was assumed."""

    job: TrainingJob
    plan: TrainingPlan
    run: Run
    """Every fact of both, with its origin."""
    said: Mapping[str, int | str]
    launched: frozenset[str] = frozenset()
    """Facts in no doubt because a launch settles them, if only by its trainer's defaults."""
    assumptions: tuple[str, ...]

    @property
    def stated(self) -> frozenset[str]:
        """Facts that are not assumed."""
        return frozenset(self.said) | self.launched


def best_plan(found: LoggedPlan, cluster: Cluster, calibration: Calibration | None) -> PricedPlan | None:
    """The best plan for the same job on the same number of devices; None if none fits."""
    from sartor.plans.search import search_plans

    devices = int(found.plan.num_devices)
    job = replace(found.job, trainer=replace(found.job.trainer, checkpoints_operators=False))
    return search_plans(job, cluster, devices, top=1, calibration=calibration, explain=False).best


class LoggedOptions(RunOnDevices, total=False):
    """What a log or trace does not say of its run: ``launch`` is its launch file, and ``best_plan`` False skips the
    search for the best plan."""

    model: Model | None
    gpu: GpuLike | None
    launch: str | Path | None
    best_plan: bool


OF_JOB = ("framework", "optimizer", "attention", "context_parallel", "routing_skew")
"""Options of the job that no log states."""
STATED = frozenset({*SIZES, "dtype", *OF_JOB, *AXES, *SWITCHED})
"""Facts that options state of a logged run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPlan:
    """A run and everything given about its plan."""

    run: RunLog
    """With what is stated about it."""
    log: RunLog
    """As the log or trace has it."""
    path: str
    reading: ModelReading | None
    cluster: Cluster
    stated: Run
    launch: str | Path | None
    headroom: float | None

    @classmethod
    def of(cls, log: RunLog, path: str | Path, cluster: Cluster, options: LoggedOptions) -> AskedPlan:
        """A run on its cluster, with what is stated about it. Raises ``InputError``."""
        model, words = options.get("model"), checked_words({n: v for n, v in options.items() if n in FIELDS})
        sizes = {name: words.get(name) for name in (*SIZES, "dtype")}
        stated = Run.stated(**{name: value for name, value in words.items() if name in STATED})
        free = with_margin(Run.stated(**words)).get("headroom")
        return cls(
            run=log.knowing(**{name: stated.get(name) for name in sizes}),
            log=log,
            path=str(path),
            reading=None if model is None else read(model, options.get("set")),
            cluster=cluster,
            stated=stated,
            launch=options.get("launch"),
            headroom=free,
        )

    @property
    def contradictions(self) -> Iterator[str]:
        """A sentence for everything stated that the log or trace says otherwise."""
        where = "trace" if self.log.title == "trace" else "log"
        for name in self.stated:
            fact, value = self.log.facts.get(name), self.stated.get(name)
            if fact is not None and str(fact).lower() != str(value).lower():
                yield f"the {where} says {name}={fact}; {value} is given, and counts"

    @property
    def shape(self) -> TransformerShape | None:
        return None if self.reading is None else self.reading.shape

    @property
    def has_launch(self) -> bool:
        from sartor.launch.megatron_dialects import whole_dump

        return self.launch is not None or whole_dump(self.run.arguments)

    def launched(self) -> LoggedPlan:
        """The plan of a launch file, or of the log's own dump of arguments."""
        from sartor.launch.files import read_launch
        from sartor.launch.megatron_dialects import read_dump
        from sartor.launch.options import options_of, origin_words, with_origins

        devices = self.run.number("num_devices") or 0
        if self.launch is None:
            batch = self.log.number("global_batch_size")  # that of the steps, which ramp-up may keep below the dump's
            ran = {} if batch is None else {"global_batch_size": str(batch)}
            options = options_of(self.stated, devices, self.shape)
            reading = replace(read_dump({**self.run.arguments, **ran}, options), open_fields={})
        else:
            reading = read_launch(self.launch, num_devices=devices, shape=self.shape, run=self.stated)
        source = "the log" if self.launch is None else Path(self.launch).name
        _check_model(self.shape, reading, self.path if self.launch is None else str(self.launch))
        job, plan, assumptions = self._with_stated(reading)
        notes = () if self.reading is None else (*self.reading.assumptions, *self.reading.notes)
        run = with_origins(self._with_log("num_devices", "seq_len"), reading, job, plan, source)
        return LoggedPlan(
            job=job,
            plan=plan,
            run=run,
            said={**self.run.facts, "framework": job.trainer.name},
            launched=LAUNCHED - reading.assumed.keys(),
            assumptions=(*notes, *assumptions, *origin_words(run, job, assumptions)),
        )

    def _with_log(self, *names: str) -> Run:
        """What is stated of the run, and these facts of the log where it is not."""
        facts = {name: self.log.facts[name] for name in names if name in self.log.facts and name not in self.stated}
        return self.stated.with_(Origin.STATED, "the log", **facts)

    def _with_stated(self, reading: LaunchReading) -> tuple[TrainingJob, TrainingPlan, tuple[str, ...]]:
        """The launch's job and plan with what is stated beside it, under the trainer release that the log shows."""
        from sartor.launch.options import with_options
        from sartor.step.trainers import trainer_named

        stated = self._with_log("seq_len")
        job, plan, assumptions = with_options(reading, stated, shape=self.shape, gpus=self.cluster.gpus)
        if "framework" in stated or self.launch is not None or not _OLD.search(self.run.trainer):
            return job, plan, assumptions
        trainer = trainer_named(self.run.trainer, self.cluster.gpu)
        overlaps = replace(trainer, dp_overlap=job.trainer.dp_overlap, tp_overlap=job.trainer.tp_overlap)
        return with_switches(replace(job, trainer=overlaps), stated, self.cluster.gpus)[0], plan, assumptions

    def assembled(self) -> LoggedPlan:
        """The plan from the log's facts and the caller's, with a typical run's values for the rest."""
        from sartor.plans.fixed import named_values
        from sartor.step.question import training_job

        if self.reading is None:
            raise InputError(
                "model", NOT_GIVEN, f"{self.path} does not say the model's sizes; name the model", "llama-3-8b"
            )
        _check_sizes(self.reading.shape, self.run.arguments, self.path)
        facts: dict[str, int | str] = {**self.run.facts, **self.stated.of_origin(Origin.STATED)}
        fixed = named_values({name: value for name, value in facts.items() if name in PLANNED})
        devices = self._devices()
        seq_len, conventions = self._seq_len()
        run = self.run.knowing(seq_len=seq_len, num_devices=devices)
        batch = self._batch(run, seq_len, devices)
        word = facts.get("dtype")
        job, notes = training_job(
            self.reading.shape,
            self.cluster.gpus,
            global_batch_size=batch,
            seq_len=seq_len,
            dtype=None if word is None else str(word),
            **{"framework": self.run.trainer} | {name: self.stated.get(name) for name in OF_JOB if name in self.stated},
        )
        job, switched = with_switches(job, self.stated, self.cluster.gpus)
        try:
            job, plan, more = _plan(job, self.cluster, devices, fixed, self.headroom, str(facts.get("recompute", "")))
        except InputError as error:
            raise self._of_length(error, job, conventions) from None
        if int(self.stated.get("dp", plan.dims.dp)) != plan.dims.dp:
            must = f"tp x pp x cp leaves {int(plan.dims.dp)} of {devices} devices"
            raise InputError("fix dp", self.stated.get("dp"), must, str(int(plan.dims.dp)))
        return LoggedPlan(
            job=job,
            plan=plan,
            run=self._assembled_run(job, plan, conventions),
            said={**facts, "num_devices": devices, "global_batch_size": batch, **conventions},
            assumptions=(*self.reading.assumptions, *self.reading.notes, *notes, *switched, *more),
        )

    def _assembled_run(self, job: TrainingJob, plan: TrainingPlan, conventions: Mapping[str, int | str]) -> Run:
        """Every fact of job and plan: from options and the log, by rules, else those of a typical run."""
        from sartor.launch.options import DEGREES, facts_of

        facts = facts_of(job, plan)
        rules = {"num_devices": "the cluster's", "global_batch_size": "tokens per step / seq_len", "dp": DEGREES}
        rules |= dict.fromkeys(conventions, "the log's TFLOP/s")
        run = self._with_log(*facts)
        for name, value in facts.items():
            if name not in run:
                origin = Origin.IMPLIED if name in rules else Origin.USUAL
                run = run.with_(origin, rules.get(name, "a typical run's value"), **{name: value})
        return run

    def _of_length(self, error: InputError, job: TrainingJob, conventions: Mapping[str, int | str]) -> InputError:
        """An error about a batch that nobody stated, as one about the length from which it was counted."""
        batch, length = job.global_batch_size, job.seq_len
        if error.field != "global_batch_size" or "global_batch_size" in self.run.facts:
            return error
        counted = "fits the log's TFLOP/s" if "seq_len" in conventions else "is assumed"
        must = f"{counted}, but {batch * length:,} tokens per step are then {batch} sequences, and that {error.must}"
        shorter = batch * length // int(error.nearest)
        return InputError("seq_len", length, f"{must}: state it", str(shorter))

    def _devices(self) -> int:
        said = self.run.number("num_devices") or self.cluster.total_devices
        if not said:
            raise InputError(
                "num_devices", NOT_GIVEN, "the log does not say how many GPUs the job had; give the number", "64"
            )
        return said

    def _seq_len(self) -> tuple[int, dict[str, int | str]]:
        """The given length; else the one that explains the trainer's TFLOP/s; else the model's usual one."""
        shape = self.reading.shape if self.reading else None
        assert shape is not None
        said = self.run.facts.get("seq_len")
        if isinstance(said, int):
            return said, {}
        found = conventions_of(self.run, shape, None, self.run.number("num_devices"))
        return (found[0].seq_len, {"seq_len": found[0].seq_len}) if found else (usual_seq_len(shape), {})

    def _batch(self, run: RunLog, seq_len: int, devices: int) -> int:
        said = run.facts.get("global_batch_size")
        if isinstance(said, int):
            return said
        tokens = run.tokens_per_step
        if tokens is None and run.device_tokens_per_step is not None:
            tokens = run.device_tokens_per_step * devices
        if tokens is None:
            raise InputError(
                "global_batch_size",
                NOT_GIVEN,
                "the log does not say how many sequences a step has; give the number",
                "256",
            )
        return max(round(tokens / seq_len), 1)


TOKENS_AT_ONCE = 8192
"""Usual tokens of a microbatch, as in the sweeps of arXiv 2401.14489."""


def _plan(
    job: TrainingJob,
    cluster: Cluster,
    devices: int,
    fixed: Mapping[str, int],
    headroom: float | None,
    recompute: str,
) -> tuple[TrainingJob, TrainingPlan, tuple[str, ...]]:
    """The plan with the given values, and a typical run's values for the rest. Raises ``InputError``."""
    from sartor.plans.search import HeldPlan
    from sartor.plans.space import plan_at

    axes = _usual_axes(job, devices, fixed)
    plan = plan_at(job, {name: np.array([value]) for name, value in axes.items()}, 0)
    if axes["pp"] > 1:  # layers are placed as an estimate of this plan places them
        where = cluster.reached(devices)
        held = HeldPlan(job=job, cluster=where, num_devices=devices, axes=axes, kept_free=headroom)
        with suppress(InputError):  # the run did what the search rules out
            plan = held.price().plan
    if recompute != "selective" or not job.trainer.shards_fully:
        return job, plan, ()
    layers = max(int(job.shape.num_layers) // axes["pp"] // 2, 1)
    job = replace(job, trainer=replace(job.trainer, checkpoints_operators=True))
    plan = replace(plan, recompute=Recompute.FULL, recompute_layers=layers)
    return job, plan, ("selective activation checkpointing is taken as torchtitan's default, by operator",)


def _usual_axes(job: TrainingJob, devices: int, fixed: Mapping[str, int]) -> dict[str, int]:
    """A typical run's axes but for the fixed ones, with the fewest pipeline stages for which dp divides the batch.

    Raises ``InputError`` for sizes that contradict each other.
    """
    tp, cp, ep, batch = fixed.get("tp", 1), fixed.get("cp", 1), fixed.get("ep", 1), job.global_batch_size
    replicas = devices // (tp * cp)
    pp = fixed.get("pp") or next((n for n in divisors(replicas) if batch % (replicas // n) == 0), 1)
    dp, rest = divmod(devices, tp * pp * cp)
    if rest:
        must = f"must be a multiple of tp x pp x cp = {tp * pp * cp}"
        raise InputError("num_devices", devices, must, str((dp + 1) * tp * pp * cp))
    if ep > 1 and job.shape.moe_ffn is None:
        raise InputError("ep", ep, "the model has no experts", "1")
    least = dp * fixed.get("microbatch_size", 1)
    if batch % least:
        must = f"must be a multiple of dp x microbatch_size = {least}"
        raise InputError("global_batch_size", batch, must, str((batch // least + 1) * least))
    sharded = dp * cp > 1 and not job.trainer.lockstep
    return {
        **{name: AXES[name].plain[0] for name in SEARCHED},
        "microbatch_size": next(n for n in range(max(TOKENS_AT_ONCE // job.seq_len, 1), 0, -1) if batch // dp % n == 0),
        "pp": pp,
        "dp": dp,
        "sequence_parallel": int(tp > 1 and job.seq_len % (tp * cp) == 0),
        "zero_stage": (3 if job.trainer.shards_fully else 1) if sharded else 0,
        **fixed,
    }


def conventions_of(
    run: RunLog, shape: TransformerShape, seq_len: int | None, devices: int | None
) -> tuple[FlopConvention, ...]:
    """How the log's TFLOP/s are counted; without a length, the model's usual and longest are tried first, and none by
    which the log's replicas have no whole number of sequences in a step."""
    degrees = [run.number(name) for name in ("tp", "pp", "cp")]
    replicas = (devices or 1) // math.prod(n or (devices or 1) for n in degrees) or 1
    tokens = run.tokens_per_step or (run.device_tokens_per_step or 0) * (devices or 0)
    whole = (n for n in _lengths(shape, LENGTHS) if round(tokens / n) % replicas == 0)
    lengths = list(whole) if seq_len is None else [seq_len]
    measured = run.measured
    if not measured.flops_per_s > 0:
        return ()
    best: tuple[FlopConvention, ...] = ()
    for length in lengths:
        known = run.knowing(seq_len=length, num_devices=devices)
        rate = known.measured.tokens_per_s / devices if devices else float("nan")
        per_device = known.steady(known.device_tokens_per_s)
        flops = measured.flops_per_s
        if per_device.size:  # medians of both: where slow steps count, the measured rate is a mean
            rate, flops = float(np.median(per_device)), float(np.median(known.steady(known.flops_per_s)))
        if not rate > 0:
            return ()
        found = counted(shape, flops / rate, length)
        if found and (not best or abs(found[0].rel_error) < abs(best[0].rel_error) - SAME):
            best = found
    return best


def _lengths(shape: TransformerShape, lengths: tuple[int, ...]) -> Iterator[int]:
    longest = int(shape.max_positions or lengths[-1])
    usual = usual_seq_len(shape)
    yield from dict.fromkeys((usual, min(longest, 2 * usual), *(n for n in lengths if n <= longest)))


def _check_model(shape: TransformerShape | None, reading: LaunchReading, path: str) -> None:
    """Check that the given model is the launched one. Raises ``InputError``."""
    if shape is None or reading.shape is None:
        return
    said = {"num_layers": int(reading.shape.num_layers), "hidden_size": int(reading.shape.hidden_size)}
    _compare(shape, said, path)


def _check_sizes(shape: TransformerShape, arguments: Mapping[str, str], path: str) -> None:
    """The same check against an incomplete dump of arguments."""
    said = {name: arguments[name] for name in ("num_layers", "hidden_size", "ffn_hidden_size") if name in arguments}
    _compare(shape, {name: int(value) for name, value in said.items() if value.isdigit() and len(value) < 12}, path)


def _compare(shape: TransformerShape, said: Mapping[str, int], path: str) -> None:
    fields = shape.fields()
    for name, value in said.items():
        given = fields.get(name)
        if isinstance(given, int) and given != value:
            must = f"{path} says {name}={value}, and this model has {given}; must be the model of the run"
            raise InputError("model", shape.name or "as given", must, f"--set {name}={value}")


# -- a launch file as the question of estimate, lint and advise ----------------------------------------------------


def model_of_launch(model: Model | None, options: Mapping[str, Any], changed_by: str) -> ModelReading:
    """The model that is named beside a launch file, else the file's own. Raises ``InputError``."""
    from sartor.launch.files import read_launch
    from sartor.model.workload import ModelReading

    launch = options["launch"]
    beside = ("--launch", str(launch))
    if model is None:
        words = {name: value for name, value in options.items() if name in STATED and np.ndim(value) == 0}
        stated = Run.stated(**checked_words({name: value for name, value in words.items() if name in FIELDS}))
        job = read_launch(launch, num_devices=options.get("num_devices") or 0, run=stated).job(seq_len=1)
        shape = replace(job.shape, name=Path(launch).stem)
        return read(ModelReading(shape=shape, asked=beside), options.get("set"), changed_by)
    reading = read(model, options.get("set"), changed_by)
    return replace(reading, asked=(*reading.asked, *beside))


def launched_on(
    launch: LaunchReading, run: Run, shape: TransformerShape | None, cluster: Cluster
) -> tuple[TrainingJob, TrainingPlan, Cluster, tuple[str, ...]]:
    """A launch's job and plan with the options beside it, on as much of the cluster as it takes, and what was assumed.
    Raises ``InputError`` for devices that the cluster does not have, and for a precision that they do not."""
    from sartor.launch.options import with_options
    from sartor.step.question import check_recipe

    job, plan, assumptions = with_options(launch, run, shape=shape, gpus=cluster.gpus)
    check_countable(job.shape)
    device_counts(launch.num_devices, cluster)
    reached = cluster.reached(launch.num_devices)
    for gpu in reached.gpus:
        check_recipe(job.recipe, gpu)
    return job, plan, reached, (*assumptions, *cluster.unstated)


def open_launch(
    launch: LaunchReading,
    run: Run,
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    calibration: Calibration | None,
    *,
    limit_bytes: float,
) -> Weighed:
    """What the files of a launch leave open: switches without a price, and what the program that they start decides."""
    from sartor.ask.alternatives import weighed
    from sartor.launch.files import depends_on, switches_in_files
    from sartor.step.stage_table import waterfall

    if sizes := launch.alternatives.get("vocab_size"):
        vocab_size = int(job.shape.vocab_size)
        run = run.with_(Origin.OPEN, "its tokenizer is not known", vocab_size=vocab_size).among("vocab_size", *sizes)
    closed = {
        *switches_in_files(launch.kind),
        *(launch.fields_in_file & {*job.trainer.varies}),
        *(words.partition("=")[0] for words in launch.unpriced),
    }
    found = weighed(run, job.shape, job, plan, cluster, calibration, limit_bytes=limit_bytes, closed=closed)
    unpriced = depends_on((*launch.unpriced, *launch.unknown), waterfall(job, plan, cluster).stages, limit_bytes)
    return replace(found, turns=(*unpriced, *found.turns))


def launched_question(
    run: Run, reading: ModelReading, gpu: Gpu, where: Cluster | None, own: Calibration | None
) -> Question:
    """One device's share of a step of a launch file: what file and trainer say is stated, and options win over it."""
    from sartor.answers.estimate import Question as Asked
    from sartor.ask.alternatives import template_words
    from sartor.launch.files import read_launch
    from sartor.launch.options import origin_words, with_origins
    from sartor.plans.search import HeldPlan
    from sartor.plans.space import axes_of, broken, running
    from sartor.rules.plan import lint_plan
    from sartor.rules.plan.rule import PlanContext
    from sartor.step.question import within_files, workload_of

    path, cluster = run.get("launch"), (where or usual_cluster(gpu)).with_price(run.get("price"))
    from_file = reading.asked[:1] == ("--launch",) and "--set" not in reading.asked
    shape = None if from_file else reading.shape
    launch = read_launch(path, num_devices=run.get("num_devices", 0), shape=shape, run=run)
    stated, plan, reached, notes = launched_on(launch, run, shape, cluster)
    job, axes = within_files(stated, launch.kind.value), axes_of(plan)
    held = HeldPlan(
        job=job,
        cluster=reached,
        num_devices=launch.num_devices,
        axes=axes,
        kept_free=run.get("headroom"),
        launched=plan,
    )
    open_run = open_launch(launch, run, job, plan, reached, own, limit_bytes=held.limit_bytes)
    held = replace(held, searched=held.price(), spread=open_run.spread)
    run = with_origins(open_run.run, launch, job, plan, Path(path).name)
    return Asked(
        reading=reading,
        run=run.with_(
            Origin.USUAL, "the device's usual cluster", **({} if run.states("cluster") else {"cluster": cluster.name})
        ),
        workload=replace(workload_of(job, microbatch_size=axes["microbatch_size"]), shape=reading.shape),
        dims=plan.dims,
        gpu=gpu,
        calibration=own,
        held=held,
        eager=bool(run.get("eager")),
        depends_on=open_run.turns,
        plan_findings=lint_plan(
            PlanContext(
                job=job,
                plan=plan,
                cluster=reached,
                calibration=own,
                headroom=held.headroom,
                own_margin=run.own_margin,
                broken=broken(stated, plan),
                runs=running(stated, job, plan),
                batch_follows=launch.parts.global_batch_size is None and "global_batch_size" not in run,
                unpriced=tuple(turn.field for turn in open_run.turns if turn.of_memory),
            )
        ),
        assumptions=(
            *reading.assumptions,
            *reading.notes,
            *notes,
            *(_unknown_note(words, launch.kind.title) for words in launch.unknown),
            *origin_words(run, job, notes),
            *((f"cluster={cluster.name} (usual; set --cluster)",) if where is None else ()),
            *template_words(gpu),
        ),
    )


def _unknown_note(words: str, title: str) -> str:
    """What is assumed of an argument that is not understood."""
    if words.startswith("$"):
        return f"{arguments_unsaid(words)}, priced as none"
    return f"{words}: not known to {title}, and without effect here"
