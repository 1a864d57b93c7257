"""Energy and price of an accelerator: of a training step, of the die and of owning the chip, and what limits it.

Each limit is at or above what has shipped, so a chip beyond it is rejected, not just flagged. Sources marked "recalled"
are quoted from memory. Every GPU, TPU and template chip of the catalogue is within all of them.

Energy is counted by component: arithmetic, registers, private buffers, global buffer, memory, links, and leakage during
the operator's time. Every figure comes from ``cost.chip.area`` with its source; docs/concepts/area.md lists the
assumptions.

A lower bound on an operator's energy without its tiles, a hundred times cheaper than `operator_energy`: arithmetic,
registers, and what must move at least through memory, the global buffer and private buffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from sartor.cost.chip.area import (
    CLUSTERING,
    DEFECTS_PER_MM2,
    SRAM_PJ_PER_64BIT,
    WAFER_USD,
    die_area,
    energy_between_nodes,
    mac_energy_pj,
    packed_energy_pj,
    silicon,
)
from sartor.cost.chip.operator_latency import operator_floor
from sartor.cost.chip.systolic import Product, product_cost, product_of
from sartor.cost.chip.vector_core import attention_cost, attention_products, vector_cost
from sartor.cost.collective.links import link_time_s, volume
from sartor.hardware.accelerator import Accelerator, Memory
from sartor.operators import Attention, Collective, DType, Gemm, GroupedGemm, Operator
from sartor.units import GIGA, MEGA, TERA, Floats, ceil_div, plain

PICO = 1e-12

REGISTER_SHARE = 0.25
"""Energy of one multiply-accumulate's register traffic over that of a 16-bit multiply-accumulate. Eyeriss (Chen, Emer
and Sze, ISCA 2016, table 4) has 1.0 for a 512-byte register file; 32 bytes are scaled by the square root of the size
ratio, which is an assumption."""
LINK_PJ_PER_BIT = 5.5
"""Long-reach SerDes at 112 Gb/s, compared with NVLink-C2C's 1.3 pJ/bit (NVIDIA, Hot Chips 34, 2022): uncertain."""
DIE_TO_DIE_PJ_PER_BIT = 0.3
"""Dies side by side: UCIe in an advanced package, 0.25 to 0.3 (Das Sharma, Hot Interconnects 2025)."""
STACKED_PJ_PER_BIT = 0.05
"""Dies on top of each other: UCIe 3D, 0.01 to 0.05 (same source)."""
IDLE_W_PER_MM2: dict[int, float] = {22: 0.085, 16: 0.176, 7: 0.150, 5: 0.150, 3: 0.150}
"""Power of an idle chip per area, leakage and clocks together. 22 nm: TPU v1's 28 W on 331 mm2 at 28 nm (Jouppi et al.,
ISCA 2017, table 2); 16 nm: TPU v3's 123 W on under 700 mm2; 7 nm: TPU v4's 90 W on under 600 mm2 (Jouppi et al., arXiv
2304.01433, table 4, both with their memory); 5 and 3 nm as 7 nm, an assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Energy:
    """Energy of one execution of an operator by component [J]. Fields broadcast over candidates."""

    arithmetic_j: Floats = 0.0
    registers_j: Floats = 0.0
    private_buffers_j: Floats = 0.0
    global_buffer_j: Floats = 0.0
    memory_j: Floats = 0.0
    links_j: Floats = 0.0
    static_j: Floats = 0.0

    @property
    def total_j(self) -> Floats:
        return sum((getattr(self, f.name) for f in fields(self)), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Power:
    """Power of the chip with its memory [W]. ``tdp_w``: everything at its peak rate at once."""

    static_w: Floats
    arrays_w: Floats
    lanes_w: Floats
    private_buffers_w: Floats
    global_buffer_w: Floats
    memory_w: Floats
    links_w: Floats
    die_to_die_w: Floats

    @property
    def tdp_w(self) -> Floats:
        return sum((getattr(self, f.name) for f in fields(self)), 0.0)


def operator_energy(op: Operator, accelerator: Accelerator) -> _Energy:
    """Energy of one execution on all cores [J]; shapes broadcast."""
    if isinstance(op, Collective):
        return _collective_energy(op, accelerator)
    if isinstance(op, Gemm | GroupedGemm):
        return _product_energy(product_of(op, accelerator), accelerator, op.dtype)
    if isinstance(op, Attention):
        return _attention_energy(op, accelerator)
    cost = vector_cost(op, accelerator)
    a = accelerator
    return _Energy(
        arithmetic_j=cost.lane_cycles * mac_energy_pj(DType.FP32, a.node_nm) * PICO,
        registers_j=cost.lane_cycles * _register_pj(a) * PICO,
        private_buffers_j=cost.buffer_bytes * sram_pj_per_byte(a.vector_core_sram_bytes, a.node_nm) * PICO,
        global_buffer_j=cost.buffer_bytes * _buffer_pj_per_byte(a) * PICO,
        memory_j=op.bytes_moved * memory_pj_per_byte(a) * PICO,
        static_j=static_power_w(a) * cost.time_s,
    )


def power(accelerator: Accelerator) -> _Power:
    """Static power and peak dynamic power by part [W]; shapes broadcast. The TPUv4-like entry at 7 nm can be compared
    with the measured maximum of 192 W (Jouppi et al. 2023): docs/concepts/area.md."""
    a, node = accelerator, accelerator.node_nm
    macs = np.asarray(a.num_tensor_cores) * a.array_rows * a.array_cols * a.clock_hz
    lanes = 1.0 * np.asarray(a.num_vector_cores) * a.vector_lanes * a.clock_hz
    feed = a.num_tensor_cores * (
        (1.0 * np.asarray(a.array_rows) + a.array_cols) * a.dtype.bytes + 2 * a.accumulator_bytes * a.array_cols
    )
    parts = {
        "static_w": static_power_w(a),
        "arrays_w": macs * (_hottest_pj(a) + _register_pj(a)) * PICO,
        "lanes_w": lanes * (mac_energy_pj(DType.FP32, node) + _register_pj(a)) * PICO,
        "private_buffers_w": feed * a.clock_hz * sram_pj_per_byte(a.tensor_core_sram_bytes, node) * PICO,
        "global_buffer_w": a.delivered_bytes_per_s * _buffer_pj_per_byte(a) * PICO,
        "memory_w": a.hbm_bytes_per_s * memory_pj_per_byte(a) * PICO,
        "links_w": (a.network_bytes_per_s + a.scale_out_bytes_per_s) * 8 * LINK_PJ_PER_BIT * PICO,
        "die_to_die_w": _between_dies_bytes_per_s(a) * 8 * DIE_TO_DIE_PJ_PER_BIT * PICO,
    }
    return _Power(**{name: plain(part) for name, part in parts.items()})


def _between_dies_bytes_per_s(a: Accelerator) -> Floats:
    """Peak rate of all links between dies side by side, one direction."""
    return np.where(a.stacked | (np.asarray(a.num_dies) == 1), 0.0, a.num_dies * np.asarray(a.die_to_die_bytes_per_s))


def static_power_w(accelerator: Accelerator) -> Floats:
    """Idle power [W], from area and node of all dies."""
    a, area = accelerator, die_area(accelerator)
    return area.compute_mm2 * IDLE_W_PER_MM2[a.node_nm] + area.io_mm2 * IDLE_W_PER_MM2[a.io_node_nm or a.node_nm]


def memory_pj_per_byte(accelerator: Accelerator) -> float:
    """Energy per byte of memory-stack traffic [pJ]."""
    return 8 * accelerator.memory.stack.energy_pj_per_bit


def _buffer_pj_per_byte(a: Accelerator) -> Floats:
    """Energy per byte between cores and global buffer [pJ], with the way to I/O dies that carry it."""
    pj_per_byte: Floats = plain(sram_pj_per_byte(a.global_buffer_bytes, a.node_nm) + 8 * STACKED_PJ_PER_BIT * a.stacked)
    return pj_per_byte


def sram_pj_per_byte(size: Floats, node_nm: int) -> Floats:
    """Energy per byte of a buffer of ``size`` bytes [pJ]: log-log linear through 8 KiB, 32 KiB and 1 MiB (Jouppi et
    al., ISCA 2021, table 2); beyond 1 MiB extrapolated with the last slope."""
    log2_sizes = np.log2(np.asarray(list(SRAM_PJ_PER_64BIT), dtype=np.float64))
    energy = np.log2([energy_between_nodes(*pair, node_nm) for pair in SRAM_PJ_PER_64BIT.values()])
    x = np.log2(np.asarray(size, dtype=np.float64))
    lower = np.clip(np.searchsorted(log2_sizes, x, side="right") - 1, 0, len(log2_sizes) - 2)
    slope = (energy[lower + 1] - energy[lower]) / (log2_sizes[lower + 1] - log2_sizes[lower])
    pj_per_byte: Floats = plain(2.0 ** (energy[lower] + slope * (x - log2_sizes[lower])) / 8)
    return pj_per_byte


def _register_pj(a: Accelerator) -> float:
    """Energy of the register traffic of one multiply and add, or of one lane cycle."""
    return REGISTER_SHARE * mac_energy_pj(DType.BF16, a.node_nm)


def _place_pj(a: Accelerator, dtype: DType) -> float:
    """Energy of one array cell in one cycle: one multiply and add, or those of all operands packed in it."""
    packed = a.packing(dtype)
    return mac_energy_pj(a.dtype, a.node_nm) if packed == 1 else packed_energy_pj(dtype, packed, a.node_nm)


def _hottest_pj(a: Accelerator) -> float:
    """Energy of an array cell in the data type that takes most."""
    return max(_place_pj(a, dtype) for dtype in (a.dtype, DType.FP8, a.packed_dtype or a.dtype))


def _product_energy(product: Product, a: Accelerator, dtype: DType) -> _Energy:
    cost = product_cost(product, a)
    epilogue = 1.0 * product.batch * product.m * product.n * product.epilogue_cycles
    return _Energy(
        arithmetic_j=(product.macs * _place_pj(a, dtype) + epilogue * mac_energy_pj(DType.FP32, a.node_nm)) * PICO,
        registers_j=(product.macs + epilogue) * _register_pj(a) * PICO,
        private_buffers_j=cost.core_sram_bytes * sram_pj_per_byte(a.tensor_core_sram_bytes, a.node_nm) * PICO,
        global_buffer_j=cost.buffer_bytes * _buffer_pj_per_byte(a) * PICO,
        memory_j=cost.memory_bytes * memory_pj_per_byte(a) * PICO,
        static_j=static_power_w(a) * cost.time_s,
    )


def _attention_energy(op: Attention, a: Accelerator) -> _Energy:
    """On-chip energy of the matrix multiplications and the softmax, with the fused kernel's own traffic and time."""
    products = [_product_energy(p, a, a.dtype) for p in attention_products(op, a)]
    cost = attention_cost(op, a)
    lane_cycles = cost.vector_s * a.num_vector_cores * a.vector_lanes * a.clock_hz
    return _Energy(
        arithmetic_j=sum((e.arithmetic_j for e in products), 0.0)
        + lane_cycles * mac_energy_pj(DType.FP32, a.node_nm) * PICO,
        registers_j=sum((e.registers_j for e in products), 0.0) + lane_cycles * _register_pj(a) * PICO,
        private_buffers_j=sum((e.private_buffers_j for e in products), 0.0),
        global_buffer_j=sum((e.global_buffer_j for e in products), 0.0),
        memory_j=cost.memory_bytes * memory_pj_per_byte(a) * PICO,
        static_j=static_power_w(a) * cost.time_s,
    )


