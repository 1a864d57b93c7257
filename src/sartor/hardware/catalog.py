"""The GPU catalogue: one TOML datasheet per device, its other names inside, converted to SI units here.

A datasheet is looked up by file name, ignoring spelling (``H100-SXM``, ``h100 sxm`` and ``h100`` are ``h100_sxm``). A
user's own file is checked in the same way.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from sartor.errors import InputError
from sartor.hardware import door
from sartor.hardware.door import Catalogue, Complaint, check, is_path, kind, model_of
from sartor.hardware.gpu import FIELD_NAMES, Gpu, check_gpu
from sartor.json_types import JsonDict
from sartor.operators import DType
from sartor.units import GIB, GIGA, KIB, MEGA, MIB, MICRO, TERA

if TYPE_CHECKING:
    from pydantic import BaseModel

GPUS = Catalogue(folder=Path(__file__).parent / "datasheets", option="gpu", shelf="gpus")
ACCELERATORS = Catalogue(
    folder=Path(__file__).parent / "accelerators",
    option="accelerator",
    shelf="accelerators",
    usual=("a100_like", "edge_tpu_like", "eyeriss_like"),
    cutoff=0.4,
)
NOT_A_GPU = "is a chip of the accelerator template: nothing was measured on it, and only a GPU can be named here"


def load_gpu(name_or_path: str | Path) -> Gpu:
    """The device with a catalogue name or alias, or from a TOML datasheet.

    Raises ``InputError`` for an unknown name (with the nearest ones), or an unreadable or contradictory file.

    >>> load_gpu("H100").name
    'h100_sxm'
    """
    return _read(name_or_path) if is_path(name_or_path) else _of_the_catalogue(str(name_or_path))


@lru_cache(maxsize=256)
def _of_the_catalogue(name: str) -> Gpu:
    """A catalogue device, read once: every estimate looks for a lender among all measured devices."""
    if name in ACCELERATORS:
        raise InputError("gpu", name, NOT_A_GPU, "a name of sartor catalog gpus")
    return _read(name)


def _read(name_or_path: str | Path) -> Gpu:
    table, path = GPUS.table(name_or_path)
    if is_accelerator(table):
        raise InputError("gpu", path.name, NOT_A_GPU, "a name of sartor catalog gpus")
    return gpu_from(table, path.stem, packaged=path.parent == GPUS.folder)


def is_accelerator(table: JsonDict) -> bool:
    """Whether a device's table describes a chip of the accelerator template (it has arrays)."""
    return "array_rows" in table or "num_tensor_cores" in table


def gpu_entry(name_or_path: str | Path) -> JsonDict:
    """Every field of a device in SI units, with the source of each: what ``sartor catalog gpus --json`` answers.

    Fields a datasheet does not state are left out. ``sources`` has a document and date per field, ``all`` for the rest.
    """
    gpu = load_gpu(name_or_path)
    values = {name: getattr(gpu, name) for name in FIELD_NAMES}
    return {
        **{name: value for name, value in values.items() if value not in (None, "", 0, ())},
        "peak_flops_per_s": {dtype.value: peak for dtype, peak in gpu.peak_flops_per_s.items()},
        "price_usd_per_hour": gpu.price_usd_per_hour,
        "aliases": list(gpu.aliases),
        "sources": dict(gpu.sources),
    }


# ------------------------------------------------------------------------------------------- from a table to a Gpu

_NUMBERS: dict[str, tuple[str, float]] = {
    "num_sms": ("num_sms", 1),
    "hbm_gib": ("hbm_bytes", GIB),
    "hbm_gb_per_s": ("hbm_bytes_per_s", GIGA),
    "l2_mib": ("l2_bytes", MIB),
    "boost_clock_mhz": ("boost_clock_hz", MEGA),
    "tdp_w": ("tdp_w", 1),
    "max_clock_mhz": ("max_clock_hz", MEGA),
    "link_gb_per_s": ("link_bytes_per_s", GIGA),
    "link_latency_us": ("link_latency_s", MICRO),
    **{name: (name, 1) for name in ("devices_per_node", "link_domain", "dies_per_card")},
    "pcie_gb_per_s": ("pcie_bytes_per_s", GIGA),
    "host_link_gb_per_s": ("host_link_bytes_per_s", GIGA),
    "host_memory_gb_per_s": ("host_memory_bytes_per_s", GIGA),
    "smem_kib_per_sm": ("smem_bytes_per_sm", KIB),
    "memory_side_cache_mib": ("memory_side_cache_bytes", MIB),
    **{
        name: (name, 1) for name in ("fp32_accumulate_rate", "tensor_core_rate", "matrix_tile", "die_mm2", "process_nm")
    },
}
"""Datasheet key -> (field of ``Gpu``, factor to SI)."""

