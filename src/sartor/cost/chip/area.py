"""Die area: the published closed form, and a fuller model that adds what it leaves out.

``published_area_mm2`` is the closed form of PHAZE (ICML 2024), exact on its grid: multiply-accumulators, registers and
buffers at 22 nm. ``die_area`` starts from the same parts, sizes multipliers by data type, adds memory PHYs, links, the
on-chip network and control, and scales to other nodes. docs/concepts/area.md has formulas and sources.

Silicon by node: area, energy and wafer prices, and the area and energy of arithmetic by data type.

Every factor has its source; interpolated and assumed values are marked. docs/concepts/area.md has the tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from sartor.bounded import packaged_toml
from sartor.hardware.accelerator import Accelerator, Memory
from sartor.operators import DType
from sartor.units import KIB, MIB, Bools, Floats, plain

# ------------------------------------------------------------------------------------------------------------- area

LOGIC_MTR_PER_MM2: dict[int, float] = {22: 19.9, 16: 28.9, 7: 96.3, 5: 138.2, 3: 221.1}
"""Million transistors per mm2 of foundry logic: Khan and Mann, "AI Chips", CSET 2020 (28 nm 15.3, 20 nm 22.1, 16/12 nm
28.9, 7 nm 96.3, 5 nm 138.2). 22 nm is interpolated on logarithmic axes between 28 and 20 nm. 3 nm is 5 nm times TSMC's
stated 1.6 for N3E (IEDM 2022, WikiChip Fuse December 2022), which is claimed, not measured."""

REALIZED_MTR_PER_MM2: dict[int, float] = {22: 18.6, 16: 27.0, 7: 65.6, 5: 98.3, 3: 157.0}
"""Million transistors per mm2 of whole dies: P100 25.1, V100 25.9 and NNP-T 39 at 16 nm, A100, H100 (NVIDIA
whitepapers). Logic shrinks by these: the foundry's densities are of the densest cells. 22 and 3 nm by their ratio."""
SRAM_OVER_7NM: dict[int, float] = {22: 2.9, 16: 2.2, 7: 1.0, 5: 0.78, 3: 0.78}
"""Area of SRAM over that at 7 nm: the cells' ratio, a little less for the periphery that shrinks less."""
REST_FROM_MM2 = 100.0
"""Parts of a die from which on its rest (host interface, sequencer, spine, edges) is that of the fit; below it falls in
proportion. The fit's dies have more, so that this is an assumption."""


_MULTIPLY_UM2 = {
    DType.INT8: 282.0,
    DType.FP16: 1640.0,
    DType.BF16: 0.5 * 1640.0,
    DType.FP32: 7700.0,
}
"""Multipliers at 45 nm: Horowitz, "Computing's energy problem", ISSCC 2014. bf16 is half of fp16 (Wang and Kanwar,
Google Cloud blog, August 2019: a multiplier grows with the square of its significand)."""
_SIGNIFICAND_BITS = {DType.FP64: 53, DType.TF32: 11, DType.FP8: 4, DType.FP8_BLOCK: 4, DType.MXFP8: 4}
_SIGNIFICAND_BITS |= {DType.NVFP4: 2, DType.MXFP4: 2}
_ADD_UM2 = {"int16": 67.0, "int32": 137.0, "fp16": 1360.0, "fp32": 4184.0}
"""Adders at 45 nm, same source; sums are kept in 32 bits."""


def mac_area_um2_45nm(dtype: DType) -> float:
    """Multiplier of a type and its 32-bit adder at 45 nm [um2]. Types that Horowitz's table lacks are sized by the
    square of their significand from fp16's 11 bits, which is an estimate."""
    if dtype in (DType.INT8, DType.INT4):
        multiply = _MULTIPLY_UM2[DType.INT8] / (1 if dtype is DType.INT8 else 4)
        return multiply + _ADD_UM2["int32"]
    bits = _SIGNIFICAND_BITS.get(dtype)
    multiply = _MULTIPLY_UM2[dtype] if bits is None else _MULTIPLY_UM2[DType.FP16] * (bits / 11) ** 2
    return multiply + _ADD_UM2["fp32"]


