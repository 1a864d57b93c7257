"""Networks that collectives were measured on, by the name a table gives them: pieces of latency and rate per topology.

NCCL changes its algorithm (ring, tree) and protocol (LL, LL128, Simple) with the size of the buffer, and not always to
the faster one, so the time of one group is a broken line. Fitted by tools/fit_networks.py; how well it does on sizes it
has not seen is in each entry. docs/concepts/collectives.md.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """One collective over ``num_devices`` devices, ``per_node`` of them in a node."""

    kind: str
    """``CollectiveKind`` value."""
    num_devices: int
    per_node: int
    log_sigma: float
    """Of ln(measured / predicted) on sizes held out."""
    pieces: tuple[tuple[float, float, float], ...]
    """(largest message in bytes, seconds of start, seconds per byte), ascending; the last holds beyond its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNetwork:
    """A system's links as its collectives were timed."""

    name: str
    source: str
    date: str
    topologies: tuple[Topology, ...]


def find_network(name: str) -> MeasuredNetwork | None:
    """The network a table calls ``name``; None where none of that name was measured."""
    return measured_networks().get(name)


@cache
def measured_networks() -> Mapping[str, MeasuredNetwork]:
    """All of them, by name."""
    file = resources.files("sartor.hardware").joinpath("calibration").joinpath("networks.toml")
    table = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {name: _network(name, entry) for name, entry in table.items()}


def _network(name: str, entry: Mapping[str, Any]) -> MeasuredNetwork:
    return MeasuredNetwork(
        name=name,
        source=entry["source"],
        date=entry["date"],
        topologies=tuple(
            Topology(
                kind=each["kind"],
                num_devices=each["num_devices"],
                per_node=each["per_node"],
                log_sigma=each["log_sigma"],
                pieces=tuple((float(most), float(start), float(slope)) for most, start, slope in each["pieces"]),
            )
            for each in entry["topologies"]
        ),
    )
