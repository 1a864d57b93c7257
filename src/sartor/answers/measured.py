"""Answers without a run: measurements and solved instances, each with its table of fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sartor.answers.field import (
    Answer,
    Field,
    Fields,
    Level,
    Reader,
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
)
from sartor.answers.plan import INTERVAL
from sartor.placement.problem import Placement
from sartor.schedules.problem import ScheduleResult


def sometimes(record: object) -> bool:
    """For a field that some answers of the command lack."""
    return True


ANYTHING = mapping("", Scalar.ANY)

# ------------------------------------------------------------------------------------------------ validate, operators


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _error(name: str, words: str, form: Reader = _percent) -> Field:
    """A figure that groups of some tables have."""
    return number(name, words, path=lambda group: group.get(name), form=form, null=True)


_OF_ALL: Fields = (
    _error("mape", "MAPE"),
    _error("median_error", "median"),
    _error("p90_error", "p90"),
    _error("bias", "bias", lambda value: f"{100 * value:+.1f}%"),
    _error("coverage_80", "in 80%"),
    _error("kendall_tau", "tau", "{:.2f}".format),
)
ERRORS: Fields = (
    *_OF_ALL,
    _error("measured_spread", "noise"),
    _error("roofline_mape", "roofline"),
    _error("heuristics_mape", "nvMMH"),
    _error("naive_mape", "naive"),
)
"""Errors of single predictions, per group."""
CHOICES: Fields = (
    _error("shots_mape", "after shots"),
    _error("shots_p90_error", "p90 after"),
    _error("memory_mape", "memory"),
    _error("oom_correct", "fits right"),
    _error("oom_recall", "OOM found"),
    _error("oom_precision", "OOM right"),
    _error("fit_calibration", "calibration"),
    _error("pair_accuracy", "pairs"),
    _error("top1_regret", "regret"),
)
"""Errors of choices, of memory, and of predictions calibrated on a few runs, per group."""
GROUP: Fields = (
    text("table"),
    *integers("rows targets expressed"),
    *_OF_ALL,
    rows("worst", (ANYTHING,), help="the targets with the largest errors"),
    mapping("", Scalar.ANY, help="the columns that it is grouped by, and errors of some tables alone"),
)
VALIDATE: Fields = (
    text("data"),
    *integers("num_rows expressed"),
    rows("groups", GROUP),
    mapping("overall", Scalar.ANY, when=sometimes),
    *numbers("memory_mape oom_correct pair_accuracy top1_regret", null=True, when=sometimes),
    integer("shots", when=sometimes),
    mapping("not_expressed", Scalar.INTEGER, help="reason: rows"),
    mapping("left_out", Scalar.INTEGER, help="reason: rows"),
    rows("remarks", Scalar.TEXT),
    mapping("assumptions", Scalar.TEXT),
)
PRICED_ROW: Fields = (
    integer("row", "row", help="from 1, below the header"),
    *texts("table gpu"),
    mapping("shape", Scalar.ANY),
    *INTERVAL,
    *numbers("compute_s memory_s network_s overhead_s flops bytes_moved"),
    number("achieved_flops_per_s", "TFLOP/s", form=lambda rate: f"{rate / 1e12:,.4g}" if rate else ""),
    number("achieved_bytes_per_s", "GB/s", form=lambda rate: f"{rate / 1e9:,.4g}"),
    text("bound_by", "bound by"),
    text("source", "source"),
)
OPERATORS: Fields = (
    text("file", null=True),
    integer("num_rows", "rows", level=Level.HEADLINE),
    integer("expressed", "with a prediction", level=Level.HEADLINE),
    rows("operators", PRICED_ROW),
    rows("refused", (text("reason"), integer("count"), rows("rows", Scalar.INTEGER))),
    rows("assumptions", Scalar.TEXT),
)

# ------------------------------------------------------------------------------------------------ measure, calibrate

SKIPPED: Fields = (text("reason"), integer("count"), rows("cases", Scalar.TEXT))
PAIR: Fields = (
    text("table"),
    number("predicted_s", "predicted"),
    number("low_s", "80% low"),
    number("high_s", "80% high"),
    number("measured_s", "measured"),
    number("ratio", "ratio", form="{:.2f}".format),
    text("source"),
    mapping("", Scalar.ANY, help="sizes and tags of the case"),
)
ARM: Fields = (
    text("group", "group"),
    text("arm", "arm", path=lambda arm: arm["arm"] + (" (baseline)" if arm["is_baseline"] else "")),
    number("predicted_s", "predicted", null=True),
    number("measured_s", "measured", null=True),
    number("predicted_speedup", "speedup predicted", null=True, form="{:.3f}".format),
    number("measured_speedup", "speedup measured", null=True, form="{:.3f}".format),
    number("points_apart", "points apart", null=True, form="{:+.1f}".format),
)
"""An arm of a case study, as people see it."""
MEASURE: Fields = (
    mapping("device", Scalar.ANY),
    *texts("dtype suite file"),
    *texts("machine_file no_machine_file", null=True),
    text("stopped"),
    *integers("cases measured kept again left"),
    rows("skipped", SKIPPED),
    number("spent_s"),
    mapping("rows", Scalar.INTEGER),
    rows("compared", PAIR),
    mapping("errors", Scalar.ANY),
    mapping("study", Scalar.ANY, when=sometimes, help="of a case study: its arms, predicted and measured"),
)
PARITY: Fields = (mapping("parity", Scalar.ANY), ANYTHING)
FIT_ERRORS: Fields = (
    integer("rows", "shapes", form="{:,}".format),
    *(number(name, words, form=_percent) for name, words in (("mape", "mean"), ("median", "median"), ("p90", "p90"))),
    number("bias", "bias", form="{:.3f}".format),
)
"""Errors of a fit, as people see them."""
REGION: Fields = (
    text("rows", "rows (m)"),
    text("weights", "weights"),
    integer("products", "GEMMs", form="{:,}".format),
    number("ratio", "time ratio", form="{:.3f}".format),
    number("least", "p10", form="{:.3f}".format),
    number("greatest", "p90", form="{:.3f}".format),
)
"""Predicted times after over before, by size of the GEMM, as people see them."""
COMPARED_CALIBRATION: Fields = (
    *texts("before after"),
    rows("made_with", (text("name"), *texts("before after", null=True))),
    rows("regions", (ANYTHING,)),
    rows("coefficients", (text("name"), *numbers("before after"))),
)
CALIBRATE: Fields = (
    *texts("gpu dtype"),
    text("file", null=True),
    text("source"),
    text("date", null=True),
    mapping("made_with", Scalar.ANY),
    *texts("start over"),
    *integers("own_rows rows shapes samples"),
    rows("left_out", (text("reason"), integer("rows"))),
    *(mapping(name, Scalar.NUMBER) for name in ("fit", "held_out", "before", "catalogue")),
    rows("streams", (text("section"), integer("rows"), *numbers("before fit"))),
    number("coverage_80"),
    mapping("coefficients", Scalar.ANY),
    rows("remarks", Scalar.TEXT),
    field("compared", COMPARED_CALIBRATION, when=sometimes),
)
SAMPLES: Fields = (*texts("gpu dtype"), text("file", null=True), rows("plan", (ANYTHING,)))
CHANGED_CALIBRATION: Fields = (field("compared", COMPARED_CALIBRATION),)


def _planned(name: str) -> Any:
    """An attribute of the plan of a placement; None if nothing fits."""
    return lambda placement: placement.plan and getattr(placement.plan, name)


def _integers_of_plan(names: str) -> Fields:
    return tuple(integer(name, path=_planned(name), null=True) for name in names.split())


def _span_text(layers: Sequence[int]) -> str:
    """``-1..4 (6)`` where ids are consecutive, else the first few; with their number."""
    if len(layers) > 2 and tuple(layers) == tuple(range(layers[0], layers[0] + len(layers))):
        return f"{layers[0]}..{layers[-1]} ({len(layers)})"
    return f"{', '.join(map(str, layers[:8]))}{', ...' if len(layers) > 8 else ''} ({len(layers)})"


PLACED_STAGE: Fields = (
    rows("layers", Scalar.INTEGER, "layers", form=_span_text),
    integer("devices", "devices"),
    number("load_s", "time"),
    text("device_type", "device type", when=lambda stage: bool(stage.device_type)),
)
TIGHTEST_LIMIT: Fields = (
    text("message"),
    number("least_memory_bytes", null=True),
    *integers("least_devices layer", null=True),
)
PLACEMENT: Fields = (
    text("status", "status", level=Level.HEADLINE),
    number("time_per_batch_s", "time per batch", path=_planned("time_per_batch_s"), null=True, level=Level.HEADLINE),
    *_integers_of_plan("tensor_parallel data_parallel num_stages"),
    rows("stages", PLACED_STAGE, path=lambda placement: placement.plan.stages if placement.plan else ()),
    *_integers_of_plan("context_parallel expert_parallel virtual_stages zero_stage"),
    number("fixed_strategy_time_per_batch_s", null=True),
    number("solve_s", help="wall-clock time"),
    flag("checked"),
    field("tightest", TIGHTEST_LIMIT, null=True),
)
CORES: Fields = (
    rows("tc", Scalar.INTEGER, path="tensor_cores"),
    rows("vc", Scalar.INTEGER, path="vector_cores"),
)
OPERATOR_RUN: Fields = (
    field("id", Scalar.ANY, "operator"),
    integer("start", "start"),
    integer("end", "end"),
    text("mode", "mode"),
    field("cores", CORES, path=lambda run: run, help="indexes from 0"),
)
SCHEDULE: Fields = (
    text("status", "status", level=Level.HEADLINE),
    number("makespan", "makespan", level=Level.HEADLINE),
    number("lower_bound", "lower bound", level=Level.HEADLINE),
    number("gap"),
    rows("operators", OPERATOR_RUN, help="by start"),
    flag("checked"),
    text("solver", help="allowed for what list scheduling and its bounds leave open"),
    text("method", help="what searched: list scheduling, prefix search, cp_sat, milp"),
    mapping("utilization", Scalar.NUMBER),
    flag("interrupted"),
    number("solve_s", help="wall-clock time"),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlacementAnswer(Answer, Placement):
    """A placement, as `sartor.place` answers it."""

    fields: ClassVar[Fields] = PLACEMENT


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ScheduleAnswer(Answer, ScheduleResult):
    """A schedule, as `sartor.schedule` answers it."""

    fields: ClassVar[Fields] = SCHEDULE
