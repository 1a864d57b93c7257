"""Which measured device lends its coefficients to one that was not measured; the nearest links lend collectives.

Coefficients of collectives inside a node: a device's own, else those of the device whose links are most alike.

The first rule of borrowing that finds something applies. A measured device (``data/h200_sxm.toml``,
``h200_sxm.bf16.toml``, ...) uses its own fits. What it lacks it borrows:

=================  =====================================================================================
GEMMs of a type    ``borrowing_gemm``: its own fit, the joint fit of all generations, its relative's fit, ...
collectives        those of the device whose links are most alike
streaming kernels  the law of all measured devices; other vendors' its relative's
attention          its relative's; of another generation, the median of all that were measured
MoE                its relative's; of another generation, that of like SMs, else the nearest earlier one's
anything else      assumptions for its generation (``generations.toml``)
=================  =====================================================================================

``data/kin.toml`` lists every device's relative; a device that is not in the file gets its generation's. ``carrying``
converts the values. Accuracy of each kind of borrowing: docs/kin.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from sartor.cost.correction.carrying import (
    ATTENTION_DELAYS,
    DIE,
    OTHER_DIE,
    Rates,
    attention_on,
    borrowed,
    experts_on,
)
from sartor.cost.correction.coefficients import (
    SECTIONS,
    AttentionCoefficients,
    CollectiveCoefficients,
    GroupedCoefficients,
    coefficients,
    generation,
    has_table,
    table_of,
)
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.operators import DType
from sartor.units import Floats


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
    if gpu.name in table or any(has_table(f"{gpu.name}{end}.toml") for end in ("", ".bf16", ".fp16", ".fp32")):
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


def _section_of(gpu: Gpu, relative: Relative, name: str, assumed: object) -> Found:
    for owner in (gpu.name, relative.name):
        table = data_file(f"{owner}.toml")
        if owner and name in table:
            fit, record = coefficients(SECTIONS[name], table[name]), table["provenance"][name]
            if owner == gpu.name:
                return Found(coefficients=fit, own=True, record=record)
            taken = _carried(borrowed(fit, name, relative.widen), gpu, relative)
            return Found(coefficients=taken, record=record | borrowed_from(owner))
    return Found(coefficients=assumed, record={})


def _carried(fit: Any, gpu: Gpu, relative: Relative) -> Any:
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
    fit = _section_of(gpu, named or _nearest_links(gpu, _measured_links()), "collective", assumed)
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
    return [name for name in names if has_table(f"{name}.toml")]


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


def section_coefficients(gpu: Gpu, name: str, assumed: Floats) -> Found:
    """Attention or grouped GEMMs: the device's own, else its relative's, else ``assumed``. Of a generation nobody
    measured: attention is the median of all that were, grouped GEMMs another generation's."""
    relative = _experts_relative(gpu) if name == "grouped" else relative_of(gpu)
    near = relative.name and relative.widen <= OTHER_DIE
    unmeasured = name == "attention" and not near and name not in data_file(f"{gpu.name}.toml")
    return (_attention_of_all(gpu) if unmeasured else None) or _section_of(gpu, relative, name, assumed)


def _attention_of_all(gpu: Gpu) -> Found | None:
    """The median of the maker's other measured generations; None for devices without bf16, on which the measured
    kernels do not run. The time a block takes to start depends on the kind of SM: 1.5 to 2.5 us where tensor cores
    read shared memory, less than 1 us where they are fed from registers."""
    rates, alike = Rates.of(gpu), []
    by_generation: dict[str, list[AttentionCoefficients]] = {}
    for lender in map(known_gpu, data_file("kin.toml").get("attention", {}).get("lenders", ())):
        table, lender_rates = data_file(f"{lender.name}.toml"), Rates.of(lender)
        if rates and lender_rates and lender.generation != gpu.generation and lender.vendor == gpu.vendor and table:
            moved = attention_on(coefficients(AttentionCoefficients, table["attention"]), lender_rates, rates)
            by_generation.setdefault(lender.generation, []).append(moved)
            alike += [moved] if lender_rates.by_warps == rates.by_warps else []
    if len(by_generation) < FEWEST_GENERATIONS or DType.BF16 not in gpu.peak_flops_per_s:
        return None
    middle = _between([_between(fits, np.mean) for fits in by_generation.values()], np.median)
    middle = replace(middle, block_s=_between(alike, np.mean).block_s) if alike else middle
    record = {"lender": "joint", "source": "the median of the generations that were measured"}
    return Found(coefficients=borrowed(middle, "attention", OTHER_UNITS), record=record)


