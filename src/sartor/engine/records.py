"""Records of a design as JSON and back, to the last bit: what a study keeps beside the points of its search."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from typing import Any

import numpy as np

from sartor.designs.parts import Split
from sartor.designs.point import Evaluation, LayerTime, ModelOutcome, Option, Point
from sartor.designs.result import Baseline, Ranked
from sartor.engine.codec import dumps
from sartor.hardware.accelerator import Accelerator, Dataflow
from sartor.hardware.memory import Memory
from sartor.model.training import Recompute
from sartor.operators import DType
from sartor.placement.plan import Plan, Stage

RECORDS = (Accelerator, Baseline, Evaluation, LayerTime, ModelOutcome, Option, Plan, Point, Ranked, Stage)
WORDS = (Dataflow, DType, Memory, Recompute)
_BY_NAME: Mapping[str, Any] = {kind.__name__: kind for kind in (*RECORDS, *WORDS, Split)}


def to_text(value: Any) -> str:
    """Canonical JSON of a value made of `RECORDS`, `WORDS`, tuples, mappings by text, numbers, texts and None."""
    return dumps(_told(value))


def from_text(text: str) -> Any:
    """The value that `to_text` wrote; raises ``ValueError`` or ``KeyError`` for what it did not write."""
    return _read(json.loads(text))


def _told(value: Any) -> Any:
    if isinstance(value, Enum):
        return {"is": type(value).__name__, "named": value.name}
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": type(value).__name__} | {each.name: _told(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Split):
        return {"is": "Split"} | {name: _told(each) for name, each in value._asdict().items()}
    if isinstance(value, Mapping):
        return {"of": [[name, _told(each)] for name, each in value.items()]}
    if isinstance(value, tuple | list):
        return [_told(each) for each in value]
    if isinstance(value, np.generic):
        return _told(value.item())
    return {"number": str(value)} if isinstance(value, float) and not isfinite(value) else value


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_read, value))
    if not isinstance(value, dict):
        return value
    if "number" in value:
        return float(value["number"])
    if "of" in value:
        return {name: _read(each) for name, each in value["of"]}
    kind = _BY_NAME[value["is"]]
    if "named" in value:
        return kind[value["named"]]
    return kind(**{name: _read(each) for name, each in value.items() if name != "is"})
