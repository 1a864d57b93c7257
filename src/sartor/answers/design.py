"""``design``: the record of a joint search of chip and plan, and its table of fields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sartor.answers.advice import LOSS
from sartor.answers.design_reasons import why_texts
from sartor.answers.field import (
    Answer,
    Fields,
    Level,
    ListOf,
    MapOf,
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
    through,
)
from sartor.answers.plan import STEP_INTERVAL
from sartor.model.counts import count_params
from sartor.model.training import Recompute
from sartor.shapes.quality import loss_change

if TYPE_CHECKING:
    from sartor.designs.against import Against, AgainstModel
    from sartor.designs.candidates import JointResult, Ranked
    from sartor.designs.front import ProvedFront
    from sartor.designs.question import DesignQuestion
    from sartor.designs.sensitivity import Nearby
    from sartor.designs.shapes import ShapeDesign
    from sartor.designs.shapes_proved import BestShape, JointShapes
    from sartor.designs.space import AcceleratorSpace
    from sartor.model.workload import ModelReading
    from sartor.shapes.quality import LossChange

# ------------------------------------------------------------------------------------------------ one point


class Priced(NamedTuple):
    """An evaluated point of a question."""

    question: DesignQuestion
    ranked: Ranked

    @property
    def point(self) -> Any:
        return self.ranked.evaluation.point


LEFT_OUT = ("name", "title", "note", "confidence", "sources")


def _architecture(accelerator: Any) -> dict[str, Any]:
    from sartor.hardware.accelerator_catalog import accelerator_fields

    return {name: value for name, value in accelerator_fields(accelerator).items() if name not in LEFT_OUT}


def _architecture_of_point(pair: Priced) -> dict[str, Any]:
    """The accelerator's fields in SI units; ``hbm_bytes`` is the memory of the point."""
    stacks = max(int(pair.point.accelerator.num_stacks), 1)
    size_bytes = pair.point.hbm_bytes
    return {**_architecture(pair.point.accelerator), "hbm_bytes": size_bytes, "stack_bytes": size_bytes / stacks}


def _details(pair: Priced) -> dict[str, Any]:
    """Per model: how it runs on the point; None if it does not fit."""
    from sartor.designs.detail import model_detail

    models = enumerate(pair.question.models)
    return {model.name: model_detail(pair.question, pair.ranked.evaluation, m) for m, model in models}


def _joules(pair: Priced) -> dict[str, Any]:
    from sartor.designs.bounds import evaluated_joules

    models = enumerate(pair.question.models)
    return {model.name: evaluated_joules(pair.question, pair.ranked.evaluation, m) for m, model in models}


def _rates(pair: Priced) -> dict[str, float]:
    details = _details(pair).items()
    return {name: 0.0 if detail is None else detail.outcome.sequences_per_s for name, detail in details}


def _plan_field(name: str) -> Any:
    def read(detail: Any) -> Any:
        from sartor.designs.detail import plan_fields

        return plan_fields(detail)[name]

    return read


STEP_TIME: Fields = (
    number("microbatches_s", "microbatches", path=lambda step: step.parts["compute_s"]),
    number("fill_s", "pipeline fill and drain", path=lambda step: step.parts["pp_bubble_s"]),
    number("resync_s", "gradient reduction", path=lambda step: step.parts["dp_exposed_s"]),
    number("optimizer_s", "optimizer step", path=lambda step: step.parts["optimizer_s"]),
)
"""The parts of a step on a chip of the space, those that a lockstep trainer has; their seconds add up to it."""
PLAN_OF_MODEL: Fields = (
    *(
        integer(name, name, path=_plan_field(name))
        for name in ("tp", "pp", "dp", "cp", "ep", "num_devices", "microbatch_size", "num_microbatches")
    ),
    *(text(name, path=_plan_field(name)) for name in ("recompute", "dtype")),
    *(integer(name, path=_plan_field(name)) for name in ("virtual_stages", "zero_stage")),
    number("step_s", "step", path="outcome.step_s"),
    *numbers("low_s high_s"),
    text("source", path=lambda detail: "analytic"),
    *(number(name, path=f"outcome.{name}") for name in ("sequences_per_s", "tokens_per_s")),
    number("mfu", path="step.mfu"),
    number("peak_bytes"),
    field("time", STEP_TIME, path="step"),
)
"""How one model runs: degrees, predicted step with its 80% interval, where it goes."""
DESIGN_STAGE: Fields = (
    integer("stage", "stage"),
    integer("num_layers", "layers"),
    rows("holds", Scalar.TEXT, "and", form=", ".join, help="blocks besides layers"),
    integer("devices", "devices"),
    number("forward_s", "forward"),
    number("load_s", "forward + backward"),
    number("peak_bytes", "memory per device"),
)


