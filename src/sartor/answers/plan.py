"""``plan``: the record of a search and of an existing launch, and the table of fields of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sartor.answers.field import (
    Answer,
    Field,
    Fields,
    Level,
    ListOf,
    Scalar,
    field,
    flag,
    integer,
    integers,
    mapping,
    number,
    numbers,
    rows,
    text,
    texts,
    through,
)
from sartor.cost.cost import Source
from sartor.model.plan import AXES, AxisKind, PlanAxis
from sartor.model.workload import Recompute
from sartor.plans.fixed import settings
from sartor.run.fields import Run
from sartor.step.footprint import fit_probability, in_doubt
from sartor.step.mechanisms import parts
from sartor.step.pipeline import devices_of_pools

if TYPE_CHECKING:
    from sartor.answers.estimate import ModelEstimate
    from sartor.cost.correction.calibration import Calibration
    from sartor.hardware.cluster import Cluster
    from sartor.model.training import TrainingJob, TrainingPlan
    from sartor.model.workload import ModelReading
    from sartor.plans.next import DividedBatch, NextStep, Simpler, WhyNot
    from sartor.plans.result import PlanSearch, PricedPlan
    from sartor.rules.plan.rule import PlanFinding
    from sartor.run.fields import Turn
    from sartor.step.run_cost import RunCost
    from sartor.step.stage_table import StageRow, Waterfall

VALUE: Fields = (
    field("value", Scalar.ANY, path=lambda value: str(value.value) if isinstance(value.value, Path) else value.value),
    text("origin", help="stated, implied (by a rule), usual (of the trainer), searched, or open"),
    text("from", path="source", when=lambda value: bool(value.source), help="the option, rule or record it comes from"),
    rows("alternatives", Scalar.ANY, when=lambda value: bool(value.alternatives), help="other plausible values"),
)
"""One value of a run, with its origin."""
TURN: Fields = (
    text("field"),
    field("value", Scalar.ANY),
    text("usual", when=lambda turn: bool(turn.usual), help="the value that was taken"),
    text("verdict", help="what would be said with this value"),
    text("settled_by", when=lambda turn: bool(turn.settled_by), help="what would state it"),
    mapping("", Scalar.NUMBER, path="figures"),
)
"""Another plausible value of something not stated, and the verdict it would turn."""
DEPENDS_ON = rows("depends_on", TURN, help="what was not stated and would turn the verdict")
PARTS: Fields = through("parts", tuple(number(part.key, part.words) for part in parts()))
"""The parts of a training step; their seconds add up to it."""
MEMORY: Fields = (
    number("param_bytes", "weights"),
    number("grad_bytes", "gradients"),
    number("optimizer_bytes", "optimizer"),
    number("stash_bytes", "activations"),
    number("workspace_bytes", "workspace"),
)
"""What the fullest device allocates."""


def _recompute_text(plan: TrainingPlan) -> str:
    """``none``, ``selective``, ``full`` or the layers a stage recomputes."""
    kind, layers = Recompute(int(plan.recompute)), int(plan.recompute_layers)
    return f"{layers} layer{'s' if layers > 1 else ''}" if kind is Recompute.FULL and layers >= 0 else kind.word


_SHOWN = {
    "microbatch_size": lambda plan: f"{int(plan.microbatch_size)}x{int(plan.num_microbatches)}",
    "sequence_parallel": lambda plan: "yes" if plan.dims.sequence_parallel and int(plan.dims.tp) > 1 else "no",
    "recompute": _recompute_text,
}


def _axis(row: PlanAxis) -> Field:
    """An axis of a plan; null for one that refines another and has no value."""

    def read(plan: TrainingPlan) -> int | str | bool | None:
        value = int(plan.columns[row.name])
        return None if row.layout is AxisKind.REFINED and value in row.plain else row.shown(value)

    kind = Scalar.TEXT if row.kinds else Scalar.FLAG if row.kind is bool else Scalar.INTEGER
    null, shown = row.layout is AxisKind.REFINED, _SHOWN.get(row.name)
    return field(row.name, kind, row.heading, path=read, null=null, help=row.help.split(" [")[0], shown=shown)


DEGREES: Fields = (
    *map(_axis, AXES.values()),
    integer("num_devices", path=lambda plan: int(plan.num_devices)),
    integer("num_microbatches", path=lambda plan: int(plan.num_microbatches)),
    rows("stage_layers", Scalar.INTEGER, null=True, help="layers of each pipeline chunk; null: equal"),
)
"""A plan (`TrainingPlan`) under its JSON names."""


class Sourced(NamedTuple):
    """A priced plan, and what its times rest on."""

    priced: PricedPlan
    source: Source = Source.ANALYTIC


def sourced(plans: Any, source: Source) -> list[Sourced]:
    """Several plans with one source."""
    return [Sourced(priced, source) for priced in plans]


def _reserved_bytes(pair: Sourced) -> float:
    """The allocator's gaps, the context of the device and libraries."""
    footprint = pair.priced.footprint
    return float(footprint.device_bytes) - float(footprint.allocated_bytes)


