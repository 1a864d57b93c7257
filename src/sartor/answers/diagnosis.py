"""``diagnose`` of a log or trace, and ``compare``: their records, and the table of fields of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as default
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from sartor.answers.field import (
    Answer,
    Fields,
    Level,
    ListOf,
    Scalar,
    field,
    flag,
    flat,
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
from sartor.answers.plan import (
    CLUSTER,
    COST_OF_STEP,
    DEGREES,
    INTERVAL,
    PARTS,
    PRICED,
    STEP_INTERVAL,
    VALUE,
    Pool,
    Sourced,
)
from sartor.cost.cost import interval_80
from sartor.errors import visible
from sartor.json_types import JsonDict
from sartor.plans.explain import memory_differs, nearest
from sartor.run.fields import Run
from sartor.step.run_cost import RunCost, run_cost
from sartor.units import format_change, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.cost.cost import Source
    from sartor.hardware.cluster import Cluster
    from sartor.model.counts import FlopConvention
    from sartor.model.training import TrainingJob
    from sartor.plans.explain import Explanation, OpenPlan
    from sartor.plans.result import PricedPlan
    from sartor.step.measured_run import JobKind, MeasuredRun, Pause, PricedKernels, RunChange, Stretch, TracePart


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """A part of a measured step; the seconds of all parts add up to it, their points of MFU to 100% minus MFU."""

    kind: str
    seconds: float
    share: float
    points_of_mfu: float | None
    """None where MFU is not known."""
    evidence: tuple[str, ...] = ()
    fix: str | None = None
    gain_s: float | None = None


KIND_WORDS = {
    **{part.name.removesuffix("_s"): part.words for part in PARTS},
    "matmul": "matrix multiplications",
    "slow_compute": "compute slower than predicted",
    "shape": "ragged sizes",
    "tiles": "part-filled tiles and waves",
    "attention": "attention",
    "convolution": "convolutions",
    "embedding": "embedding tables",
    "memory_bound": "memory-bound kernels",
    "unfused_attention": "attention that is not fused",
    "unfused_loss": "cross-entropy that is not fused",
    "casts": "casts between data types",
    "layout": "copies between layouts",
    "unfused": "unfused memory-bound kernels",
    "recompute": "recomputation",
    "optimizer": "optimizer",
    "communication": "exposed communication",
    "bubble": "pipeline bubble",
    "slow_link": "exposed communication, beyond what the links allow",
    "straggler": "waiting for a slow rank",
    "copies": "copies",
    "lead_in": "idle before the first kernel of a step",
    "data_loading": "idle while data loads",
    "host_stall": "idle in one long stall of the host",
    "host_sync": "idle after calls that wait for the device",
    "host_gap": "idle between kernels launched too late",
    "stream_wait": "idle waiting for another stream or event",
    "kernel_start": "idle while kernels start",
    "checkpoint": "saving a checkpoint",
    "unknown": "kernels of no known kind",
    "plan": "the plan, if it was another",
    "usual_steps": "usual steps",
    "between": "between steps, in no pause",
    "pauses": "pauses, mean per step",
}
"""Parts of a measured step and kinds of kernels, as text."""


def part_words(kind: str) -> str:
    """A part or a kind of kernel as text."""
    return KIND_WORDS.get(kind, kind)


RUN_PART: Fields = (
    text("kind", "part", form=part_words),
    number("seconds", "time", unit="s"),
    number("share", "share", unit="share", help="of the step"),
    number("points_of_mfu", "points of MFU", null=True, form=lambda points: f"{points:.1f}"),
    rows("evidence", Scalar.TEXT, "evidence", form="; ".join),
    text("fix", "to do", null=True, level=Level.PAGE),
    number("gain_s", null=True),
)


def _best_plan(answer: Any) -> Sourced | None:
    return None if answer.best is None else Sourced(answer.best, answer.source)


_BEST_PLAN = field("best_plan", PRICED, path=_best_plan, null=True)

_RUN = mapping("run", VALUE, path="facts.facts", help="every value of job and plan, with its origin")
_PEAKS = {"allocated_bytes": "allocated", "reserved_bytes": "reserved"}
"""Peaks of memory, in words."""
PRICED_RUN: Fields = (
    *STEP_INTERVAL,
    *(number(name, words, path=f"footprint.{name}") for name, words in _PEAKS.items()),
    field("plan", DEGREES),
)
OPEN_PLAN: Fields = through(
    "open_plan",
    (
        rows("open_fields", Scalar.TEXT, path="fields", help="axes of the plan that nothing states"),
        integer(
            "num_explaining",
            path=lambda plan: plan.num_explaining if plan.fields else None,
            null=True,
            help="plans with the stated axes that would give the measured step and memory",
        ),
        mapping("agreed", Scalar.TEXT, help="values of open axes that all of them have"),
        rows("explained_by", PRICED_RUN, path="explaining", help="the likeliest of them with each value of each axis"),
    ),
)

# ------------------------------------------------------------------------------------------------ a log

CAUSES = {
    "checkpoint": "asynchronous or rarer checkpoints",
    "evaluation": "rarer or shorter evaluation",
    "garbage collection": "garbage collection at fixed steps (gc_freq), on all ranks at once",
    "restart": "what stopped the run",
}
"""Remedy of a pause whose cause the log prints."""


def pauses_fix(run: MeasuredRun) -> str:
    """What would shorten the pauses."""
    known = [fix for cause, fix in CAUSES.items() if any(cause in pause.cause for pause in run.pauses)]
    unknown = "what runs there: data loading, checkpoints, evaluation, garbage collection"
    return "; ".join([*known, *([] if known and all(pause.cause for pause in run.pauses) else [unknown])])


def drift_fix(run: MeasuredRun) -> str:
    """What to look at where the steps get slower, by what the log shows beside them."""
    if run.work_drift > run.drift / 2:
        return "a step's work grows with its time: look at the lengths of its sequences and at its batch"
    if run.memory_drift > LEAST_GROWTH:
        grown = f"memory grows by {format_share(run.memory_drift)}"
        return f"{grown}: look for longer sequences, a leak, or fragmentation (expandable_segments:True)"
    same = ["work"] * (abs(run.work_drift) <= run.drift / 2) + ["memory"] * (abs(run.memory_drift) <= LEAST_GROWTH)
    shown = f"{' and '.join(same)} of a step stay{'s' * (len(same) == 1)} the same" if same else ""
    power = "clock, heat and power cap of the GPUs (nvidia-smi -q -d CLOCK,PERFORMANCE)"
    look = f"look at {power}, then at data loading"
    if len(same) < 2:
        unsaid = " and ".join(name for name in ("work", "memory") if name not in same)
        look += f"; print {unsaid} per step to tell them from growing sequences or fragmentation"
    return f"{shown}: {look}" if shown else look


LEAST_GROWTH = 0.01
"""Change of peak memory over a run that is worth a word."""


def pauses_text(run: MeasuredRun) -> str:
    """``5 of 9 s, every 50 steps (checkpoint)``, by cause; empty without pauses."""
    kinds: dict[str, list[Pause]] = {}
    for pause in run.pauses:
        kinds.setdefault(pause.cause, []).append(pause)
    return "; ".join(_pauses_of(cause, kinds[cause]) for cause in sorted(kinds, key=lambda c: -_total_s(kinds[c])))


def _total_s(pauses: Sequence[Pause]) -> float:
    return sum(pause.seconds for pause in pauses)


MOST_NAMED = 3
"""Pauses whose steps are named one by one."""


def _pauses_of(cause: str, pauses: Sequence[Pause]) -> str:
    why = f" ({cause})" if cause else ""
    lengths = sorted(pause.seconds for pause in pauses)
    before = [pause.iteration for pause in pauses]
    apart = {later - earlier for earlier, later in pairwise(before)}
    where = f"after step{'s' * (len(before) > 1)} {' and '.join(f'{step:,}' for step in before)}"
    if len(before) > 2 and max(apart) - min(apart) <= max(1, EVEN * max(apart)):
        where = f"every {round((before[-1] - before[0]) / (len(before) - 1)):,} steps"
    elif len(before) > MOST_NAMED:
        where = f"between steps {before[0]:,} and {before[-1]:,}"
    longest = f", the longest {format_seconds(lengths[-1])}" if lengths[-1] > LONG * lengths[0] else ""
    middle = format_seconds(lengths[len(lengths) // 2])
    return f"{'one' if len(pauses) == 1 else f'{len(pauses):,}'} of {middle}{longest}, {where}{why}"


LEAST_BETWEEN = 0.02
"""Share of a step by which the clock's mean may exceed the median of the printed steps as their noise."""
EVEN, LONG = 0.1, 1.5
"""Pauses come at even distances that differ by no more than this share; one is long that is this factor above the
shortest."""

