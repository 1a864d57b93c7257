"""A number written as a text is shown with its quotes, so that the sentence says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sartor.errors import InputError
from sartor.hardware.accelerator_catalog import load_device
from sartor.read.problems_json import parse_placement
from sartor.read.space_file import load_space

CHIP = """
num_tensor_cores = 8
num_vector_cores = 32
array_rows = "128"
array_cols = 128
vector_lanes = 256
global_buffer_mib = 64
memory = "hbm3"
num_stacks = 5
num_links = 12
link_gb_per_s = 50
clock_mhz = 1400
node_nm = 5
"""


@pytest.mark.parametrize("load", [load_space, load_device])
def test_a_text_in_a_chip_or_a_space_keeps_its_quotes(tmp_path: Path, load: Callable[[Path], object]) -> None:
    (tmp_path / "x.toml").write_text(CHIP)
    with pytest.raises(InputError, match=r'array_rows="128" \(a string\): must be a number'):
        load(tmp_path / "x.toml")


def test_a_text_in_a_placement_keeps_its_quotes_and_a_missing_key_is_not_taken_for_another() -> None:
    raw = json.loads('{"maxDevices": "4", "edges": {}}')
    with pytest.raises(InputError, match=r"nodes=missing: must be given$"):
        parse_placement(raw)
    row = {"id": 0, "parameterSize": "3", "activationSize": 0, "optimalLatencyFw": 1, "optimalLatencyBw": 1}
    with pytest.raises(InputError, match=r'parameterSize="3" \(a string\): must be a number'):
        parse_placement({**raw, "nodes": {"1": [{**row, "isTensorParallelized": False}]}, "edges": {"1": []}})