STEP_INTERVAL: Fields = (
    number("step_s", "step", help="time of one training step"),
    number("low_s", "80% low", help="lower end of the 80% interval", level=Level.PAGE),
    number("high_s", "80% high", help="upper end of the 80% interval", level=Level.PAGE),
)
STEP: Fields = (
    *through("priced", STEP_INTERVAL),
    text("source", help="measured, calibrated or analytic"),
    number("tokens_per_s_per_device", path="priced.step.tokens_per_s_per_device", unit="tokens/s"),
    number("mfu", "mfu", path="priced.step.mfu", unit="share", help="share of the dense peak"),
    number("peak_bytes", "memory", path="priced.peak_bytes", help="of the fullest device"),
)
MEMORY_OF_PLAN: Fields = (
    integer("peak_stage", path="priced.footprint.stage"),
    field(
        "memory",
        (*through("priced.footprint", MEMORY), number("reserved_bytes", path=_reserved_bytes)),
        path=lambda pair: pair,
        help="the parts add up to peak_bytes",
    ),
    number("allocated_bytes", path="priced.footprint.allocated_bytes"),
    field("time", PARTS, path="priced.step", help="the parts add up to step_s"),
)
PRICED: Fields = (*through("priced.plan", DEGREES), *STEP, *MEMORY_OF_PLAN)
"""One plan (`Sourced`): degrees, predicted step with interval, throughput, memory and time part by part."""

STAGE: Fields = (
    integer("stage", "stage"),
    integer("layers", "layers", shown=lambda stage: f"{stage.layers}"
            + (f" in {len(stage.chunks)}" if len(stage.chunks) > 1 else "")),
    rows("chunks", Scalar.INTEGER),
    rows("holds", Scalar.TEXT, "and", form=", ".join, help="blocks besides layers"),
    number("load_s", "microbatch", help="busy time of one microbatch, forward and backward"),
    number("state_bytes", "states", help="weights, gradients, optimizer"),
    number("stash_bytes", "activations", help="kept for the backward pass"),
    number("workspace_bytes", "workspace"),
    number("device_bytes", "total"),
    number("limit_bytes", "full", help="usable memory, and the share of it that is full",
           shown=lambda stage: f"{100 * stage.device_bytes / stage.limit_bytes:.0f}%"),
)  # fmt: skip
TIER: Fields = (
    text("name"),
    integer("span"),
    *numbers("bytes_per_s latency_s oversubscription"),
    flag("rails"),
    text("kind"),
    flag("in_network_reduction"),
    *integers("torus_axes torus_wrap"),
    number("alone_bytes_per_s"),
)


class Pool(NamedTuple):
    """Devices of one kind in use, and their number."""

    cluster: Cluster
    num_devices: int


POOL: Fields = (
    text("name", path="cluster.name"),
    text("gpu", path="cluster.gpu.name"),
    integer("num_devices"),
    integer("devices_per_node", path="cluster.devices_per_node"),
    number("hbm_bytes", path="cluster.gpu.hbm_bytes"),
    rows("tiers", TIER, path="cluster.tiers"),
)


def _other_pools(pool: Pool) -> list[Pool]:
    counts = devices_of_pools(pool.cluster.pools, pool.num_devices)
    return [Pool(cluster, count) for cluster, count in zip(pool.cluster.others, counts[1:], strict=True)]