def _packed_area_um2_45nm(wide: DType, narrow: DType) -> float:
    """Extra area for a multiply-accumulator of a wide type to multiply several narrower operands instead [um2]:
    separate multipliers, and adders before the accumulator. Four 4-bit products add exactly as integers; 8-bit ones
    need 16-bit floating adders. Hardware sharing is not counted, so this is an upper estimate."""
    types = [narrow_type for narrow_type in (DType.FP8, DType.NVFP4) if narrow.bytes <= narrow_type.bytes < wide.bytes]
    extra = 0.0
    for narrow_type in types:
        packed = int(wide.bytes / narrow_type.bytes) if narrow_type is DType.FP8 else int(2 * wide.bytes)
        adder = _ADD_UM2["fp16" if narrow_type is DType.FP8 else "int16"]
        multiply = _MULTIPLY_UM2[DType.FP16] * (_SIGNIFICAND_BITS[narrow_type] / 11) ** 2
        extra += packed * multiply + (packed - 1) * adder
    return extra


# ----------------------------------------------------------------------------------------------------------- energy

_PICOJOULES_45_AND_7NM = {
    "add_int32": (0.1, 0.03),
    "add_fp16": (0.4, 0.16),
    "add_fp32": (0.9, 0.38),
    "multiply_int8": (0.2, 0.07),
    "multiply_fp16": (1.1, 0.34),
    "multiply_bf16": (0.68, 0.21),
    "multiply_fp32": (3.7, 1.31),
}
"""Jouppi et al., "Ten Lessons From Three Generations Shaped Google's TPUv4i", ISCA 2021, table 2 (45 nm: Horowitz
2014). bf16 at 45 nm is not in the table: 7 nm times fp16's ratio."""

SRAM_PJ_PER_64BIT = {8 * 1024: (10.0, 7.5), 32 * 1024: (20.0, 8.5), 1024 * 1024: (100.0, 14.0)}
"""Bytes of the memory -> picojoules of a 64-bit access at 45 and 7 nm, same table."""

_ISO_SPEED_POWER = {5: 0.70, 3: 0.70 * 0.68}
"""Energy relative to 7 nm: TSMC's stated power reductions at equal speed, N5 over N7 30% (2020), N3E over N5 32%
(2022); manufacturer claims."""


def energy_between_nodes(at_45_pj: float, at_7_pj: float, node_nm: int) -> float:
    """Energy of an operation at a node from its values at 45 and 7 nm: interpolated on logarithmic axes for 22 and 16
    nm (an assumption), below 7 nm by the manufacturer's stated reduction."""
    if node_nm in _ISO_SPEED_POWER:
        return at_7_pj * _ISO_SPEED_POWER[node_nm]
    share = math.log(node_nm / 7) / math.log(45 / 7)
    return float(at_7_pj * (at_45_pj / at_7_pj) ** share)


def mac_energy_pj(dtype: DType, node_nm: int) -> float:
    """Energy of one multiply and 32-bit add [pJ]. fp8 and narrower multiply at int8's energy, scaled by width (an
    estimate); fp64 four times fp32 (the square of the significand, an estimate)."""

    def at(name: str) -> float:
        return energy_between_nodes(*_PICOJOULES_45_AND_7NM[name], node_nm)

    if dtype in (DType.INT8, DType.INT4):
        return at("multiply_int8") * dtype.bytes**2 + at("add_int32")
    if dtype.bytes < 2:
        return at("multiply_int8") * min(1.0, dtype.bytes) ** 2 + at("add_fp32")
    names = {DType.FP16: "multiply_fp16", DType.BF16: "multiply_bf16", DType.TF32: "multiply_fp16"}
    scale = 4.0 if dtype is DType.FP64 else 1.0
    return scale * at(names.get(dtype, "multiply_fp32")) + at("add_fp32")