PAUSE: Fields = (integer("iteration", help="the step before it"), number("seconds", unit="s"), text("cause"))
OBSERVED: Fields = (
    *through("measured", (number("step_s", "step", null=True), number("usual_s", null=True), number("stall_s"))),
    *through(
        "measured",
        (
            number("tokens_per_s", "tokens/s", null=True),
            number("spread"),
            *integers("num_steps warm_up"),
            number("flops_per_s", null=True),
            *(number(name, words, null=True) for name, words in _PEAKS.items()),
            number("p90_s", "90% within", null=True),
            number("device_tokens_per_s", "tokens/s per GPU", null=True),
            number("printed_mfu", null=True, help="MFU as the trainer prints it"),
            number("wall_s", null=True, help="time of the steady steps and of the pauses between them"),
            integer("wall_steps"),
            rows("pauses", PAUSE),
            number("drift", help="the last third of the usual steps over the first, minus 1"),
            number("work_drift", null=True, help="the same of a step's FLOPs or tokens"),
            number("memory_drift", null=True, help="the same of its peak memory"),
            rows("events", Scalar.TEXT, help="what ended the run before its time, how it resumes the one before"),
            rows("losses", Scalar.NUMBER, help="training loss of the first and of the last step"),
            rows("jumps", Scalar.INTEGER, help="steps whose loss jumps"),
            rows("no_number", Scalar.INTEGER, help="steps whose loss is not a number"),
            integer("skipped", help="steps whose update was skipped"),
            number("rank_skew", null=True, help="compute of the slowest rank over the fastest, minus 1"),
            integer("slow_rank", null=True),
        ),
    ),
)
"""What a log itself shows."""
LOG_MEASURED: Fields = (*OBSERVED, number("mfu", "MFU", unit="share"), COST_OF_STEP)
LOG_PREDICTED: Fields = (
    *through("predicted", STEP_INTERVAL),
    text("source"),
    number("mfu", path="predicted.step.mfu", unit="share"),
    number("tokens_per_s", path=lambda answer: answer.job.tokens_per_step / answer.predicted.step_s),
    *(number(name, path=f"predicted.footprint.{name}") for name in ("allocated_bytes", "reserved_bytes")),
)
EXPLANATION: Fields = (
    text("field", "changed fact", form=lambda name: name or "none"),
    text("value", "value"),
    *through("priced", PRICED_RUN),
    number("misfit", "misfit", form="{:.1f}".format, help="squared distance from the run, in standard deviations"),
)
CONVENTION: Fields = (
    text("attention"),
    text("recompute"),
    flag("embedding"),
    flag("head"),
    integer("seq_len"),
    *numbers("flops_per_token rel_error"),
)
OF_LOG: Fields = (
    *texts("path trainer"),
    *integers("run num_runs"),
    rows("units", Scalar.TEXT),
    mapping("said", Scalar.ANY, help="facts of plan and job that the log or a launch file gave"),
)
LOG: Fields = (
    text(
        "status",
        path=lambda answer: "open" if answer.open_plan.fields else "inside" if answer.inside else "outside",
        help="inside or outside of the 80% interval of the run's plan; open: the plan is not known",
    ),
    field("log", OF_LOG, path=lambda answer: answer),
    _RUN,
    field("measured", LOG_MEASURED, path=lambda answer: answer),
    field("predicted", LOG_PREDICTED, path=lambda answer: answer),
    number("deviation", help="ln(measured / predicted) in standard deviations of the prediction"),
    field("cluster", CLUSTER, path=lambda answer: Pool(answer.cluster, int(answer.predicted.plan.num_devices))),
    field("plan", PRICED, path=lambda answer: Sourced(answer.predicted, answer.source)),
    _BEST_PLAN,
    rows("parts", RUN_PART, path="run_parts"),
    number("assigned_share", path=lambda answer: 1 - abs(answer.unexplained_s) / answer.measured.step_s),
    number("unexplained_share", path=lambda answer: answer.unexplained_s / answer.measured.step_s),
    *OPEN_PLAN,
    rows("flop_conventions", CONVENTION, path="conventions"),
    rows("explanations", EXPLANATION, path=lambda answer: nearest(answer.explanations)),
    rows("tried", EXPLANATION, path=lambda answer: answer.explanations[1:]),
    rows("warnings", Scalar.TEXT),
    rows("assumptions", Scalar.TEXT),
)


