"""Encode a study's question and records as JSON that restores the same numbers to the last bit, and decode records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from typing import Any

import numpy as np

from sartor.designs.candidates import Baseline, Ranked
from sartor.designs.parts import CopySplit
from sartor.designs.point import Evaluation, LayerTime, ModelOutcome, Option, Point
from sartor.designs.question import DesignQuestion
from sartor.designs.space import AcceleratorSpace
from sartor.hardware.accelerator import ARRAY_FIELDS, Accelerator, Dataflow, Memory
from sartor.json_types import JsonDict, JsonMap
from sartor.model.training import Recompute
from sartor.operators import DType
from sartor.placement.problem import Plan, Stage

MOST_VALUES = 24
"""Longest axis that is listed in full; longer ones are summarized by their number and ends."""


def dumps(value: object) -> str:
    """Canonical JSON: sorted keys, no spaces, floats as Python writes them (they are read back unchanged)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


# ------------------------------------------------------------------------------------------------------- the question


def question_dict(question: DesignQuestion, space: AcceleratorSpace, tolerance: float) -> JsonDict:
    """Everything that a result depends on except the version of sartor, as plain values."""
    plain = _plain(question)
    return {**plain, "space": _space(space), "tolerance": tolerance}


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        kind = {"is": type(value).__name__}
        return kind | {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, np.ndarray):
        return _axis(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, frozenset | set):
        return sorted(map(str, map(_plain, value)))
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    return value


def _axis(values: Any) -> JsonDict:
    distinct = np.unique(values)
    shown = distinct if len(distinct) <= MOST_VALUES else distinct[[0, -1]]
    digest = hashlib.blake2b(np.ascontiguousarray(values, dtype="<f8").tobytes(), digest_size=12).hexdigest()
    return {"size": values.size, "distinct": len(distinct), "values": shown.tolist(), "digest": digest}


def _space(space: AcceleratorSpace) -> JsonDict:
    return {
        "name": space.name,
        "num_points": space.num_points,
        "hbm_bytes": list(space.hbm_bytes),
        "area_limit_mm2": space.area_limit_mm2,
        "groups": [_plain(group) for group in space.groups],
    }


# ---------------------------------------------------------------------------------------------------- what is reached


def architecture_dict(accelerator: Accelerator, hbm_bytes: float) -> JsonDict:
    """One accelerator with its memory size."""
    numbers = {name: _plain(np.asarray(getattr(accelerator, name))[()]) for name in ARRAY_FIELDS}
    words = {"memory": accelerator.memory.value, "dataflow": accelerator.dataflow.value}
    words |= {"packed_dtype": accelerator.packed_dtype.value} if accelerator.packed_dtype else {}
    return {**numbers, **words, "node_nm": int(accelerator.node_nm), "hbm_bytes": hbm_bytes}


# ------------------------------------------------------------------------------------------------------------ records

RECORDS = (Accelerator, Baseline, Evaluation, LayerTime, ModelOutcome, Option, Plan, Point, Ranked, Stage)
WORDS = (Dataflow, DType, Memory, Recompute)
_BY_NAME: JsonMap = {kind.__name__: kind for kind in (*RECORDS, *WORDS)} | {"Split": CopySplit}


def to_text(value: object) -> str:
    """Canonical JSON of a value made of `RECORDS`, `WORDS`, tuples, mappings by text, numbers, texts and None."""
    return dumps(_encoded(value))


def from_text(text: str) -> Any:
    """The value that `to_text` wrote; raises ``ValueError`` or ``KeyError`` for other text."""
    return _decoded(json.loads(text))


def _encoded(value: object) -> Any:
    if isinstance(value, Enum):
        return {"is": type(value).__name__, "named": value.name}
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": type(value).__name__} | {item.name: _encoded(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, CopySplit):
        return {"is": "Split"} | {name: _encoded(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {"of": [[name, _encoded(item)] for name, item in value.items()]}
    if isinstance(value, tuple | list):
        return [_encoded(item) for item in value]
    if isinstance(value, np.generic):
        return _encoded(value.item())
    return {"number": str(value)} if isinstance(value, float) and not isfinite(value) else value


def _decoded(value: object) -> Any:
    if isinstance(value, list):
        return tuple(map(_decoded, value))
    if not isinstance(value, dict):
        return value
    if "number" in value:
        return float(value["number"])
    if "of" in value:
        return {name: _decoded(item) for name, item in value["of"]}
    kind = _BY_NAME[value["is"]]
    if "named" in value:
        return kind[value["named"]]
    return kind(**{name: _decoded(item) for name, item in value.items() if name != "is"})
