"""The accelerator catalogue: one TOML file per entry in the units people read, converted to SI here and only here."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

from sartor.errors import InputError
from sartor.hardware.accelerator import (
    ARRAY_FIELDS,
    FIELD_NAMES,
    Accelerator,
    Dataflow,
    template_tensor_core_sram,
    template_vector_core_sram,
)
from sartor.hardware.catalog import ACCELERATORS as ENTRIES
from sartor.hardware.catalog import canonical
from sartor.hardware.memory import Memory
from sartor.operators import DType
from sartor.units import GIB, GIGA, KIB, MEGA, MIB, MICRO

MAX_FILE_BYTES = 1_000_000
MAX_SIZE = 2**50


def load_accelerator(name_or_path: str | Path) -> Accelerator:
    """The accelerator of a catalogue name (case and separators forgiven) or of a TOML file.

    Raises ``InputError`` for an unknown name (nearest names offered), an unreadable file, an unknown or missing key,
    a value that cannot be.

    >>> load_accelerator("TPU-v4-like").num_tensor_cores
    8
    """
    path = _find(name_or_path)
    return accelerator_from(_read(path), path.stem)


def accelerator_names() -> tuple[str, ...]:
    """Every accelerator of the catalogue, sorted."""
    return tuple(sorted(path.stem for path in ENTRIES.glob("*.toml")))


def accelerator_entry(name_or_path: str | Path) -> dict[str, Any]:
    """Every field in SI units with the rates that follow from them and each source: what
    ``sartor catalog accelerators --json`` answers."""
    return accelerator_fields(load_accelerator(name_or_path))


def accelerator_fields(a: Accelerator) -> dict[str, Any]:
    """An accelerator's fields in SI units with the rates that follow from them."""
    fields = {name: getattr(a, name) for name in FIELD_NAMES}
    return {
        **fields,
        "memory": a.memory.value,
        "stack_bytes": a.stack_bytes or a.memory.stack.bytes,
        "stack_bytes_per_s": a.stack_bytes_per_s or a.memory.stack.bytes_per_s,
        "dtype": a.dtype.value,
        "dataflow": a.dataflow.value,
        "hbm_bytes": a.hbm_bytes,
        "hbm_bytes_per_s": a.hbm_bytes_per_s,
        "peak_flops_per_s": a.peak_flops_per_s,
        "global_buffer_bytes_per_s": a.global_buffer_bytes_per_s,
        "network_bytes_per_s": a.network_bytes_per_s,
        "sources": {"memory": a.memory.stack.source, **a.sources},
    }


def accelerator_from(table: dict[str, Any], name: str = "accelerator") -> Accelerator:
    """A checked accelerator from a table in a file's keys and units. Private buffers left out are the template's."""
    _known_keys(table, (*_NUMBERS, *_TEXTS, "sources"), "")
    for key in _REQUIRED:
        if key not in table:
            raise InputError(key, "missing", f"{name} must state it")
    numbers = {field: _number(table[key], key, factor) for key, (field, factor) in _NUMBERS.items() if key in table}
    rows, cols, lanes = (numbers[key] for key in ("array_rows", "array_cols", "vector_lanes"))
    numbers.setdefault("tensor_core_sram_bytes", template_tensor_core_sram(cols, rows))
    numbers.setdefault("vector_core_sram_bytes", template_vector_core_sram(lanes))
    return Accelerator(
        name=name,
        memory=_choice(table["memory"], "memory", {m.value: m for m in Memory}),
        dtype=_choice(table.get("dtype", "bf16"), "dtype", {d.value: d for d in DType}),
        dataflow=_choice(table.get("dataflow", "weight_stationary"), "dataflow", {d.value: d for d in Dataflow}),
        title=_text(table.get("title", ""), "title"),
        note=_text(table.get("note", ""), "note"),
        confidence=_text(table.get("confidence", "medium"), "confidence"),
        sources=_sources(table.get("sources", {})),
        **numbers,
    )