def _file_name(path: str) -> str:
    return PurePath(path).name[:60]


LOG_FACTS: Fields = (
    text("status", path=lambda _: "facts", help="what the log itself shows; nothing is predicted"),
    field("log", OF_LOG, path=lambda answer: answer),
    field("measured", OBSERVED, path=lambda answer: answer),
    rows("missing", texts("field what option"), help="what a prediction needs besides"),
    text("command", null=True, help="a command that gives it"),
    rows("parts", RUN_PART, path="run_parts", help="of the mean step, the pauses between steps included"),
    rows("warnings", Scalar.TEXT),
    rows("assumptions", Scalar.TEXT),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A fact of a run that a prediction needs, in words, and an option that states one."""

    field: str
    what: str
    option: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LogFacts(Answer):
    """What a run's log itself shows, where it does not say enough for a prediction."""

    fields: ClassVar[Fields] = LOG_FACTS
    subject: ClassVar[Fields] = (
        text("path", "log", form=_file_name),
        number("step_s", "step", path="measured.step_s", null=True),
    )
    path: str
    trainer: str
    run: int
    num_runs: int
    measured: MeasuredRun
    said: Mapping[str, int | str]
    missing: tuple[Missing, ...]
    """Empty if something else prevents a prediction, which a warning says."""
    options: str
    """Those given, as a command has them."""
    units: tuple[str, ...]
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...] = ()

    @property
    def command(self) -> str | None:
        """A command that would predict the run too; None if nothing is missing."""
        words = ["sartor diagnose", self.path, self.options, *(fact.option for fact in self.missing)]
        return " ".join(word for word in words if word) if self.missing else None

    @property
    def run_parts(self) -> tuple[RunPart, ...]:
        """Usual steps as the headline has them, time between steps that the clock shows beside them, and pauses."""
        run = self.measured
        if not run.wall_s > 0:
            return ()
        paused_s, step_s = run.paused_s / run.wall_steps, run.usual_step_s
        between_s = run.wall_s / run.wall_steps - paused_s - step_s
        whole_s = step_s + paused_s + (between_s if between_s > LEAST_BETWEEN * step_s else 0.0)
        usual = RunPart(kind="usual_steps", seconds=step_s, share=step_s / whole_s, points_of_mfu=None)
        between = replace(usual, kind="between", seconds=between_s, share=between_s / whole_s)
        pauses = replace(usual, kind="pauses", seconds=paused_s, share=paused_s / whole_s, evidence=(pauses_text(run),))
        pauses = replace(pauses, fix=pauses_fix(run), gain_s=pauses.seconds)
        return (usual, *[between] * (between_s > LEAST_BETWEEN * step_s), *[pauses] * bool(run.pauses))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LogDiagnosis(Answer):
    """A run's log compared with the prediction for its plan: what differs, and which changed fact would explain it."""

    fields: ClassVar[Fields] = LOG
    subject: ClassVar[Fields] = (
        text("path", "log", form=_file_name),
        text("model", "model", path="job.shape.name"),
        number("step_s", "step", path="measured.step_s"),
        number("predicted_s", "predicted", path="predicted.step_s"),
    )
    path: str
    trainer: str
    run: int
    """Which of the log's ``num_runs`` runs this is, from 1."""
    num_runs: int
    measured: MeasuredRun
    job: TrainingJob
    facts: Run
    """Every value of job and plan, with its origin."""
    cluster: Cluster
    open_plan: OpenPlan
    """What nothing states of the plan."""
    explanations: tuple[Explanation, ...]
    """The plan as given, then with one fact changed each, the best match first."""
    conventions: tuple[FlopConvention, ...]
    """How the trainer counts FLOPs: the best match and those equally good; empty if the log has no rate or none
    matches."""
    said: Mapping[str, int | str]
    """Facts of plan and job that the log, a launch file or an option gave."""
    best: PricedPlan | None
    """The best plan for the same job and devices, if it was searched for and one fits."""
    units: tuple[str, ...]
    """What the trainer's numbers mean."""
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]
    source: Source

    @property
    def predicted(self) -> PricedPlan:
        """The plan as given."""
        return self.explanations[0].priced

    @property
    def mfu(self) -> float:
        """MFU of the run: the prediction's FLOPs over the measured time."""
        return float(self.predicted.step.mfu) * self.predicted.step_s / self.measured.step_s

    @property
    def cost(self) -> RunCost:
        """Cost of the tokens of one measured step."""
        devices = int(self.predicted.plan.num_devices)
        return run_cost(self.job, self.cluster, devices, (self.measured.step_s,) * 3, self.job.tokens_per_step)

    @property
    def deviation(self) -> float:
        """ln(measured / predicted) of the step without stalls, in standard deviations of the prediction."""
        ratio = math.log(self.measured.stall_free_s / self.predicted.step_s)
        return ratio / max(float(self.predicted.step.log_sigma), 1e-3)

    @property
    def inside(self) -> bool:
        """Whether the measured step without stalls lies in the predicted 80% interval."""
        return self.predicted.low_s <= self.measured.stall_free_s <= self.predicted.high_s

    @property
    def agrees(self) -> bool:
        """Whether the step and every measured peak of memory lie in their 80% intervals."""
        held = self.predicted.footprint
        peaks = (
            (self.measured.allocated_bytes, held.allocated_bytes),
            (self.measured.reserved_bytes, held.reserved_bytes),
        )
        return self.inside and not any(memory_differs(seen, float(told)) for seen, told in peaks)

    @property
    def advice(self) -> RunPart | None:
        """The largest part of the run that has a remedy, if it is worth a word."""
        parts = [part for part in self.run_parts if part.fix and part.kind != "plan" and part.share >= LEAST_ADVICE]
        return max(parts, key=lambda part: part.seconds, default=None)

    @property
    def nearer_step(self) -> Explanation | None:
        """The nearest change, if the step comes nearer with it; one that only explains the memory moves no time."""
        measured_s, predicted_s = self.measured.stall_free_s, self.predicted.step_s
        first = next(iter(nearest(self.explanations)), None)
        closer = first is not None and abs(measured_s - first.priced.step_s) < abs(measured_s - predicted_s)
        return first if closer else None

    @property
    def unexplained_s(self) -> float:
        """Seconds per step that neither the prediction nor the nearest change accounts for."""
        change = self.nearer_step
        return self.measured.stall_free_s - (self.predicted if change is None else change.priced).step_s

    @property
    def run_parts(self) -> tuple[RunPart, ...]:
        """Parts of the predicted step, the effect of the nearest change, stalls, and the rest."""
        parts = (part for part in _log_parts(self) if part.seconds)
        return (*parts, _log_part(self, "unexplained", self.unexplained_s))


