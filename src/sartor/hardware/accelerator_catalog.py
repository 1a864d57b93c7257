"""The accelerator catalogue, one TOML file per entry, and devices that users name: a GPU, a chip or a file.

An accelerator takes a GPU's place through its datasheet (`datasheet_of`), which keeps the chip.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sartor.errors import InputError
from sartor.hardware.accelerator import (
    ARRAY_FIELDS,
    FIELD_NAMES,
    IN_LONG_RUNS,
    MAY_BE_NONE,
    Accelerator,
    Dataflow,
    Memory,
    template_tensor_core_sram,
    template_vector_core_sram,
)
from sartor.hardware.catalog import (
    ACCELERATORS,
    GPUS,
    Complaint,
    check,
    gpu_from,
    is_accelerator,
    is_path,
    kind,
    load_gpu,
    model_of,
    read_toml,
)
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap, picked
from sartor.operators import DType
from sartor.units import GIB, GIGA, KIB, MEGA, MIB, MICRO

if TYPE_CHECKING:
    from pydantic import BaseModel

MAX_SIZE = 2**50


def load_accelerator(name_or_path: str | Path) -> Accelerator:
    """The accelerator with a catalogue name (case and separators ignored) or from a TOML file.

    Raises ``InputError`` for an unknown name (with the nearest ones), an unreadable file, an unknown or missing key, or
    an invalid value.

    >>> load_accelerator("TPU-v4-like").num_tensor_cores
    8
    """
    table, path = ACCELERATORS.table(name_or_path)
    return accelerator_from(table, path.stem, trusted=path.parent == ACCELERATORS.folder)


def accelerator_entry(name_or_path: str | Path) -> JsonDict:
    """Every field in SI units with derived rates and sources, as in ``sartor catalog accelerators --json``."""
    return accelerator_fields(load_accelerator(name_or_path))


def accelerator_fields(a: Accelerator) -> JsonDict:
    """An accelerator's fields in SI units with derived rates."""
    fields = {name: getattr(a, name) for name in FIELD_NAMES}
    return {
        **fields,
        "memory": a.memory.value,
        "stack_bytes": a.stack_bytes or a.memory.stack.bytes,
        "stack_bytes_per_s": a.stack_bytes_per_s or a.memory.stack.bytes_per_s,
        **picked(a, "dtype", "packed_dtype", "dataflow", "hbm_bytes", "hbm_bytes_per_s", "peak_flops_per_s"),
        **picked(a, "global_buffer_bytes_per_s", "network_bytes_per_s"),
        "sources": {"memory": a.memory.stack.source, **a.sources},
    }


def accelerator_from(table: JsonDict, name: str = "accelerator", *, trusted: bool = False) -> Accelerator:
    """An accelerator from a table in a file's keys and units, which is checked unless ``trusted``. Private buffers left
    out are the template's. Numbers of a trusted table may be arrays: the candidates of a space."""
    if not trusted:
        check(table, _model(), subject="an accelerator")
    numbers = {field: _in_si(table[key], field, factor) for key, (field, factor) in NUMBERS.items() if key in table}
    rows, cols, lanes = (numbers[key] for key in ("array_rows", "array_cols", "vector_lanes"))
    numbers.setdefault("tensor_core_sram_bytes", template_tensor_core_sram(cols, rows))
    numbers.setdefault("vector_core_sram_bytes", template_vector_core_sram(lanes))
    words = {key: choices[table[key].lower()] for key, choices in _CHOICES.items() if key in table}
    named = {key: field for key, (field, _) in NUMBERS.items()}
    return Accelerator(
        **{"dtype": DType.BF16, "dataflow": Dataflow.WEIGHT_STATIONARY, **words},
        **{"name": name, "confidence": "medium", **{key: table[key] for key in _TEXTS if key in table}},
        sources={named.get(key, key): text for key, text in table.get("sources", {}).items()},
        **numbers,
    )


def template_value(a: Accelerator, key: str) -> float | str:
    """The value behind a key of `TEMPLATE_KEYS` in the file's unit.

    >>> template_value(load_accelerator("tpu_v4_like"), "tensor_core_sram_kib")
    256.0
    """
    field, factor = NUMBERS.get(key, (key, 1))
    value = accelerator_fields(a)[field]
    return value if isinstance(value, str) else float(value) / factor


@cache
def ratios_to_default(key: str) -> tuple[tuple[float, str], ...]:
    """How far from its default each chip of the catalogue that changes a key of `TEMPLATE_KEYS` sets it, and the chip's
    name; those that change it least first.

    >>> ratios_to_default("tensor_core_sram_kib")[2]
    (4.0, 'mi300x_like')
    """
    ratios = []
    for name in ACCELERATORS.names():
        table, _ = ACCELERATORS.table(name)
        default = template_value(accelerator_from({k: v for k, v in table.items() if k != key}, trusted=True), key)
        if not isinstance(default, str) and default * table.get(key, default) > 0:
            ratios.append((table.get(key, default) / default, name))
    return tuple(sorted((pair for pair in ratios if pair[0] != 1), key=lambda pair: (abs(math.log(pair[0])), *pair)))


