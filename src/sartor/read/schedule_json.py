"""Operator-scheduling instances as files.

The format is that of the reference instances: ``num_tc``, ``num_vc``, ``ops`` with ``id``, ``type``, ``latency``,
``intra_latency`` (and ``traffic``: time at full rate by shared resource), and ``edges`` of ids; ``shared`` is such a
time for all operators together. Other keys (``name``, ``note``) are ignored, unless they look like one of these.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from sartor.bounded import printable
from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.read.placement_json import read_object, refuse_misspelt
from sartor.schedules.problem import ScheduledOperator, ScheduleProblem

KEYS = ("num_tc", "num_vc", "ops", "edges")
OPERATOR_KEYS = ("id", "type", "latency", "intra_latency")


def read_schedule_problem(path: Path) -> ScheduleProblem:
    """The problem in an instance file. Raises `InputError` on anything that is not one."""
    return schedule_problem(read_object(path))


def schedule_problem(instance: JsonMap) -> ScheduleProblem:
    """The problem in a parsed instance."""
    refuse_misspelt(instance, KEYS, ("shared", "name", "note"), "instance")
    rows, edges = _list(instance, "ops"), _list(instance, "edges")
    name = instance.get("name", "")
    return ScheduleProblem(
        num_tc=_field(instance, "num_tc", "instance"),
        num_vc=_field(instance, "num_vc", "instance"),
        operators=tuple(_operator(k, row) for k, row in enumerate(rows)),
        edges=tuple(tuple(edge) if isinstance(edge, list) else edge for edge in edges),
        name=name if isinstance(name, str) else "",
        shared=_shared(instance.get("shared", {}), "shared"),
    )


def _operator(position: int, row: object) -> ScheduledOperator:
    where = f"ops[{position}]"
    if not isinstance(row, dict):
        raise InputError(where, row, f"must be an object with {', '.join(OPERATOR_KEYS)}")
    refuse_misspelt(row, OPERATOR_KEYS, ("traffic",), where)
    fields = {key: _field(row, key, where) for key in OPERATOR_KEYS}
    return ScheduledOperator(
        core_type=fields.pop("type"), traffic=_shared(row.get("traffic", {}), f"{where}.traffic"), **fields
    )


def _shared(value: object, where: str) -> tuple[tuple[str, Any], ...]:
    """Times by shared resource; resources that are not named are unlimited."""
    if not isinstance(value, dict):
        raise InputError(where, value, 'must be an object of times by resource, like {"hbm": 120}')
    return tuple((printable(str(name)), time) for name, time in sorted(value.items()))


def _field(row: JsonMap, key: str, where: str) -> Any:
    if key not in row:
        near = difflib.get_close_matches(key, [str(name) for name in row], n=1)
        raise InputError(f"{where}.{key}", "missing", "must be given", printable(near[0]) if near else "")
    return row[key]


def _list(instance: JsonMap, key: str) -> list[Any]:
    value = _field(instance, key, "instance")
    if not isinstance(value, list):
        raise InputError(key, value, "must be a list")
    return value
