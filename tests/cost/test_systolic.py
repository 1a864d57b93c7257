"""Products on the accelerator template: laws, hand-derived values, a simulation by cycles, an outside simulator."""

from __future__ import annotations

import csv
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerators import TPU, accelerators, products
from sartor.cost.chip.systolic import (
    Product,
    _Chip,
    _ends,
    _from_memory,
    _held_bytes,
    _on_cores,
    _passes,
    _Problem,
    product_alternatives,
    product_cost,
    product_of,
    product_time_s,
)
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator, Dataflow
from sartor.operators import DType, Gemm, GroupedGemm, Pass

GOLDEN = Path(__file__).parents[1] / "golden" / "simulated_products.csv"
CUBE = Product(m=4096, n=4096, k=4096)


# ------------------------------------------------------------------------------------------------------------- laws


@given(products(), accelerators())
def test_no_product_is_faster_than_the_roofline(product: Product, a: Accelerator) -> None:
    time = product_time_s(product, a)
    assert np.isfinite(time)
    assert time >= 2 * product.macs / a.peak_flops_per_s
    assert time >= product.least_bytes / a.hbm_bytes_per_s * (1 - 1e-12)


@given(products(), accelerators(), st.integers(1, 100))
def test_more_cores_are_never_slower(product: Product, a: Accelerator, more: int) -> None:
    assert product_time_s(product, replace(a, num_tensor_cores=a.num_tensor_cores + more)) <= product_time_s(product, a)
    assert product_time_s(product, replace(a, num_vector_cores=a.num_vector_cores + more)) <= product_time_s(product, a)


@given(products(), accelerators(), st.integers(1, 1 << 22))
def test_larger_buffers_are_never_slower(product: Product, a: Accelerator, more: int) -> None:
    before = product_time_s(product, a)
    assert product_time_s(product, replace(a, global_buffer_bytes=a.global_buffer_bytes + more)) <= before
    assert product_time_s(product, replace(a, tensor_core_sram_bytes=a.tensor_core_sram_bytes + more)) <= before


@given(products(), accelerators(), st.floats(1, 20))
def test_more_bandwidth_is_never_slower(product: Product, a: Accelerator, factor: float) -> None:
    before = product_time_s(product, a)
    assert product_time_s(product, replace(a, stack_bytes_per_s=a.stack_bytes_per_s * factor)) <= before
    assert product_time_s(product, replace(a, bank_bytes_per_cycle=a.bank_bytes_per_cycle * factor)) <= before
    assert product_time_s(product, replace(a, num_stacks=a.num_stacks + 1)) <= before


@given(products(), accelerators(), st.sampled_from(("m", "n", "k", "batch")), st.integers(1, 3000))
def test_a_larger_product_is_never_faster(product: Product, a: Accelerator, side: str, more: int) -> None:
    larger = replace(product, **{side: getattr(product, side) + more})
    assert product_time_s(larger, a) >= product_time_s(product, a)


@given(products(), accelerators())
def test_four_times_every_rate_takes_a_quarter_of_the_time(product: Product, a: Accelerator) -> None:
    names = ("clock_hz", "stack_bytes_per_s", "die_to_die_bytes_per_s")
    faster = replace(a, **{name: 4 * getattr(a, name) for name in names})
    assert product_time_s(product, faster) == product_time_s(product, a) / 4


@settings(max_examples=25)
@given(st.lists(st.tuples(products(), accelerators()), min_size=2, max_size=6))
def test_an_entry_of_arrays_equals_the_call_with_numbers(pairs: list[tuple[Product, Accelerator]]) -> None:
    pairs = [(p, replace(a, dataflow=pairs[0][1].dataflow)) for p, a in pairs]
    together = product_cost(_stack(Product, [p for p, _ in pairs]), _stack(Accelerator, [a for _, a in pairs]))
    for i, (product, a) in enumerate(pairs):
        alone = product_cost(product, a)
        for name in ("time_s", "compute_s", "memory_s", "memory_bytes", "buffer_bytes", "tile_m", "utilization"):
            assert getattr(together, name)[i] == getattr(alone, name), name


@given(products(), accelerators())
def test_the_told_mapping_is_the_one_that_was_priced(product: Product, a: Accelerator) -> None:
    cost = product_cost(product, a)
    assert cost.time_s == product_time_s(product, a)
    assert cost.time_s >= max(cost.compute_s, cost.memory_s, cost.epilogue_s) * (1 - 1e-12)
    assert cost.memory_bytes >= product.least_bytes * (1 - 1e-12)
    assert 0 < cost.utilization <= 1