_WHOLE = ("num_sms", "devices_per_node", "link_domain", "dies_per_card", "matrix_tile")
_TEXTS = ("name", "title", "vendor", "generation", "compute_capability", "host", "released", "confidence", "note")
_PRICE = ("usd_per_hour", "source", "date")
_REQUIRED = (
    "vendor",
    "generation",
    "num_sms",
    "hbm_gib",
    "hbm_gb_per_s",
    "l2_mib",
    "boost_clock_mhz",
    "tdp_w",
    "peak_dense_tflops",
)


def gpu_from(table: JsonDict, name: str = "gpu", *, packaged: bool = False) -> Gpu:
    """A checked ``Gpu`` from a datasheet's table; ``InputError`` with the datasheet's own key when it cannot be."""
    if not packaged:
        check(table, _model(), subject="a datasheet")
    price = table.get("price", {})
    numbers = {field: float(table[key]) * factor for key, (field, factor) in _NUMBERS.items() if key in table}
    return check_gpu(
        Gpu(
            **{"name": name, **{key: table[key] for key in _TEXTS if key in table}},
            **{**numbers, **{key: int(table[key]) for key in _WHOLE if key in table}},  # type: ignore[arg-type]
            peak_flops_per_s=_peaks(table["peak_dense_tflops"]),
            price_usd_per_hour=float(price["usd_per_hour"]) if price else None,
            price_source=price.get("source", ""),
            price_date=price.get("date", ""),
            sources={_SOURCED[key]: text for key, text in table.get("sources", {}).items()},
            aliases=tuple(table.get("aliases", ())) if packaged else (),
        )
    )


@cache
def _model() -> type[BaseModel]:
    """The pydantic model of a datasheet."""
    numbers = {
        key: kind(door.above_zero if key in _REQUIRED else door.number, *((door.whole,) if key in _WHOLE else ()))
        for key in _NUMBERS
    }
    return model_of(
        {
            **dict.fromkeys(_TEXTS, kind(door.text)),
            "name": kind(_plain_name),
            **numbers,
            "peak_dense_tflops": model_of(dict.fromkeys((dtype.value for dtype in DType), kind(door.number))),
            "price": model_of({**dict.fromkeys(_PRICE, kind(door.text)), "usd_per_hour": kind(door.number)}, _PRICE),
            "sources": model_of(dict.fromkeys(_SOURCED, kind(door.text))),
            "aliases": kind(door.texts),
        },
        required=_REQUIRED,
    )


def _plain_name(value: object) -> Complaint:
    """A name that can be a file name: no path, no hidden file."""
    fits = isinstance(value, str) and re.fullmatch(r"[^\W_][\w .+()-]{0,99}", value, re.ASCII)
    return None if fits else ("must be a name: letters, digits, spaces and . _ - + ( ), at most 100", "")


_SOURCED = {
    **{key: field for key, (field, _) in _NUMBERS.items()},
    **{key: key for key in _TEXTS},
    "all": "all",
    "peak_dense_tflops": "peak_flops_per_s",
    **{f"peak_dense_tflops.{dtype.value}": f"peak_flops_per_s.{dtype.value}" for dtype in DType},
}
"""Key under ``sources`` (``all``: every field not named) -> field of ``Gpu``."""


def _peaks(tflops: JsonDict) -> dict[DType, float]:
    """Peaks in FLOP/s. Block-scaled fp8 (``fp8_block``) has the fp8 peak unless stated."""
    peaks = {DType(key): value * TERA for key, value in tflops.items()}
    if DType.FP8 in peaks:
        peaks.setdefault(DType.FP8_BLOCK, peaks[DType.FP8])
    return peaks
