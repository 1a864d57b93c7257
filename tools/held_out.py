"""Held-out errors of the shipped predictions, by GPU and operator family, for README and docs pages.

Errors are of the formula with its learned correction, or of the formula alone if there is none. They are read from the
calibration files, so no measurements are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sartor.cost.correction.coefficients import calibration_files
from sartor.cost.correction.network import residual_records

ATTENTION = {"context": "prefill", "generation": "decode", "encoder": "encoder"}
"""Phase of the learned correction -> usual name of the phase; the formula has no separate fit for encoders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Error of one operator family on one GPU, on shapes that the fit has not seen."""

    gpu: str
    family: str
    variant: str
    mape: float
    median: float
    coverage: float | None = None
    """Share of these shapes inside the 80% interval, for learned corrections that recorded it."""


def held_out_errors() -> list[HeldOut]:
    """Every measured GPU and family, in the order of the calibration files."""
    learned = residual_records()
    errors: list[HeldOut] = []
    for name, table in calibration_files().items():
        provenance = table.get("provenance", {})
        if "gemm" in table:
            errors += _gemm(name, provenance["gemm"], learned)
        elif provenance:
            errors += _kernels(name, provenance, learned)
    return errors


def _gemm(name: str, record: Mapping[str, Any], learned: Mapping[str, Any]) -> Iterator[HeldOut]:
    gpu, _, dtype = name.partition(".")
    of = learned.get(name, record)
    yield _error(gpu, "GEMM", dtype, of["held_out"], of.get("coverage"))


def _kernels(gpu: str, provenance: Mapping[str, Any], learned: Mapping[str, Any]) -> Iterator[HeldOut]:
    for phase, said in ATTENTION.items():
        record = learned.get(f"{gpu}.{phase}") or provenance.get("attention", {}).get(said)
        if record:
            yield _error(gpu, "attention", said, record["held_out"], record.get("coverage"))
    if "memory_bound" in provenance:
        yield _error(gpu, "memory-bound", "", provenance["memory_bound"]["held_out"])
    if "grouped" in provenance:
        yield _kernel_known(gpu, provenance, learned)
        if "grouped_families" in provenance:
            of = learned.get(f"{gpu}.moe", provenance["grouped"])
            yield _error(gpu, "MoE", "unknown", of["held_out"], of.get("coverage"))
    if "collective" in provenance:
        yield _error(gpu, "collectives", "", provenance["collective"]["held_out"])


def _kernel_known(gpu: str, provenance: Mapping[str, Any], learned: Mapping[str, Any]) -> HeldOut:
    """The mean over kernel families, weighted by their rows."""
    records = [record for name, record in learned.items() if name.startswith(f"{gpu}.moe.")]
    families = records or [*provenance.get("grouped_families", {"": provenance["grouped"]}).values()]
    held = [record["held_out"] for record in families]
    rows = sum(each["rows"] for each in held)
    mean = {key: sum(each["rows"] * each[key] for each in held) / rows for key in ("mape", "median")}
    covered = sum(record["held_out"]["rows"] * record["coverage"] for record in records) / rows if records else None
    return _error(gpu, "MoE", "kernel known", mean, covered)


def _error(gpu: str, family: str, variant: str, held: Mapping[str, float], coverage: float | None = None) -> HeldOut:
    return HeldOut(gpu=gpu, family=family, variant=variant, mape=held["mape"], median=held["median"], coverage=coverage)


def error_range(errors: list[HeldOut]) -> str:
    """``2.6 to 5.6%``: the mean errors of the best and of the worst GPU."""
    return _range([each.mape for each in errors], 1)


def coverage_range(errors: list[HeldOut]) -> str:
    """``78 to 81%``: the smallest and the largest share inside the interval; empty if none was recorded."""
    known = [each.coverage for each in errors if each.coverage is not None]
    return _range(known, 0) if known else ""


def _range(shares: list[float], digits: int) -> str:
    least, *_, most = sorted(f"{100 * each:{digits + 3}.{digits}f}" for each in [*shares, *shares])
    return f"{most.strip()}%" if least == most else f"{least.strip()} to {most.strip()}%"