@given(products(), accelerators())
def test_input_stationary_is_weight_stationary_of_the_transpose(product: Product, a: Accelerator) -> None:
    product = replace(product, epilogue_cycles=0.0)
    turned = replace(product, m=product.n, n=product.m)
    weights = product_cost(product, replace(a, dataflow=Dataflow.WEIGHT_STATIONARY, array_cols=a.array_rows))
    inputs = product_cost(turned, replace(a, dataflow=Dataflow.INPUT_STATIONARY, array_cols=a.array_rows))
    assert weights.time_s == pytest.approx(inputs.time_s, rel=1e-12)
    assert (weights.tile_m, weights.tile_n) == (inputs.tile_n, inputs.tile_m)


# ------------------------------------------------------------------------------------------------------ hand-derived


def test_a_cube_on_eight_cores_by_hand() -> None:
    """4096^3, eight 128 x 128 arrays, weight-stationary, 256 KiB private. A core tile of 128 x 256 holds 128 KiB of
    sums and a strip of 2 x 2 x 128 x 128 = 64 KiB of A. 32 x 16 = 512 tiles over 8 cores: 64 waves. Each tile: k in 32
    blocks of 128, n in 2: 64 passes of 128 rows. 64 x 64 x 128 = 524288 cycles, and 2 x 128 + 128 - 2 = 382 to fill and
    drain. Moved to a tile: 2 x 4096 x (128 + 256) + 2 x 128 x 256 = 3211264 bytes, at 512 a cycle 6272 cycles, 64 waves
    401408. Memory: 3 x 32 MiB. The first 128 x (128 + 128) operands arrive in 65536 / 1228.8e9 s.
    Private buffers: 512 tiles of 64 passes of (128 x 128 + 128 x 128) x 2 bytes, and their sums read and written in 32
    steps."""
    cost = product_cost(CUBE, TPU)
    assert (cost.tile_m, cost.tile_n, cost.split_k) == (128, 256, 1)
    assert cost.compute_s * 1.05e9 == pytest.approx(524288 + 382, rel=1e-12)
    assert cost.buffer_s * 1.05e9 == pytest.approx(401408, rel=1e-12)
    assert cost.memory_s == pytest.approx(3 * 2**25 / 1228.8e9, rel=1e-12)
    assert cost.time_s == pytest.approx((524288 + 382) / 1.05e9 + 65536 / 1228.8e9, rel=1e-12)
    assert (cost.waves, cost.tile_efficiency, cost.wave_efficiency, cost.epilogue_s) == (64, 1, 1, 0)
    assert cost.core_sram_bytes == 512 * 64 * 65536 + 2 * 4 * 512 * 128 * 256 * 32
    assert cost.memory_bytes == pytest.approx(3 * 2**25, rel=1e-12)
    assert cost.utilization == pytest.approx(2**36 / (8 * 128 * 128 * 1.05e9 * cost.time_s), rel=1e-12)


def test_one_token_is_bound_by_loading_weights() -> None:
    """1 x 4096 x 4096: a tile is 1 x 1024 (8 arrays wide); 32 x 8 = 256 passes of 128 cycles each to load 128 x 128
    weights for one row. Four tiles on eight cores leave four idle, so k is split in 4: 16 tiles, 2 waves of 64 passes.
    But memory has 32 MiB of weights to bring: 27.3 us at 1228.8 GB/s, and that is the time."""
    cost = product_cost(Product(m=1, n=4096, k=4096), TPU)
    assert cost.memory_s == pytest.approx(2 * (4096 * 4096 + 2 * 4096) / 1228.8e9, rel=1e-12)
    assert cost.memory_s <= cost.time_s < 1.6 * cost.memory_s
    assert cost.compute_s < cost.time_s


def test_a_narrow_bus_binds_by_least_traffic() -> None:
    """512^3 fits the 1 MiB buffer as panels; each operand once: 3 x 512 KiB at 4 bytes a cycle = 393216 cycles."""
    a = _one_core(32, 32, core=16384, buffer=2**20, memory_bytes_per_cycle=4)
    cost = product_cost(Product(m=512, n=512, k=512), a)
    assert cost.memory_s * a.clock_hz == pytest.approx(393216, rel=1e-12)
    assert cost.time_s * a.clock_hz == pytest.approx(393216 + 2 * 64 * 32 / 4, rel=1e-12)


