"""Spaces of accelerators as TOML files: axes in everyday units, validated by pydantic.

A named space is a packaged file (``spaces/*.toml``) or the published grid; a path is the user's own. The
axes are those of `designs.space.AXES`, and ``space_from`` makes the candidates.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from sartor.bounded import printable
from sartor.designs.space import LANES, PUBLISHED, AcceleratorSpace, published_space, required_axes, space_from
from sartor.errors import InputError, quoted
from sartor.hardware.accelerator import IN_LONG_RUNS
from sartor.hardware.accelerator_catalog import NUMBERS, TEMPLATE_KEYS
from sartor.hardware.catalog import ACCELERATORS, is_path, nearest_names, read_toml
from sartor.json_types import JsonDict

ENTRIES = Path(__file__).parent / "spaces"


class _Range(BaseModel):
    """``{from, to, step}`` or ``{from, to, factor}``; both ends are included if a step reaches them."""

    model_config = ConfigDict(extra="forbid", strict=True)
    start: float = Field(alias="from")
    to: float
    step: float | None = None
    factor: float | None = None


Axis = int | float | list[int | float] | _Range


class _Choices(BaseModel):
    """What a space states besides the axes of a chip."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = ""
    title: str = ""
    note: str = ""
    confidence: str = ""
    sources: dict[str, str] = {}
    memory: str | list[str] | None = None
    node_nm: int | list[int] | None = None
    dataflow: str | list[str] | None = None
    dtype: str | None = None
    packed_dtype: str | list[str] | None = None
    hbm_gb: Axis | None = None
    area_limit_mm2: int | float | None = None
    area_model: Literal["published", "die"] | None = None


def space_model() -> type[_Choices]:
    """A space as written: every number but what long work sustains is a number, a list or a range; the candidates are
    their product."""
    axes: dict[str, Any] = {
        key: (int | float | None if NUMBERS[key][0] in IN_LONG_RUNS else Axis | None, None) for key in NUMBERS
    }
    del axes["node_nm"]
    axes |= dict.fromkeys(required_axes(), (Axis, ...))
    axes[LANES] = (Axis | Literal["array_cols"] | None, None)
    return create_model("SpaceFile", __base__=_Choices, **axes)


def load_space(name_or_path: str | Path) -> AcceleratorSpace:
    """A space by name (``sartor catalog spaces``) or from a TOML file. Raises ``InputError``."""
    text = str(name_or_path)
    if text.lower() == PUBLISHED:
        return published_space()
    path = _path_of(name_or_path)
    table = read_toml(path, "space", space_names())
    try:
        checked = space_model().model_validate(table)
    except ValidationError as error:
        raise _sentence(error, table) from None
    fields = checked.model_dump(exclude_none=True, by_alias=True, exclude={"title", "note", "confidence", "sources"})
    space = space_from({**fields, "name": checked.name or path.stem})
    if path.parent in (ENTRIES, ACCELERATORS.folder):
        return space
    return replace(space, unstated=tuple(key for key in TEMPLATE_KEYS if key not in fields))


def space_names() -> tuple[str, ...]:
    """Every named space, the published one first."""
    return (PUBLISHED, *sorted(path.stem for path in ENTRIES.glob("*.toml")))


def space_entry(name_or_path: str | Path) -> JsonDict:
    """A space as ``sartor catalog spaces`` shows it: its counts, its axes as written, its assumptions."""
    space = load_space(name_or_path)
    published = str(name_or_path).lower() == PUBLISHED
    written = _PUBLISHED_AXES if published else read_toml(_path_of(name_or_path), "space")
    head = {"name": space.name, "num_points": space.num_points, "num_candidates": space.num_kept}
    return {**head, "area_model": space.area_model.value, **written, "assumptions": list(space.assumptions)}


_POWERS = "powers of two"
_PUBLISHED_AXES: JsonDict = {
    "title": "The grid of PHAZE (Wang et al., ICML 2024)",
    "num_tensor_cores": f"1 to 4096, {_POWERS}",
    "num_vector_cores": f"1 to 4096, {_POWERS}",
    "array_rows": f"2 to 256, {_POWERS}",
    "array_cols": f"2 to 256, {_POWERS}",
    "vector_lanes": "array_cols",
    "global_buffer_mib": f"2 to 128, {_POWERS}",
    "hbm_gb": [32, 64, 80],
    "note": "kept: at most the TPUv4-like point's 278.8 mm2, and at least 30% of it unless there is one core of a kind",
}


def _path_of(name_or_path: str | Path) -> Path:
    if is_path(name_or_path):
        return Path(name_or_path)
    text, names = str(name_or_path).lower(), space_names()
    if text in names:
        return ENTRIES / f"{text}.toml"
    if text in ACCELERATORS:
        return ACCELERATORS.table(text)[1]
    near = nearest_names(text, {name: name for name in names}, cutoff=0.3) or list(names)
    must = "must be a named space (sartor catalog spaces) or a TOML file"
    raise InputError("space", str(name_or_path), must, ", ".join(near))


def _sentence(error: ValidationError, table: JsonDict) -> InputError:
    """The first of pydantic's errors as one sentence; a misspelt axis comes before a missing one."""
    first = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    field = str(first["loc"][0]) if first["loc"] else "space"
    value = table.get(field, "missing")
    if first["type"] == "missing" and len(first["loc"]) == 1:
        return InputError(field, "missing", "the space must state it")
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        near = difflib.get_close_matches(field, space_model().model_fields, n=2, cutoff=0.4)
        return InputError(printable(field), value, "is not an axis of a space", ", ".join(near or required_axes()))
    if field in ("memory", "dataflow", "packed_dtype", "name", "title", "note", "dtype", "confidence"):
        return InputError(field, value, "must be a text" + (" or a list of texts" if field in LISTED else ""))
    if field == "area_model":
        return InputError(field, value, "must be published or die", "die")
    if field == "node_nm":
        return InputError(field, quoted(value), "must be a whole number of nanometres, or a list of them")
    must = "must be a number, a list of numbers, or a range {from, to, step} or {from, to, factor}"
    return InputError(field, quoted(value), must + (' or "array_cols"' if field == "vector_lanes" else ""))


LISTED = ("memory", "dataflow", "packed_dtype")
