"""Spaces of accelerators: the published grid by name, or a user's own as lists of values per axis.

A space is groups of candidates (one per memory generation and node, which change more than a number), each an
``Accelerator`` with arrays, and the memory sizes that every candidate may have.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
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
    MAY_BE_NONE,
    NODES_NM,
    PUBLISHED_CLOCK_HZ,
    SUSTAINED_SHARES,
    Accelerator,
    Dataflow,
    Memory,
)
from sartor.hardware.accelerator_catalog import NUMBERS, REQUIRED, WHOLE, accelerator_from
from sartor.json_types import JsonDict
from sartor.operators import DType
from sartor.units import GIGA, MEGA, Array, Floats, IntArray, Ints

PUBLISHED = "phaze"
PUBLISHED_HBM_BYTES = (32 * GIGA, 64 * GIGA, 80 * GIGA)
MAX_CANDIDATES = 1 << 27
"""Such a space takes about 2 GB."""
CHUNK = 1 << 20
"""Candidates priced at a time: 8 MB for each quantity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorSpace:
    """Candidates by groups, whose arrays broadcast together; ``hbm_bytes`` are the memory sizes tried with each (empty:
    the size of its stacks).

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
    axes: tuple[str, ...] = ()
    """Keys of `AXES` that it states."""
    unstated: tuple[str, ...] = ()
    """Keys of `TEMPLATE_KEYS` that a user's own space leaves to the template."""

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Types in which linear layers may run on some candidate."""
        return tuple(
            dict.fromkeys(dtype for group in self.groups for dtype in (group.dtype, group.packed_dtype) if dtype)
        )

    @property
    def num_kept(self) -> int:
        return sum(int(np.prod(group.shape, dtype=np.int64)) for group in self.groups)

    def chunks(self) -> Iterator[tuple[int, IntArray, Accelerator]]:
        """All candidates, at most `CHUNK` at a time: the number of their group, their places in it, and they."""
        for g, group in enumerate(self.groups):
            for places in np.split(np.arange(count := int(np.prod(group.shape))), range(CHUNK, count, CHUNK)):
                yield g, places, taken(group, places)


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
        axes=("num_tensor_cores", "num_vector_cores", "array_rows", "array_cols", "global_buffer_mib"),
        assumptions=(
            "each has 4 stacks of HBM2 at 1229 GB/s whatever their capacity, and 6 links of 50 GB/s (TPU v4)",
            "arrays, memory and links sustain all of their peak rates (A100: 76, 89 and 69%); runs add nothing (7%)",
            "area is the published closed form at 22 nm: no memory interfaces, links, network or control",
        ),
    )


AXES: Mapping[str, tuple[str, float]] = {key: row for key, row in NUMBERS.items() if row[0] in ARRAY_FIELDS}
"""Numbers of a chip that a space may vary: key -> (field of `Accelerator`, SI value of the key's unit)."""
LANES, TIED_LANES = "vector_lanes", "array_cols"
"""Vector lanes follow the columns of the arrays unless stated."""
_TEMPLATE: JsonDict = {"clock_mhz": PUBLISHED_CLOCK_HZ / MEGA, "memory": "hbm2", "num_stacks": 4, "node_nm": 22}
"""What a chip's file must state and a space need not: the published template's."""
PACKED = tuple(dtype.value for dtype in (DType.BF16, DType.FP8, DType.MXFP8, DType.NVFP4))
"""Narrowest types that an array may pack; every array supports 16 bits, which attention always uses."""
_CHOICES = {
    "memory": tuple(m.value for m in Memory),
    "node_nm": NODES_NM,
    "dataflow": tuple(d.value for d in Dataflow),
    "packed_dtype": PACKED,
}
"""Choices that a space may list: each combination is a group."""
_OF_SPACE = ("hbm_gb", "name", "area_limit_mm2", "area_model", "dtype", "title", "note", "confidence", "sources")


def required_axes() -> list[str]:
    """Axes that a space must state."""
    return [key for key in NUMBERS if key in REQUIRED and key not in _TEMPLATE and key != LANES]


def space_from(table: Mapping[str, Any]) -> AcceleratorSpace:
    """The product of all axes: a chip's file of which any number may be a list, or ``{from, to, step}`` or ``{from, to,
    factor}``.

    ``vector_lanes = "array_cols"`` (the default) ties lanes to columns, as published; ``memory``, ``node_nm``,
    ``dataflow`` and ``packed_dtype`` may be lists too; what long work sustains of the peak rates, and what runs add, is
    one number each. Raises ``InputError`` for unknown keys and invalid values.
    """
    names = (*NUMBERS, *_CHOICES, *_OF_SPACE)
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=2, cutoff=0.4)
            raise InputError(key, table[key], "is not an axis of a space", ", ".join(near or required_axes()))
    for key in required_axes():
        if key not in table:
            raise InputError(key, "missing", "the space must state it")
    if table.get("dtype", "bf16") not in ("bf16", "fp16"):
        must = "must have 16 bits, which attention always uses: narrower types are packed"
        raise InputError("dtype", table["dtype"], must, "packed_dtype")
    table = {**_TEMPLATE, **table}
    tied = table.get(LANES, TIED_LANES) == TIED_LANES
    axes = {key: _values(key, table[key]) for key in AXES if key in table and not (key == LANES and tied)}
    choices = {key: [_choice(key, word) for word in _list(table[key])] for key in _CHOICES if key in table}
    fixed = {key: _values(key, table[key]) for key in NUMBERS if key in table and key not in (*AXES, *choices)}
    for key in fixed:
        if NUMBERS[key][0] in IN_LONG_RUNS and len(fixed[key]) > 1:
            raise InputError(key, table[key], "must be one number: every chip of a space sustains it")
    choices |= {key: values.tolist() for key, values in fixed.items()}
    groups = [dict(zip(choices, words, strict=True)) for words in product(*choices.values())]
    count = int(np.prod([len(values) for values in axes.values()], dtype=object)) * len(groups)
    if count > MAX_CANDIDATES:
        raise InputError("space", f"{count} candidates", f"must be at most {MAX_CANDIDATES}; coarsen an axis")
    several = [key for key, values in axes.items() if len(values) > 1]
    mesh = axes | dict(
        zip(several, np.meshgrid(*(axes[key] for key in several), indexing="ij", sparse=True), strict=True)
    )
    mesh |= {LANES: mesh[TIED_LANES]} if tied else {}
    return AcceleratorSpace(
        name=str(table.get("name", "own")),
        groups=tuple(_group({**mesh, **words}, str(table.get("dtype", "bf16"))) for words in groups),
        hbm_bytes=tuple(float(x) * GIGA for x in _values("hbm_gb", table["hbm_gb"])) if "hbm_gb" in table else (),
        num_points=count,
        axes=tuple(axes),
        area_limit_mm2=float(_values("area_limit_mm2", table.get("area_limit_mm2", 0), lowest=0.0)[0]),
        area_model=AreaModel(_choice("area_model", table.get("area_model", "die"), tuple(AreaModel))),
        assumptions=(_sustained_note({key: float(values[0]) for key, values in fixed.items()}),),
    )