def packed_energy_pj(dtype: DType, packed: int, node_nm: int) -> float:
    """Energy of ``packed`` products of a narrow type, added and accumulated in 32 bits [pJ]; 4-bit products are added
    as integers, counted at 32 bits."""
    adder = energy_between_nodes(*_PICOJOULES_45_AND_7NM["add_fp16" if dtype.bytes >= 1 else "add_int32"], node_nm)
    accumulate = energy_between_nodes(*_PICOJOULES_45_AND_7NM["add_fp32"], node_nm)
    multiply_pj = mac_energy_pj(dtype, node_nm) - accumulate
    return packed * multiply_pj + (packed - 1) * adder + accumulate


# ----------------------------------------------------------------------------------------------------------- prices

WAFER_USD: dict[int, float] = {22: 3434.0, 16: 3984.0, 7: 9346.0, 5: 16988.0, 3: 20000.0}
"""Price of a processed 300 mm wafer in 2020: Khan and Mann, "AI Chips", CSET 2020, table 9 (28 nm 2891, 20 nm 3677);
22 nm interpolated on logarithmic axes; 3 nm is a press report (DigiTimes, November 2022) and uncertain."""
DEFECTS_PER_MM2: dict[int, float] = {22: 0.0007, 16: 0.0010, 7: 0.0009, 5: 0.0010, 3: 0.0020}
"""Default assumptions. 7 nm: 0.09 per cm2, 5 nm: 0.10 to 0.11 (TSMC technology symposium, August 2020); 22 and 16 nm as
Ning et al. (ISCA 2023, supply-chain model) estimate for 20 and 14 nm; 3 nm as they do for the newest node."""
CLUSTERING = 3.0
"""Clustering parameter of the negative binomial yield (Ning et al., ISCA 2023; also Hennessy and Patterson)."""


UM2_PER_MM2 = 1e6

# ---------------------------------------------------------------------------------------------- the published model

MAC_UM2 = 760.041386
"""One multiply-accumulator with 16 registers of 2 bytes, 22 nm (PHAZE; reference/phaze.md sec. 3)."""
LANE_UM2 = 759.823853
"""One vector lane: the same with 6 registers."""

SRAM_UM2 = {
    KIB: 6133.98,
    2 * KIB: 8248.43,
    4 * KIB: 12610.5,
    8 * KIB: 22139.9,
    16 * KIB: 38583.0,
    32 * KIB: 63338.4,
    64 * KIB: 115579.0,
    128 * KIB: 204764.0,
    256 * KIB: 446565.0,
    512 * KIB: 897890.0,
    1024 * KIB: 1634130.0,
}
"""S: private buffers, bytes -> um2 at 22 nm, CACTI through PHAZE (reference/phaze.md sec. 3)."""

GLOBAL_BUFFER_UM2 = {
    2 * MIB: 3338220.0,
    4 * MIB: 6078640.0,
    8 * MIB: 11952400.0,
    16 * MIB: 23745200.0,
    32 * MIB: 46750900.0,
    64 * MIB: 88605700.0,
    128 * MIB: 175423000.0,
}
"""G: global buffers, same source."""


def published_area_mm2(accelerator: Accelerator) -> Floats:
    """Area by the published closed form [mm2], always at 22 nm:

        n_tc (w d 760.041386 + S(L2_tc)) + n_vc (w_vc 759.823853 + S(L2_vc)) + G(GLB)   [um2]

    Exact if buffers are powers of two within the tables. Between and beyond them S and G are interpolated on
    logarithmic axes, which is our addition, not published. Broadcasts over candidates.
    """
    a = accelerator
    cores, buffer = _published_core_um2(a)
    area = (cores + buffer) / UM2_PER_MM2
    return float(area) if np.ndim(area) == 0 else area


def published_area_parts(accelerator: Accelerator) -> dict[str, Floats]:
    """The published area by part [mm2]; the parts add up to ``published_area_mm2``."""
    a = accelerator
    private = a.num_tensor_cores * _buffer_area_um2(a.tensor_core_sram_bytes, SRAM_UM2)
    private = private + a.num_vector_cores * _buffer_area_um2(a.vector_core_sram_bytes, SRAM_UM2)
    parts = {
        "arrays_mm2": np.asarray(a.num_tensor_cores) * a.array_rows * a.array_cols * MAC_UM2,
        "lanes_mm2": np.asarray(a.num_vector_cores) * a.vector_lanes * LANE_UM2,
        "private_buffers_mm2": private,
        "global_buffer_mm2": _buffer_area_um2(a.global_buffer_bytes, GLOBAL_BUFFER_UM2),
    }
    return {name: plain(np.asarray(part) / UM2_PER_MM2) for name, part in parts.items()}


