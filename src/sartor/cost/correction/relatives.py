"""Which measured device another borrows from, and what is taken from its file (``data/kin.toml``, ``carrying``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from sartor.cost.correction.carrying import DIE, Rates, attention_on, borrowed, experts_on
from sartor.cost.correction.coefficients import AttentionCoefficients, GroupedCoefficients
from sartor.cost.correction.tables import SECTIONS, coefficients, table_of
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """The measured device that another borrows from (no name: there is none), and how much wider its intervals get."""

    name: str = ""
    widen: float = 1.0

    @property
    def same_die(self) -> bool:
        """Differs at most in memory or power limit."""
        return self.widen <= DIE


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Coefficients that a rule found."""

    coefficients: Any
    own: bool = False
    """Whether they were fitted on this very device and type."""
    record: JsonMap
    """Their source, rows, date and errors; empty if nothing was fitted."""


SAME_GENERATION = 1.8
"""Widening for another die of the same generation (``kin.toml``)."""

SAME_SM = 0.1
"""FLOPs per cycle of two SMs of one kind differ by less: 1 to 2% from rounding, 100% between kinds."""


OTHER_UNITS = 3.0
"""Widening for other units: a joint fit of 16-bit GEMMs for other types, or another generation."""


def relative_of(gpu: Gpu) -> Relative:
    """The measured device that ``gpu`` borrows from."""
    entry = kin_entry(gpu)
    return Relative(name=entry.get("of", ""), widen=float(entry.get("widen", 1.0)))


def kin_entry(gpu: Gpu) -> JsonMap:
    """The ``kin.toml`` entry of the device. An unknown device gets its generation's relative, and for GEMMs the joint
    fit unless its SMs are like the relative's."""
    table = data_file("kin.toml")
    if gpu.name in table or any(table_of(f"{gpu.name}{end}.toml") for end in ("", ".bf16", ".fp16", ".fp32")):
        return table.get(gpu.name, {})  # type: ignore[no-any-return]
    relative, rates = table.get("generation", {}).get(gpu.generation), Rates.of(gpu)
    if not relative or not rates or gpu.vendor != relative["vendor"]:
        return {"gemm": "joint"}
    alike = abs(rates.flops_per_cycle / relative["flops_per_cycle"] - 1) < SAME_SM
    return {"of": relative["of"], "widen": SAME_GENERATION, "gemm": "" if alike else "joint"}


def further(relative: Relative) -> str:
    """The relative's own relative if all three have the same die; else empty."""
    entry = data_file("kin.toml").get(relative.name, {})
    return str(entry["of"]) if max(relative.widen, entry.get("widen", 9.0)) <= DIE else ""


def section_of(gpu: Gpu, relative: Relative, name: str, assumed: object) -> Found:
    for owner in (gpu.name, relative.name):
        table = data_file(f"{owner}.toml")
        if owner and name in table:
            fit, record = coefficients(SECTIONS[name], table[name]), table["provenance"][name]
            if owner == gpu.name:
                return Found(coefficients=fit, own=True, record=record)
            taken = carried(borrowed(fit, name, relative.widen), gpu, relative)
            return Found(coefficients=taken, record=record | borrowed_from(owner))
    return Found(coefficients=assumed, record={})


def carried(fit: Any, gpu: Gpu, relative: Relative) -> Any:
    """Attention or expert coefficients of another die, adjusted by this device's datasheet."""
    before, after = Rates.of(known_gpu(relative.name)), Rates.of(gpu)
    if relative.same_die or before is None or after is None:
        return fit
    if isinstance(fit, AttentionCoefficients):
        return attention_on(fit, before, after)
    return experts_on(fit, before, after) if isinstance(fit, GroupedCoefficients) else fit


def borrowed_from(owner: str) -> dict[str, str]:
    """What a record says of coefficients that were fitted on another device."""
    return {"lender": f"borrowed from {owner}"}


@cache
def known_gpu(name: str) -> Gpu:
    """A device of the catalogue, read once."""
    return load_gpu(name)


def data_file(name: str) -> JsonMap:
    return table_of(name) or {}