def _group(numbers: JsonDict, dtype: str) -> Accelerator:
    """The candidates of one combination of choices; packing in 16 bits is none."""
    words = {key: value for key, value in numbers.items() if key != "packed_dtype" or value != DType.BF16.value}
    return accelerator_from({**words, "dtype": dtype}, "", trusted=True)


def _sustained_note(single: Mapping[str, float]) -> str:
    """What long runs sustain, for people."""
    keys = {field: key for key, (field, _) in NUMBERS.items()}
    shares = {name: single.get(keys[name], published) for name, published in IN_LONG_RUNS.items()}
    if shares == IN_LONG_RUNS:
        return f"arrays, memory and links sustain all of their peak rates ({', '.join(SUSTAINED_SHARES)} of the space)"
    template = (
        "of their peak rates, arrays sustain {:.0%}, memory {:.0%}, links {:.0%}; a layer of a run takes {:.2f} times "
        "its schedule; {:.0%} of attention's softmax runs beside its products; an operator starts in {:g} us"
    )
    return template.format(*shares.values())


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _choice(key: str, word: object, choices: Sequence[Any] = ()) -> Any:
    choices = choices or _CHOICES[key]
    lower = word.lower() if isinstance(word, str) else word
    if lower in choices:
        return lower
    if key == "node_nm":
        raise InputError(key, word, "no area or energy is known for it", ", ".join(map(str, choices)))
    near = difflib.get_close_matches(str(lower), choices, n=1, cutoff=0.0)
    raise InputError(key, word, f"must be one of {', '.join(choices)}", near[0] if near else "")


