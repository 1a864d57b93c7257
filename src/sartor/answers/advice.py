"""``lint`` and ``advise``: their records, and the table of fields of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as default
from typing import TYPE_CHECKING, ClassVar

from sartor.answers.estimate import (
    BATCHES,
    FIT,
    MODEL,
    QUESTION,
    SUBJECT,
    TOTALS,
    WORKLOAD,
    ModelEstimate,
)
from sartor.answers.field import (
    Answer,
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
from sartor.answers.plan import CANNOT_RUN, COST_OF_STEP, INTERVAL
from sartor.rules.rule import worst_grade

if TYPE_CHECKING:
    from sartor.answers.serving import ServedShape
    from sartor.hardware.gpu import Gpu
    from sartor.rules.rule import Finding
    from sartor.shapes.search import CoDesign, ShapeSearch

REASON: Fields = texts("rule code grade message")
FINDING: Fields = (
    text("rule", "rule"),
    text("grade", "grade", help="error, warn or info"),
    text("message", "message"),
    *texts("operator field"),
    integer("value"),
    number("gain_s", null=True, help="seconds of the step the fix saves at equal work; null: it cannot run"),
    number("gain_fraction", "gain", null=True, help="the same as a share of the step"),
    mapping("fix", Scalar.INTEGER, help="new values by field"),
    text("code"),
    number("low_s", path="gain_low_s", null=True, help="lower end of the gain's 80% interval"),
    number("high_s", path="gain_high_s", null=True, help="upper end of the gain's 80% interval"),
    text("source"),
    text("doubt", help="why not to make the change, though it saves time; empty if nothing is known against it"),
    flag("remark", help="an architecture choice to make before training, not a fault of the shape"),
    number("params_change"),
    number("device_seconds_spared"),
    rows("reasons", REASON, path=lambda finding: (finding, *finding.others), help="all rules it includes"),
)
"""What a rule about shapes finds, with its price."""
LINT: Fields = (
    field("model", MODEL, path="base.question"),
    field("workload", WORKLOAD, path="base"),
    *through("base.question", QUESTION),
    *through("base", (COST_OF_STEP, *FIT, BATCHES)),
    rows("findings", FINDING, "findings", form=lambda findings: str(len(findings)), level=Level.HEADLINE,
         help="most severe first"),
    *through("base", CANNOT_RUN),
    text("worst_grade", "worst", path=lambda answer: worst_grade_of(answer.findings), null=True, level=Level.HEADLINE),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Lint(Answer):
    """What the rules found, worst first."""

    fields: ClassVar[Fields] = LINT
    subject: ClassVar[Fields] = through("base", SUBJECT)
    base: ModelEstimate
    findings: tuple[Finding, ...]
    on_other_trainers: Mapping[str, tuple[Finding, ...]] = default(default_factory=dict)
    """All findings under each other plausible trainer that turns some, by its name."""

    @property
    def worst_grade(self) -> str | None:
        """``"error"``, ``"warn"``, ``"info"``, or None without findings."""
        return worst_grade_of(self.findings)

    @property
    def agreed_grade(self) -> str | None:
        """The worst grade that every plausible trainer has at least: what the exit code is about."""
        grades = [worst_grade(findings) for findings in (self.findings, *self.on_other_trainers.values())]
        least = None if None in grades else min(filter(None, grades), key=lambda grade: grade.severity)
        return least and least.value


def worst_grade_of(findings: Iterable[Finding]) -> str | None:
    """The most severe grade of some findings as a word; None without findings."""
    worst = worst_grade(findings)
    return None if worst is None else worst.value


CHANGED = mapping("changed", ListOf(Scalar.INTEGER), help="field: [old, new]")
CHECK: Fields = (
    text("name"),
    *numbers("baseline value"),
    *numbers("low high", null=True),
    number("studied_params"),
    text("evidence"),
    *(flag("within_evidence"), flag("adverse")),
    text("source"),
)
LOSS: Fields = (
    number("nats", help="expected change of the training loss at equal tokens, of size and shape"),
    *numbers("low_nats high_nats"),
    mapping("terms", Scalar.NUMBER, help="its parts"),
    rows("not_covered", Scalar.TEXT, help="changed fields whose effect no study says"),
)
QUALITY: Fields = (
    text("evidence"),
    flag("within_evidence"),
    number("studied_params"),
    rows("checks", CHECK),
    rows("notes", Scalar.TEXT),
)
"""Published evidence on model quality for a change."""
_times = "{:.2f}x".format
CANDIDATE: Fields = (
    mapping("shape", Scalar.INTEGER, path="fields"),
    CHANGED,
    *integers("num_fields num_params"),
    number("params_change", "params", form="{:+z.2%}".format, help="change in parameters"),
    number("flops_change", "FLOPs", form="{:+z.1%}".format, level=Level.PAGE),
    replace(INTERVAL[0], level=Level.PAGE),
    *(replace(column, level=Level.DATA) for column in INTERVAL[1:]),
    number(
        "speedup", "speedup", form=_times, help="time of the baseline over time of this: a smaller model adds to it"
    ),
    *numbers("speedup_low speedup_high"),
    number("efficiency_gain", "gain", form=_times, help="speedup at equal parameters and equal FLOPs"),
    number("efficiency_low", "80% low", form="{:.2f}".format, help="of the gain; errors that both shapes share cancel"),
    number("efficiency_high", "80% high", form="{:.2f}".format),
    number("confidence", "sure", form=lambda p: ">99%" if p > 0.99 else f"{p:.0%}", help="probability of a gain"),
    mapping("per_gpu", Scalar.NUMBER),
    field("quality", QUALITY),
    field("loss", LOSS),
)
"""One shape of the baseline's size."""
WANT: Fields = (
    text("gpu", "device"),
    text("phase", "phase"),
    number("weight", "weight", form="{:g}".format),
    mapping("alone", ListOf(Scalar.INTEGER)),
    number("alone_gain", "gain alone", form=_times),
    number("common_gain", "gain here", form=_times),
    number("regret", "regret", unit="share"),
)
CODESIGN: Fields = (text("rule"), CHANGED, *numbers("regret baseline_regret"), field("loss", LOSS), rows("wants", WANT))
STABILITY: Fields = (
    text("axis"),
    *(integer("asked", when=lambda line: hasattr(line, "asked")),),
    field("tested", Scalar.ANY),
    rows("speedup", Scalar.NUMBER, when=lambda line: hasattr(line, "speedup")),
    rows("beats_baseline", Scalar.INTEGER, null=True, when=lambda line: hasattr(line, "beats_baseline")),
    rows("stays_best", Scalar.INTEGER, null=True, when=lambda line: hasattr(line, "stays_best")),
    *numbers("share_beats share_best"),
    number("least_speedup", when=lambda line: not hasattr(line, "speedup")),
)
"""How far an answer holds for other settings: along one axis, or over a grid of several."""
FRONT_POINT: Fields = (
    mapping("fields", Scalar.INTEGER),
    CHANGED,
    integer("num_fields"),
    number("params_change"),
    mapping("phase_s", Scalar.NUMBER),
    *numbers("speedup efficiency_gain"),
)
COMPARISON: Fields = numbers("speedup low high probability")
MIX: Fields = (
    CHANGED,
    number("params_change", "parameters", form="{:+z.2%}".format, level=Level.PAGE),
    number("active_change", "active", form="{:+z.2%}".format),
    mapping("gains", COMPARISON),
    field("quality", QUALITY),
    field("loss", LOSS),
)
SINGLE_EDIT: Fields = (
    text("field"),
    *integers("old new"),
    CHANGED,
    *numbers("speedup efficiency_gain params_change"),
)
WORTH: Fields = (
    number("tokens", help="of the run"),
    flag("stated"),
    number("share", help="of the run that the smallest edit saves"),
    number("device_hours"),
    number("usd", null=True),
    number("gained_nats", help="what the tokens take off the loss that the saved time is enough for"),
    number("restart_tokens", help="a run that has begun is worth restarting with the new shape before these"),
)
"""What the recommended shape is worth over a training run."""
_SEARCH: Fields = (
    text("equal", path="equal.value", help="compared at equal work (and size) or at equal expected loss"),
    rows("candidates", CANDIDATE, help="shapes that gain at equal work, best first"),
    field("smallest_edit", CANDIDATE, null=True),
    field("unsure", CANDIDATE, null=True),
    field("minimax", CANDIDATE, null=True),
    rows("stability", STABILITY),
    rows("front", FRONT_POINT),
    rows("mixes", MIX),
    rows("single_edits", SINGLE_EDIT),
    number("regret"),
    *integers("grid_size evaluated"),
    rows("assumptions", Scalar.TEXT),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What the recommended shape is worth over a run of ``tokens`` (``stated``, or 20 per parameter): the share of its
    time that it saves, and what else follows from that."""

    tokens: float
    stated: bool
    share: float
    device_hours: float
    usd: float | None
    gained_nats: float
    restart_tokens: float


ADVICE: Fields = (
    *LINT,
    rows("gpus", Scalar.TEXT, path=lambda advice: [gpu.name for gpu in advice.gpus]),
    field("baseline", TOTALS, path="base"),
    field("codesign", CODESIGN, null=True),
    field("worth", WORTH, null=True),
    *through("search", _SEARCH),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Advice(Answer):
    """The verdict: where the time goes, what is wasteful, and same-size shapes that are faster."""

    fields: ClassVar[Fields] = ADVICE
    subject: ClassVar[Fields] = through("base", SUBJECT)
    base: ModelEstimate
    gpus: tuple[Gpu, ...]
    findings: tuple[Finding, ...]
    search: ShapeSearch
    after: ModelEstimate | None
    """The recommended shape's own estimate; None when nothing beats the baseline."""
    worth: Worth | None = None
    codesign: CoDesign | None = None
    """One shape for several phases on all devices, if the objective has weights."""
    served: tuple[ServedShape, ...] = ()
    """If the objective is a deployment: the model as it is, then the candidates, the cheapest first."""

    @property
    def infeasible(self) -> bool:
        """Whether it does not run as stated; if it is served, whether no shape meets the objectives."""
        served = [shape.deployment.best for shape in self.served]
        return not any(served) if served else self.base.infeasible