def _collective_energy(op: Collective, a: Accelerator) -> _Energy:
    """Every device sends its share of the buffer and reads and writes it in memory."""
    n = np.asarray(op.group_size, dtype=np.float64)
    sent = np.where(n > 1, volume(op.kind, n), 0.0) * np.asarray(op.message_bytes, dtype=np.float64)
    return _Energy(
        links_j=plain(sent * 8 * LINK_PJ_PER_BIT * PICO),
        memory_j=plain(2 * sent * memory_pj_per_byte(a) * PICO),
        static_j=static_power_w(a) * link_time_s(op, a),
    )


def energy_floor_j(op: Operator, a: Accelerator) -> Floats:
    """Joules of one execution beyond static power that `operator_energy` is never below; shapes broadcast."""
    if isinstance(op, Gemm | GroupedGemm):
        product = product_of(op, a)
        lane_cycles = 1.0 * product.batch * product.m * product.n * product.epilogue_cycles
        return _products_j((product,), op, op.dtype, lane_cycles, product.least_bytes, a)
    if isinstance(op, Attention):
        lanes = 1.0 * np.asarray(a.num_vector_cores) * a.vector_lanes
        lane_cycles = operator_floor(op, a).vector_s * lanes * a.clock_hz
        return _products_j(attention_products(op, a), op, a.dtype, lane_cycles, op.bytes_moved, a)
    energy = operator_energy(op, a)
    return energy.total_j - energy.static_j