def _values(key: str, value: Floats, lowest: float = 0.0) -> Array:
    """An axis as an array: a number, a list, or a range by step or factor."""
    if isinstance(value, Mapping):
        return _whole(_range(key, value), key)
    try:
        numbers = np.asarray(_list(value), dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            key, value, "must be a number, a list of numbers, or a range {from, to, step or factor}"
        ) from None
    if any(isinstance(x, bool) for x in _list(value)) or not numbers.size or not np.isfinite(numbers).all():
        raise InputError(key, value, "must hold at least one number, all finite")
    if numbers.min() < lowest or (
        lowest == 0.0 and key in AXES and numbers.min() <= 0 and AXES[key][0] not in MAY_BE_NONE
    ):
        raise InputError(key, low := float(numbers.min()), "must be above 0", f"{-low:g}" if low < 0 else "")
    return _whole(np.unique(numbers), key)


MOST_VALUES = 2**20
"""Values of one axis."""


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
        if (end - start) / by > MOST_VALUES:
            raise InputError(key, dict(value), "has too many steps; take a larger one")
        return np.asarray(start + by * np.arange(int((end - start) / by * (1 + 1e-12)) + 1))
    if by <= 1:
        raise InputError(key, dict(value), "its factor must be above 1", "2")
    return np.asarray(start * by ** np.arange(int(np.log(end / start) / np.log(by) * (1 + 1e-12)) + 1))


def _whole(values: Array, key: str) -> Array:
    """The values of a key, which must be whole numbers of what their field counts."""
    field, factor = NUMBERS.get(key, ("", 1.0))
    if field not in WHOLE:
        return values
    if (most := values > 2**53 / factor).any():
        raise InputError(key, float(values[most][0]), "must be at most 2^53" + " bytes" * (factor > 1))
    counts = values * factor
    if (wrong := np.abs(np.rint(counts) - counts) > 1e-9).any():
        bad = float(values[wrong][0])
        if factor > 1:
            raise InputError(key, bad, "must be a whole number of bytes")
        raise InputError(key, bad, "must be whole", f"{np.floor(bad):.0f} or {np.ceil(bad):.0f}")
    return values


def taken(accelerator: Accelerator, index: Ints) -> Accelerator:
    """Candidates ``index`` of an accelerator with arrays; an integer gives one accelerator of plain numbers."""
    shape, changed = accelerator.shape, dict[str, Any]()
    for name in ARRAY_FIELDS:
        if np.ndim(value := getattr(accelerator, name)):
            picked = column(value, shape, index)
            changed[name] = picked.item() if np.ndim(picked) == 0 else picked
    return replace(accelerator, **changed)


def column(value: Floats, shape: tuple[int, ...], index: Ints) -> Array:
    """The entries ``index`` of a value that broadcasts to ``shape``, counted as if it were flat."""
    several = [axis for axis, size in enumerate(np.shape(value)[::-1], 1) if size > 1]  # from the last axis
    inner = np.cumprod([1, *shape[::-1]], dtype=np.int64)
    entry = np.asarray(value)[tuple(slice(None) if size > 1 else 0 for size in np.shape(value))]
    where = tuple(index // inner[axis - 1] % shape[-axis] for axis in several[::-1])
    return np.asarray(np.broadcast_to(entry[where], np.shape(index)))
