"""Which measured device lends its coefficients to one that was not measured; the nearest links lend collectives.

Which measured device another borrows from, and what is taken from its file (``data/kin.toml``, ``carrying``).

Coefficients of collectives inside a node: a device's own, else those of the device whose links are most alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from sartor.cost.correction.carrying import DIE, Rates, attention_on, borrowed, experts_on
from sartor.cost.correction.coefficients import AttentionCoefficients, CollectiveCoefficients, GroupedCoefficients
from sartor.cost.correction.tables import SECTIONS, coefficients, generation, table_of
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


SAME_RATE = 0.05
"""Link rates closer than this are of the same generation of links."""

OTHER_NODE = 0.1
"""Penalty for another number of devices per node, as a difference of ln(link rate): decides between equal rates."""

SAME_LINKS, SAME_LINKS_OTHER_NODE, OTHER_LINKS = 1.2, 1.8, 3.0
"""Widening of the interval, in the classes of ``kin.toml``: its floors say what devices held out needed."""


def collective_coefficients(gpu: Gpu, assumed: CollectiveCoefficients) -> Found:
    """Collectives inside a node: the device's own, else those of the most similar links.

    Their time depends on links, host and library, not on the die: eight B200 in a node are predicted from eight B300 as
    well as from themselves, and less well from the GB200 with the same die (docs/concepts/collectives.md).
    """
    entry = kin_entry(gpu)
    named = Relative(name=str(entry["links"]), widen=float(entry["widen"])) if "links" in entry else None
    fit = section_of(gpu, named or _nearest_links(gpu, _measured_links()), "collective", assumed)
    if fit.own:
        return fit
    over_pcie = gpu.link_bytes_per_s <= gpu.pcie_bytes_per_s
    return replace(fit, coefficients=collectives_on(fit.coefficients, pcie=over_pcie))


def collectives_on(measured: CollectiveCoefficients, *, pcie: bool, bytes_per_s: float = 0.0) -> CollectiveCoefficients:
    """``measured`` if it was fitted on such links; else those of the nearest NVLink generation (if ``bytes_per_s`` is
    given), or the assumed PCIe ones: NVLink's shares do not apply to PCIe, whose devices share the host's bridges."""
    if measured.over_pcie == pcie:
        return measured
    near = _nearest_rate(bytes_per_s, _measured_links()) if bytes_per_s and not pcie else Relative()
    if near.name:
        fit = coefficients(CollectiveCoefficients, data_file(f"{near.name}.toml")["collective"])
        return borrowed(fit, "collective", near.widen)
    return generation("pcie" if pcie else "default")["collective"]  # type: ignore[no-any-return]


def _measured_links() -> list[str]:
    """Devices whose collectives others may borrow."""
    names = data_file("kin.toml").get("links", {}).get("lenders", ())
    return [name for name in names if table_of(f"{name}.toml")]


def _nearest_links(gpu: Gpu, measured: Iterable[str]) -> Relative:
    """The measured device with the most similar links; none if the device has only PCIe, or no device of its vendor
    is measured.

    >>> nearest_links(known_gpu("h100_sxm"), ["a100_sxm", "h200_sxm", "b200_sxm"])
    Relative(name='h200_sxm', widen=1.2)
    """
    if gpu.link_bytes_per_s <= gpu.pcie_bytes_per_s:
        return Relative()
    candidates = [
        candidate
        for candidate in map(known_gpu, measured)
        if candidate.vendor == gpu.vendor and candidate.name != gpu.name
    ]
    if not candidates:
        return Relative()
    best = min(candidates, key=lambda candidate: (_apart(gpu, candidate), candidate.name))
    if abs(math.log(gpu.link_bytes_per_s / best.link_bytes_per_s)) > SAME_RATE:
        return Relative(name=best.name, widen=OTHER_LINKS)
    alike = gpu.devices_per_node == best.devices_per_node
    return Relative(name=best.name, widen=SAME_LINKS if alike else SAME_LINKS_OTHER_NODE)


def _nearest_rate(bytes_per_s: float, measured: Iterable[str]) -> Relative:
    """The measured device whose link rate is nearest to that of links which are not a device's own, such as a bridge
    between two cards; widened as another node of these links at least."""
    candidates = sorted(
        map(known_gpu, measured), key=lambda candidate: abs(math.log(bytes_per_s / candidate.link_bytes_per_s))
    )
    if not candidates:
        return Relative()
    near = abs(math.log(bytes_per_s / candidates[0].link_bytes_per_s)) <= SAME_RATE
    return Relative(name=candidates[0].name, widen=SAME_LINKS_OTHER_NODE if near else OTHER_LINKS)


def _apart(gpu: Gpu, candidate: Gpu) -> float:
    rates = abs(math.log(gpu.link_bytes_per_s / candidate.link_bytes_per_s))
    return rates + OTHER_NODE * (gpu.devices_per_node != candidate.devices_per_node)
