"""Collectives across nodes and expert layers: what calibrations record of sizes and weight shapes held out."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

import pytest

from sartor.hardware.residual import residual_records

FILE = resources.files("sartor.hardware").joinpath("calibration").joinpath("networks.toml")
LINES = [
    pytest.param(each, id=f"{name}-{each['kind']}-{each['num_devices']}x{each['per_node']}")
    for name, network in tomllib.loads(FILE.read_text(encoding="utf-8")).items()
    for each in network["topologies"]
]
EXPERTS = [key for key in residual_records() if ".moe." in key]


@pytest.mark.parametrize("line", LINES)
def test_collectives_of_measured_networks_are_within_fifteen_percent_on_sizes_held_out(line: dict[str, Any]) -> None:
    assert line["held_out"]["rows"] >= 30
    assert line["held_out"]["mape"] <= 0.15


@pytest.mark.parametrize("key", EXPERTS)
def test_expert_layers_are_nearer_with_their_network_on_weight_shapes_held_out(key: str) -> None:
    record = residual_records()[key]
    held, formula = record["held_out"], record["formula"]
    assert held["rows"] == record["rows"], "every weight shape is held out once"
    assert held["median"] <= 0.13
    assert held["mape"] <= min(0.95 * formula["mape"], 0.2)
    assert 0.75 <= record["coverage"] <= 0.85
