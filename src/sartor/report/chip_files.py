"""A chip in the formats of other tools: accelerator and mapping for ZigZag, architecture for Timeloop and Accelergy.

Both tools map one layer on one chip, so neither file has links or vector cores. Formats as of 2026-11-23: zigzag-dse
3.9.1, ``parser/accelerator_validator.py`` (the slow tests run it); Accelergy-Project/timeloopfe, ``v4/arch.py`` (read,
not run: it is in no package index).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import yaml

from sartor.cost.chip.area import mac_energy_pj
from sartor.cost.chip.ownership import REGISTER_SHARE, memory_pj_per_byte, sram_pj_per_byte
from sartor.hardware.accelerator import Accelerator, Dataflow
from sartor.json_types import JsonDict
from sartor.units import Floats

INPUT, WEIGHT, OUTPUT = OPERANDS = ("I1", "I2", "O")
STAYS = {
    Dataflow.WEIGHT_STATIONARY: WEIGHT,
    Dataflow.OUTPUT_STATIONARY: OUTPUT,
    Dataflow.INPUT_STATIONARY: INPUT,
}
"""The operand that stays in the array's registers, per dataflow."""
ROWS, COLUMNS, CORES = DIMENSIONS = ("D1", "D2", "D3")
ALONG = {
    Dataflow.WEIGHT_STATIONARY: ("C", "K", "B"),
    Dataflow.OUTPUT_STATIONARY: ("B", "K", "B"),
    Dataflow.INPUT_STATIONARY: ("C", "B", "K"),
}
"""The loop of O[b][k] += I[b][c] * W[c][k] that is unrolled over rows, columns and cores."""
DATASPACES = {INPUT: "Inputs", WEIGHT: "Weights", OUTPUT: "Outputs"}
"""Timeloop's names of the operands."""


def _zigzag_files(chip: Accelerator) -> list[tuple[str, bytes]]:
    """Files as (name, content) that ``zigzag.api.get_hardware_performance_zigzag`` takes along with a workload."""
    return [("accelerator.yaml", _text(zigzag_accelerator(chip))), ("mapping.yaml", _text(zigzag_mapping(chip)))]


def _timeloop_files(chip: Accelerator) -> list[tuple[str, bytes]]:
    """Files as (name, content) for ``timeloopfe``, which also needs a problem and a mapper."""
    return [("architecture.yaml", _text(timeloop_architecture(chip)))]


CHIP_FILES = {"zigzag": _zigzag_files, "timeloop": _timeloop_files}


def _word_bits(chip: Accelerator, operand: str) -> int:
    return round(8 * (chip.accumulator_bytes if operand == OUTPUT else chip.dtype.bytes))


def _bits_per_cycle(chip: Accelerator, bytes_per_s: Floats) -> int:
    return max(int(8 * float(np.asarray(bytes_per_s)) / float(chip.clock_hz)), 8)


def _core_bits(chip: Accelerator) -> int:
    """Most bits into and out of an array per cycle: an input per row, a weight and two sums per column."""
    sums = 2 * _word_bits(chip, OUTPUT)
    return int(chip.array_rows * _word_bits(chip, INPUT) + chip.array_cols * (_word_bits(chip, WEIGHT) + sums))


# -- ZigZag -------------------------------------------------------------------------------------------------------


APART = (("tl",), ("fl",), ("fh",), ("th",))
BELOW_ABOVE = (("tl", "fl"), ("fh", "th"))
TOGETHER = (("tl", "fl", "fh", "th"),)
"""Moves that share a port: to and from the lower level (tl, fl), from and to the higher (fh, th)."""


def zigzag_accelerator(chip: Accelerator) -> JsonDict:
    """Arrays whose registers hold two of the stationary operand, core buffers without a bandwidth limit (as in
    ``cost.chip.systolic``), global buffer and HBM stacks: bits, bits per cycle, pJ per port-wide access."""
    stays = STAYS[chip.dataflow]
    word, core = _word_bits(chip, stays), _core_bits(chip)
    shared, hbm = (_bits_per_cycle(chip, rate) for rate in (chip.delivered_bytes_per_s, chip.hbm_bytes_per_s))
    core_pj, shared_pj = (
        float(sram_pj_per_byte(size, chip.node_nm)) / 8
        for size in (chip.tensor_core_sram_bytes, chip.global_buffer_bytes)
    )
    mac_pj = float(mac_energy_pj(chip.dtype, chip.node_nm))
    register = _memory(2 * word, word, REGISTER_SHARE * mac_pj / word, [stays], [], APART)
    return {
        "name": chip.name or "sartor_design",
        "memories": {
            "register": register,
            "core_buffer": _memory(
                8 * int(chip.tensor_core_sram_bytes), core, core_pj, OPERANDS, [ROWS, COLUMNS], APART
            ),
            "global_buffer": _memory(
                8 * int(chip.global_buffer_bytes), shared, shared_pj, OPERANDS, DIMENSIONS, BELOW_ABOVE
            ),
            "hbm": _memory(8 * int(chip.hbm_bytes), hbm, memory_pj_per_byte(chip) / 8, OPERANDS, DIMENSIONS, TOGETHER),
        },
        "operational_array": {
            "unit_energy": mac_pj,
            "unit_area": 1.0,
            "dimensions": list(DIMENSIONS),
            "systolic_dimensions": [ROWS, COLUMNS],
            "sizes": [int(chip.array_rows), int(chip.array_cols), int(chip.num_tensor_cores)],
        },
    }