def _published_core_um2(a: Accelerator) -> tuple[Floats, Floats]:
    tensor = np.asarray(a.array_rows) * a.array_cols * MAC_UM2 + _buffer_area_um2(a.tensor_core_sram_bytes, SRAM_UM2)
    vector = np.asarray(a.vector_lanes) * LANE_UM2 + _buffer_area_um2(a.vector_core_sram_bytes, SRAM_UM2)
    cores = a.num_tensor_cores * tensor + a.num_vector_cores * vector
    return cores, _buffer_area_um2(a.global_buffer_bytes, GLOBAL_BUFFER_UM2)


def _buffer_area_um2(size: Floats, table: dict[int, float]) -> Floats:
    """Area of a buffer [um2] from a table of powers of two: exact at its entries, log-log linear between and beyond
    them (so it always grows with the size)."""
    log2_bytes = np.log2(np.asarray(list(table), dtype=np.float64))
    area = np.asarray(list(table.values()))
    x = np.log2(np.asarray(size, dtype=np.float64))
    lower = np.clip(np.floor(x - log2_bytes[0]).astype(np.int64), 0, len(log2_bytes) - 2)
    share = x - log2_bytes[lower]
    between = area[lower] * (area[lower + 1] / area[lower]) ** share
    buffer_area: Floats = np.where(share == 1.0, area[lower + 1], np.where(share == 0.0, area[lower], between))
    return buffer_area


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedGrid:
    """The published search space: ``accelerators`` holds every point (1-D); masks mark those that fit and are kept."""

    accelerators: Accelerator
    area_mm2: Floats
    fits: Bools
    kept: Bools


def published_grid() -> PublishedGrid:
    """The 75,712 points of the published search (PHAZE, reference/phaze.md sec. 3): 2^0..2^12 tensor and vector cores,
    arrays of 2^1..2^8 by 2^1..2^8, 2 to 128 MiB.

    51,943 fit the TPUv4-like point's area; 29,360 are kept: those that use at least 30% of it, and those with one
    tensor or one vector core.
    """
    counts, sides, buffers = 2 ** np.arange(13), 2 ** np.arange(1, 9), 2 ** np.arange(1, 8)
    mesh = np.meshgrid(counts, counts, sides, sides, buffers, indexing="ij")
    tensor, vector, width, depth, mib = (axis.ravel() for axis in mesh)
    grid = Accelerator.from_template(
        num_tensor_cores=tensor, num_vector_cores=vector, width=width, depth=depth, global_buffer_mib=mib
    )
    area, limit = np.asarray(published_area_mm2(grid)), published_area_limit_mm2()
    fits = area <= limit
    return PublishedGrid(
        accelerators=grid,
        area_mm2=area,
        fits=fits,
        kept=fits & ((area >= 0.3 * limit) | (tensor == 1) | (vector == 1)),
    )


def published_area_limit_mm2() -> float:
    """Area of the TPUv4-like point (8, 2, 128, 128, 128, 128 MiB): 278.8 mm2."""
    point = Accelerator.from_template(
        num_tensor_cores=8, num_vector_cores=2, width=128, depth=128, global_buffer_mib=128
    )
    return float(published_area_mm2(point))


# ------------------------------------------------------------------------------------------------- the fuller model