LEAST_ADVICE = 0.025
"""Share of the step below which a part of a logged run is no advice, as with a trace's losses."""


def _log_fixes(answer: LogDiagnosis) -> dict[str, str]:
    """What shortens the parts of a plan that is known."""
    plan = answer.predicted.plan
    if answer.open_plan.fields:
        return {}
    smaller = " or a smaller microbatch" if int(plan.microbatch_size) > 1 else ""
    interleaved = ", or interleaved stages" if int(plan.virtual_stages) == 1 else ""
    return {
        "pp_bubble": f"more microbatches per step (it has {int(plan.num_microbatches)} on {int(plan.dims.pp)} stages) "
        f"by a larger global batch{smaller}{interleaved}",
        "dp_exposed": "more tokens per replica and step, whose compute hides it, or an overlap that the trainer has "
        "switched off",
    }


def _log_parts(answer: LogDiagnosis) -> list[RunPart]:
    step, step_s = answer.predicted.step, answer.measured.step_s
    fixes, names = _log_fixes(answer), {part: part.name.removesuffix("_s") for part in PARTS}
    compute, *others = (
        _log_part(answer, name, float(part.read(step)), fix=fixes.get(name, "")) for part, name in names.items()
    )
    ideal_s = answer.mfu * step_s
    parts = [replace(compute, points_of_mfu=100 * (compute.seconds - ideal_s) / step_s), *others]
    if (change := answer.nearer_step) is not None:
        words = f"{change.field}={change.value}"
        gained_s = change.priced.step_s - answer.predicted.step_s
        parts.append(_log_part(answer, "plan", gained_s, f"{words} instead of what was assumed", words))
    run = answer.measured
    stalls = _log_part(answer, "stalls", run.stall_s, pauses_text(run), f"look at {pauses_fix(run)}")
    return [*parts, stalls]


