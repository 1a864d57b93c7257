"""A user's own calibration: a file of ``sartor calibrate`` and a table of training constants.

A user's calibration: the TOML that ``sartor calibrate`` writes, read back as the calibration of a device.

The format is that of the packaged files (``[provenance.gemm]`` and ``[gemm]``), with ``gpu`` and ``dtype`` on top.
GEMMs are always calibrated, ``[memory_bound]`` and ``[attention]`` if present; the rest is the package's.
``[own_rows]`` is a factor on the GEMMs' times.

Free constants of a training step as data: ``calibration/training.toml``, and a user's file in its format.

A section gives constants by name to what it names: ``[default]``, ``[generation.hopper]``, ``[precision.fp8]``,
``[generation.hopper.fp8]``, ``[framework.megatron]``, ``[framework.megatron.hopper]``, ``[framework.megatron.fp8]``,
``[experts]`` (models that have some), ``[experts.megatron]``, ``[experts.hopper]``, ``[experts.fused]`` (where their
layers are), ``[unseen]`` (generations that ``provenance.generations`` does not list). Of all sections that apply,
factors are multiplied, the largest deviation (``_sigma``) and the last of other constants are used. Their meaning is in
``training.coefficients``; ``[provenance...]`` lists the data they were fitted on.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from sartor.bounded import read_toml
from sartor.cost.correction.calibration import Calibration, OwnRows, load_calibration
from sartor.cost.correction.coefficients import (
    AttentionCoefficients,
    GemmCoefficients,
    MemoryBoundCoefficients,
    table_of,
)
from sartor.cost.correction.network import find_residual
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.operators import DType
from sartor.units import Floats

MUST = "must be a TOML file of sartor calibrate"
SIXTEEN_BITS = (DType.BF16, DType.FP16)
"""The same units at the same rate, so a fit of either serves both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFile:
    """Coefficients of one dtype on one device, and where they come from."""

    gpu: str
    dtype: DType
    gemm: GemmCoefficients
    provenance: JsonMap
    streams: JsonMap = field(default_factory=dict)
    """Sections beside the GEMMs: ``memory_bound``, ``attention``."""
    own_rows: OwnRows | None = None
    """A factor on the GEMMs' times."""


def load_own_calibration(path: str | Path, gpu: Gpu) -> Calibration:
    """What is known of ``gpu`` with the GEMMs' coefficients of a file in place of the package's.

    Raises ``InputError`` when the file cannot be read, lacks a coefficient, or is of another device.
    """
    own_file = read_calibration_file(path)
    if own_file.gpu != gpu.name:
        raise InputError(
            "calibration", str(path), f"is of {own_file.gpu} and the device asked about is {gpu.name}", own_file.gpu
        )
    if own_file.own_rows and own_file.own_rows.residual and not find_residual(own_file.gemm):
        must = "was made over a residual that this version of sartor does not have: calibrate again from the records"
        raise InputError("calibration", str(path), must)
    packaged = load_calibration(gpu)
    served = SIXTEEN_BITS if own_file.dtype in SIXTEEN_BITS else (own_file.dtype,)
    gemm = {dtype: own_file.gemm if dtype in served else coefficients for dtype, coefficients in packaged.gemm.items()}
    sections = [f"gemm.{dtype.value}" for dtype in served if dtype in gemm]
    return replace(
        packaged,
        gemm=gemm,
        tiled={dtype: coefficients for dtype, coefficients in packaged.tiled.items() if dtype not in served},
        own_rows=dict.fromkeys(served, own_file.own_rows) if own_file.own_rows else {},
        calibrated=packaged.calibrated | {*sections, *own_file.streams},
        provenance={**packaged.provenance, **dict.fromkeys((*sections, *own_file.streams), own_file.provenance)},
        attention_families={} if "attention" in own_file.streams else packaged.attention_families,
        torch_streams=None if "memory_bound" in own_file.streams else packaged.torch_streams,
        **own_file.streams,
    )


def own_calibration_of_file(path: str | Path | None, devices: Mapping[str, Gpu] | None = None) -> Calibration | None:
    """A user's calibration, of whichever device it is about: of ``devices`` by name, or of the catalogue."""
    if path is None:
        return None
    name = read_calibration_file(path).gpu
    return load_own_calibration(path, (devices or {}).get(name) or load_gpu(name))