def with_key(a: Accelerator, key: str, value: float) -> Accelerator:
    """The accelerator with another value of a number of its file."""
    field, factor = NUMBERS[key]
    return replace(a, **{field: _in_si(value, field, factor)})


def _in_si(value: Any, field: str, factor: float) -> Any:
    if np.ndim(value) and field in WHOLE:
        return np.rint(value * factor).astype(np.int64)
    return int(value * factor) if field in WHOLE else value * factor


@cache
def _model() -> type[BaseModel]:
    """The pydantic model of an accelerator's file."""
    words = {key: kind(_one_of(choices)) for key, choices in _CHOICES.items()}
    documents = dict.fromkeys(("all", *NUMBERS, *_TEXTS, *_CHOICES), kind(_text))
    numbers = {key: kind(_size(field, factor)) for key, (field, factor) in NUMBERS.items()}
    texts = dict.fromkeys(_TEXTS, kind(_text))
    return model_of({**numbers, **words, **texts, "sources": model_of(documents)}, required=REQUIRED)


def _size(field: str, factor: float) -> Callable[[Any], Complaint]:
    """Judge of a key's value in units of ``factor`` bytes, hertz or bytes per second, at least one of them."""
    is_whole, may_be_none = field in WHOLE, field in MAY_BE_NONE
    smallest = 1 / factor if factor > 1 else 0.0

    def judge(value: object) -> Complaint:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "must be a number", ""
        if math.isnan(value):
            return "must be a finite number", ""
        size = value * factor
        if abs(size) > MAX_SIZE:
            in_si = math.isfinite(value) and factor > 1 and value > 0 and value <= MAX_SIZE
            return f"must be at most {MAX_SIZE / factor:.4g}", f"{value / factor:g}" if in_si else ""
        if value < 0 or (value == 0 and not may_be_none):
            must = "must not be below 0" if may_be_none else "must be above 0"
            return must, f"{-value:g}" if value < 0 else "1" if is_whole and factor == 1 else ""
        if 0 < value < smallest:
            return f"must be at least {smallest:g}", f"{smallest:g}"
        if is_whole and size != int(size):
            unit = "bytes" if factor > 1 else "units"
            return f"must be a whole number of {unit}", f"{round(size) / factor:g}"
        return None

    return judge


def _one_of(choices: JsonMap) -> Callable[[Any], Complaint]:
    def judge(value: object) -> Complaint:
        if isinstance(value, str) and value.lower() in choices:
            return None
        near = difflib.get_close_matches(str(value).lower(), choices, n=1, cutoff=0.3)
        return f"must be one of {', '.join(choices)}", near[0] if near else ""

    return judge


def _text(value: object) -> Complaint:
    return None if isinstance(value, str) else ("must be a text", "")


_CHOICES: dict[str, JsonDict] = {
    "memory": {m.value: m for m in Memory},
    "dtype": {d.value: d for d in DType},
    "packed_dtype": {d.value: d for d in DType},
    "dataflow": {d.value: d for d in Dataflow},
}
_TEXTS = ("name", "title", "note", "confidence")
NUMBERS: dict[str, tuple[str, float]] = {
    **{
        name: (name, 1) for name in ("num_tensor_cores", "num_vector_cores", "array_rows", "array_cols", "vector_lanes")
    },
    "global_buffer_mib": ("global_buffer_bytes", MIB),
    "clock_mhz": ("clock_hz", MEGA),
    "num_stacks": ("num_stacks", 1),
    "num_links": ("num_links", 1),
    "link_gb_per_s": ("link_bytes_per_s", GIGA),
    "scale_up_devices": ("scale_up_devices", 1),
    "scale_out_gb_per_s": ("scale_out_bytes_per_s", GIGA),
    "tensor_core_sram_kib": ("tensor_core_sram_bytes", KIB),
    "vector_core_sram_kib": ("vector_core_sram_bytes", KIB),
    "stack_gib": ("stack_bytes", GIB),
    "stack_gb_per_s": ("stack_bytes_per_s", GIGA),
    "link_latency_us": ("link_latency_s", MICRO),
    "scale_out_latency_us": ("scale_out_latency_s", MICRO),
    **{
        name: (name, 1)
        for name in (
            "bank_bytes_per_cycle",
            "control_share",
            "special_cycles",
            "backward_passes",
            "buffer_add_share",
            "load_bytes",
            *IN_LONG_RUNS,
            "num_dies",
            "node_nm",
        )
    },
    **{name: (name, 1) for name in ("num_io_dies", "io_node_nm")},
    "die_to_die_gb_per_s": ("die_to_die_bytes_per_s", GIGA),
}
NUMBERS["operator_start_us"] = (NUMBERS.pop("operator_start_s")[0], MICRO)
"""Key of a chip's file or of a space -> (field, factor to SI); an axis of a space counts in this order."""
WHOLE = {field for field in ARRAY_FIELDS if field.startswith(("num_", "array_", "vector_lanes", "scale_up"))} | {
    "tensor_core_sram_bytes",
    "vector_core_sram_bytes",
    "global_buffer_bytes",
    "node_nm",
    "io_node_nm",
    "backward_passes",
}
REQUIRED = (
    "num_tensor_cores",
    "array_rows",
    "array_cols",
    "num_vector_cores",
    "vector_lanes",
    "global_buffer_mib",
    "clock_mhz",
    "memory",
    "num_stacks",
    "node_nm",
)
_OF_PACKAGE = ("scale_", "control_", "num_dies", "num_io_dies", "io_node_nm", "die_to_die")
TEMPLATE_KEYS = (
    *(key for key in NUMBERS if key not in REQUIRED and not key.startswith(_OF_PACKAGE)),
    "dtype",
    "dataflow",
)
"""Keys with a default that change prices."""