def _log_part(answer: LogDiagnosis, kind: str, seconds: float, evidence: str | None = None, fix: str = "") -> RunPart:
    share = seconds / answer.measured.step_s
    return RunPart(
        kind=kind,
        seconds=seconds,
        share=share,
        points_of_mfu=100 * share,
        evidence=() if evidence is None else (evidence,),
        fix=fix or None,
        gain_s=max(seconds, 0.0) if fix else None,
    )


# ------------------------------------------------------------------------------------------------ a trace

PRODUCTS = ("matmul", "attention")
"""Parts with useful FLOPs, which would take some time even at the peak rate."""
KERNEL_TIME: Fields = (*INTERVAL, text("source"))
KERNEL: Fields = (
    text("name", "operator"),
    integer("count", "calls"),
    number("time_s", "time", path=lambda kernels: kernels.seconds / kernels.count),
    field("predicted", KERNEL_TIME, path=lambda kernels: _predicted_of(kernels)),
)
TRACE_PREDICTED: Fields = (
    *through("predicted", STEP_INTERVAL),
    text("source"),
    number("mfu", path="predicted.step.mfu"),
)
TRACE: Fields = (
    field(
        "trace",
        (
            *texts("path gpu"),
            text("work", path="kind.work", help="training or inference, by its kernels; empty if nothing tells"),
            rows("precision", Scalar.TEXT, path=lambda answer: [dtype.value for dtype in answer.kind.precision]),
            text("trained", path="kind.trained", help="weights that are trained: all, part, none, adapters; or empty"),
            integer("rank", null=True),
            integer("num_ranks"),
            integer("world_size", null=True),
            integer("num_steps"),
            number("span_s"),
        ),
        path=lambda answer: answer,
    ),
    _RUN,
    field(
        "measured",
        (
            number("step_s"),
            number("mfu", null=True),
            number("tokens_per_s", path=lambda answer: None, null=True),
            COST_OF_STEP,
        ),
        path=lambda answer: answer,
    ),
    field("predicted", TRACE_PREDICTED, path=lambda answer: None if answer.predicted is None else answer, null=True),
    _BEST_PLAN,
    *OPEN_PLAN,
    rows("parts", RUN_PART, path="run_parts"),
    rows("losses", Scalar.TEXT, path=lambda answer: [part.kind.value for part in answer.losses]),
    number("assigned_share", path=lambda answer: 1 - answer.unknown_share),
    number("unexplained_share", path="unknown_share"),
    rows("operators", KERNEL, path="priced"),
    number("priced_share"),
    number("median_ratio", null=True),
    rows("warnings", Scalar.TEXT),
    rows("assumptions", Scalar.TEXT),
)