_ATTENTION_SHARES = ("hbm_share", "overlap", "decode_hbm_share", "decode_overlap")


def _between(
    fits: Sequence[AttentionCoefficients], middle: Callable[[Sequence[float]], Floats]
) -> AttentionCoefficients:
    """``AttentionCoefficients`` between several: for each coefficient the ``middle`` of its logarithms."""
    widths = sorted({dim for c in fits for dim, _ in c.efficiency})

    def of(values: Sequence[float]) -> float:
        return math.exp(middle([math.log(value) for value in values]))

    def share(c: AttentionCoefficients, dim: int) -> float:
        return float(np.interp(dim, [float(d) for d, _ in c.efficiency], [share for _, share in c.efficiency]))

    names = (*ATTENTION_DELAYS, *_ATTENTION_SHARES, "log_sigma", "decode_log_sigma")
    values: JsonDict = {name: of([getattr(c, name) for c in fits]) for name in names}
    return replace(fits[0], **values, efficiency=tuple((dim, of([share(c, dim) for c in fits])) for dim in widths))


def sdpa_measured(gpu: Gpu) -> tuple[str, ...]:
    """GPUs of the device's generation on which PyTorch's attention was measured."""
    return tuple(data_file("sdpa.toml").get(gpu.generation, {}).get("gpus", ()))


FEWEST_GENERATIONS = 2
"""Fewest generations for a meaningful median."""


def _experts_relative(gpu: Gpu) -> Relative:
    """The device whose grouped GEMMs ``gpu`` borrows: its relative if that is of its generation; else the one that
    stands for a generation of its maker with the same kind of SM, else for the nearest earlier architecture, or for the
    nearest later one if none is measured before it. Without bf16 the kernels do not run.

    >>> experts_relative(known_gpu("l40s"))
    Relative(name='rtx_pro_6000_server', widen=3.0)
    """
    relative, table, rates = relative_of(gpu), data_file("kin.toml"), Rates.of(gpu)
    if relative.widen <= OTHER_DIE and "grouped" in data_file(f"{relative.name}.toml"):
        return relative
    others = {
        name: entry
        for name, entry in table.get("generation", {}).items()
        if name != gpu.generation and entry["vendor"] == gpu.vendor and "grouped" in data_file(f"{entry['of']}.toml")
    }
    if not others or rates is None or DType.BF16 not in gpu.peak_flops_per_s:
        return relative
    since, flops = table["since"], rates.flops_per_cycle
    year = since.get(gpu.generation, UNKNOWN)

    def distance(name: str) -> tuple[bool, bool, float, float]:
        unlike = abs(flops / others[name]["flops_per_cycle"] - 1)
        return unlike >= SAME_SM, since[name] >= year, abs(year - since[name]), unlike

    return Relative(name=others[min(others, key=distance)]["of"], widen=OTHER_UNITS)


UNKNOWN = 9999
"""Year of a generation that ``kin.toml`` does not know: newer than all."""


def grouped_families(gpu: Gpu) -> dict[str, GroupedCoefficients]:
    """Grouped GEMM coefficients by kernel family: the device's own, else those of ``_experts_relative``."""
    relative = _experts_relative(gpu)
    for owner in (gpu.name, relative.name):
        table = data_file(f"{owner}.toml")
        if owner and "grouped_families" in table:
            families = {name: coefficients(GroupedCoefficients, v) for name, v in table["grouped_families"].items()}
            if owner == gpu.name:
                return families
            return {k: _carried(borrowed(c, "grouped", relative.widen), gpu, relative) for k, c in families.items()}
    return {}