def read_calibration_file(path: str | Path) -> CalibrationFile:
    """The coefficients of a calibration file, each checked. Raises ``InputError``."""
    table = read_toml(Path(path), "calibration", MUST)
    for key in ("gpu", "dtype"):
        if not isinstance(table.get(key), str):
            raise InputError("calibration", str(path), f"must name its {key}, as sartor calibrate writes it")
    if table["dtype"] not in {dtype.value for dtype in DType}:
        raise InputError("dtype", table["dtype"], f"in {path} must be one of {', '.join(d.value for d in DType)}")
    values = table.get("gemm")
    if not isinstance(values, dict):
        raise InputError("calibration", str(path), "must have a [gemm] section, as sartor calibrate writes it")
    for section in table:
        if section not in _FILE_SECTIONS:
            must = f"in {path} is nothing that a calibration holds; that is {', '.join(_FILE_SECTIONS)}"
            raise InputError(
                section, table[section], must, ", ".join(difflib.get_close_matches(section, _FILE_SECTIONS, 1))
            )
    provenance = table.get("provenance", {})
    record = provenance.get("gemm", {}) if isinstance(provenance, dict) else {}
    return CalibrationFile(
        gpu=table["gpu"],
        dtype=DType(table["dtype"]),
        gemm=_coefficients(values, path),
        provenance=record if isinstance(record, dict) else {},
        streams={name: _stream(kind, table[name], path) for name, kind in _STREAMS.items() if name in table},
        own_rows=_own_rows(table["own_rows"], path) if "own_rows" in table else None,
    )


def _own_rows(values: Any, path: str | Path) -> OwnRows:
    try:
        return _own_rows_of(values)
    except (KeyError, TypeError, ValueError) as error:
        must = f"its [own_rows] must be as sartor calibrate writes it ({' '.join(str(error).split())[:80]})"
        raise InputError("calibration", str(path), must) from None


def _own_rows_of(values: JsonMap) -> OwnRows:
    """The record from a file's tables. Raises ``TypeError`` or ``ValueError`` if they are not valid."""
    points = tuple((float(a), float(b), float(c)) for a, b, c in values["points"])
    weights = tuple(float(weight) for weight in values["weights"])
    numbers = {name: float(values[name]) for name in ("mean", "length", "log_sigma", "log_sigma_small")}
    everything = np.concatenate([np.ravel(points), weights, list(numbers.values())])
    if len(points) != len(weights) or not points or not np.isfinite(everything).all():
        raise ValueError("points and weights must be as many numbers")
    if min(numbers["length"], numbers["log_sigma"], numbers["log_sigma_small"]) <= 0:
        raise ValueError("length and standard deviations must be above 0")
    return OwnRows(points=points, weights=weights, residual=str(values.get("residual", "")), **numbers)


LAWS = ("alone", "called")
"""Fields of memory-bound kernels that belong to the package: a file has none."""
_STREAMS: Mapping[str, type] = {"memory_bound": MemoryBoundCoefficients, "attention": AttentionCoefficients}


def _stream(kind: type, values: object, path: str | Path) -> Any:
    """Coefficients of a section: numbers from 0 to 1e9, and rows of a word or a width and numbers."""
    names = {field.name for field in fields(kind)} - set(LAWS)
    if not isinstance(values, dict):
        raise InputError("calibration", str(path), "its sections must be tables, as sartor calibrate writes them")
    out = {}
    for name, value in values.items():
        if name not in names:
            raise InputError(name, value, f"in {path} is not a coefficient of {kind.__name__}")
        rows = value if isinstance(value, list) else [[value]]
        if not all(
            isinstance(row, list) and all(isinstance(v, (str, bool)) or _above(v, 0, equal=True) for v in row)
            for row in rows
        ):
            raise InputError(name, value, f"in {path} must be numbers from 0 to 1e9")
        if "sigma" in name and not isinstance(value, list) and value > LARGEST_SIGMA:
            raise InputError(name, value, f"in {path} must be at most {LARGEST_SIGMA:g} (a factor of 20)", "0.1")
        out[name] = tuple(tuple(row) for row in value) if isinstance(value, list) else value
    return kind(**out)


def _coefficients(values: JsonDict, path: str | Path) -> GemmCoefficients:
    fields_by_name = {field.name: field for field in fields(GemmCoefficients)}
    for name in values:
        if name not in fields_by_name:
            raise InputError(f"gemm.{name}", values[name], f"in {path} is not a GEMM coefficient")
    missing = [name for name, field in fields_by_name.items() if field.default is MISSING and name not in values]
    if missing:
        raise InputError("calibration", str(path), f"its [gemm] must have {', '.join(missing)}")
    return GemmCoefficients(**{name: _checked(name, value, path) for name, value in values.items()})


_FILE_SECTIONS = ("gpu", "dtype", "provenance", "gemm", "own_rows", *_STREAMS)
_LARGEST_COEFFICIENT = 1e9
"""No real coefficient is close to it, and products of a few such numbers do not overflow."""
_YES_OR_NO = {field.name for field in fields(GemmCoefficients) if isinstance(field.default, bool)}
_STEPS = ("input_penalty", "output_penalty")
_MAY_BE_ZERO = {"wave_s", "tile_s", "split_s", "overlap", "throttle", "throttle_s"} | {
    field.name for field in fields(GemmCoefficients) if field.default == 0.0
}