_NUMBERS: dict[str, tuple[str, float]] = {
    "num_tensor_cores": ("num_tensor_cores", 1),
    "array_rows": ("array_rows", 1),
    "array_cols": ("array_cols", 1),
    "num_vector_cores": ("num_vector_cores", 1),
    "vector_lanes": ("vector_lanes", 1),
    "tensor_core_sram_kib": ("tensor_core_sram_bytes", KIB),
    "vector_core_sram_kib": ("vector_core_sram_bytes", KIB),
    "global_buffer_mib": ("global_buffer_bytes", MIB),
    "clock_mhz": ("clock_hz", MEGA),
    "num_stacks": ("num_stacks", 1),
    "stack_gib": ("stack_bytes", GIB),
    "stack_gb_per_s": ("stack_bytes_per_s", GIGA),
    "num_links": ("num_links", 1),
    "link_gb_per_s": ("link_bytes_per_s", GIGA),
    "link_latency_us": ("link_latency_s", MICRO),
    "bank_bytes_per_cycle": ("bank_bytes_per_cycle", 1),
    "control_share": ("control_share", 1),
    "node_nm": ("node_nm", 1),
}
"""File key -> (field, factor to SI)."""
_WHOLE = {field for field in ARRAY_FIELDS if field.startswith(("num_", "array_", "vector_lanes"))} | {
    "tensor_core_sram_bytes",
    "vector_core_sram_bytes",
    "global_buffer_bytes",
    "node_nm",
}
_TEXTS = ("title", "note", "confidence", "memory", "dtype", "dataflow")
_REQUIRED = (
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


def _find(name_or_path: str | Path) -> Path:
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or "\\" in text:
        return Path(name_or_path)
    known = {canonical(name): name for name in accelerator_names()}
    if canonical(text) in known:
        return ENTRIES / f"{known[canonical(text)]}.toml"
    near = [known[key] for key in difflib.get_close_matches(canonical(text), known, n=3, cutoff=0.4)]
    must = "not in the catalogue (sartor catalog accelerators) nor a .toml file"
    raise InputError("accelerator", text, must, ", ".join(near or accelerator_names()[:3]))


def _read(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():
            raise InputError("accelerator", path.name, "must be a catalogue name or a TOML file that exists")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError("accelerator", path.name, f"must be under {MAX_FILE_BYTES} bytes")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError("accelerator", path.name, f"must be readable as TOML: {reason}") from None


def _known_keys(table: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=2, cutoff=0.4) or list(known[:4])
            raise InputError(f"{where}{key}"[:80], table[key], "is not a key of an accelerator", ", ".join(near))


def _number(value: Any, key: str, factor: float) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(key, value, "must be a number")
    if not abs(value) * factor <= MAX_SIZE:  # also catches what is not a number
        raise InputError(key, value, f"must be at most {MAX_SIZE / factor:.4g}")
    field = _NUMBERS[key][0]
    size = value * factor
    if field not in _WHOLE:
        return size
    if size != int(size):
        unit = "bytes" if factor > 1 else "units"
        raise InputError(key, value, f"must be a whole number of {unit}", f"{round(size) / factor:g}")
    return int(size)


def _choice(value: Any, key: str, choices: dict[str, Any]) -> Any:
    if isinstance(value, str) and value.lower() in choices:
        return choices[value.lower()]
    near = difflib.get_close_matches(str(value).lower(), choices, n=1, cutoff=0.3)
    raise InputError(key, value, f"must be one of {', '.join(choices)}", near[0] if near else "")


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise InputError(key, value, "must be a text")
    return value


def _sources(documents: Any) -> dict[str, str]:
    """Field (``all``: every field not named) -> document and date."""
    if not isinstance(documents, dict):
        raise InputError("sources", documents, "must be a table of documents")
    _known_keys(documents, ("all", *_NUMBERS, *_TEXTS), "sources.")
    fields = {key: field for key, (field, _) in _NUMBERS.items()}
    named = {str(key): _text(text, f"sources.{key}") for key, text in documents.items()}
    return {fields.get(key, key): text for key, text in named.items()}
