"""Problems for the solvers as JSON: layers to place on devices, and operators to schedule on a chip's cores."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sartor.bounded import parse_json, printable, read_bytes
from sartor.errors import InputError, quoted
from sartor.json_types import JsonDict, JsonMap
from sartor.placement.problem import (
    DeviceType,
    Edge,
    FixedStrategy,
    PlacedLayer,
    PlacementProblem,
    PlacementTerms,
    Tier,
    Width,
    parse_optimizer,
)
from sartor.schedules.problem import ScheduledOperator, ScheduleProblem

FIXED = ("fixedPP", "fixedTMPC", "fixedDP", "numTransformerLayers")
FIELDS = (
    "nodes", "edges", "maxMemoryPerDevice", "maxDevices", "bandwidth", "mbsInBatch", "activationRecomputation",
    "optimizerAlgorithm",
)  # fmt: skip
LAYER_FIELDS = (
    "id", "parameterSize", "activationSize", "optimalLatencyFw", "optimalLatencyBw", "isTensorParallelized",
)  # fmt: skip
EDGE_FIELDS = ("sourceId", "destId", "communicationCost")
TERMS = ("resyncEveryStage", "tiers", "deviceTypes", "virtualStages", "zeroStages", "resyncFactor")
TIER_FIELDS = ("devices", "bandwidth", "latency")
TYPE_FIELDS = ("name", "maxDevices", "maxMemoryPerDevice", "slowdown")
ALIKE = 0.8
"""Similarity from which an unknown field is taken for a known one misspelt."""


def read_placement(path: Path) -> PlacementProblem:
    """The problem in a file. Raises `InputError` naming the field, its value and what must hold."""
    return parse_placement(_read_object(path, lacks="ops", command="schedule"))


def read_terms(path: Path) -> PlacementTerms:
    """Additional cost terms from a separate file."""
    return parse_terms(_read_object(path))


def _read_object(path: Path, lacks: str = "", command: str = "") -> JsonDict:
    """The JSON object in a file. Raises `InputError` if there is none, or if it has the key of another command's."""
    read = parse_json(read_bytes(path, "instance", "must be a JSON file"), name=path.name)
    if lacks in read:
        raise InputError("instance", path.name, f"has {lacks!r}, so it is for another command", f"sartor {command}")
    return read


def _refuse_misspelt(raw: JsonMap, required: Sequence[str], optional: Sequence[str], where: str) -> None:
    """Raises `InputError` for a field that is not known but looks like one that is; a required one in its place is
    missed where it is read."""
    for name in sorted(set(map(str, raw)) - {*required, *optional}):
        near = difflib.get_close_matches(name, (*required, *optional), n=1, cutoff=ALIKE)
        if near and (near[0] in raw or near[0] in optional):
            raise InputError(where, printable(name), "is not a known field; remove it or spell it", near[0])


def _refuse_unknown(raw: JsonMap, names: Sequence[str], where: str, must: str = "must be a known field") -> None:
    """Raises `InputError` for any field that is not known, with the nearest."""
    for name in sorted(set(map(str, raw)) - set(names)):
        near = difflib.get_close_matches(name, names, n=1) or names
        raise InputError(where, printable(name), must, ", ".join(near))


def parse_placement(raw: JsonDict) -> PlacementProblem:
    """The problem in an already parsed JSON object."""
    _refuse_misspelt(raw, FIELDS, FIXED, "instance")
    nodes = _of(raw, "nodes", dict, 'an object of layers by width, e.g. {"1": [...]}')
    edges = _of(raw, "edges", dict, 'an object of edges by width, e.g. {"1": [...]}')
    odd = sorted(set(nodes) ^ set(edges))
    if odd:
        has, lacks = ("nodes", "edges") if odd[0] in nodes else ("edges", "nodes")
        raise InputError(lacks, f"no width {odd[0]}", f"must have the widths of {has}: {', '.join(raw[has])}")
    return PlacementProblem(
        widths=tuple(_width(key, nodes[key], edges[key]) for key in nodes),
        memory_bytes=_number(raw, "maxMemoryPerDevice"),
        num_devices=_integer(raw, "maxDevices"),
        link_bytes_per_s=_number(raw, "bandwidth"),
        num_microbatches=_integer(raw, "mbsInBatch"),
        recompute=_of(raw, "activationRecomputation", bool, "true or false"),
        optimizer=parse_optimizer(_of(raw, "optimizerAlgorithm", str, "SGD or Adam")),
        fixed=_fixed(raw),
    )