def test_split_contractions_pay_for_their_sums() -> None:
    """128 x 128 x 65536 is one tile. Split in 16, eight cores take two waves of 4096 / 128 = 32 passes of 128 cycles:
    8192, and 382 to fill and drain. The sums: 16 fp32 partials and one bf16 result of 16384 elements, 66 bytes each, at
    eight ports of 512 bytes a cycle: 264 cycles (their 15 x 16384 additions on 8 x 128 columns take 240)."""
    cost = product_cost(Product(m=128, n=128, k=65536), replace(TPU, stack_bytes_per_s=1e15))
    assert cost.split_k == 16
    assert cost.compute_s * 1.05e9 == pytest.approx(8192 + 382 + 264, rel=1e-12)


def test_an_epilogue_runs_beside_the_product() -> None:
    slow = replace(CUBE, epilogue_cycles=22.0)
    lanes = 2 * 128 * 1.05e9
    tail = 128 * 128 * 22 / lanes
    plain = product_cost(CUBE, TPU).time_s
    first = 65536 / 1228.8e9
    assert product_time_s(slow, TPU) == pytest.approx(max(plain - first, 4096**2 * 22 / lanes) + tail + first)
    many_lanes = replace(TPU, num_vector_cores=2000)
    assert product_time_s(slow, many_lanes) == pytest.approx(plain, rel=1e-3)


def product_of_one(**changes: float) -> _Problem:
    sizes = {"m": 3, "n": 20, "k": 31, "batch": 5, "e": 2, "o": 3, "epilogue_cycles": 6, "epilogue_bytes": 1}
    sizes |= {"most_macs": np.inf, **changes}
    return _Problem(**{name: np.array([float(value)]) for name, value in sizes.items()})


def chip_of_one(**changes: float) -> _Chip:
    """Three cores of 4 x 8 at 4 Hz, of which half is sustained."""
    sizes = {
        "cores": 3, "rows": 4, "cols": 8, "sram": 240, "buffer": 576, "clock": 4, "port": 100, "buffer_rate": 200,
        "memory_rate": 11, "lanes": 10, "accumulator": 4, "sustained": 0.5,
        "exchange": np.inf,
    }  # fmt: skip
    return _Chip(**{name: np.array([float(value)]) for name, value in (sizes | changes).items()})


def on_cores(
    chip: _Chip, height: float, width: float, split: float, spilled: float, flow: Dataflow = Dataflow.WEIGHT_STATIONARY
) -> dict[str, float]:
    tile = tuple(np.array([value]) for value in (height, width, split, spilled))
    costs = _on_cores(product_of_one(), chip, flow, tile, np.array([2.0]))
    return {field.name: float(getattr(costs, field.name)[0]) for field in fields(costs)}


@pytest.mark.parametrize(
    ("port", "buffer_rate", "buffer_s", "sums_s"),
    [(100, 200, 19840 / 200, 5700 / 200), (100, 1000, 18 * 496 / 100, 5700 / 300), (1000, 1000, 19840 / 1000, 38 / 4)],
)
def test_core_tiles_of_a_split_contraction_by_hand(
    port: float, buffer_rate: float, buffer_s: float, sums_s: float
) -> None:
    """Five products 3 x 20 x 31, two at a time, in tiles of 4 x 16 with k in four parts of 8.

    Tiles: 1 x 2 x 4 = 8; rounds: 3 of products x ceil(2 x 8/3) = 6. Passes: 2 of k x 2 of n, 4 cycles to load for 3
    rows that stream: 16 cycles a tile; 18 x 16 = 288, and 2 x 4 + 8 - 2 - 1 = 13 to fill, at 2 a second: 150.5 s.
    Bytes of a tile: 2 x 8 x (3 + 16) + 3 x 16 x 4 = 496, of all 5 x 8: 19,840. Sums: 5 x 3 x 20 elements of 4 x 4 + 3
    bytes are 5,700; 3 additions each, 24 a cycle: 38 cycles. Private buffers: 40 tiles x 4 passes x (3 x 4 + 4 x 8) x
    2 bytes = 14,080, and sums read and written in 2 steps: 2 x 4 x 40 x 48 x 2 = 30,720.
    """
    chip = chip_of_one(port=port, buffer_rate=buffer_rate)
    cost = on_cores(chip, 4, 16, 4, 0)
    assert (cost["tiles"], cost["waves"], cost["tile_cycles"]) == (8, 18, 16)
    assert cost["compute_s"] == pytest.approx(150.5 + sums_s, rel=1e-12)
    assert cost["buffer_s"] == pytest.approx(buffer_s, rel=1e-12)
    assert cost["time_s"] == pytest.approx(150.5 + sums_s, rel=1e-12)
    assert (cost["buffer_bytes"], cost["sram_bytes"]) == (19_840 + 5_700, 14_080 + 30_720)
    assert on_cores(replace(chip, sram=np.array([239.0])), 4, 16, 4, 0)["time_s"] == np.inf  # 192 + 48 are held