def _memory(
    size: int,
    bits: int,
    pj_per_bit: float,
    operands: Sequence[str],
    served: Sequence[str],
    ports: Sequence[Sequence[str]],
) -> JsonDict:
    """One memory level; only sums move back up from the level below."""
    table = []
    for number, ways in enumerate(ports, 1):
        moves = [
            f"{operand}, {way}" for operand in operands for way in ways if operand == OUTPUT or way in ("tl", "fh")
        ]
        if moves:
            port = {"name": f"rw_port_{number}", "type": "read_write", "bandwidth_min": 8 if bits > 8 else bits}
            table.append({**port, "bandwidth_max": bits, "allocation": moves})
    costs: JsonDict = {"r_cost": bits * pj_per_bit, "w_cost": bits * pj_per_bit, "area": 0.0, "latency": 1}
    return {"size": size, **costs, "operands": list(operands), "ports": table, "served_dimensions": list(served)}


def zigzag_mapping(chip: Accelerator) -> list[JsonDict]:
    """The mapping of every layer on the arrays, from the chip's dataflow."""
    sizes = (chip.array_rows, chip.array_cols, chip.num_tensor_cores)
    laid = zip(DIMENSIONS, ALONG[chip.dataflow], sizes, strict=True)
    return [
        {
            "name": "default",
            "spatial_mapping": {dimension: [f"{loop}, {int(size)}"] for dimension, loop, size in laid},
            "memory_operand_links": {"O": OUTPUT, "W": WEIGHT, "I": INPUT},
        }
    ]


# -- Timeloop -----------------------------------------------------------------------------------------------------


class _Tagged(dict[str, object]):
    """A mapping with a YAML tag, by which Timeloop distinguishes containers from components."""

    def __init__(self, tag: str, fields: JsonDict) -> None:
        super().__init__(fields)
        self.tag = tag


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Writes tags, and no aliases, which some readers do not accept."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_representer(_Tagged, lambda dumper, node: dumper.represent_mapping(node.tag, dict(node)))


def _text(table: object) -> bytes:
    return str(yaml.dump(table, Dumper=_Dumper, sort_keys=False, width=1000)).encode()


def timeloop_architecture(chip: Accelerator) -> JsonDict:
    """HBM stacks, global buffer, cores with their buffers, columns, rows, a register and a multiplier. Bandwidths in
    words per cycle; core buffers have no bandwidth limit, as in ``cost.chip.systolic``."""
    stays = STAYS[chip.dataflow]
    keep = {"dataspace": {"keep": [DATASPACES[stays]], "bypass": [DATASPACES[o] for o in OPERANDS if o != stays]}}
    word = _word_bits(chip, INPUT)
    hbm = _bits_per_cycle(chip, chip.hbm_bytes_per_s) // word
    shared = _bits_per_cycle(chip, chip.delivered_bytes_per_s) // word
    core = _core_bits(chip) // word
    process = {"technology": f"{chip.node_nm}nm", "global_cycle_seconds": 1 / float(chip.clock_hz)}
    register = {"width": _word_bits(chip, stays), "depth": 2, "datawidth": _word_bits(chip, stays)}
    nodes = [
        _Tagged("!Container", {"name": chip.name or "sartor_design", "attributes": process}),
        _storage("hbm", "DRAM", word, hbm, {"type": "HBM2", "shared_bandwidth": hbm}),
        _storage("global_buffer", "SRAM", word, shared, {"shared_bandwidth": shared}, int(chip.global_buffer_bytes)),
        _spread("tensor_core", meshX=int(chip.num_tensor_cores)),
        _storage("core_buffer", "SRAM", word, core, {}, int(chip.tensor_core_sram_bytes)),
        _spread("column", meshX=int(chip.array_cols)),
        _spread("row", meshY=int(chip.array_rows)),
        _Tagged("!Component", {"name": "register", "class": "regfile", "attributes": register, "constraints": keep}),
        _Tagged("!Component", {"name": "mac", "class": "fpmac", "attributes": {"datawidth": word}}),
    ]
    return {"architecture": {"version": "0.4", "nodes": nodes}}


def _storage(name: str, kind: str, word: int, words: int, rates: JsonDict, size: int = 0) -> _Tagged:
    """A memory with ``words`` per line; ``size`` in bytes, 0: not stated."""
    depth = {"depth": max(8 * size // (word * words), 1)} if size else {}
    line = {"datawidth": word, "width": word * words, "block_size": words}
    return _Tagged("!Component", {"name": name, "class": kind, "attributes": {**line, **depth, **rates}})


def _spread(name: str, **mesh: int) -> _Tagged:
    return _Tagged("!Container", {"name": name, "spatial": mesh})
