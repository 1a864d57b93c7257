"""A chip in the files of other tools: sizes, rates and the dataflow are the chip's, and ZigZag's reader agrees."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.package_index import fetched
from sartor.hardware.accelerator import Accelerator, Dataflow
from sartor.report.chip_files import CHIP_FILES, STAYS, timeloop_architecture, zigzag_accelerator, zigzag_mapping

ZIGZAG = ("zigzag-dse==3.9.1", "cerberus==1.3.8", "six==1.17.0", "networkx==3.6.1", "typeguard==4.6.0")
"""ZigZag's readers, and what they import."""
READ = """
import json, sys, yaml
from zigzag.parser.accelerator_factory import AcceleratorFactory
from zigzag.parser.accelerator_validator import AcceleratorValidator
from zigzag.parser.mapping_validator import MappingValidator
for folder in sys.argv[1:]:
    said = AcceleratorValidator(yaml.safe_load(open(f"{folder}/accelerator.yaml")))
    assert said.validate()
    assert MappingValidator(yaml.safe_load(open(f"{folder}/mapping.yaml"))).validate()
    core = AcceleratorFactory(said.normalized_data).create()
    memories = [level.memory_instance for level in core.memory_hierarchy.mem_level_list]
    print(json.dumps([int(core.operational_array.total_unit_count), {m.name: int(m.size) for m in memories}]))
"""


def chip(dataflow: Dataflow = Dataflow.WEIGHT_STATIONARY) -> Accelerator:
    return Accelerator.from_template(
        num_tensor_cores=8, num_vector_cores=2, width=64, depth=128, global_buffer_mib=32, dataflow=dataflow
    )


@pytest.mark.parametrize("dataflow", Dataflow)
def test_registers_hold_what_the_dataflow_keeps_and_every_operand_comes_from_memory(dataflow: Dataflow) -> None:
    memories = zigzag_accelerator(chip(dataflow))["memories"]
    assert memories["register"]["operands"] == [STAYS[dataflow]]
    assert all(len(memories[name]["operands"]) == 3 for name in ("core_buffer", "global_buffer", "hbm"))
    (spatial,) = (each["spatial_mapping"] for each in zigzag_mapping(chip(dataflow)))
    assert [int(loops[0].split(", ")[1]) for loops in spatial.values()] == [128, 64, 8]


def test_rates_and_sizes_are_the_chips_in_both_files() -> None:
    there, memories = chip(), zigzag_accelerator(chip())["memories"]
    nodes = {node["name"]: node for node in timeloop_architecture(there)["architecture"]["nodes"]}
    bits = 8 * there.hbm_bytes_per_s / there.clock_hz
    assert memories["hbm"]["ports"][0]["bandwidth_max"] == int(bits)
    assert nodes["hbm"]["attributes"]["shared_bandwidth"] == int(bits) // 16
    buffer = nodes["global_buffer"]["attributes"]
    assert memories["global_buffer"]["size"] == 8 * there.global_buffer_bytes
    assert 0 <= 8 * there.global_buffer_bytes - buffer["width"] * buffer["depth"] < buffer["width"]
    spread = [node["spatial"] for node in nodes.values() if "spatial" in node]
    assert spread == [{"meshX": 8}, {"meshX": 64}, {"meshY": 128}]


def test_a_byte_of_memory_costs_what_the_energy_model_says_however_wide_the_port() -> None:
    memory = zigzag_accelerator(chip())["memories"]["hbm"]
    per_bit = memory["r_cost"] / memory["ports"][0]["bandwidth_max"]
    assert per_bit == pytest.approx(chip().memory.stack.energy_pj_per_bit)


def test_timeloops_nodes_carry_its_tags() -> None:
    ((_, text),) = CHIP_FILES["timeloop"](chip())
    assert text.count(b"- !Container") == 4
    assert text.count(b"- !Component") == 5


@pytest.mark.slow
def test_zigzag_reads_the_chip(tmp_path: Path) -> None:
    fetched(tmp_path / "packages", *ZIGZAG)
    folders = [tmp_path / dataflow.value for dataflow in Dataflow]
    for dataflow, folder in zip(Dataflow, folders, strict=True):
        folder.mkdir()
        for name, text in CHIP_FILES["zigzag"](chip(dataflow)):
            (folder / name).write_bytes(text)
    ran = subprocess.run(
        [sys.executable, "-c", READ, *map(str, folders)],
        env={"PYTHONPATH": str(tmp_path / "packages")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not ran.returncode, ran.stderr[-1000:]
    read: list[Any] = [json.loads(line) for line in ran.stdout.splitlines()]
    written = yaml.safe_load((folders[0] / "accelerator.yaml").read_text())["memories"]
    assert len(read) == 3
    assert read[0] == [8 * 64 * 128, {name: memory["size"] for name, memory in written.items()}]