def _predicted_of(kernels: PricedKernels) -> dict[str, Any]:
    """The predicted time of one call with its 80% interval."""
    time_s = kernels.predicted_s / kernels.count
    low_s, high_s = interval_80(time_s, kernels.log_sigma)
    return {"time_s": time_s, "low_s": float(low_s), "high_s": float(high_s), "source": kernels.source}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TraceDiagnosis(Answer):
    """A profiler trace divided into parts: where the mean steady step of one rank goes, and what could be saved."""

    fields: ClassVar[Fields] = TRACE
    subject: ClassVar[Fields] = (
        text("path", "trace", form=_file_name),
        text("gpu", "GPU"),
        number("step_s", "step"),
        number("predicted_s", "predicted", path=lambda answer: answer.predicted and answer.predicted.step_s),
    )
    path: str
    gpu: str
    """The device's name in the trace."""
    rank: int | None
    num_ranks: int
    """Ranks whose traces were read."""
    world_size: int | None
    step_s: float
    num_steps: int
    span_s: float
    parts: tuple[TracePart, ...]
    """Their seconds add up to ``step_s``."""
    losses: tuple[TracePart, ...]
    """The parts worth a change, the largest gain first."""
    mfu: float
    """From the FLOPs of the operators that have sizes in the trace; NaN if none has."""
    device: str
    """Catalogue name of the device on which its operators are priced; empty if none are."""
    priced: tuple[PricedKernels, ...]
    """Matrix multiplications and attention with a prediction, most seconds first."""
    priced_share: float
    """Share of the time of all matrix multiplications and attention that has a prediction."""
    median_ratio: float
    """Median of measured over predicted time."""
    open_plan: OpenPlan
    """What nothing states of the plan; nothing is open where no step is predicted."""
    predicted: PricedPlan | None
    """Prediction for the plan, if a model and its sizes were given."""
    best: PricedPlan | None
    """The best plan for the same job and devices, if it was searched for and one fits."""
    source: Source
    """What the predicted step rests on."""
    stretches: tuple[Stretch, ...]
    """The intervals of the steady step nearest the mean, for a figure."""
    kind: JobKind
    """What was traced, by its kernels."""
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]
    cost: RunCost | None = None
    """Cost of the tokens of one measured step, where those are known."""
    job: TrainingJob | None = None
    """What was trained, if a model and its sizes were given."""
    facts: Run = default(default_factory=lambda: Run(facts={}))
    """Every value of job and plan, with its origin; none if no step is predicted."""

    @property
    def unknown_share(self) -> float:
        return sum(part.seconds for part in self.parts if part.kind.value == "unknown") / self.step_s

    @property
    def run_parts(self) -> tuple[RunPart, ...]:
        """Its parts with their share of the step and of what MFU lacks."""
        return tuple(_trace_part(self, part) for part in self.parts)

    def points_of_mfu(self, part: TracePart) -> float | None:
        """How many of the points that MFU lacks of 100 are due to this part; for matrix multiplications and attention,
        their time beyond the ideal at peak rate, divided in proportion to their seconds. None where MFU is unknown."""
        if not math.isfinite(self.mfu):
            return None
        ideal_s = self.mfu * self.step_s
        products_s = sum(item.seconds for item in self.parts if item.kind.value in PRODUCTS)
        useful_s = ideal_s * part.seconds / products_s if part.kind.value in PRODUCTS and products_s else 0.0
        return 100 * (part.seconds - useful_s) / self.step_s


