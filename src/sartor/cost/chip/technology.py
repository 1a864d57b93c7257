"""Silicon by node: area, energy and wafer prices, and the area and energy of arithmetic by data type.

Every factor has its source; interpolated and assumed values are marked. docs/concepts/area.md has the tables.
"""

from __future__ import annotations

import math

from sartor.operators import DType

# ------------------------------------------------------------------------------------------------------------- area

LOGIC_MTR_PER_MM2: dict[int, float] = {22: 19.9, 16: 28.9, 7: 96.3, 5: 138.2, 3: 221.1}
"""Million transistors per mm2 of foundry logic: Khan and Mann, "AI Chips", CSET 2020 (28 nm 15.3, 20 nm 22.1, 16/12 nm
28.9, 7 nm 96.3, 5 nm 138.2). 22 nm is interpolated on logarithmic axes between 28 and 20 nm. 3 nm is 5 nm times TSMC's
stated 1.6 for N3E (IEDM 2022, WikiChip Fuse December 2022), which is claimed, not measured."""

SRAM_BITCELL_UM2: dict[int, float] = {22: 0.092, 16: 0.070, 7: 0.027, 5: 0.021, 3: 0.021}
"""High-density six-transistor cell: Intel 22 nm (Karl et al., ISSCC 2012), TSMC 16FF (Wu et al., IEDM 2013), N7 (Chang
et al., ISSCC 2017), N5 (Yeap et al., IEDM 2019), N3E (IEDM 2022: unchanged from N5)."""


def logic_scale(node_nm: int) -> float:
    """Area of logic at a node over that at 22 nm."""
    return LOGIC_MTR_PER_MM2[22] / LOGIC_MTR_PER_MM2[node_nm]


def sram_scale(node_nm: int) -> float:
    """Area of SRAM at a node over that at 22 nm, assuming that the periphery shrinks with the cell."""
    return SRAM_BITCELL_UM2[node_nm] / SRAM_BITCELL_UM2[22]


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


def packed_area_um2_45nm(wide: DType, narrow: DType) -> float:
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