@dataclass(frozen=True, slots=True, kw_only=True)
class _DieArea:
    """Area of a die by part [mm2]. Fields broadcast over candidates."""

    arrays_mm2: Floats
    """Multiply-accumulators and their registers."""
    lanes_mm2: Floats
    private_buffers_mm2: Floats
    global_buffer_mm2: Floats
    memory_phys_mm2: Floats
    """Physical layers and controllers of the memory stacks."""
    links_mm2: Floats
    network_mm2: Floats
    """On-chip network between the global buffer and the cores."""
    control_mm2: Floats
    """Instruction sequencing of each vector lane and tensor core."""
    die_to_die_mm2: Floats
    """Physical layers between dies that stand side by side."""
    uncore_mm2: Floats
    """Host interface, clocking, test, pads and unused silicon."""
    of_io_dies: Floats
    """Share of the whole that is on I/O dies."""

    @property
    def parts(self) -> dict[str, Floats]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("_mm2")}

    @property
    def total_mm2(self) -> Floats:
        return sum(self.parts.values(), 0.0)

    @property
    def io_mm2(self) -> Floats:
        """All I/O dies together."""
        return self.total_mm2 * self.of_io_dies

    @property
    def compute_mm2(self) -> Floats:
        """All compute dies together."""
        return self.total_mm2 - self.io_mm2


@dataclass(frozen=True, slots=True, kw_only=True)
class _PhyArea:
    """One interface: analog area that does not shrink with the node, and a controller that does."""

    phy_mm2: float
    controller_mtr: float
    """Million transistors."""


STACK_1024 = _PhyArea(phy_mm2=10.45, controller_mtr=552.743)
"""1024 bits of HBM2e, from die photographs of A100 and MI210: LLMCompass (Zhang et al., ISCA 2024), cost model."""
STACK_RATE = 408e9
"""Rate of a stack of that photograph [bytes/s]: A100, five stacks of 2039 GB/s together."""
DDR_32 = _PhyArea(phy_mm2=1.45, controller_mtr=90.4464)
"""32 bits of DDR5, same source; taken for LPDDR too, which is an assumption."""
LINK_25GB = _PhyArea(phy_mm2=1.888, controller_mtr=74.632)
"""An NVLink3 of 25 GB/s each way, same source; other link rates in proportion, an assumption (NVLink4 at 25 GB/s
takes half the PHY: 0.965 mm2)."""

NETWORK_MTR_PER_BYTE = 44.3 * 128 / (48 * 128)
"""Million transistors of the on-chip network per byte per cycle delivered to all cores together: 44.3 for each of 128
A100 SMs, for ports and a share of the crossbar (LLMCompass), with a 48 MiB buffer that delivers 128 bytes per cycle and
MiB (NVIDIA A100 whitepaper, 2020). Proportional growth is an assumption; ports wider than what the buffer can fill and
wires over the cores are not counted."""
DIE_TO_DIE_BYTES_PER_S_PER_MM2 = 1350e9 / 2
"""UCIe in an advanced package, one direction: 1,350 GB/s both ways per mm2 (45 um bumps; UCIe 1.0, as Wikipedia
states it, read 2026-11-30). Dies on top of each other are joined by hybrid bonds, whose area (300 TB/s per mm2: Das
Sharma, Hot Interconnects 2025) is not counted."""
GPU_CONTROL, STATIC_CONTROL = 1.0, 0.25
"""`Accelerator.control_share` of the GPUs of the fit, and of the chips that are scheduled ahead of time."""


@cache
def silicon() -> Mapping[str, Any]:
    """Coefficients of the area of whole dies at 7 nm, by ``lab/fit_silicon.py``."""
    return packaged_toml("cost/chip", "silicon.toml")