CLUSTER: Fields = (
    *(
        number("hbm_bytes", path=lambda pool: min(gpu.hbm_bytes for gpu in pool.cluster.gpus))
        if column.name == "hbm_bytes"
        else column
        for column in POOL
    ),
    rows("others", POOL, path=_other_pools, when=lambda pool: bool(pool.cluster.others), help="further pools"),
)
"""A cluster, the number of its devices in use (`Pool`), and its further pools."""

MODEL_SIZES = mapping("", Scalar.INTEGER, path=lambda shape: shape.fields(), help="sizes of the shape")
JOB: Fields = (
    *integers("global_batch_size seq_len tokens_per_step"),
    text("dtype", path="recipe"),
    text("optimizer"),
    text("attention", path="attention_kernel"),
    text("context_parallel"),
    number("routing_skew"),
    text("framework", path="trainer.name"),
    mapping("switches", Scalar.ANY, path=settings, help="the trainer's switches"),
)

GOODPUT: Fields = (
    number("share"),
    *numbers("failure_every_s checkpoint_bytes checkpoint_s checkpoint_every_s restart_s"),
)
PRICE_OF_TOKENS: Fields = (
    *numbers("usd_per_million_tokens usd_per_device_hour", null=True),
    *texts("price_source price_date"),
)
COST: Fields = (
    *numbers("tokens hours low_hours high_hours device_hours"),
    number("usd", null=True),
    *PRICE_OF_TOKENS,
    *numbers("energy_j power_share co2_kg run_hours"),
    field("goodput", GOODPUT),
)
COST_OF_STEP = field("cost", PRICE_OF_TOKENS, when=lambda answer: answer.cost and answer.cost.usd is not None)
"""Of training at a step's time, by the formula of `plan`, where the price of a device is known."""
SHORT_COST: Fields = (
    number("device_hours"),
    number("usd", null=True),
    *numbers("energy_j co2_kg run_hours"),
    number("goodput", path="goodput.share"),
)


def _of_best(path: str) -> Any:
    """An attribute of the best plan of a search; None if none fits."""
    read = attrgetter(path)
    return lambda pair: None if pair[0].best is None else read(pair[0].best)


SEARCH: Fields = (
    integer("num_devices", "devices", path=lambda pair: pair[0].num_devices),
    text("status", path=lambda pair: pair[0].status),
    number("step_s", "step", path=_of_best("step_s"), null=True),
    number("low_s", "80% low", path=_of_best("low_s"), null=True),
    number("high_s", "80% high", path=_of_best("high_s"), null=True),
    number("mfu", "mfu", path=_of_best("step.mfu"), unit="share", null=True),
    integer("evaluated", path=lambda pair: pair[0].evaluated),
    field("cost", SHORT_COST, path=lambda pair: pair[1], null=True),
    field("plan", DEGREES, path=_of_best("plan"), null=True),
)
"""One number of devices in short: reads a pair (search, cost of the token budget)."""


def _searches(answer: PlanAnswer) -> list[tuple[PlanSearch, RunCost | None]]:
    return [(search, cost) for search, cost in zip_longest(answer.searches, answer.costs) if search]