def _trace_part(answer: TraceDiagnosis, part: TracePart) -> RunPart:
    return RunPart(
        kind=part.kind.value,
        seconds=part.seconds,
        share=part.seconds / answer.step_s,
        points_of_mfu=answer.points_of_mfu(part),
        evidence=tuple(visible(line) for line in part.evidence),
        fix=part.fix or None,
        gain_s=part.gain_s,
    )


# ------------------------------------------------------------------------------------------------ two runs


def _change(unit: str) -> Fields:
    """A change in a unit; reads a pair (`RunChange`, threshold)."""
    return through(lambda pair: pair[0], (number(f"a_{unit}", "A", path="a"), number(f"b_{unit}", "B", path="b"))) + (
        _RATIO
    )


MOST_RATIO = 10.0
"""End of a ratio's interval above which it says nothing."""


def _change_text(ratio: float) -> str:
    return "new" if ratio == math.inf else "gone" if ratio == 0 else format_change(ratio - 1)


def _yes_text(value: bool) -> str:
    return "yes" if value else "no"


def _end_text(ratio: float) -> str:
    return format_change(ratio - 1) if 0 < ratio < MOST_RATIO else ""


_RATIO: Fields = (
    *through(
        lambda pair: pair[0],
        (
            number("ratio", "change", null=True, form=_change_text, help="of B from A"),
            number("low", "99% low", null=True, form=_end_text),
            number("high", "99% high", null=True, form=_end_text),
            flag("significant", "beyond noise", form=_yes_text),
        ),
    ),
    flag("beyond_threshold", "beyond threshold", path=lambda pair: pair[0].beyond(pair[1]), form=_yes_text),
)
_NAME = text(
    "name",
    "what",
    path=lambda pair: visible(pair[0].name),
    form=lambda name: name.replace("_bytes", " memory"),
)


