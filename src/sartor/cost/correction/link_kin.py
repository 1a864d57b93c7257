"""Whose collectives stand in for a device's that were never measured: those of the links most like its own.

What a collective takes is the links', the host's and the library's, not the die's: eight B200 in a node are priced from
eight B300 as well as from themselves, and less well from the GB200 of the same die (docs/concepts/collectives.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu

SAME_RATE = 0.05
"""Link rates nearer than this are of one generation of links."""
OTHER_NODE = 0.1
"""What another number of devices in a node counts, as a difference of ln(link rate): it decides among equal rates."""

SAME_LINKS, SAME_LINKS_OTHER_NODE, OTHER_LINKS = 1.2, 1.8, 3.0
"""Widening of the interval, in the classes of ``kin.toml``: its floors say what devices held out needed."""


def nearest_links(gpu: Gpu, lenders: Iterable[str]) -> tuple[str, float]:
    """The lender whose links are nearest to the device's, and how much wider its intervals get.

    ("", 1) where the device has no link beyond PCIe, or no lender is of its maker.

    >>> nearest_links(load_gpu("h100_sxm"), ["a100_sxm", "h200_sxm", "b200_sxm"])
    ('h200_sxm', 1.2)
    """
    if gpu.link_bytes_per_s <= gpu.pcie_bytes_per_s:
        return "", 1.0
    known = [each for each in map(load_gpu, lenders) if each.vendor == gpu.vendor and each.name != gpu.name]
    if not known:
        return "", 1.0
    best = min(known, key=lambda each: (_apart(gpu, each), each.name))
    return best.name, _widening(gpu, best)


def nearest_rate(bytes_per_s: float, lenders: Iterable[str]) -> tuple[str, float]:
    """The lender whose link rate is nearest to that of links which are not a device's own, such as a bridge between two
    cards; widened as another node of these links at least."""
    known = sorted(map(load_gpu, lenders), key=lambda each: abs(math.log(bytes_per_s / each.link_bytes_per_s)))
    if not known:
        return "", 1.0
    near = abs(math.log(bytes_per_s / known[0].link_bytes_per_s)) <= SAME_RATE
    return known[0].name, SAME_LINKS_OTHER_NODE if near else OTHER_LINKS


def _apart(gpu: Gpu, other: Gpu) -> float:
    rates = abs(math.log(gpu.link_bytes_per_s / other.link_bytes_per_s))
    return rates + OTHER_NODE * (gpu.devices_per_node != other.devices_per_node)


def _widening(gpu: Gpu, other: Gpu) -> float:
    if abs(math.log(gpu.link_bytes_per_s / other.link_bytes_per_s)) > SAME_RATE:
        return OTHER_LINKS
    return SAME_LINKS if gpu.devices_per_node == other.devices_per_node else SAME_LINKS_OTHER_NODE
