"""Who lends to a device that was not measured, and how much less certain what is lent is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from sartor.cost.correction.link_kin import nearest_links
from sartor.cost.correction.scaling import Rates
from sartor.cost.correction.tables import table_of
from sartor.hardware.gpu import Gpu

DIE = 1.35
"""Another memory or power limit on the same die widens by this much at most (``kin.toml``), another die by more."""


OTHER_DIE = 2.5
"""Another die of the generation widens by this much at most, another generation by more. A fit that saw no power limit
(sweeps of V100) is slowed on another generation's device as its general cores are: T4 has 70 W for V100's 300."""


SAME_GENERATION = 1.8
"""Widening for another die of the same generation (``kin.toml``)."""


SAME_SM = 0.1
"""FLOPs per cycle of two SMs of one kind differ by less: 1 to 2% by rounded peaks, 100% between kinds."""


def kin_of(gpu: Gpu) -> tuple[str, float]:
    """The calibrated device this one borrows from, and how much wider its intervals are then."""
    entry = kin_entry(gpu)
    return entry.get("of", ""), float(entry.get("widen", 1.0))


def link_kin_of(gpu: Gpu) -> tuple[str, float]:
    """Whose collectives this device borrows and how much wider: ``kin.toml`` may name it (``links``), else the nearest
    of its ``lenders`` by the links' own facts."""
    entry = kin_entry(gpu)
    if "links" in entry:
        return str(entry["links"]), float(entry["widen"])
    return nearest_links(gpu, lenders())


def lenders() -> list[str]:
    names = (table_of("kin.toml") or {}).get("links", {}).get("lenders", ())
    return [name for name in names if table_of(f"{name}.toml")]


def kin_entry(gpu: Gpu) -> Mapping[str, Any]:
    """What ``kin.toml`` says of the device, or of its generation's relative where it does not know the device: products
    by the joint fit then, unless the SMs are of the relative's kind."""
    table = table_of("kin.toml") or {}
    if gpu.name in table or any(table_of(f"{gpu.name}{end}.toml") for end in ("", ".bf16", ".fp16", ".fp32")):
        return table.get(gpu.name, {})  # type: ignore[no-any-return]
    relative, rates = table.get("generation", {}).get(gpu.generation), Rates.of(gpu)
    if not relative or not rates or gpu.vendor != relative["vendor"]:
        return {"gemm": "joint"}
    alike = abs(rates.flops_per_cycle / relative["flops_per_cycle"] - 1) < SAME_SM
    return {"of": relative["of"], "widen": SAME_GENERATION, "gemm": "" if alike else "joint"}


def beyond(kin: str, widen: float) -> str:
    """The relative of a relative on the same die; empty where there is none."""
    entry = (table_of("kin.toml") or {}).get(kin, {})
    return str(entry["of"]) if max(widen, entry.get("widen", 9.0)) <= DIE else ""


def lender_record(owner: str) -> Mapping[str, str]:
    return {"lender": f"kin {owner}"}


def borrowed(found: Any, section: str, widen: float, near: str = "") -> Any:
    """Another device's coefficients, as uncertain as devices held out of the fits were (``lent.toml``; docs/kin.md)."""
    near = near or ("die" if widen <= DIE else "generation" if widen <= OTHER_DIE else "other")
    floors = (table_of("kin.toml") or {}).get("floors", {}).get(near, {})
    judged = (table_of("lent.toml") or {}).get(near, {})
    keys = {part: f"{section}{name}" for part, name in _PARTS_OF_SECTIONS.items()}
    times = {part: judged[key]["times"] for part, key in keys.items() if key in judged}
    least = {part: judged.get(key, {}).get("least", floors.get(key, 0.0)) for part, key in keys.items()}
    return widened(found, widen, least, times)


_PARTS_OF_SECTIONS = {"": "", "decode_": ".decode", "sub_block_": ".sub_block", "half_block_": ".half_block"}
"""Beginning of a standard deviation's field, and how its floor's key ends."""


def widened(
    found: Any, factor: float, least: Mapping[str, float] | None = None, times: Mapping[str, float] | None = None
) -> Any:
    """The same coefficients with every standard deviation ``factor`` times as wide, and not below ``least``; both
    ``least`` and ``times``, which stands in for ``factor``, go by the beginning of a field."""
    floors, factors = least or {}, times or {}

    def width(sigma: float, part: str) -> float:
        return max(sigma * factors.get(part, factor), floors.get(part, 0.0))

    wider: dict[str, Any] = {}
    for each in fields(found):
        before, sigma, _ = each.name.partition("log_sigma")
        if sigma:
            wider[each.name] = width(getattr(found, each.name), before)
    for name in _WITH_SIGMA:
        if hasattr(found, name):
            wider[name] = tuple((*row[:-1], width(row[-1], "")) for row in getattr(found, name))
    return replace(found, **wider)


_WITH_SIGMA = ("kinds", "host_kinds", "eager_kinds", "direct")
"""Fields of rows that end in a standard deviation of their own."""