_OPERATOR_CALLS: Fields = (
    number("calls", help="per step; of the whole trace where no step is marked"),
    text("sizes", help="of its inputs"),
    rows("kernels", Scalar.TEXT),
)
CHANGED_TIME: Fields = (
    _NAME,
    *_change("s"),
    *through(
        lambda pair: pair[0],
        (
            field(
                "in_a", _OPERATOR_CALLS, null=True, help="an operator of a trace, as A does it; null where it does not"
            ),
            field("in_b", _OPERATOR_CALLS, null=True),
        ),
    ),
)
CHANGED_BYTES: Fields = (_NAME, *_change("bytes"))
"""A part's seconds or bytes in two runs; read pairs (`RunChange`, threshold)."""


def _paired(changes: Any) -> Any:
    return lambda answer: [(change, answer.threshold) for change in getattr(answer, changes)]


COMPARED: Fields = (
    *texts("kind a b"),
    number("threshold"),
    flag("changed", "changed", level=Level.HEADLINE),
    rows("worse", Scalar.TEXT, path=lambda answer: [change.name for change in answer.worse]),
    flag("per_token"),
    number(
        "alike",
        path=lambda answer: min(answer.alike),
        help="least share of the traces' time in operators of equal shapes",
    ),
    field("total", _change("s"), path=lambda answer: (answer.total, answer.threshold)),
    rows("parts", CHANGED_TIME, path=_paired("parts")),
    rows("memory", CHANGED_BYTES, path=_paired("memory")),
    mapping("facts", ListOf(Scalar.ANY), help="facts of plan and job that differ: [in A, in B]"),
    rows("warnings", Scalar.TEXT),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunComparison(Answer):
    """What changed from run A to run B, and whether it exceeds the noise of their steps."""

    fields: ClassVar[Fields] = COMPARED
    subject: ClassVar[Fields] = (
        *(text("a", "A", form=_file_name), text("b", "B", form=_file_name)),
        number("ratio", "B over A", path="total.ratio", form="{:.3f}".format),
    )
    kind: str
    """``log`` or ``trace``."""
    a: str
    b: str
    threshold: float
    total: RunChange
    """Seconds per step; per token if the two runs' steps hold different numbers of tokens."""
    parts: tuple[RunChange, ...] = ()
    """Seconds per step of operators, the largest change first; of logs with stalls, usual steps and stalls."""
    memory: tuple[RunChange, ...] = ()
    """Bytes: one number per run, so any difference counts."""
    facts: Mapping[str, tuple[str, str]] = default(default_factory=dict)
    """Facts of plan and job that differ, as (in A, in B)."""
    per_token: bool = False
    warnings: tuple[str, ...] = ()

    def _rows(self) -> list[JsonDict]:
        return [flat(CHANGED_TIME, (change, self.threshold)) for change in (self.total, *self.parts)]

    @property
    def alike(self) -> tuple[float, float]:
        """Shares of the time of A's and of B's operators that the other trace has too, of the same shapes; of logs
        (1, 1)."""
        both = [part for part in self.parts if part.a > 0 and part.b > 0]
        sums = [(sum(part.a for part in parts), sum(part.b for part in parts)) for parts in (both, self.parts)]
        (a, b), (whole_a, whole_b) = sums
        return (a / whole_a, b / whole_b) if self.kind == "trace" and whole_a and whole_b else (1.0, 1.0)

    @property
    def worse(self) -> tuple[RunChange, ...]:
        """Changes that fail a gate: a slower step or larger memory, beyond noise and threshold."""
        return tuple(each for each in (self.total, *self.memory) if each.worse(self.threshold))

    @property
    def changed(self) -> bool:
        """Whether step time or memory differ beyond noise and threshold, either way."""
        return any(each.beyond(self.threshold) for each in (self.total, *self.memory))