def _checked(name: str, value: Any, path: str | Path) -> Any:
    if name == "tiles":
        rows: list[Any] = value if isinstance(value, list) else []
        if not rows or not all(
            isinstance(row, list) and len(row) == 3 and all(_above(v, 0) for v in row) and min(row[:2]) >= 1
            for row in rows
        ):
            must = f"in {path} must be rows of tile_m and tile_n from 1 and a share above 0, up to 1e9"
            raise InputError("gemm.tiles", value, must, "[[128, 256, 0.9]]")
        return tuple((int(m), int(n), float(share)) for m, n, share in rows)
    if name in _STEPS:
        if not (isinstance(value, list) and len(value) == 8 and all(_above(v, 0, equal=True) for v in value)):
            raise InputError(f"gemm.{name}", value, f"in {path} must be 8 numbers from 0 to 1e9")
        return tuple(float(v) for v in value)
    if name == "ragged":
        pairs: list[Any] = value if isinstance(value, list) else [value]
        if not all(isinstance(row, list) and len(row) == 2 and all(_above(v, 0) for v in row) for row in pairs):
            must = f"in {path} must be pairs of rows and seconds per element of k, both above 0"
            raise InputError("gemm.ragged", value, must, "[[64, 4.3e-9]]")
        return tuple((float(rows), float(pace)) for rows, pace in pairs)
    if isinstance(value, bool) and name in _YES_OR_NO:
        return value
    zero = name in _MAY_BE_ZERO
    if not _above(value, 0, equal=zero):
        raise InputError(
            f"gemm.{name}", value, f"in {path} must be a number {'from 0' if zero else 'above 0 and'} up to 1e9"
        )
    if "sigma" in name and value > LARGEST_SIGMA:
        raise InputError(f"gemm.{name}", value, f"in {path} must be at most {LARGEST_SIGMA:g} (a factor of 20)", "0.1")
    return int(value) if name == "step_bytes" else float(value)


def _above(value: Floats, bound: float, *, equal: bool = False) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    return (value >= bound if equal else value > bound) and value <= _LARGEST_COEFFICIENT


def training_constants(
    framework: str,
    precision: str,
    generation: str,
    table: JsonMap,
    *,
    experts: bool = False,
) -> dict[str, float]:
    """Constants that hold for a trainer (``megatron``), a class of precision (``16bit``, ``fp8``), a generation, and a
    model with or without experts."""
    of_framework = _section(table, "framework", framework)
    layers: tuple[JsonMap, ...] = (
        _section(table, "default"),
        _section(table, "generation", generation),
        _section(table, "precision", precision),
        _section(table, "generation", generation, precision),
        of_framework,
        _section(of_framework, generation),
        _section(of_framework, precision),
    )
    if experts:
        of_experts = (_section(table, "experts", name) for name in (framework, generation))
        layers = (*layers, _section(table, "experts"), *of_experts)
    measured_generations = _section(table, "provenance").get("generations", [generation])
    if generation not in measured_generations:
        layers = (*layers, _section(table, "unseen"))
    constants: dict[str, float] = {}
    for layer in layers:
        for name, value in layer.items():
            if not isinstance(value, dict):
                constants[name] = _joined(name, constants.get(name), value)
    return constants


def _joined(name: str, before: float | None, value: float) -> float:
    if before is None:
        return value
    return before * value if name.endswith("_factor") else max(before, value) if name.endswith("_sigma") else value


def packaged_training_table() -> JsonMap:
    """The package's own constants, fitted on the records its ``provenance`` names; empty where nothing is fitted."""
    return table_of("training.toml") or {}


SECTIONS = ("default", "generation", "precision", "framework", "experts", "unseen", "provenance")
LARGEST = 1000.0
"""Factors are near 1, the longest time (of a step, fixed) a few seconds."""
LARGEST_SIGMA = 3.0
"""Of a deviation in the logarithm: a factor of 20 either way is no calibration."""


def read_training_table(path: str | Path) -> JsonMap:
    """A user's table.

    ``InputError`` when it cannot be read, is of another kind (a calibration of operators, a GPU), or a constant is not
    a finite number of at least 0.
    """
    table = read_toml(Path(path), "calibration", "must be a TOML file of step constants")
    for section in table:
        if section not in SECTIONS:
            must = f"in {path} is not a section of step constants, which are {', '.join(SECTIONS)}"
            raise InputError("calibration", section, must, ", ".join(difflib.get_close_matches(section, SECTIONS, 1)))
    if not _section(table, "default"):
        raise InputError("calibration", str(path), "must have step constants in [default]", "compute_factor = 1.0")
    for section in SECTIONS[:-1]:
        _check(section, table.get(section, {}))
    return table


def _check(name: str, value: Floats) -> None:
    if isinstance(value, dict):
        for key, entry in value.items():
            _check(f"{name}.{key}", entry)
    elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InputError(name, value, "must be a finite number not below 0")
    elif name.endswith("_sigma") and value > LARGEST_SIGMA:
        raise InputError(name, value, f"must be at most {LARGEST_SIGMA:g} (a factor of 20)", "0.1")
    elif value > LARGEST:
        raise InputError(name, value, f"must be at most {LARGEST:g}", "1.0")


def _section(table: JsonMap, *path: str) -> JsonMap:
    for key in path:
        table = table.get(key, {}) if isinstance(table, Mapping) else {}
    return table if isinstance(table, Mapping) else {}