INTERVAL = (
    number("time_s", "time", help="predicted duration"),
    number("low_s", "80% low", help="lower end of the 80% interval"),
    number("high_s", "80% high", help="upper end of the 80% interval"),
)
DIVIDED: Fields = (
    mapping("change", Scalar.INTEGER, help="sizes of the model, or a degree of parallelism"),
    *through("answer", INTERVAL),
    number("num_params", path="answer.question.reading.num_params", null=True),
    *through("answer", (flag("fits", null=True), number("peak_bytes"), number("usable_bytes"))),
)
CANNOT_RUN: Fields = (
    text(
        "cannot_run",
        path=lambda answer: getattr(answer, "stopped", answer.cannot_run) or None,
        null=True,
        help="why the degrees that were stated do not divide the model; everything else is then at a split that does; "
        "of a pass also why its serving engine does not start it",
    ),
    rows("divided", DIVIDED, help="sizes and degrees that would divide instead, each priced"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """A change with which a model divides, and the estimate with it."""

    change: Mapping[str, int]
    """Sizes of the model, or a degree of parallelism."""
    answer: ModelEstimate


RELAXATION: Fields = (*texts("change field value"),)
TIGHTEST: Fields = (
    text("message"),
    integer("stage", null=True),
    number("over_bytes", null=True),
    field("leanest", PRICED, path=lambda tightest: tightest.leanest and Sourced(tightest.leanest), null=True),
    rows("relaxations", RELAXATION, help="changes after which some plan fits"),
)
NEXT_STEP: Fields = (text("change"), number("speedup"), number("step_s"))
BATCH: Fields = (
    integer("global_batch_size"),
    number("step_s", path="priced.step_s"),
    number("tokens_per_s_per_device", path="priced.step.tokens_per_s_per_device", unit="tokens/s"),
    number("speedup", help="tokens per second over those of `best`"),
    field("plan", DEGREES, path="priced.plan"),
)
"""A batch that the devices divide, with its fastest plan (`DividedBatch`)."""
SIMPLER: Fields = (
    *through(lambda pair: Sourced(pair[0].priced, pair[1]), PRICED),
    number("slower", path=lambda pair: pair[0].slower),
    rows("without", Scalar.TEXT, path=lambda pair: pair[0].without),
)
"""The simplest plan about as fast as the best; reads a pair (`Simpler`, source)."""


def _terms(asked: WhyNot) -> dict[str, list[float]]:
    """Step and memory term by term as [best, asked]; empty if the plan cannot be priced."""
    if asked.plan is None:
        return {}
    both = (asked.best, asked.plan)
    step = {"step_s": [plan.step_s for plan in both]}
    step |= {part.name: [float(part.read(plan.step)) for plan in both] for part in PARTS}
    memory = {part.name: [getattr(plan.footprint, part.name) for plan in both] for part in MEMORY}
    return {**step, **memory, "peak_bytes": [plan.peak_bytes for plan in both]}


WHY_NOT: Fields = (
    text("asked"),
    field("plan", DEGREES, path=lambda asked: asked.plan and asked.plan.plan, null=True),
    text("reason", null=True, help="why it cannot run; null: it can"),
    *(
        number(column.name, path=lambda asked, read=column.read: None if asked.plan is None else read(asked.plan),
               null=True)
        for column in STEP_INTERVAL
    ),
    mapping("terms", ListOf(Scalar.NUMBER), path=_terms, help="[best, asked] of each term"),
)  # fmt: skip

PLAN: Fields = (
    text("status", "status", level=Level.HEADLINE),
    field(
        "model",
        (
            text("name", path="shape.name"),
            *integers("num_params num_active_params", null=True),
            mapping("", Scalar.INTEGER, path=lambda reading: reading.shape.fields()),
        ),
        path="reading",
    ),
    mapping("run", VALUE, path="run.facts", help="every value of the run, with its origin"),
    DEPENDS_ON,
    field("cluster", CLUSTER, path=lambda answer: Pool(answer.cluster, answer.search.num_devices)),
    field("job", JOB),
    field(
        "best",
        (*through(lambda answer: Sourced(answer.best, answer.source), PRICED), rows("stages", STAGE)),
        path=lambda answer: None if answer.best is None else answer,
        null=True,
    ),
    rows("top", PRICED, path=lambda answer: sourced(answer.search.top, answer.source)),
    rows("front", PRICED, path=lambda answer: sourced(answer.front, answer.source)),
    *through(
        "search",
        (
            integer("evaluated"),
            number("evaluated_per_s"),
            *integers("space_size fitting placed unplaced"),
            mapping("rejected", Scalar.INTEGER),
            mapping("fixed", Scalar.ANY),
            field("tightest", TIGHTEST, null=True),
        ),
    ),
    rows("next_steps", NEXT_STEP),
    rows("batches", BATCH, help="global batches next to the stated one, which the devices do not divide, if faster"),
    field("roomier", PRICED, path=lambda answer: answer.roomier and Sourced(answer.roomier, answer.source), null=True),
    field("simpler", SIMPLER, path=lambda answer: answer.simpler and (answer.simpler, answer.source), null=True),
    number("headroom", path="search.headroom"),
    number("fit_probability", null=True, help="probability that the best plan fits"),
    field("cost", COST, null=True),
    field("why_not", WHY_NOT, null=True),
    rows("searches", SEARCH, path=_searches),
    *CANNOT_RUN,
    rows("assumptions", Scalar.TEXT),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanAnswer(Answer):
    """How to spread a model's training over a cluster: one search for each requested number of devices."""

    fields: ClassVar[Fields] = PLAN
    subject: ClassVar[Fields] = (
        text("model", "model", path="reading.shape.name"),
        text("cluster", "cluster", path="cluster.name"),
        number("step_s", "step", path=lambda answer: answer.best and answer.best.step_s),
        text("cannot_run", "as stated it cannot run:", when=lambda answer: bool(answer.cannot_run)),
    )
    reading: ModelReading
    run: Run
    """What was stated and completed, with its origin."""
    job: TrainingJob
    cluster: Cluster
    searches: tuple[PlanSearch, ...]
    """In the order the numbers of devices were given."""
    assumptions: tuple[str, ...]
    stages: tuple[StageRow, ...] = ()
    """Pipeline ranks of the best plan."""
    cost: RunCost | None = None
    """Cost of the token budget under the best plan; None if no plan fits."""
    costs: tuple[RunCost | None, ...] = ()
    """The same for the best plan of every search."""
    why_not: WhyNot | None = None
    """The plan given in ``why_not``, compared with the best."""
    next_steps: tuple[NextStep, ...] = ()
    """Changes of the job or trainer that would speed up the best plan."""
    batches: tuple[DividedBatch, ...] = ()
    """Global batches next to the stated one, which the devices do not divide, that train faster, best first."""
    roomier: PricedPlan | None = None
    """The fastest plan that leaves 10% of memory free, if the best does not."""
    simpler: Simpler | None = None
    """The simplest plan about as fast as the best (`sartor.plans.next.CLOSE`); None if that is the best."""
    source: Source = Source.ANALYTIC
    calibration: Calibration | None = None
    writer: str = ""
    """The trainer whose launch files the searched plans are limited to, if any."""
    depends_on: tuple[Turn, ...] = ()
    """Other plausible values of what was not stated that would turn whether the best plan fits, or whether any does."""
    cannot_run: str = ""
    """Why no plan has the stated degrees: they do not divide the model. Then this is the plan at the largest smaller
    split that does."""
    divided: tuple[Divided, ...] = ()
    """What would run instead, the nearest first."""

    @property
    def status(self) -> str:
        """That of the search; ``infeasible`` where the stated degrees do not divide the model, ``unknown`` where sizes
        of the config were not read, or no plan fits as priced, and one would with another plausible value or may within
        the error of its peak."""
        if self.cannot_run:
            return "infeasible"
        if self.best is not None and self.reading.unread_sizes:
            return "unknown"
        may_fit = self.search.may_fit and not self.run.own_margin
        turned = self.best is None and (may_fit or any(turn.of_memory for turn in self.depends_on))
        return "unknown" if turned else self.search.status.value

    @property
    def search(self) -> PlanSearch:
        """The search whose best plan has the shortest step; the first search if no plan fits."""
        found = [each for each in self.searches if each.best is not None]
        return min(found, key=lambda each: each.best.step_s if each.best else 0.0) if found else self.searches[0]

    @property
    def best(self) -> PricedPlan | None:
        return self.search.best

    @property
    def fit_probability(self) -> float | None:
        """Probability that the best plan fits; None: there is none, or sizes of the config were not read."""
        if self.best is None or self.reading.unread_sizes:
            return None
        return float(fit_probability(self.best.peak_bytes, self.cluster))

    @property
    def front(self) -> tuple[PricedPlan, ...]:
        """Plans of all searches that no other beats in step time, memory and devices at once, fastest first."""
        from sartor.plans.front import front_over_devices

        return front_over_devices(self.searches)


WRITTEN: Fields = (
    text("trainer", "trainer", path="kind", level=Level.HEADLINE),
    number("step_s", "step", path="priced.step_s", level=Level.HEADLINE),
    rows("files", (text("name", "file"), text("text"), flag("executable"))),
    rows("notes", Scalar.TEXT, help="what the files cannot express, and what it costs"),
    field("plan", PRICED, path=lambda written: Sourced(written.priced)),
)


PLAN_FINDING: Fields = (
    *texts("rule grade message field"),
    field("value", Scalar.ANY),
    *numbers("gain_s gain_fraction", null=True),
    mapping("fix", Scalar.ANY),
    text("code"),
    number("saves_bytes", help="on the device that needs most memory"),
    number("step_s", null=True, help="predicted with the fix"),
)
"""What a rule about launches finds; ``gain_s`` is null if the plan cannot run."""

STAGE_MEMORY: Fields = (
    integer("stage"),
    text("moment"),
    number("device_bytes", path=lambda stage: stage.total_bytes()),
    mapping("parts", Scalar.NUMBER, path=lambda stage: {part.name: part.size_bytes for part in stage.parts}),
)
LAUNCH: Fields = (
    text("status", "status", level=Level.HEADLINE),
    field(
        "launch",
        (
            text("path"),
            text("framework"),
            rows("unknown", Scalar.TEXT),
            rows("unpriced", Scalar.TEXT),
            rows("ignored", Scalar.TEXT),
        ),
        path=lambda answer: answer,
    ),
    field("model", (text("name"), MODEL_SIZES), path="job.shape"),
    mapping("run", VALUE, path="run.facts", help="every value of the run, with its origin"),
    field("job", JOB[:2] + JOB[3:5]),
    field("cluster", CLUSTER, path=lambda answer: Pool(answer.cluster, int(answer.priced.plan.num_devices))),
    field("plan", PRICED, path=lambda answer: Sourced(answer.priced, answer.source)),
    *numbers("usable_bytes headroom"),
    number("fit_probability", null=True),
    COST_OF_STEP,
    rows("stages", STAGE_MEMORY, path="memory.stages"),
    rows("findings", PLAN_FINDING),
    text("worst_grade", path=lambda answer: answer.findings[0].grade if answer.findings else None, null=True),
    field("best", PRICED, path=lambda answer: _searched(answer), null=True),
    DEPENDS_ON,
    rows("assumptions", Scalar.TEXT),
)  # fmt: skip


def _searched(answer: LaunchAnswer) -> Sourced | None:
    best = answer.search.best if answer.search else None
    return None if best is None else Sourced(best, answer.source)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LaunchAnswer(Answer):
    """An existing launch, priced: predicted step and memory of its plan, what is wasteful, what was not understood.

    ``framework`` and the three lists are from the file; ``best`` is the fastest plan on the same devices, if searched.
    """

    fields: ClassVar[Fields] = LAUNCH
    path: str
    framework: str
    job: TrainingJob
    run: Run
    """Every fact of job and plan, with its origin."""
    cluster: Cluster
    priced: PricedPlan
    fits: bool | None
    """None: unknown, as sizes of the model's config were not read."""
    usable_bytes: float
    memory: Waterfall
    findings: tuple[PlanFinding, ...]
    unknown: tuple[str, ...]
    unpriced: tuple[str, ...]
    ignored: tuple[str, ...]
    assumptions: tuple[str, ...]
    search: PlanSearch | None = None
    reading: ModelReading | None = None
    """The model, where it was given beside the file."""
    source: Source = Source.ANALYTIC
    """What the predicted times rest on."""
    runs: bool = True
    """Whether the trainer can run it, if it fits."""
    headroom: float = 0.0
    """Share of usable memory that stays free."""
    own_margin: bool = False
    """It is stated, so a peak that does not leave it free does not fit."""
    depends_on: tuple[Turn, ...] = ()
    """Switches without a price, and what the files do not say, that would turn whether it fits."""

    @property
    def cost(self) -> RunCost:
        """Of the tokens of one step."""
        from sartor.step.run_cost import run_cost

        step_s, devices = (self.priced.step_s, self.priced.low_s, self.priced.high_s), int(self.priced.plan.num_devices)
        return run_cost(self.job, self.cluster, devices, step_s, self.job.tokens_per_step)

    @property
    def fit_probability(self) -> float | None:
        """Probability that it fits; None: unknown."""
        return None if self.fits is None else float(fit_probability(self.priced.peak_bytes, self.cluster))

    @property
    def near_limit(self) -> bool:
        """Whether the error of the predicted peak leaves open if it fits."""
        return (self.fits is not False or not self.own_margin) and in_doubt(self.priced.peak_bytes, self.cluster)

    @property
    def status(self) -> str:
        """``unknown`` where sizes that were not read, the error of the predicted peak, a switch without a price or
        arguments that are not in the file leave open whether it fits."""
        if self.runs and (self.near_limit or any(turn.of_arguments for turn in self.depends_on)):
            return "unknown"
        if not self.runs or (self.fits is False and not any(turn.of_memory for turn in self.depends_on)):
            return "infeasible"
        return "feasible" if self.fits else "unknown"