def _products_j(
    products: Sequence[Product], op: Operator, dtype: DType, lane_cycles: Floats, memory_bytes: Floats, a: Accelerator
) -> Floats:
    """GEMMs, lane cycles and bytes of memory; each sum is read and written once per block of k in an array."""
    macs = sum(product.macs for product in products)
    sums = sum(2.0 * p.batch * p.m * p.n * ceil_div(p.k, a.array_rows) for p in products) * a.accumulator_bytes
    through = operator_floor(op, a).buffer_s * np.asarray(a.global_buffer_bytes_per_s)
    picojoules = (
        macs * (_place_pj(a, dtype) + _register_pj(a))
        + lane_cycles * (mac_energy_pj(DType.FP32, a.node_nm) + _register_pj(a))
        + sums * sram_pj_per_byte(a.tensor_core_sram_bytes, a.node_nm)
        + through * _buffer_pj_per_byte(a)
        + memory_bytes * memory_pj_per_byte(a)
    )
    return picojoules * PICO


WAFER_MM = 300.0
RETICLE_MM2 = 858.0
"""26 mm x 33 mm: the largest field a scanner exposes (ASML datasheets). A larger die cannot be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DieCost:
    """A die's price [USD of ``WAFER_USD``'s date], without packaging, memory stacks, test and margins."""

    dies_per_wafer: Floats
    yield_share: Floats
    die_usd: Floats


def die_cost(
    area_mm2: Floats,
    node_nm: int,
    wafer_usd: float | None = None,
    defects_per_mm2: float | None = None,
    clustering: float = CLUSTERING,
) -> _DieCost:
    """Cost of a good die of ``area_mm2``; infinite beyond the reticle. Broadcasts.

    Dies per wafer: pi (d/2)^2 / A - pi d / sqrt(2 A). Yield: (1 + A D / c)^-c, the negative binomial, which approaches
    exp(-A D) for large c. Price and defects default to ``WAFER_USD`` and ``DEFECTS_PER_MM2``: assumptions.
    """
    price = WAFER_USD[node_nm] if wafer_usd is None else wafer_usd
    defects = DEFECTS_PER_MM2[node_nm] if defects_per_mm2 is None else defects_per_mm2
    area = np.asarray(area_mm2, dtype=np.float64)
    dies = np.pi * (WAFER_MM / 2) ** 2 / area - np.pi * WAFER_MM / np.sqrt(2 * area)
    good = (1 + area * defects / clustering) ** -clustering
    usd = np.where(area <= RETICLE_MM2, price / (dies * good), np.inf)
    return _DieCost(dies_per_wafer=plain(dies), yield_share=plain(good), die_usd=plain(usd))


def dies_usd(a: Accelerator, area_mm2: Floats, wafer_usd: float | None = None) -> Floats:
    """Cost of the good dies of a package with ``area_mm2`` together; infinite if one is beyond the reticle. Each is
    tested before it is mounted, so that only its own defects cost it; what assembly loses has no published figure.
    ``wafer_usd`` is that of the compute dies."""
    share, stacked = die_area(a).of_io_dies, np.asarray(a.num_io_dies)
    compute = np.asarray(area_mm2) * (1 - share) / a.num_dies
    usd: Floats = a.num_dies * die_cost(compute, a.node_nm, wafer_usd).die_usd
    if stacked.any():
        below = np.where(stacked > 0, np.asarray(area_mm2) * share / np.maximum(stacked, 1), 1.0)
        usd = plain(usd + np.where(stacked > 0, stacked * die_cost(below, a.io_node_nm or a.node_nm).die_usd, 0.0))
    return usd


INTERPOSER_WAFER_USD = 12_000.0
"""Price of a processed CoWoS-S wafer, which carries 28 packages of H100 or H200 (okx.com, post 64639582664800,
2026, read 2026-11-23). Uncertain by a factor of two: 300 to 2,000 USD a package (siliconanalysts.com, 2026)."""
H100_PACKAGES = 28
STACK_MM2 = 7.75 * 11.87
"""Footprint of an HBM2 stack (as in ``buildable``)."""
H100_SILICON_MM2 = 814 + 6 * STACK_MM2
"""Area on one such package: the die (NVIDIA H100 whitepaper, 2022) and six stack sites."""
PACKAGE_USD_PER_MM2 = INTERPOSER_WAFER_USD / H100_PACKAGES / H100_SILICON_MM2
"""0.31 USD per mm2 of die and stacks: the interposer area is proportional to what it carries."""
USD_PER_KWH = 0.0806
"""Mean US industrial price in 2023: EIA, by Statista (published 18 March 2024)."""
YEARS = 4.0
"""Assumption: how long a training chip is in use."""
PUE = 1.56
"""Data center power over the power of its computers: mean of Uptime Institute's survey of 2024 (recalled); the largest
operators report 1.1."""
HOURS_PER_YEAR = 8766.0


def package_usd(die_mm2: Floats, num_stacks: Floats) -> Floats:
    """Interposer and assembly of a die with its stacks [USD]."""
    return PACKAGE_USD_PER_MM2 * (die_mm2 + STACK_MM2 * num_stacks)


def electricity_usd(power_w: Floats, years: float = YEARS, usd_per_kwh: float = USD_PER_KWH) -> Floats:
    """Electricity of a device that always draws ``power_w``, including data center overhead [USD].

    >>> round(electricity_usd(700.0))
    3086
    """
    return power_w * (PUE * HOURS_PER_YEAR * years * usd_per_kwh / 1000)


SWITCH_PORTS, PORT_BYTES_PER_S = 64, 50 * GIGA
"""NVIDIA Quantum-2 QM9700, 2022: 64 ports of 400 Gbit/s."""
SWITCH_USD, CABLE_USD = 36_000.0, 1_280.0
"""Such a switch (FS.com; NVIDIA's own about 50,000), and a link's cable with its connectors: 2,621,440 USD for the
2,048 links of 1,024 H100s (E. Cheah, H100 Freakonomics, sheet of August 2024, read 2026-12-01)."""
SWITCH_W = 1720.0
"""Most that it draws, with the connectors in its ports (datasheet of QM9700, recalled)."""


def network_beyond(a: Accelerator, num_devices: int) -> tuple[Floats, Floats]:
    """Price [USD] and power [W] of one device's share of switches and cables beyond its links: a fat tree of full
    bandwidth that joins all devices, in as many tiers as its ports need. Adapters are the chip's own links.

    >>> from dataclasses import replace
    >>> from sartor.hardware.accelerator_catalog import load_accelerator
    >>> nodes = {"scale_up_devices": 8, "scale_out_bytes_per_s": 50e9}
    >>> network_beyond(replace(load_accelerator("h100_like"), **nodes), 1024)
    (4247.5, 80.625)
    """
    ports = np.ceil(np.asarray(a.scale_out_bytes_per_s) / PORT_BYTES_PER_S)
    joined = (np.asarray(a.scale_up_devices) > 0) & (num_devices > np.asarray(a.scale_up_devices))
    down = SWITCH_PORTS / 2  # and as many ports up, but in the last tier
    tiers = np.maximum(np.ceil(np.log(np.maximum(ports * num_devices, 1) / 2) / np.log(down) - 1e-9), 1)
    switches = ports * (2 * tiers - 1) / SWITCH_PORTS
    usd = np.where(joined, switches * SWITCH_USD + ports * tiers * CABLE_USD, 0.0)
    return plain(usd), plain(np.where(joined, switches * SWITCH_W, 0.0))


MAX_CLOCK_HZ = 3.5 * GIGA
"""A quarter above the fastest accelerators of the catalogue: Trainium and Inferentia2 at 2.8 GHz (AWS Neuron
documentation). Single processor cores reach 6.2 GHz (Intel Core i9-14900KS, March 2024, recalled), not arrays."""
MAX_PACKAGE_W = 1400.0
"""Highest power in one package: GB300 and MI355X (NVIDIA and AMD datasheets, 2025). Counts all parts at peak rate."""
MAX_W_PER_MM2 = 2.0
"""Power density of the die, without memory. H100 has 0.86 (700 W on 814 mm2). Channels in the silicon cooled 7.9 in a
laboratory (Tuckerman and Pease, 1981, recalled)."""
HOT_W_PER_MM2 = 0.86
"""H100: 700 W on 814 mm2 (NVIDIA whitepaper, 2022); a chip above this needs unusual cooling."""
STACK_EDGE_MM = {Memory.HBM2: 7.75, Memory.HBM2E: 10.3, Memory.HBM3: 10.5, Memory.HBM3E: 10.5, Memory.HBM4: 11.0}
"""Die edge of a stack: HBM2's short side, 7.75 mm x 11.87 mm (JEDEC; P100's photograph 7.53); three stacks stand on an
edge of 31 mm of A100 and 32 mm of H100; HBM4 is secondary (11 to 12.8). LPDDR packages need none here."""
MAX_PACKAGE_MM2 = 4700.0
"""Dies and stacks side by side on one interposer: CoWoS-L of 2025, 5.5 reticles (TSMC's roadmap). B200's is 2,739."""
STACK_DEPTH_MM = 11.0
"""Depth of a stack on it: HBM3's 11 x 11 (Chip Scale Review, 2023; HBM2: 11.9)."""
DIE_TO_DIE_BYTES_PER_S_PER_MM = 1317 * GIGA / 2
"""Highest bandwidth of links between dies, one direction per mm of edge: UCIe in an advanced package, 25 um bumps (Das
Sharma, Hot Interconnects 2025). B200 has about 190."""
RETICLE_MM = 33.0
"""Longest edge of a die, and at most twice the other. Stacks stand on the two long edges alone (A100, H100, TPU v4):
links and the host take the others."""
LINK_BYTES_PER_S_PER_MM = 60 * GIGA
"""Highest bandwidth of long-reach serial links, one direction per mm of die edge: a single-die switch of 51.2 Tb/s
(Broadcom Tomahawk 5, August 2022, recalled) has 6.4 TB/s on a die of at most 858 mm2, 55 GB/s. H100 has 4."""
EDGE_OF_ROOT = 3 * 2**0.5
"""Perimeter of a die twice as long as wide, over the root of its area: the longest edge assumed."""
WORDS = {
    "clock": "clock_mhz={needs:,.0f}: no array has shipped above 2,800 MHz; at most {most:,.0f} is taken as possible",
    "die": "a whole die of {needs:,.0f} mm2{dies} at {node} nm with links and control: scanners expose "
    f"{RETICLE_MM2:.0f} mm2{{sure}}",
    "stacks": "{where} need {needs:,.0f} mm for stacks: the two long edges of a die of {die:,.0f} mm2 have {most:,.0f}",
    "edge": "{where} need {needs:,.0f} mm of die edge; a die of {die:,.0f} mm2 has at most {most:,.0f} mm",
    "power": "{needs:,.0f} W with all parts at peak rate: the most in one package is {most:,.0f} W (GB300, 2025)",
    "cooling": "{needs:.3g} W/mm2 on the die: cold plates take about {most:.3g}",
    "package": "dies and stacks of {needs:,.0f} mm2: an interposer carries {most:,.0f}",
}


def _limits(a: Accelerator, *, surely: bool = False) -> dict[str, tuple[Floats, Floats]]:
    """What a chip needs and the maximum, by limit; both broadcast over candidates."""
    area, watts, stacked = die_area(a), power(a), a.stacked
    dies = np.where(stacked, a.num_io_dies, a.num_dies)  # those with interfaces on their edges
    die = np.where(stacked, area.io_mm2, area.compute_mm2) / dies
    flat = np.maximum(area.compute_mm2, area.io_mm2)
    stacks = np.asarray(a.num_stacks) * STACK_EDGE_MM.get(a.memory, 0.0)
    links = (a.network_bytes_per_s + a.scale_out_bytes_per_s) / LINK_BYTES_PER_S_PER_MM
    beside = _between_dies_bytes_per_s(a)
    return {
        "clock": (np.asarray(a.clock_hz) / MEGA, MAX_CLOCK_HZ / MEGA),
        "die": (_largest_die_mm2(a), RETICLE_MM2 * (math.exp(-silicon()["spread"]) if surely else 1.0)),
        "stacks": (stacks, 2 * np.minimum(np.sqrt(2 * die), RETICLE_MM) * dies),
        "edge": (stacks + links + beside / DIE_TO_DIE_BYTES_PER_S_PER_MM, EDGE_OF_ROOT * np.sqrt(die) * dies),
        "power": (watts.tdp_w, MAX_PACKAGE_W),
        "cooling": ((watts.tdp_w - np.asarray(watts.memory_w)) / flat, MAX_W_PER_MM2),
        "package": (flat + stacks * STACK_DEPTH_MM, MAX_PACKAGE_MM2),
    }


def _largest_die_mm2(a: Accelerator) -> Floats:
    """The largest die of the package, compute or I/O [mm2]."""
    area = die_area(a)
    return np.maximum(area.compute_mm2 / a.num_dies, area.io_mm2 / np.maximum(a.num_io_dies, 1))


def fits_reticle(a: Accelerator) -> float:
    """Probability that a die is no larger than the reticle, given how far real dies are from the model of area."""
    margin = math.log(RETICLE_MM2 / float(_largest_die_mm2(a)))
    return 0.5 * (1 + math.erf(margin / silicon()["spread"] / math.sqrt(2)))


def too_dense(a: Accelerator) -> str:
    """A clause if a chip has more 16-bit peak per mm2 of compute die than any real one of its node; else empty."""
    row = silicon()["densest"].get(str(a.node_nm))
    density = float(a.peak_flops_per_s / die_area(a).compute_mm2) / TERA
    if row is None or density <= row["tflops_per_mm2"]:
        return ""
    real = f"{row['name']}, the densest real chip of {a.node_nm} nm"
    return f"with {density / row['tflops_per_mm2']:.3g}x the TFLOP/s per mm2 of {real}"


def too_hot(a: Accelerator) -> str:
    """A sentence if a chip can be built but is hotter than ``HOT_W_PER_MM2``; else empty."""
    density = float(_limits(a)["cooling"][0])
    if not HOT_W_PER_MM2 < density <= MAX_W_PER_MM2:
        return ""
    return (
        f"{100 * density:.0f} W/cm2 on the die with all parts at peak rate: H100 has "
        f"{100 * HOT_W_PER_MM2:.0f}, so it needs better cooling"
    )


def excess(a: Accelerator, *, surely: bool = False) -> Floats:
    """The largest ratio of need to maximum over all limits: above 1 the chip cannot be built.

    ``surely``: the die must fit even if it is larger than predicted by the typical error of the model of area, as the
    best of many chips tends to be one whose area the model understates.
    """
    limits = _limits(a, surely=surely).values()
    shares = (np.broadcast_to(np.divide(needs, limit), a.shape) for needs, limit in limits)
    largest_share: Floats = np.maximum.reduce(list(shares))
    return largest_share


def faults(a: Accelerator, *, surely: bool = False) -> Iterator[str]:
    """Why a chip cannot be built: a sentence for each limit it exceeds, with both numbers."""
    needs_and_limits = _limits(a, surely=surely)
    die, stacked = float(needs_and_limits["die"][0]), a.num_io_dies
    joined = f"{a.num_stacks} stacks of {a.memory.value} and {a.num_links} links of {a.link_bytes_per_s / GIGA:g} GB/s"
    joined += f" and {a.scale_out_bytes_per_s / GIGA:g} GB/s beyond" if a.scale_out_bytes_per_s else ""
    for name, (needs, limit) in needs_and_limits.items():
        if float(needs) > float(limit):
            several = f" (each of {a.num_dies})" if a.num_dies > 1 else ""
            dies = f" (the largest of {a.num_dies + stacked})" if stacked else several
            sure = f" ({fits_reticle(a):.0%} sure to fit; a search asks for 84%)" if surely else ""
            words = {"needs": float(needs), "most": float(limit), "die": die, "dies": dies, "sure": sure}
            yield WORDS[name].format(**words, where=joined, node=a.node_nm)
