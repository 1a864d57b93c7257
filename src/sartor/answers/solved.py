"""``place`` and ``schedule``: the tables of fields of their results, whose records the solvers define, as answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sartor.answers.answer import Answer
from sartor.answers.field import (
    Fields,
    Level,
    Scalar,
    field,
    flag,
    integer,
    integers,
    mapping,
    number,
    rows,
    text,
)
from sartor.placement.plan import Placement
from sartor.schedules.result import ScheduleResult


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
    text("solver"),
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
