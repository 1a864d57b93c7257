"""Devices named by users: a catalogue GPU, a template accelerator, or a file of either.

An accelerator takes a GPU's place through its datasheet (`datasheet_of`), which keeps the chip.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import replace
from pathlib import Path

from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.accelerator_catalog import TEMPLATE_KEYS, accelerator_from, accelerator_names, load_accelerator
from sartor.hardware.catalog import canonical, gpu_from, gpu_names, is_accelerator, load_gpu
from sartor.hardware.door import is_path, read_toml
from sartor.hardware.gpu import Gpu
from sartor.operators import DType
from sartor.units import MIB

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
    if canonical(text) in {canonical(name) for name in accelerator_names()}:
        return datasheet_of(load_accelerator(text))
    try:
        return load_gpu(text)
    except InputError as error:
        near = difflib.get_close_matches(text.lower(), [*gpu_names(), *accelerator_names()], n=4, cutoff=0.75)
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