def test_sums_in_the_global_buffer_return_for_every_step_but_one() -> None:
    """Tiles of 3 x 8, k whole: 8 steps, so 2 x 4 x 7 bytes of partial sums and 3 of the result an element. 3 tiles, 3 x
    ceil(2 x 3/3) = 6 rounds. Where outputs stay in the array there are none, and tiles of 8 x 16 (3 x 16 of it there)
    take 2 passes of 31."""
    cost = on_cores(chip_of_one(), 4, 8, 1, 1)
    assert cost["buffer_bytes"] == 5 * 3 * (2 * 31 * (3 + 8) + 24 * (56 + 3))
    assert (cost["waves"], cost["tile_cycles"]) == (6, 8 * 4)
    stay = on_cores(chip_of_one(), 8, 16, 1, 1, Dataflow.OUTPUT_STATIONARY)
    assert stay["buffer_bytes"] == 5 * 2 * (2 * 31 * (3 + 16) + 48 * 3)
    assert stay["tile_cycles"] == 2 * 31


def test_passes_cover_a_tile() -> None:
    sizes = [np.array([float(value)]) for value in (31, 9, 20)]
    assert [float(x[0]) for x in _passes(Dataflow.WEIGHT_STATIONARY, chip_of_one(), *sizes)] == [8 * 3, 9]
    assert [float(x[0]) for x in _passes(Dataflow.OUTPUT_STATIONARY, chip_of_one(), *sizes)] == [3 * 3, 31]


@pytest.mark.parametrize(
    ("flow", "tall", "wide", "spilled", "bytes_held"),
    [
        (Dataflow.OUTPUT_STATIONARY, 4, 8, 0, 0),  # stays in the array
        (Dataflow.OUTPUT_STATIONARY, 4, 9, 0, 4 * 36 + 16 * 13),
        (Dataflow.OUTPUT_STATIONARY, 5, 8, 0, 4 * 40 + 16 * 13),
        (Dataflow.WEIGHT_STATIONARY, 3, 8, 0, 4 * 24 + 16),  # one strip element a row
        (Dataflow.WEIGHT_STATIONARY, 3, 9, 0, 4 * 27 + 16 * 3),
        (Dataflow.WEIGHT_STATIONARY, 3, 8, 1, 0),
        (Dataflow.WEIGHT_STATIONARY, 3, 9, 1, np.inf),
    ],
)
def test_a_private_buffer_holds_sums_and_two_strips_of_operands(
    flow: Dataflow, tall: float, wide: float, spilled: float, bytes_held: float
) -> None:
    sizes = [np.array([float(value)]) for value in (31, tall, wide, spilled)]
    assert _held_bytes(product_of_one(), flow, chip_of_one(), *sizes) == bytes_held


def test_ends_are_the_first_operands_and_the_last_tile_of_the_epilogue() -> None:
    """300 elements of 6 cycles on 10 lanes at 4 Hz: 45 s, the last 32 4.8 s; 2 x (3 + 8) x 4 bytes at 11: 8 s."""
    assert _ends(product_of_one(), chip_of_one(), np.array([40.0])) == pytest.approx(45 + 4.8 + 8, rel=1e-12)
    assert _ends(product_of_one(), chip_of_one(), np.array([50.0])) == pytest.approx(50 + 4.8 + 8, rel=1e-12)


