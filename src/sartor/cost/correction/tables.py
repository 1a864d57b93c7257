"""The package's calibration tables, read: a file per device and dtype, and what is assumed of generations."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from sartor.cost.correction.coefficients import (
    AnyCoefficients,
    AttentionCoefficients,
    Coefficients,
    CollectiveCoefficients,
    GemmCoefficients,
    GroupedCoefficients,
    MemoryBoundCoefficients,
    PowerCoefficients,
)
from sartor.json_types import JsonDict, JsonMap

SECTIONS: dict[str, type[Coefficients]] = {
    "gemm": GemmCoefficients,
    "grouped": GroupedCoefficients,
    "attention": AttentionCoefficients,
    "memory_bound": MemoryBoundCoefficients,
    "collective": CollectiveCoefficients,
    "power": PowerCoefficients,
}


def calibration_files() -> dict[str, JsonDict]:
    """Every device's calibration in the package, by file name without its ending: ``a100_sxm.bf16``, ..."""
    folder = resources.files("sartor.cost.correction").joinpath("data")
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".toml"))
    tables = {name.removesuffix(".toml"): table_of(name) or {} for name in names}
    return {name: table for name, table in tables.items() if "provenance" in table and name != "training"}


def generation(name: str) -> JsonDict:
    """What is assumed of a generation's devices, by section (``gemm``, ``gemm_fp32``, ``attention``, ...)."""
    table = table_of("generations.toml") or {}
    entry, default = table.get(name, {}), table["default"]
    sections = {key: coefficients(kind, default.get(key, {}) | entry.get(key, {})) for key, kind in SECTIONS.items()}
    by_dtype = {key: entry["gemm"] | values for key, values in entry.items() if key.startswith("gemm_")}  # of one dtype
    return sections | {
        key: coefficients(GemmCoefficients, default["gemm"] | values) for key, values in by_dtype.items()
    }


def coefficients(kind: type[AnyCoefficients], values: JsonMap) -> AnyCoefficients:
    """A section's values as its class of coefficients; lists become tuples."""
    return kind(**{key: _tuples(value) for key, value in values.items()})


def _tuples(value: object) -> Any:
    return tuple(_tuples(entry) for entry in value) if isinstance(value, list) else value


def table_of(name: str) -> JsonDict | None:
    """A file of the package's calibrations as a table, or None where there is none of that name."""
    return _read(name)


@cache
def _read(name: str) -> JsonDict | None:
    file = resources.files("sartor.cost.correction").joinpath("data").joinpath(name)
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