def die_area(accelerator: Accelerator) -> _DieArea:
    """Area by part at the accelerator's node [mm2]; all dies together.

    Interfaces are measured blocks, the rest is fitted on real dies: `silicon`. GPUs have other lanes and cores, and a
    cache in the global buffer's place; between them and chips that are scheduled ahead, ``control_share`` interpolates.
    Multiplier size follows ``dtype`` and packed narrower types (Horowitz 2014). The buffer, the interfaces and what
    every whole die has besides are on the I/O dies, in their node, if there are any (the fit's MI300X).
    """
    a, node, law = accelerator, accelerator.node_nm, silicon()
    logic, sram = REALIZED_MTR_PER_MM2[7] / REALIZED_MTR_PER_MM2[node], SRAM_OVER_7NM[node]
    wide = mac_area_um2_45nm(a.dtype) + _packed_area_um2_45nm(a.dtype, a.packed_dtype or a.dtype)
    stacked, dies = a.stacked, np.asarray(a.num_dies)
    private = a.num_tensor_cores * np.asarray(a.tensor_core_sram_bytes) + a.num_vector_cores * np.asarray(
        a.vector_core_sram_bytes
    )
    cores = np.maximum(a.num_tensor_cores, a.num_vector_cores)
    lanes = np.asarray(a.num_vector_cores) * a.vector_lanes
    macs = np.asarray(a.num_tensor_cores) * a.array_rows * a.array_cols
    parts = {
        "arrays_mm2": macs * law["mac_mm2"] * wide / mac_area_um2_45nm(DType.BF16) * logic,
        "lanes_mm2": lanes * _mixed(a, "lane_mm2", "gpu_lane_mm2") * logic,
        "private_buffers_mm2": private / MIB * law["sram_mm2_per_mib"] * sram,
        "control_mm2": cores * _mixed(a, "core_mm2", "gpu_core_mm2") * logic,
        "die_to_die_mm2": np.where(stacked | (dies == 1), 0.0, dies * np.asarray(a.die_to_die_bytes_per_s))
        / DIE_TO_DIE_BYTES_PER_S_PER_MM2,
    }
    below = _around_cores_mm2(a, node)
    if stacked.any():
        of_io = _around_cores_mm2(a, a.io_node_nm or node)
        below = {name: np.where(stacked, of_io[name], part) for name, part in below.items()}
    whole_dies, around = np.where(stacked, a.num_io_dies, dies), sum(below.values())
    on_whole = around + np.where(stacked, 0.0, sum(parts.values()))
    rest = law["rest_mm2"] * np.minimum(on_whole / REST_FROM_MM2, whole_dies)
    total = sum(parts.values()) + around + rest
    parts |= below | {"uncore_mm2": rest + total * law["uncore_share"]}
    return _DieArea(
        **{name: plain(np.asarray(part)) for name, part in parts.items()},
        of_io_dies=plain(np.where(stacked, (around + rest) / total, 0.0)),
    )


def _mixed(a: Accelerator, static: str, threaded: str) -> float:
    """A coefficient between that of chips scheduled ahead and that of GPUs."""
    gpu = np.clip((a.control_share - STATIC_CONTROL) / (GPU_CONTROL - STATIC_CONTROL), 0.0, 1.0)
    law = silicon()
    return float(law[static] + gpu * (law[threaded] - law[static]))


def _around_cores_mm2(a: Accelerator, node: int) -> dict[str, Floats]:
    """Global buffer, memory interfaces, links and on-chip network in a node."""
    buffer = _mixed(a, "sram_mm2_per_mib", "cache_mm2_per_mib") * SRAM_OVER_7NM[node]
    return {
        "global_buffer_mm2": a.global_buffer_bytes / MIB * buffer,
        "memory_phys_mm2": _memory_mm2(a, node),
        "links_mm2": (a.network_bytes_per_s + a.scale_out_bytes_per_s) / 25e9 * _interface_mm2(LINK_25GB, node),
        "network_mm2": a.delivered_bytes_per_s / a.clock_hz * NETWORK_MTR_PER_BYTE / LOGIC_MTR_PER_MM2[node],
    }


def _memory_mm2(a: Accelerator, node: int) -> Floats:
    width = a.memory.stack.width_bits
    is_ddr = a.memory in (Memory.LPDDR4X, Memory.LPDDR5)
    interface, units = (DDR_32, width / 32) if is_ddr else (STACK_1024, width / 1024)
    if not is_ddr:  # a slower stack has a smaller controller
        rate = np.asarray(a.hbm_bytes_per_s) / a.num_stacks / STACK_RATE
        controller = interface.controller_mtr / LOGIC_MTR_PER_MM2[node] * np.minimum(rate, 1.0)
        return np.asarray(a.num_stacks) * units * (interface.phy_mm2 + controller)
    return np.asarray(a.num_stacks) * units * _interface_mm2(interface, node)


def _interface_mm2(interface: _PhyArea, node_nm: int) -> float:
    return interface.phy_mm2 + interface.controller_mtr / LOGIC_MTR_PER_MM2[node_nm]
