"""Spaces of accelerators: the published grid by name, or a user's own as lists of values per axis.

A space is groups of candidates (one per memory generation and node, which change more than a number), each an
``Accelerator`` with arrays, and the memory sizes that every candidate may have.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from sartor.cost.chip.area import PublishedGrid, published_area_limit_mm2, published_grid
from sartor.designs.question import AreaModel
from sartor.errors import InputError
from sartor.hardware.accelerator import (
    ARRAY_FIELDS,
    IN_LONG_RUNS,
    NODES_NM,
    PUBLISHED_CLOCK_HZ,
    SUSTAINED_SHARES,
    Accelerator,
    Dataflow,
    Memory,
)
from sartor.operators import DType
from sartor.units import GIGA, MEGA, MIB, Array, Floats, Ints

PUBLISHED = "phaze"
PUBLISHED_HBM_BYTES = (32 * GIGA, 64 * GIGA, 80 * GIGA)
MAX_CANDIDATES = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorSpace:
    """Candidates by groups; ``hbm_bytes`` are the memory sizes tried with each (empty: the size of its stacks).

    ``area_limit_mm2`` is the space's own limit (0: none); ``left_out`` is the number of points removed by its rules.
    """

    name: str
    groups: tuple[Accelerator, ...]
    hbm_bytes: tuple[float, ...] = ()
    num_points: int = 0
    area_limit_mm2: float = 0.0
    area_model: AreaModel = AreaModel.PUBLISHED
    """Area model for the limits, unless the question has one."""
    assumptions: tuple[str, ...] = ()

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Types in which linear layers may run on some candidate."""
        return tuple(
            dict.fromkeys(dtype for group in self.groups for dtype in (group.dtype, group.packed_dtype) if dtype)
        )

    @property
    def lanes_are_tied(self) -> bool:
        """Whether vector lanes equal array columns everywhere, as published."""
        return all(np.array_equal(group.vector_lanes, group.array_cols) for group in self.groups)

    @property
    def num_kept(self) -> int:
        return sum(int(np.prod(group.shape, dtype=np.int64)) for group in self.groups)