def _layer_interval(layer: Any) -> tuple[float, float]:
    from sartor.designs.detail import interval_s

    return interval_s(layer.forward_s + layer.backward_s)


LAYER: Fields = (
    text("name"),
    *numbers("forward_s backward_s"),
    number("forward_least_s", help="proved lower bound"),
    number("backward_least_s", help="proved lower bound"),
    number("low_s", path=lambda layer: _layer_interval(layer)[0]),
    number("high_s", path=lambda layer: _layer_interval(layer)[1]),
    text("source", path=lambda layer: "analytic"),
)
"""One kind of layer: scheduled seconds of both passes, their proved lower bounds, and the sum's interval."""

WHOLE_PLAN: Fields = (
    *PLAN_OF_MODEL,
    rows("stages", DESIGN_STAGE),
    rows("layers", LAYER, path="outcome.layers"),
)


def rate(value: float) -> str:
    """``1,234``, ``12.34``: an objective or a throughput."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


PRICES: Fields = (
    number("area_mm2", "mm2", form="{:,.1f}".format, null=True),
    number("power_w", "W", form="{:,.0f}".format, null=True),
    number("die_usd", null=True),
    number("usd", "USD with memory", form="{:,.0f}".format, null=True),
    number("ownership_usd", null=True),
)


def _ranked(plan: Fields) -> Fields:
    return (
        mapping("architecture", Scalar.ANY, path=_architecture_of_point, help="the accelerator's fields in SI units"),
        *through("ranked", PRICES),
        field("plan", MapOf(plan, null=True), path=_details, help="per model; null: it does not fit"),
        field("energy_j_per_token", MapOf(Scalar.NUMBER, null=True), path=_joules),
        mapping("throughput", Scalar.NUMBER, path=_rates, help="sequences per second"),
        *through("ranked", (number("objective", "objective", form=rate), number("bound"))),
    )


RANKED: Fields = _ranked(PLAN_OF_MODEL)
"""An evaluated point (`Priced`): what it is, what it costs, how each model runs on it."""


def _area(pair: Priced) -> dict[str, float]:
    from sartor.designs.detail import area_parts

    return dict(area_parts(pair.question, pair.point.accelerator))


def _power(pair: Priced) -> dict[str, float]:
    from sartor.designs.detail import power_parts

    return dict(power_parts(pair.point.accelerator))


# ------------------------------------------------------------------------------------------------ shapes


def params_change(best: BestShape) -> float:
    """Relative change in parameters from the model to the best shape."""
    shape, base = best.variant.shape, best.axes.variants[0].shape
    return float(count_params(shape).total / count_params(base).total - 1)


def shape_loss(best: BestShape) -> LossChange:
    """Expected change of the training loss from the model to the best shape."""
    return loss_change(best.variant.shape, best.axes.variants[0].shape)


def _changed(variant: Any) -> dict[str, list[int]]:
    return {name: [old, new] for name, old, new in variant.changed}


CHANGED = mapping("changed", ListOf(Scalar.INTEGER), path=_changed, help="field: [old, new]")
BEST_SHAPE: Fields = (
    mapping("", Scalar.INTEGER, path=lambda best: {k: int(v) for k, v in best.variant.shape.fields().items()}),
    *through("variant", (CHANGED,)),
    integer("num_params", path=lambda best: int(count_params(best.variant.shape).total)),
    number("params_change", path=params_change),
    field("loss", LOSS, path=shape_loss),
)
"""A shape's fields, those that changed, and the change in parameters from the model's own."""
JOINT_SHAPES: Fields = (
    integer("num_shapes", path=lambda joint: prod(best.axes.num_shapes for best in joint.shapes)),
    integer("distinct", path=lambda joint: prod(len(best.axes.variants) for best in joint.shapes)),
    integer("searched"),
    number("params_tolerance", path=lambda joint: joint.shapes[0].axes.tolerance),
    number("as_it_is", path=lambda joint: joint.as_it_is.best and joint.as_it_is.best.objective, null=True),
    *numbers("in_turn gain gain_over_turns", null=True),
)
"""``--shapes all``: how many shapes there are, and the gain from searching them with the chip."""
VARIANT: Fields = (
    *through(lambda row: row[0], (text("name"), CHANGED)),
    text("status", path=lambda row: row[1].status),
    number("gap", path=lambda row: row[1].gap, null=True),
    number("sequences_per_s", path=lambda row: float(row[2])),
)
"""A variant of the shape; reads a triple (variant, result, best rate)."""
NAMED_CHIP: Fields = (
    text("name", path=lambda pair: pair[0].name),
    rows("hbm_bytes", Scalar.NUMBER, path=lambda pair: pair[0].hbm_bytes),
    number("fleet_weight", path=lambda pair: pair[1]),
    mapping("architecture", Scalar.ANY, path=lambda pair: _architecture(pair[0].accelerator)),
)
SPLIT: Fields = (
    integer("microbatch_size", path=lambda pair: pair[0].microbatch_size),
    integer("tp", path=lambda pair: pair[0].width),
    integer("cp", path=lambda pair: pair[0].context_parallel),
    integer("ep", path=lambda pair: pair[0].expert_parallel),
    text("recompute", path=lambda pair: Recompute(pair[1]).word),
)
SHAPES: Fields = (
    text("status"),
    rows("variants", VARIANT, path=lambda shapes: zip(shapes.variants, shapes.results, shapes.best_rate, strict=True)),
    rows("chips", NAMED_CHIP, path=lambda shapes: zip(shapes.chips, shapes.fleet, strict=True)),
    rows("plans", SPLIT),
    field("sequences_per_s", ListOf(ListOf(Scalar.NUMBER)), path="reached", help="[variants, chips]"),
    field("sequences_per_s_by_plan", Scalar.ANY, path="rates"),
    *(field(name, Scalar.ANY) for name in ("chip_regret", "shape_regret", "plan_regret")),
    field(
        "best",
        (integer("variant", path=lambda best: best[0]), number("sequences_per_s", path=lambda best: best[1])),
    ),
    integer("chip_for_family"),
    rows("best_variant_by_chip", Scalar.INTEGER, path="best_shape"),
    field(
        "fleet_variant",
        (integer("variant", path=lambda pair: pair[0]), number("regret", path=lambda pair: pair[1])),
        path="fleet_shape",
    ),
    number("wall_s", path="seconds", help="wall-clock time"),
)
"""``--shapes N``: variants, chips, throughput and regret of each pair."""

# ------------------------------------------------------------------------------------------------ the answer

SWING: Fields = (
    text("assumption"),
    number("change"),
    flag("survives"),
    number("objective"),
    number("most", path="best_objective"),
    integer("rivals", path="num_rivals"),
)
"""The best chip under a changed assumption; ``most``: the best objective of all priced chips under it."""
NEEDED: Fields = numbers("area power cost", null=True)


def _gpu_plan(model: AgainstModel) -> dict[str, int]:
    plan: Any = model.plan
    if hasattr(plan, "copies"):
        return {"tp": plan.tp, "dp": plan.copies, "microbatch_size": plan.batch_size}
    return {name: int(getattr(plan.plan.dims, name)) for name in ("tp", "pp", "dp", "cp", "ep")}


def _gpu_mfu(model: AgainstModel) -> Any:
    return None if hasattr(model.plan, "copies") else model.plan and model.plan.step.mfu


def _fits(model: AgainstModel) -> bool:
    return model.plan is not None


AGAINST_MODEL: Fields = (
    text("status", path=lambda model: "optimal" if _fits(model) else "infeasible"),
    *(
        number(column.name, path=lambda model, read=column.read: model.plan and read(model.plan), null=True)
        for column in STEP_INTERVAL
    ),
    number("mfu", path=_gpu_mfu, null=True, when=_fits),
    mapping("plan", Scalar.INTEGER, path=_gpu_plan, when=_fits),
    number("ratio", null=True, help="its step time over the chip's"),
    number("equal_step_s", null=True, help="its step on the chip's network"),
    number("equal_ratio", null=True, help="that over the chip's step"),
    field("needed", NEEDED, null=True),
)
AGAINST: Fields = (
    text("gpu", path="gpu.name"),
    text("cluster"),
    text("network", help="the chip's network"),
    mapping("per_model", AGAINST_MODEL, path=lambda against: {model.model: model for model in against.models}),
)
"""A catalogue GPU on the jobs of the design."""
MODEL_OF_QUESTION: Fields = (
    text("name", path=lambda row: row[0].name),
    integer("num_params", path=lambda row: row[1].num_params, null=True),
    text("phase", path=lambda row: row[0].phase),
    integer("seq_len", path=lambda row: row[0].seq_len),
    integer("context_len", path=lambda row: row[0].context_len),
    number("latency_s", path=lambda row: row[0].latency_s, null=True),
    number("weight", path=lambda row: row[2]),
    rows("tensor_parallel", Scalar.INTEGER, path=lambda row: row[0].widths),
)
"""One model of the question; reads a triple (model, reading, weight)."""


def _models(answer: DesignAnswer) -> list[Any]:
    question = answer.question
    return list(zip(question.models, answer.readings, question.weights, strict=True))


BUDGETS: Fields = (*numbers("area_mm2 power_w hbm_bytes energy_j_per_token", null=True), flag("plausible"))
QUESTION: Fields = (
    rows("models", MODEL_OF_QUESTION, path=_models),
    integer("num_devices", path="question.num_devices"),
    integer("global_batch_size", path="question.batch", null=True),
    text("space", path="space.name"),
    text("objective", path="question.objective"),
    text("mean", path="question.mean"),
    text("area_model", path="question.costs.area"),
    rows("microbatch_sizes", Scalar.INTEGER, path="question.microbatch_sizes"),
    rows("dtypes", Scalar.TEXT, path="question.dtypes"),
    rows("recompute", Scalar.TEXT, path=lambda answer: [Recompute(way).word for way in answer.question.recomputes]),
    text("optimizer", path="question.optimizer"),
    rows("zero_stages", Scalar.INTEGER, path="question.zero_stages"),
    rows("context_parallel", Scalar.INTEGER, path="question.context_widths"),
    rows("virtual_stages", Scalar.INTEGER, path="question.virtual_stages"),
    field("budgets", BUDGETS, path="question.budgets"),
)
BASELINE: Fields = (
    text("name", "alternative", path=lambda pair: pair[1].name),
    number("objective", path=lambda pair: None, null=True, when=lambda pair: pair[1].ranked is None),
    *(
        replace(column, when=lambda pair: pair[1].ranked is not None)
        for column in through(lambda pair: Priced(pair[0], pair[1].ranked), RANKED)
    ),
    integer("evaluated", "points", path=lambda pair: pair[1].evaluations, form="{:,}".format),
    text("note", path=lambda pair: pair[1].note or None, null=True),
    number("wall_s", "search", path=lambda pair: pair[1].seconds),
)
"""Another search method, and what it reaches under the same cost model; reads a pair (question, `Baseline`)."""
REASON: Fields = (
    *through(
        lambda pair: pair[0],
        (
            text("model"),
            number("factor", null=True),
            number("placement_factor", path="placement", null=True),
            number("chip_factor", path="chip", null=True),
            mapping("left", Scalar.NUMBER, path=lambda reason: dict(reason.left)),
        ),
    ),
    text("text", path=lambda pair: pair[1]),
)
"""Why the best is faster than the TPUv4-like point; reads a pair (`Reason`, text)."""
PROGRESS: Fields = (
    integer("evaluated"),
    *numbers("bound incumbent", null=True),
    text("phase"),
    number("wall_s", path="seconds"),
)


def _best(answer: DesignAnswer) -> DesignAnswer | None:
    return None if answer.best is None else answer


def _of_best(answer: DesignAnswer) -> Priced:
    assert answer.best is not None
    return Priced(answer.question, answer.best)


def _joint_shapes(answer: DesignAnswer) -> int:
    return 0 if answer.joint is None else len(answer.joint.shapes)


BEST: Fields = (
    *through(_of_best, _ranked(WHOLE_PLAN)),
    mapping("area", Scalar.NUMBER, path=lambda answer: _area(_of_best(answer))),
    mapping("power", Scalar.NUMBER, path=lambda answer: _power(_of_best(answer))),
    field("shape", BEST_SHAPE, path=lambda answer: answer.joint.shapes[0], when=lambda a: _joint_shapes(a) == 1),
    mapping(
        "shapes",
        BEST_SHAPE,
        path=lambda answer: {best.model: best for best in answer.joint.shapes},
        when=lambda answer: _joint_shapes(answer) > 1,
    ),
)
DESIGN: Fields = (
    text("status", "status", path="result.status", level=Level.HEADLINE),
    flag("interrupted", path="result.interrupted"),
    field("question", QUESTION, path=lambda answer: answer),
    field("best", BEST, path=_best, null=True),
    *through(
        "result",
        (
            *numbers("upper_bound gap", null=True),
            *integers("space_size num_candidates evaluated pruned num_points left_out waiting"),
            text("tightest", path=lambda result: result.tightest or None, null=True),
        ),
    ),
    rows("pareto", RANKED, path=lambda answer: [Priced(answer.question, ranked) for ranked in answer.front]),
    rows("pareto_axes", Scalar.TEXT, path=lambda answer: answer.proved_front and answer.proved_front.axes, null=True),
    flag("pareto_proved", path=lambda answer: answer.proved_front is not None and answer.proved_front.proved),
    rows("baselines", BASELINE, path=lambda answer: [(answer.question, line) for line in answer.result.baselines]),
    rows("against", AGAINST),
    rows("reasons", REASON, path=lambda answer: zip(answer.result.reasons, why_texts(answer), strict=True)),
    field("shapes", JOINT_SHAPES, path="joint", when=lambda answer: answer.joint is not None),
    field("shapes", SHAPES, null=True, when=lambda answer: answer.joint is None),
    rows("convergence", PROGRESS, path="result.trajectory"),
    mapping("near_best", ListOf(Scalar.NUMBER), path=lambda answer: answer.nearby and answer.nearby.near_best,
            null=True),
    rows("sensitivity", SWING, path=lambda answer: answer.nearby and answer.nearby.swings, null=True),
    rows("warnings", Scalar.TEXT),
    rows("assumptions", Scalar.TEXT),
    number("wall_s", path="result.seconds", help="wall-clock time"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DesignAnswer(Answer):
    """Which accelerator and plan go best together for some models: the search and its proof."""

    fields: ClassVar[Fields] = DESIGN
    readings: tuple[ModelReading, ...]
    question: DesignQuestion
    space: AcceleratorSpace
    result: JointResult
    assumptions: tuple[str, ...]
    proved_front: ProvedFront | None = None
    """Over the axes of ``pareto``; None if none were given."""
    against: tuple[Against, ...] = ()
    """Catalogue GPUs on the same jobs, if requested."""
    rivals: tuple[str, ...] = ()
    """Chips of the user's own among the baselines."""
    shapes: ShapeDesign | None = None
    """Shapes of the model's size against chips and plans, if requested."""
    joint: JointShapes | None = None
    """The search over all shapes of the model's size, if requested; ``question`` is then that of the best shape."""
    warnings: tuple[str, ...] = ()
    """Reasons to doubt the best chip or to widen the space."""
    nearby: Nearby | None = None
    """How sensitive the best point is to its axes and rates, if requested."""
    studied: bool = False
    """Whether a study file holds the search, so that the same command goes on with it."""

    @property
    def best(self) -> Ranked | None:
        return self.result.best

    @property
    def front(self) -> tuple[Ranked, ...]:
        """The proved front; without one, evaluated points not dominated in objective, area and power."""
        if self.proved_front is not None:
            return self.proved_front.points
        from sartor.designs.front import not_dominated

        return not_dominated(self.result.ranked)
