"""Coefficients of collectives inside a node: a device's own, else those of the device whose links are most alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from sartor.cost.correction.carrying import borrowed
from sartor.cost.correction.coefficients import CollectiveCoefficients
from sartor.cost.correction.relatives import Found, Relative, data_file, kin_entry, known_gpu, section_of
from sartor.cost.correction.tables import coefficients, generation, table_of
from sartor.hardware.gpu import Gpu

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
    fit = section_of(gpu, named or nearest_links(gpu, measured_links()), "collective", assumed)
    if fit.own:
        return fit
    over_pcie = gpu.link_bytes_per_s <= gpu.pcie_bytes_per_s
    return replace(fit, coefficients=collectives_on(fit.coefficients, pcie=over_pcie))


def collectives_on(measured: CollectiveCoefficients, *, pcie: bool, bytes_per_s: float = 0.0) -> CollectiveCoefficients:
    """``measured`` if it was fitted on such links; else those of the nearest NVLink generation (if ``bytes_per_s`` is
    given), or the assumed PCIe ones: NVLink's shares do not apply to PCIe, whose devices share the host's bridges."""
    if measured.over_pcie == pcie:
        return measured
    near = nearest_rate(bytes_per_s, measured_links()) if bytes_per_s and not pcie else Relative()
    if near.name:
        fit = coefficients(CollectiveCoefficients, data_file(f"{near.name}.toml")["collective"])
        return borrowed(fit, "collective", near.widen)
    return generation("pcie" if pcie else "default")["collective"]  # type: ignore[no-any-return]


def measured_links() -> list[str]:
    """Devices whose collectives others may borrow."""
    names = data_file("kin.toml").get("links", {}).get("lenders", ())
    return [name for name in names if table_of(f"{name}.toml")]


def nearest_links(gpu: Gpu, measured: Iterable[str]) -> Relative:
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


def nearest_rate(bytes_per_s: float, measured: Iterable[str]) -> Relative:
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