def parse_terms(raw: JsonDict) -> PlacementTerms:
    """Additional cost terms from a JSON object (docs/concepts/placement.md); missing ones are off."""
    _refuse_unknown(raw, TERMS, "terms", "must be a known term")
    off = PlacementTerms()
    return PlacementTerms(
        resync_every_stage="resyncEveryStage" in raw and _of(raw, "resyncEveryStage", bool, "true or false", "terms"),
        tiers=tuple(_tier(row, f"terms.tiers[{i}]") for i, row in enumerate(_rows(raw, "tiers"))),
        device_types=tuple(_type(row, f"terms.deviceTypes[{i}]") for i, row in enumerate(_rows(raw, "deviceTypes"))),
        virtual_stages=_integers(raw, "virtualStages") or off.virtual_stages,
        zero_stages=_integers(raw, "zeroStages") or off.zero_stages,
        resync_factor=_number(raw, "resyncFactor", "terms") if "resyncFactor" in raw else off.resync_factor,
    )


def _rows(raw: JsonDict, name: str) -> list[Any]:
    return list(_of(raw, name, list, "a list", "terms")) if name in raw else []


def _integers(raw: JsonDict, name: str) -> tuple[int, ...]:
    values = {str(i): value for i, value in enumerate(_rows(raw, name))}
    return tuple(_integer(values, i, f"terms.{name}") for i in values)


def _tier(row: object, where: str) -> Tier:
    row = _object(row, where)
    _refuse_unknown(row, TIER_FIELDS, where)
    return Tier(
        size=_integer(row, "devices", where),
        bytes_per_s=_number(row, "bandwidth", where),
        latency_s=_number(row, "latency", where) if "latency" in row else 0.0,
    )


def _type(row: object, where: str) -> DeviceType:
    row = _object(row, where)
    _refuse_unknown(row, TYPE_FIELDS, where)
    return DeviceType(
        name=str(_of(row, "name", str, "a name", where)),
        num_devices=_integer(row, "maxDevices", where),
        memory_bytes=_number(row, "maxMemoryPerDevice", where),
        slowdown=_number(row, "slowdown", where) if "slowdown" in row else 1.0,
    )


def _width(key: str, layers: Any, edges: Any) -> Width:
    """A width by its key: the tensor-parallel degree, or ``"8 cp2 ep4"`` with context and expert degrees."""
    degrees = {"tp": 1, "cp": 1, "ep": 1}
    for word in key.split():
        name, digits = (word[:2], word[2:]) if word[:2] in degrees else ("tp", word)
        if not (digits.isascii() and digits.isdigit() and len(digits) < 9 and int(digits) > 0):
            raise InputError("width in nodes", key, 'must be a positive integer (or "8 cp2 ep4")', '"1"')
        degrees[name] = int(digits)
    for where, rows in ((f'nodes["{key}"]', layers), (f'edges["{key}"]', edges)):
        if not isinstance(rows, list):
            raise InputError(where, rows, "must be a list")
    return Width(
        tensor_parallel=degrees["tp"],
        context_parallel=degrees["cp"],
        expert_parallel=degrees["ep"],
        layers=tuple(_layer(row, f'nodes["{key}"][{i}]') for i, row in enumerate(layers)),
        edges=tuple(_edge(row, f'edges["{key}"][{i}]') for i, row in enumerate(edges)),
    )