def published_space() -> AcceleratorSpace:
    """The published search: 75,712 points of which 29,360 are kept, with 32, 64 or 80 GB of memory.

    The publication counts neither memory interfaces nor links in the area and only gives the rate of PCIe links. Every
    candidate here has the memory and links of TPU v4, which its baseline point models: 4 stacks of HBM2 (1229 GB/s for
    any capacity) and 6 links of 50 GB/s.
    """
    grid: PublishedGrid = published_grid()
    return AcceleratorSpace(
        name=PUBLISHED,
        groups=(taken(grid.accelerators, np.flatnonzero(grid.kept)),),
        hbm_bytes=PUBLISHED_HBM_BYTES,
        num_points=int(np.size(grid.kept)),
        area_limit_mm2=published_area_limit_mm2(),
        assumptions=(
            "each has 4 stacks of HBM2 at 1229 GB/s whatever their capacity, and 6 links of 50 GB/s (TPU v4)",
            "arrays, memory and links sustain all of their peak rates (A100: 76, 89 and 69%); runs add nothing (7%)",
            "area is the published closed form at 22 nm: no memory interfaces, links, network or control",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipAxis:
    """A number of a chip that a space may vary. ``field`` of `Accelerator`, in the SI unit ``unit`` per unit of the
    file; ``argument`` of `Accelerator.from_template` (default: the field), in units of ``argument_unit``."""

    field: str
    unit: float = 1
    argument: str = ""
    argument_unit: float | None = None
    """None: ``unit``."""
    default: float | None = None
    """In the file's unit; None: the space must state it."""
    may_be_zero: bool = False
    is_whole: bool = True


AXES: Mapping[str, ChipAxis] = {
    "num_tensor_cores": ChipAxis(field="num_tensor_cores"),
    "num_vector_cores": ChipAxis(field="num_vector_cores"),
    "array_rows": ChipAxis(field="array_rows", argument="depth"),
    "array_cols": ChipAxis(field="array_cols", argument="width"),
    "vector_lanes": ChipAxis(field="vector_lanes"),
    "global_buffer_mib": ChipAxis(
        field="global_buffer_bytes", unit=MIB, argument="global_buffer_mib", argument_unit=1, is_whole=False
    ),
    "clock_mhz": ChipAxis(field="clock_hz", unit=MEGA, default=PUBLISHED_CLOCK_HZ / MEGA, is_whole=False),
    "num_stacks": ChipAxis(field="num_stacks", default=4),
    "num_links": ChipAxis(field="num_links", default=6, may_be_zero=True),
    "link_gb_per_s": ChipAxis(field="link_bytes_per_s", unit=GIGA, default=50, is_whole=False),
    "scale_up_devices": ChipAxis(field="scale_up_devices", default=0, may_be_zero=True),
    "scale_out_gb_per_s": ChipAxis(
        field="scale_out_bytes_per_s", unit=GIGA, default=0, may_be_zero=True, is_whole=False
    ),
}
"""Axes of a space by their key in a space file, in the order of the candidates. ``vector_lanes`` follow the columns of
the arrays unless stated."""
LANES, TIED_LANES = "vector_lanes", "array_cols"
DTYPES = (DType.BF16, DType.FP8, DType.MXFP8, DType.NVFP4)
"""Narrowest types that an array may pack; every array supports 16 bits, which attention always uses."""
_CHOICES = (
    "memory",
    "node_nm",
    "dataflow",
    "dtype",
    "hbm_gb",
    "name",
    "area_limit_mm2",
    "area_model",
    *IN_LONG_RUNS,
)


def required_axes() -> list[str]:
    """Axes that a space must state."""
    return [key for key, axis in AXES.items() if axis.default is None and key != LANES]


def space_from(table: Mapping[str, Any]) -> AcceleratorSpace:
    """The product of all axes. An axis is a number, a list, or ``{from, to, step}`` or ``{from, to, factor}``.

    ``vector_lanes = "array_cols"`` (the default) ties lanes to columns, as published; ``memory``, ``node_nm`` and
    ``dtype`` (the narrowest that arrays pack) may be lists; what long work sustains of the peak rates, and
    what runs add, is one number each. Raises ``InputError`` for unknown keys and
    invalid values.
    """
    required = required_axes()
    for key in table:
        if key not in AXES and key not in _CHOICES:
            near = difflib.get_close_matches(key, [*AXES, *_CHOICES], n=2, cutoff=0.4)
            raise InputError(key, table[key], "is not an axis of a space", ", ".join(near or required))
    for key in required:
        if key not in table:
            raise InputError(key, "missing", "the space must state it")
    tied = table.get(LANES, TIED_LANES) == TIED_LANES
    stated = {key: table[key] for key in AXES if key in table and not (key == LANES and tied)}
    defaults = {key: axis.default for key, axis in AXES.items() if axis.default is not None}
    axes = {key: _values(key, value) for key, value in {**defaults, **stated}.items()}
    count = int(np.prod([len(values) for values in axes.values()], dtype=object))
    groups = list(_groups(table))
    if count * len(groups) > MAX_CANDIDATES:
        raise InputError(
            "space", f"{count * len(groups)} candidates", f"must be at most {MAX_CANDIDATES}; coarsen an axis"
        )
    shares: dict[str, Any] = {name: float(_values(name, table.get(name, 1.0))[0]) for name in IN_LONG_RUNS}
    mesh = dict(zip(axes, (x.ravel() for x in np.meshgrid(*axes.values(), indexing="ij")), strict=True))
    return AcceleratorSpace(
        name=str(table.get("name", "own")),
        groups=tuple(
            replace(_candidates(mesh, memory, node, flow), packed_dtype=narrow, **shares)
            for memory, node, flow, narrow in groups
        ),
        hbm_bytes=tuple(float(x) * GIGA for x in _values("hbm_gb", table["hbm_gb"])) if "hbm_gb" in table else (),
        num_points=count * len(groups),
        area_limit_mm2=float(_values("area_limit_mm2", table.get("area_limit_mm2", 0), lowest=0.0)[0]),
        area_model=_choice("area_model", table.get("area_model", "die"), {m.value: m for m in AreaModel}),
        assumptions=(_sustained_note(shares),),
    )


def _sustained_note(shares: Mapping[str, float]) -> str:
    """What long runs sustain, for people."""
    if set(shares.values()) == {1.0}:
        return f"arrays, memory and links sustain all of their peak rates ({', '.join(SUSTAINED_SHARES)} of the space)"
    template = (
        "of their peak rates, arrays sustain {:.0%}, memory {:.0%}, links {:.0%}; a layer of a run takes {:.2f} times "
    )
    return template.format(*shares.values()) + "its schedule"


def _candidates(mesh: Mapping[str, Array], memory: Memory, node: int, flow: Dataflow) -> Accelerator:
    arguments: dict[str, Any] = {}
    for key, values in mesh.items():
        axis = AXES[key]
        scaled = (_ints(values, key) if axis.is_whole else values) * (axis.argument_unit or axis.unit)
        arguments[axis.argument or axis.field] = scaled
    return Accelerator.from_template(**arguments, memory=memory, node_nm=node, dataflow=flow)


def _groups(table: Mapping[str, Any]) -> Iterator[tuple[Memory, int, Dataflow, DType | None]]:
    memories = [_choice("memory", word, {m.value: m for m in Memory}) for word in _list(table.get("memory", "hbm2"))]
    flows = [
        _choice("dataflow", word, {d.value: d for d in Dataflow})
        for word in _list(table.get("dataflow", "weight_stationary"))
    ]
    nodes = _list(table.get("node_nm", 22))
    for node in nodes:
        if node not in NODES_NM:
            raise InputError("node_nm", node, "no area or energy is known for it", ", ".join(map(str, NODES_NM)))
    words = [_choice("dtype", word, {d.value: d for d in DTYPES}) for word in _list(table.get("dtype", "bf16"))]
    narrow = dict.fromkeys(None if dtype is DType.BF16 else dtype for dtype in words)
    return product(memories, nodes, flows, narrow)


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _choice(key: str, word: object, choices: Mapping[str, Any]) -> Any:
    if isinstance(word, str) and word.lower() in choices:
        return choices[word.lower()]
    near = difflib.get_close_matches(str(word).lower(), choices, n=1, cutoff=0.0)
    raise InputError(key, word, f"must be one of {', '.join(choices)}", near[0] if near else "")


def _values(key: str, value: Floats, lowest: float = 0.0) -> Array:
    """An axis as an array: a number, a list, or a range by step or factor."""
    if isinstance(value, Mapping):
        return _range(key, value)
    try:
        numbers = np.asarray(_list(value), dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            key, value, "must be a number, a list of numbers, or a range {from, to, step or factor}"
        ) from None
    if any(isinstance(x, bool) for x in _list(value)) or not numbers.size or not np.isfinite(numbers).all():
        raise InputError(key, value, "must hold at least one number, all finite")
    if numbers.min() < lowest or (lowest == 0.0 and key in AXES and numbers.min() <= 0 and not AXES[key].may_be_zero):
        raise InputError(key, low := float(numbers.min()), "must be above 0", f"{-low:g}" if low < 0 else "")
    return np.unique(numbers)


def _range(key: str, value: Mapping[str, Any]) -> Array:
    words = set(value)
    if not ({"from", "to"} <= words and len(words) == 3 and words & {"step", "factor"}):
        raise InputError(key, dict(value), "a range must read {from, to, step} or {from, to, factor}")
    start, end = (float(_values(key, value[word])[0]) for word in ("from", "to"))
    word = "step" if "step" in value else "factor"
    by = value[word]
    if isinstance(by, bool) or not isinstance(by, int | float) or not 0 < by < np.inf:
        raise InputError(key, dict(value), f"its {word} must be a number above {int(word == 'factor')}", "2")
    if end < start:
        raise InputError(key, dict(value), f"must not end below its start: {end:g} < {start:g}")
    if "step" in value:
        if (end - start) / by > MAX_CANDIDATES:
            raise InputError(key, dict(value), "has too many steps; take a larger one")
        return np.asarray(start + by * np.arange(int((end - start) / by * (1 + 1e-12)) + 1))
    if by <= 1:
        raise InputError(key, dict(value), "its factor must be above 1", "2")
    return np.asarray(start * by ** np.arange(int(np.log(end / start) / np.log(by) * (1 + 1e-12)) + 1))


def _ints(values: Array, key: str) -> Array:
    if (np.abs(values) > 2**53).any():
        raise InputError(key, float(values[np.abs(values) > 2**53][0]), "must be at most 2^53")
    whole = np.rint(values).astype(np.int64)
    if (np.abs(whole - values) > 1e-9).any():
        bad = float(values[np.abs(whole - values) > 1e-9][0])
        raise InputError(key, bad, "must be whole", f"{np.floor(bad):.0f} or {np.ceil(bad):.0f}")
    return whole


def taken(accelerator: Accelerator, index: Ints) -> Accelerator:
    """Candidates ``index`` of an accelerator with arrays; an integer gives one accelerator of plain numbers."""
    changed: dict[str, Any] = {}
    for name in ARRAY_FIELDS:
        value = getattr(accelerator, name)
        if np.ndim(value):
            picked = np.broadcast_to(value, accelerator.shape)[index]
            changed[name] = picked.item() if np.ndim(picked) == 0 else picked
    return replace(accelerator, **changed)
