"""The winner of a study in detail: die area by part, steps by part, one layer's schedule."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from sartor.answers.design import STEP_TIME
from sartor.answers.field import to_json
from sartor.designs.candidates import Ranked
from sartor.designs.detail import area_parts, model_detail, power_parts
from sartor.designs.point import Evaluation, Point
from sartor.designs.question import DesignQuestion
from sartor.engine.study import StudyPoint, StudyRecord
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator, Dataflow, Memory
from sartor.json_types import JsonDict, JsonMap, picked, plain, record
from sartor.report.design_points import layer_bars, pipeline_bars

Key = tuple[str, int, float]
_LAST: dict[Key, JsonDict] = {}
"""Cache of the last winner, since a watched study is requested repeatedly."""
MOST_MODELS = 3
"""Most models whose schedules are drawn."""


def winner_body(study: StudyRecord, best: StudyPoint) -> JsonDict | None:
    """Parts of the die and of power, steps by part, schedules and pipelines; None if the question cannot be
    reconstructed (a study of another version)."""
    key = (study.fingerprint, best.candidate, best.hbm_bytes)
    if key not in _LAST:
        try:
            detail = _detail(study, best)
        except (InputError, KeyError, TypeError, ValueError, AttributeError, AssertionError, IndexError):
            return None
        _LAST.clear()
        _LAST[key] = detail
    return _LAST[key]


def _detail(study: StudyRecord, best: StudyPoint) -> JsonDict:
    question = question_of(study.question)
    accelerator = _accelerator_of(best.architecture)
    point = Point(index=best.candidate, accelerator=accelerator, hbm_bytes=best.hbm_bytes, options=())
    evaluation = Evaluation(point=point, outcomes=best.outcomes, bounds=())
    ranked = Ranked(
        evaluation=evaluation,
        objective=best.objective,
        bound=best.bound,
        area_mm2=best.area_mm2,
        power_w=best.power_w,
        die_usd=best.die_usd,
    )
    details = [d for m in range(len(question.models)) if (d := model_detail(question, evaluation, m)) is not None]
    return {
        "area": area_parts(question, accelerator),
        "power": power_parts(accelerator),
        "models": [_model(detail) for detail in details],
        "schedules": [
            plain(record(bars)) for detail in details[:MOST_MODELS] for _, bars in layer_bars(question, ranked, detail)
        ],
        "pipelines": [plain(record(pipeline_bars(detail))) for detail in details[:MOST_MODELS]],
    }


def _model(detail: Any) -> JsonDict:
    outcome = detail.outcome
    return {
        "name": outcome.name,
        "step_s": outcome.step_s,
        "low_s": detail.low_s,
        "high_s": detail.high_s,
        "source": "analytic",
        "mfu": detail.step.mfu,
        **picked(detail, "peak_bytes", "num_microbatches"),
        "time": to_json(detail.step, STEP_TIME),
    }


def _accelerator_of(table: JsonMap) -> Accelerator:
    """The accelerator stored in a study."""
    names = {field.name for field in dataclasses.fields(Accelerator)}
    fields: JsonDict = {name: value for name, value in table.items() if name in names}
    return Accelerator(**{**fields, "memory": Memory(table["memory"]), "dataflow": Dataflow(table["dataflow"])})


def question_of(table: JsonMap) -> DesignQuestion:
    """The question stored in a study (``engine.codec``). Raises ``ValueError`` if it is invalid."""
    names = {field.name for field in dataclasses.fields(DesignQuestion)}
    question = _revived(DesignQuestion, {name: value for name, value in table.items() if name in names or name == "is"})
    assert isinstance(question, DesignQuestion)
    return question


def _revived(kind: Any, value: Any) -> Any:
    """Convert a plain value to a field of type ``kind``; creates only types that the field names."""
    if get_origin(kind) in (Union, types.UnionType):
        return _one_of(get_args(kind), value)
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        kinds = [inner[0]] * len(value) if len(inner) == 2 and inner[1] is Ellipsis else inner
        return tuple(_revived(kind_of_item, item) for kind_of_item, item in zip(kinds, value, strict=True))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping) or value.get("is") != kind.__name__:
            raise ValueError(f"no {kind.__name__}")
        hints = get_type_hints(kind)
        names = [kinds.name for kinds in dataclasses.fields(kind) if kinds.init and kinds.name in value]
        return kind(**{name: _revived(hints[name], value[name]) for name in names})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {member.name.lower(): member for member in kind}[value]
    return value


def _one_of(kinds: tuple[Any, ...], value: object) -> Any:
    """The first of several types that accepts a value."""
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        fits = isinstance(value, Mapping) == (isinstance(kind, type) and dataclasses.is_dataclass(kind))
        if kind is type(None) or not fits or (isinstance(value, Mapping) and value.get("is") != kind.__name__):
            continue
        if isinstance(kind, type) and issubclass(kind, Enum) and not isinstance(value, str):
            continue
        return _revived(kind, value)
    raise ValueError("no such value")
