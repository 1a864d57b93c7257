"""Free constants of a training step as data: ``calibration/training.toml``, and a user's file in its format.

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
from pathlib import Path

from sartor.bounded import read_toml
from sartor.cost.correction.tables import table_of
from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.units import Floats


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