def test_traffic_of_panels_and_blocks_in_half_a_buffer() -> None:
    """Three products 6 x 10 x 16, two at a time: A has 576 bytes, B 960, C 720. Half of 288 bytes each: panels of 144 /
    32 = 4 rows; blocks of 6 x 6 sums and their aspects: 1 x 48, 1 x 24, 3 x 12, 6 x 6, 12 x 3, 24 x 1, 48 x 1. A strip
    has 36 elements for min(h, 6) + min(w, 10) lines; sums (720 bytes) move twice for every strip after the first."""
    p = product_of_one(m=6, n=10, k=16, batch=3)
    memory_s, spill_s = _from_memory(p, chip_of_one(memory_rate=3, buffer_rate=7), np.array([2.0]))
    panels = [576 + 2 * 960 + 720, 3 * 576 + 960 + 720]
    blocks = [576 + 6 * 960, 576 + 6 * 960, 576 + 2 * 960, 2 * 576 + 960, 4 * 576 + 960, 10 * 576 + 960, 10 * 576 + 960]
    assert memory_s[0] * 3 == pytest.approx([*panels, *(block + 720 for block in blocks)], rel=1e-12)
    strips = [36 // lines for lines in (11, 11, 13, 12, 9, 7, 7)]  # 3, 3, 2, 3, 4, 5, 5
    again = [5, 5, 7, 5, 3, 3, 3]
    assert strips == [3, 3, 2, 3, 4, 5, 5]
    assert spill_s[0] * 7 == pytest.approx([0, 0, *(1440 * strip for strip in again)], rel=1e-12)


def test_a_long_product_in_a_small_buffer_by_hand() -> None:
    """6 x 10 x 100 on one core of 4 x 4, 288 bytes of buffer: no panel fits. Blocks of 24 x 1: 10 x 1200 + 2000 + 120 =
    14,120 bytes at 100 a cycle; strips of 5, so 19 x 480 = 9,120 bytes of sums at 10: 912 cycles beside the core's 460
    (25 x 3 passes of 6, 10 to fill). Then 8 cycles of the last 16 elements on 4 lanes, and 64 bytes first.

    The tile moves 200 x 16 + 120 = 3,320 bytes. Private buffer: 75 x (6 x 4 + 16) x 2 = 6,000 bytes and 2 x 4 x 60 x 25
    of sums. Of 450 x 16 slots 6,000 do work."""
    chip = Accelerator(
        num_tensor_cores=1, array_rows=4, array_cols=4, num_vector_cores=2, vector_lanes=2, clock_hz=1e9, num_stacks=1,
        tensor_core_sram_bytes=1024, vector_core_sram_bytes=1024, global_buffer_bytes=288, stack_bytes_per_s=100e9,
        bank_bytes_per_cycle=10.0,
    )  # fmt: skip
    cost = product_cost(Product(m=6, n=10, k=100, epilogue_cycles=2.0), chip)
    assert (cost.tile_m, cost.tile_n, cost.split_k, cost.waves) == (6, 10, 1, 1)
    cycles = [second * 1e9 for second in (cost.compute_s, cost.buffer_s, cost.memory_s, cost.epilogue_s, cost.time_s)]
    assert cycles == pytest.approx([460, 332 + 912, 141.2, 30, 460 + 912 + 8 + 0.64], rel=1e-12)
    bytes_moved = (cost.core_sram_bytes, cost.buffer_bytes, cost.memory_bytes)
    assert bytes_moved == pytest.approx((18_000, 3_320 + 9_120, 14_120), rel=1e-12)
    assert cost.utilization == pytest.approx(6000 / (16 * 1380.64), rel=1e-12)
    assert (cost.tile_efficiency, cost.wave_efficiency) == pytest.approx((6000 / 7200, 1), rel=1e-12)


def test_bytes_and_multiplications_of_a_product() -> None:
    """Twice: operands 2 x (3 x 7 + 7 x 5) bytes, 15 results of 3 + 1 bytes."""
    product = Product(m=3, n=5, k=7, batch=2, operand_bytes=2.0, output_bytes=3.0, epilogue_bytes=1.0)
    assert (product.macs, product.least_bytes) == (210, 344)


@pytest.mark.parametrize(
    ("dtype", "k", "operand_bytes"), [(DType.BF16, 1001, 2), (DType.FP8, 501, 2), (DType.NVFP4, 251, 2.25)]
)
def test_packed_operands_fill_those_of_16_bits(dtype: DType, k: int, operand_bytes: float) -> None:
    """Four of nvfp4 have a quarter of the byte that scales sixteen."""
    packed = product_of(Gemm(name="packed", m=8, n=8, k=1001, dtype=dtype), replace(TPU, packed_dtype=DType.NVFP4))
    assert (packed.k, packed.operand_bytes) == (k, operand_bytes)


def test_alternatives_are_eight_heights_four_widths_and_four_splits() -> None:
    roomy = replace(TPU, tensor_core_sram_bytes=2**40)
    assert len(product_alternatives(Product(m=2**15, n=2**12, k=2**12), roomy)) == 8 * 4 * 4


def test_of_equally_fast_ways_a_batch_takes_one_product_at_a_time() -> None:
    """Eight products that memory bounds whether one or all of them share the buffer."""
    slow = replace(TPU, stack_bytes_per_s=1e9)
    assert product_cost(Product(m=512, n=512, k=512, batch=8), slow).concurrent == 1


# ----------------------------------------------------------------------------------------------- simulated by others


def test_against_an_outside_simulator() -> None:
    """zigzag-dse searches mappings with a model of its own; the two agree within 2%, at the median within 1%."""
    lines = [line for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    errors = []
    for row in csv.DictReader(lines):
        v = {key: int(value) for key, value in row.items()}
        a = _one_core(v["array_rows"], v["array_cols"], v["core_bytes"], v["buffer_bytes"], v["memory_bytes_per_cycle"])
        ours = product_time_s(Product(m=v["m"], n=v["n"], k=v["k"]), a) * a.clock_hz
        assert ours >= v["ideal_cycles"]
        errors.append(ours / v["cycles"] - 1)
    assert max(errors) < 0.01
    assert min(errors) > -0.02
    assert np.median(np.abs(errors)) < 0.01


@pytest.mark.parametrize(
    ("rows", "cols", "m", "n", "k"),
    [(4, 4, 4, 4, 4), (4, 4, 12, 8, 16), (8, 4, 20, 9, 30), (4, 8, 3, 16, 8), (2, 16, 7, 33, 5), (8, 8, 1, 1, 1)],
)
def test_array_cycles_equal_a_simulation_of_every_element(rows: int, cols: int, m: int, n: int, k: int) -> None:
    a = _one_core(rows, cols, core=2**22, buffer=2**24, memory_bytes_per_cycle=2**20)
    rng = np.random.default_rng(0)
    left, right = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n))
    product, cycles = simulate_weight_stationary(left, right, rows, cols)
    assert (product == left @ right).all()
    cost = product_cost(Product(m=m, n=n, k=k), a)
    assert cost.compute_s * a.clock_hz == pytest.approx(cycles, rel=1e-12)


