"""Known chips as points of the template, compared at the space's node and with its memories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sartor.designs.question import AreaModel, DesignQuestion
from sartor.designs.space import AcceleratorSpace
from sartor.hardware.accelerator import IN_LONG_RUNS, Accelerator
from sartor.hardware.accelerator_catalog import load_accelerator

CHIPS = {
    "TPUv4-like": ("tpu_v4_like", "the published template's point (8, 2, 128, 128, 128, 128 MiB)"),
    "TPUv4 with its lanes": (
        "tpu_v4_lanes",
        "the same with the real chip's 2 x 2048 vector lanes and 2 x 16 MiB beside them",
    ),
    "A100-like": (
        "a100_like",
        "the tensor cores of each of 108 SMs drawn as a 32 x 32 array, its lanes as a vector core (whitepaper, 2020)",
    ),
    "H100-like": (
        "h100_like",
        "the tensor cores of each of 132 SMs drawn as a 64 x 32 array, its lanes as a vector core (whitepaper, 2022)",
    ),
}
"""Name in the comparison -> catalogue accelerator, with notes on how it follows from the datasheet."""
LIKE = "what they sustain of their peak rates is what the space's chips do"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedChip:
    """A known accelerator and the memory sizes it may have [bytes]."""

    name: str
    accelerator: Accelerator
    hbm_bytes: tuple[float, ...]
    note: str = ""
    for_all_shapes: bool = False
    """Whether this is the best chip for all shapes together."""


def known_chips(question: DesignQuestion, space: AcceleratorSpace) -> Iterator[NamedChip]:
    """`CHIPS` with the space's memory sizes within the budget (else their own).

    They sustain the shares of their peaks that the space's candidates do: differences of real chips that no candidate
    has would count as differences of design.
    If area is the published closed form (always at 22 nm), power is also taken at the space's node, so that chips
    differ by their parts and not by their year. A whole die is priced at the chip's own node.
    """
    limit, first = question.budgets.hbm_bytes or float("inf"), space.groups[0]
    shares: dict[str, Any] = {field: getattr(first, field) for field in IN_LONG_RUNS}
    for name, (entry, how) in CHIPS.items():
        chip = load_accelerator(entry)
        sizes = tuple(size for size in space.hbm_bytes or (float(chip.hbm_bytes),) if size <= limit)
        node = first.node_nm if question.costs.area is AreaModel.PUBLISHED else chip.node_nm
        moved = f"; area and power at {node} nm" if node != chip.node_nm else ""
        yield NamedChip(
            name=name,
            accelerator=replace(chip, node_nm=node, **shares),
            hbm_bytes=sizes or (limit,),
            note=f"{how}{moved}; {LIKE}",
        )