def _layer(row: object, where: str) -> PlacedLayer:
    row = _object(row, where)
    _refuse_misspelt(row, LAYER_FIELDS, ("expertParameterSize",), where)
    return PlacedLayer(
        id=_integer(row, "id", where),
        param_bytes=_number(row, "parameterSize", where),
        activation_bytes=_number(row, "activationSize", where),
        forward_s=_number(row, "optimalLatencyFw", where),
        backward_s=_number(row, "optimalLatencyBw", where),
        is_split=_of(row, "isTensorParallelized", bool, "true or false", where),
        expert_param_bytes=_number(row, "expertParameterSize", where) if "expertParameterSize" in row else 0.0,
    )


def _edge(row: object, where: str) -> Edge:
    row = _object(row, where)
    _refuse_misspelt(row, EDGE_FIELDS, (), where)
    return Edge(
        source=_integer(row, "sourceId", where),
        dest=_integer(row, "destId", where),
        size_bytes=_number(row, "communicationCost", where),
    )


def _fixed(raw: JsonDict) -> FixedStrategy | None:
    """The expert's strategy; None if the file has none of its fields."""
    if not any(name in raw for name in FIXED):
        return None
    stages, tensor, data, layers = (_integer(raw, name) for name in FIXED)
    return FixedStrategy(num_stages=stages, tensor_parallel=tensor, data_parallel=data, num_transformer_layers=layers)


def _object(row: object, where: str) -> JsonDict:
    if not isinstance(row, dict):
        raise InputError(where, row, "must be an object")
    return row


def _given(raw: JsonDict, name: str, where: str) -> Any:
    if name not in raw:
        near = ", ".join(difflib.get_close_matches(name, raw, n=1, cutoff=0.7))
        raise InputError(_path(name, where), "missing", "must be given", near and f"{near} is given; is it meant?")
    return raw[name]


LARGEST = 1e30
"""Far beyond any seconds or bytes, yet sums and multiples of it do not overflow."""


def _path(name: str, where: str) -> str:
    return f"{where}.{name}" if where else name


def _of(raw: JsonDict, name: str, kind: type, must: str, where: str = "") -> Any:
    value = _given(raw, name, where)
    if not isinstance(value, kind):
        raise InputError(_path(name, where), value, f"must be {must}")
    return value


def _number(raw: JsonDict, name: str, where: str = "") -> float:
    value = _given(raw, name, where)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(_path(name, where), quoted(value), "must be a number")
    if value > LARGEST and value != float("inf"):
        raise InputError(_path(name, where), value, f"must be at most {LARGEST:g}")
    return float(value)


def _integer(raw: JsonDict, name: str, where: str = "") -> int:
    value = _given(raw, name, where)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, int | float) and abs(value) > 2**53:
        raise InputError(_path(name, where), value, "must be an integer of at most 2^53")
    if not whole and isinstance(value, float) and value.is_integer():
        return int(value)
    if not whole:
        nearest = f"{value:.0f}" if isinstance(value, float) and abs(value) < 1e15 else ""
        raise InputError(_path(name, where), quoted(value), "must be an integer", nearest)
    return int(value)


KEYS = ("num_tc", "num_vc", "ops", "edges")
OPERATOR_KEYS = ("id", "type", "latency", "intra_latency")


def read_schedule_problem(path: Path) -> ScheduleProblem:
    """The problem in an instance file. Raises `InputError` on anything that is not one."""
    return schedule_problem(_read_object(path, lacks="nodes", command="place"))


def schedule_problem(instance: JsonMap) -> ScheduleProblem:
    """The problem in a parsed instance."""
    _refuse_misspelt(instance, KEYS, ("shared", "name", "note"), "instance")
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
    _refuse_misspelt(row, OPERATOR_KEYS, ("traffic",), where)
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