def simulate_weight_stationary(left: Any, right: Any, rows: int, cols: int) -> tuple[Any, int]:
    """Element by element, cycle by cycle: weights enter a row a cycle into shadow registers, inputs move right, sums
    move down; a pass starts when its weights are in and the last pass's inputs are in. Returns product, cycles."""
    (m, k), n = left.shape, right.shape[1]
    blocks = [(i, j) for j in range(0, n, cols) for i in range(0, k, rows)]
    result = np.zeros((m, n), dtype=np.int64)
    shadow_rows, loading = 0, 0
    current, row_in_pass = -1, m
    moving: list[tuple[int, int, int, int]] = []  # (pass, input row, cycle it entered) as wavefronts; sums apart
    sums: dict[tuple[int, int, int], int] = {}
    cycle, done, total = 0, 0, len(blocks) * m * cols
    while done < total:
        if row_in_pass >= m and loading < len(blocks) and shadow_rows == rows:
            current, row_in_pass, loading, shadow_rows = loading, 0, loading + 1, 0
        if current >= 0 and row_in_pass < m:
            moving.append((current, row_in_pass, cycle, 0))
            row_in_pass += 1
        if loading < len(blocks) and shadow_rows < rows:
            shadow_rows += 1
        still = []
        for number, x, entered, _ in moving:
            i, j = blocks[number]
            step = cycle - entered  # elements on the anti-diagonal r + c == step are busy with this input row
            for r in range(max(0, step - cols + 1), min(rows, step + 1)):
                c = step - r
                weight = right[i + r, j + c] if i + r < k and j + c < n else 0
                value = left[x, i + r] if i + r < k else 0
                key = (number, x, c)
                sums[key] = sums.get(key, 0) + int(value * weight)
                if r == rows - 1:
                    done += 1
                    total_sum = sums.pop(key)
                    if j + c < n:
                        result[x, j + c] += total_sum
            if step < rows + cols - 2:
                still.append((number, x, entered, 0))
        moving = still
        cycle += 1
    return result, cycle