GENERATION = "accelerator"
"""Generation of every template chip, which has no measurements and borrows no calibration."""

ANY_POWER_W = 1e6
"""Power limit of a template chip, high enough that it is never throttled: its clock is fixed."""


def load_device(name_or_path: str | Path) -> Gpu:
    """The device with a catalogue name (a GPU's or an accelerator's, spelling ignored) or from a TOML file of either.

    Raises ``InputError`` as the two catalogues do; for an unknown name, with the nearest names of both.

    >>> load_device("h100").name, load_device("tpu_v4_like").accelerator.num_tensor_cores
    ('h100_sxm', 8)
    """
    text = str(name_or_path)
    if is_path(name_or_path):
        return device_from(read_toml(Path(text), "gpu"), Path(text).stem)
    if text in ACCELERATORS:
        return datasheet_of(load_accelerator(text))
    try:
        return load_gpu(text)
    except InputError as error:
        near = difflib.get_close_matches(text.lower(), [*GPUS.names(), *ACCELERATORS.names()], n=4, cutoff=0.75)
        raise InputError(error.field, text, error.must, ", ".join(near) or error.nearest) from None


def device_from(table: dict[str, object], name: str) -> Gpu:
    """A checked device from the table of a datasheet or of an accelerator's file (it has arrays)."""
    if is_accelerator(table):
        chip = datasheet_of(accelerator_from(table, name))
        return replace(chip, template_keys=tuple(key for key in TEMPLATE_KEYS if key not in table))
    return gpu_from(table, name)


def datasheet_of(accelerator: Accelerator) -> Gpu:
    """The datasheet of one chip (no arrays of candidates): peaks, memory, cache, links.

    Types narrower than the arrays' operands are multiplied at the same rate.
    """
    a = accelerator
    if a.shape:
        raise InputError("accelerator", a.shape, "must be one chip here, not an array of candidates")
    if a.global_buffer_bytes >= a.hbm_bytes:
        must = f"must be smaller than the memory behind it, {a.hbm_bytes / MIB:.4g} MiB"
        raise InputError("global_buffer_mib", a.global_buffer_bytes / MIB, must)
    peak = {dtype: float(a.peak_flops_per_s) * a.packing(dtype) for dtype in DType}
    return Gpu(
        name=a.name or "accelerator",
        vendor="",
        generation=GENERATION,
        num_sms=int(a.num_tensor_cores),
        peak_flops_per_s={d: peak[d] for d in (a.dtype, *(dtype for dtype in DType if _multiplies(a, dtype)))},
        hbm_bytes=float(a.hbm_bytes),
        hbm_bytes_per_s=float(a.hbm_bytes_per_s),
        l2_bytes=float(a.global_buffer_bytes),
        boost_clock_hz=float(a.clock_hz),
        tdp_w=ANY_POWER_W,
        link_bytes_per_s=float(a.network_bytes_per_s),
        link_latency_s=float(a.link_latency_s),
        devices_per_node=1,
        matrix_tile=_array_side(a),
        title=a.title,
        confidence=a.confidence if a.confidence in ("high", "medium", "low") else "medium",
        note=a.note,
        sources=a.sources,
        accelerator=a,
    )


MOST_SIDE = 1024
"""Largest common multiple of both sides of an array to align to; beyond it, lengths align to the longer side."""


def _array_side(a: Accelerator) -> int:
    """The length that fills the array in both orientations: contracted over rows, or produced by columns."""
    rows, cols = int(a.array_rows), int(a.array_cols)
    return math.lcm(rows, cols) if math.lcm(rows, cols) <= MOST_SIDE else max(rows, cols)


def _multiplies(a: Accelerator, dtype: DType) -> bool:
    return dtype.bytes <= a.dtype.bytes and not dtype.weight_only