# -------------------------------------------------------------------------------------------------- from operators


def test_eight_cores_reach_six_times_one_on_a_cube() -> None:
    """The published estimator says equal (reference/phaze.md sec. 4); here the port of each core carries its share."""
    one = replace(TPU, num_tensor_cores=1)
    for flow in Dataflow:
        pair = [replace(a, dataflow=flow) for a in (one, TPU)]
        assert product_time_s(CUBE, pair[0]) / product_time_s(CUBE, pair[1]) > 7.9


def test_a_starved_buffer_stops_the_cores_from_scaling() -> None:
    starved = replace(TPU, bank_bytes_per_cycle=2.0)
    one = replace(starved, num_tensor_cores=1)
    assert product_time_s(CUBE, one) / product_time_s(CUBE, starved) < 2


def test_weight_gradients_accumulate_in_fp32() -> None:
    op = Gemm(name="w", m=256, n=256, k=512, out_dtype=DType.FP32, accumulates=True, pass_=Pass.WGRAD)
    assert product_of(op, TPU).least_bytes == op.bytes_moved


def test_grouped_products_wait_for_the_most_loaded_expert() -> None:
    even = GroupedGemm(name="e", groups=8, rows=4096, n=1024, k=512)
    assert product_of(even, TPU) == Product(m=512.0, n=1024, k=512, batch=8)
    assert product_of(replace(even, skew=1.5), TPU).m == 768
    wgrad = product_of(replace(even, pass_=Pass.WGRAD), TPU)
    assert (wgrad.m, wgrad.n, wgrad.k) == (1024, 512, 512)


def test_operands_wider_than_the_array_are_refused() -> None:
    with pytest.raises(InputError, match=r"dtype=fp32: is wider than the bf16"):
        product_of(Gemm(name="x", m=1, n=1, k=1, dtype=DType.FP32), TPU)


def _one_core(rows: int, cols: int, core: int, buffer: int, memory_bytes_per_cycle: int) -> Accelerator:
    return Accelerator(
        num_tensor_cores=1,
        array_rows=rows,
        array_cols=cols,
        num_vector_cores=1,
        vector_lanes=cols,
        tensor_core_sram_bytes=core,
        vector_core_sram_bytes=1024,
        global_buffer_bytes=buffer,
        clock_hz=1e9,
        num_stacks=1,
        stack_bytes_per_s=memory_bytes_per_cycle * 1e9,
        bank_bytes_per_cycle=1e6,
    )


def _stack(noun: Any, entries: list[Any]) -> Any:
    """One noun whose numbers are arrays over ``entries``."""
    arrays = {
        name: np.asarray([getattr(entry, name) for entry in entries])
        for name in noun.__slots__
        if isinstance(getattr(entries[0], name), int | float)
        and name not in ("node_nm", "io_node_nm", "accumulator_bytes")
    }
    return replace(entries[0], **arrays)


def test_dies_side_by_side_exchange_the_smaller_operand_or_the_sums_once() -> None:
    """Two dies of 1 GB/s: each lacks half of what all of them need, which the other sends at 1 GB/s."""
    chip = replace(TPU, num_dies=2, die_to_die_bytes_per_s=1e9)
    for m, n, k, shared in ((256, 8192, 4096, 2 * 256 * 4096), (8192, 512, 4096, 2 * 512 * 4096)):
        bound = product_time_s(Product(m=m, n=n, k=k), chip)
        assert bound == pytest.approx(shared / 2 / 1e9, rel=0.01)
    sums = product_time_s(Product(m=256, n=256, k=65536), chip)
    assert sums == pytest.approx(chip.accumulator_bytes * 256 * 256 / 2 / 1e9, rel=0.2)
    large = Product(m=8192, n=8192, k=8192)
    assert product_time_s(large, replace(chip, die_to_die_bytes_per_s=5e12)) == product_time_s(large, TPU)


def test_compute_dies_reach_a_buffer_on_io_dies_no_faster_than_their_links() -> None:
    chip = replace(TPU, num_dies=8, num_io_dies=4, die_to_die_bytes_per_s=10e9)
    assert chip.global_buffer_bytes_per_s == 80e9
    assert chip.exchanged_bytes_per_s == np.inf
    assert replace(chip, die_to_die_bytes_per_s=1e15).global_buffer_bytes_per_s == TPU.global_buffer_bytes_per_s
