"""Time of a GEMM on the accelerator template, for all candidates at once: array, core buffer, global buffer, memory.

A GEMM is cut into core tiles (tile_m x tile_n x k/split_k) that are distributed over the tensor cores. Each tile is a
number of array passes; it reads operands from the global buffer, which is filled from memory block by block. The levels
overlap (double buffering), so time is the largest of them plus filling and draining once. Tiles, blocks and splits are
chosen for the least time from menus that do not depend on the problem, so more cores, bandwidth or buffer never cost
time, and a larger GEMM never saves any. docs/concepts/systolic.md derives every term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sartor.cost.gpu.gemm import aligned_bytes
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator, Dataflow
from sartor.operators import Gemm, GroupedGemm, Pass
from sartor.units import FloatArray, Floats, Ints, ceil_div, plain

ROW_TILES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Heights of a core tile, in array rows."""
COL_TILES = (1, 2, 4, 8)
"""Widths of a core tile, in array columns."""
SPLITS_OF_K = (1, 4, 16, 64)
"""Over how many cores k can be split; the partial sums are then added."""
CONCURRENT = (1, 8, 64, 512)
"""How many GEMMs of a batch can share the chip."""
BLOCK_ASPECTS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Square root of height over width of an output block in the global buffer (aspect ratios 1/64 to 64)."""
MACS_IN_PIECES = 280.0, 525.0
"""Multiply-accumulates of a core in a cycle at most where operands arrive in pieces of less than 4 bytes, and of 4 or
8: they pass through its registers one by one, so that its arrays wait. Means of A100 (305, 516) and Hopper (254, 532)
by this package's calibration, each within 20% of the other; V100, A40 and L4 have 317, 246, 242."""
CHUNK = 512
"""Candidates priced at once, so that temporaries stay in cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """``batch`` GEMMs C[m,n] = A[m,k] B[k,n] with their epilogue. Fields broadcast.

    ``output_bytes`` per element of C are moved to (and, accumulating, from) memory. A fused epilogue takes
    ``epilogue_cycles`` of a vector lane and moves ``epilogue_bytes`` more through memory, per element of C.
    """

    m: Ints
    n: Ints
    k: Ints
    batch: Floats = 1
    operand_bytes: Floats = 2.0
    output_bytes: Floats = 2.0
    epilogue_cycles: Floats = 0.0
    epilogue_bytes: Floats = 0.0
    most_macs: Floats = np.inf
    """Multiply-accumulates that a core makes in a cycle at most, where its operands arrive in pieces."""

    @property
    def macs(self) -> Floats:
        return 1.0 * self.batch * self.m * self.n * self.k

    @property
    def least_bytes(self) -> Floats:
        """Each operand read once, the result written once."""
        operands = self.operand_bytes * (1.0 * self.m * self.k + 1.0 * self.k * self.n)
        bytes_moved: Floats = self.batch * (operands + (self.output_bytes + self.epilogue_bytes) * self.m * self.n)
        return bytes_moved


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductCost:
    """Predicted time and the mapping that achieves it. All fields have the candidates' shape."""

    time_s: Floats
    compute_s: Floats
    """Array passes of the busiest core, filling and draining once, and adding the partial sums of a split k."""
    buffer_s: Floats
    """Moving operands, results and partial sums between the global buffer and the cores."""
    memory_s: Floats
    epilogue_s: Floats
    tile_m: Floats
    tile_n: Floats
    split_k: Floats
    concurrent: Floats
    """GEMMs of the batch that share the chip."""
    core_sram_bytes: Floats
    """Bytes through the private buffers, for energy."""
    buffer_bytes: Floats
    memory_bytes: Floats
    utilization: Floats
    """Share of all multiply-accumulator cycles that do useful work."""
    waves: Floats
    """Rounds in which core tiles are distributed over the tensor cores."""
    tile_efficiency: Floats
    """Share of the array cycles in a core tile that are not padding."""
    wave_efficiency: Floats
    """Share of the tile slots in all rounds that hold a tile."""


def product_of(op: Gemm | GroupedGemm, accelerator: Accelerator) -> Product:
    """The GEMM that an operator runs on an accelerator. A grouped GEMM becomes one per expert, all of the busiest
    expert's size. Packed operands become wider operands with a shorter k. Raises ``InputError`` for operands wider than
    the arrays multiply."""
    if op.dtype.bytes > accelerator.dtype.bytes:
        must = f"is wider than the {accelerator.dtype.value} that {accelerator.name or 'the accelerator'} multiplies"
        raise InputError("dtype", op.dtype.value, must, accelerator.dtype.value)
    out = (op.out_dtype.bytes if op.out_dtype else max(op.dtype.bytes, 2.0)) * (2 if op.accumulates else 1)
    together = accelerator.packing(op.dtype)
    product = replace(_plain_product(op, out), most_macs=_most_macs(op, accelerator))
    if together == 1:
        return product
    return replace(product, k=ceil_div(product.k, together), operand_bytes=op.dtype.bytes * together)


def _most_macs(op: Gemm | GroupedGemm, a: Accelerator) -> Floats:
    """What a core multiplies in a cycle at most, by how the rows of operands and result are aligned."""
    if not a.load_bytes or isinstance(op, GroupedGemm):
        return np.inf
    aligned, (by_element, by_word) = aligned_bytes(op), MACS_IN_PIECES
    most_macs: Floats = plain(np.where(aligned >= a.load_bytes, np.inf, np.where(aligned >= 4, by_word, by_element)))
    return most_macs


def _plain_product(op: Gemm | GroupedGemm, out: Floats) -> Product:
    """The GEMM with one operand per array cell."""
    if isinstance(op, GroupedGemm):
        rows = np.maximum(np.ceil(np.asarray(op.rows * op.skew, dtype=np.float64) / op.groups), 1)
        if op.pass_ is Pass.WGRAD:
            return Product(m=op.n, n=op.k, k=rows, batch=op.groups, operand_bytes=op.dtype.bytes, output_bytes=out)
        return Product(m=rows, n=op.n, k=op.k, batch=op.groups, operand_bytes=op.dtype.bytes, output_bytes=out)
    return Product(m=op.m, n=op.n, k=op.k, batch=op.batch, operand_bytes=op.dtype.bytes, output_bytes=out)


def product_time_s(product: Product, accelerator: Accelerator) -> Floats:
    """Time of a GEMM on all cores [s]; shapes of product and accelerator broadcast."""
    time: Floats
    (time,) = _each_chunk(product, accelerator, lambda p, a, flow: (_best(p, a, flow).time_s,))
    return time


def in_turn_s(products: Sequence[Product], accelerator: Accelerator) -> Floats:
    """Time of GEMMs one after another [s], priced at once."""
    columns = [np.broadcast_arrays(*column) for column in zip(*map(_problem_arrays, products), strict=True)]
    rank = max(*(column[0].ndim for column in columns), *map(np.ndim, _chip_arrays(accelerator)))
    widened = (np.stack([x.reshape((1,) * (rank - x.ndim) + x.shape) for x in column]) for column in columns)
    together = Product(**dict(zip((field.name for field in fields(Product)), widened, strict=True)))
    seconds: Floats = np.sum(product_time_s(together, accelerator), axis=0)
    return seconds


def product_cost(product: Product, accelerator: Accelerator) -> ProductCost:
    """The same time with its terms, mapping and traffic.

    >>> tpu = Accelerator.from_template(
    ...     num_tensor_cores=8, num_vector_cores=2, width=128, depth=128, global_buffer_mib=128)
    >>> round(float(product_cost(Product(m=4096, n=4096, k=4096), tpu).utilization), 2)
    0.99
    """
    return ProductCost(**dict(zip(_COST_FIELDS, _each_chunk(product, accelerator, _details), strict=True)))


def product_alternatives(product: Product, accelerator: Accelerator) -> tuple[ProductCost, ...]:
    """Every core tile and split of one GEMM (scalar sizes, one chip) that fits the cores, fastest first."""
    menu = np.arange((1 + len(ROW_TILES)) * len(COL_TILES) * len(SPLITS_OF_K))
    sizes = [np.full(len(menu), value, dtype=np.float64) for value in _problem_arrays(product)]
    chips = [np.full(len(menu), value, dtype=np.float64) for value in _chip_arrays(accelerator)]
    columns = _details(_Problem(*sizes), _Chip(*chips), accelerator.dataflow, menu)
    rows = [ProductCost(**dict(zip(_COST_FIELDS, map(float, row), strict=True))) for row in zip(*columns, strict=True)]
    costs: dict[tuple[Floats, ...], ProductCost] = {}
    for row in sorted(rows, key=lambda row: (row.time_s, max(row.compute_s, row.buffer_s))):
        costs.setdefault((row.tile_m, row.tile_n, row.split_k), row)
    return tuple(row for row in costs.values() if np.isfinite(row.time_s))


_COST_FIELDS = tuple(f.name for f in fields(ProductCost))


# ------------------------------------------------------------------------------------ candidates as flat float arrays


@dataclass(frozen=True, slots=True)
class _Problem:
    m: FloatArray
    n: FloatArray
    k: FloatArray
    batch: FloatArray
    e: FloatArray
    o: FloatArray
    epilogue_cycles: FloatArray
    epilogue_bytes: FloatArray
    most_macs: FloatArray

    def swapped(self) -> _Problem:
        """C^T = B^T A^T: input-stationary is weight-stationary of the transpose."""
        return replace(self, m=self.n, n=self.m)


@dataclass(frozen=True, slots=True)
class _Chip:
    """The accelerator fields that a GEMM's time depends on; rates in bytes/s."""

    cores: FloatArray
    rows: FloatArray
    cols: FloatArray
    sram: FloatArray
    buffer: FloatArray
    clock: FloatArray
    port: FloatArray
    buffer_rate: FloatArray
    memory_rate: FloatArray
    lanes: FloatArray
    """Lanes of all vector cores."""
    accumulator: FloatArray
    sustained: FloatArray
    exchange: FloatArray
    """Rate at which every die gets an operand of which it has its share."""


def _each_chunk(
    product: Product, a: Accelerator, price: Callable[[_Problem, _Chip, Dataflow], tuple[FloatArray, ...]]
) -> tuple[Any, ...]:
    """``price`` of all candidates, chunk by chunk, in their common shape."""
    p, chip = _problem_arrays(product), _chip_arrays(a)
    shape = np.broadcast_shapes(*(np.shape(x) for x in (*p, *chip)))
    flat = [_flat(x, shape) for x in (*p, *chip)]
    parts = [price(_Problem(*rows[: len(p)]), _Chip(*rows[len(p) :]), a.dataflow) for rows in _chunks(flat)]
    whole = (np.concatenate(column).reshape(shape) for column in zip(*parts, strict=True))
    return tuple(float(x) if x.ndim == 0 else x for x in whole)


def _flat(values: Floats, shape: tuple[int, ...]) -> FloatArray:
    column = np.empty(shape)
    column[...] = values
    return column.reshape(-1)


def _chunks(flat: list[FloatArray]) -> Iterator[list[FloatArray]]:
    for start in range(0, flat[0].size, CHUNK):
        yield [x[start : start + CHUNK] for x in flat]


def _problem_arrays(p: Product) -> list[Any]:
    return [p.m, p.n, p.k, p.batch, p.operand_bytes, p.output_bytes, p.epilogue_cycles, p.epilogue_bytes, p.most_macs]


def _chip_arrays(a: Accelerator) -> list[Any]:
    return [
        a.num_tensor_cores,
        a.array_rows,
        a.array_cols,
        a.tensor_core_sram_bytes,
        a.global_buffer_bytes,
        a.clock_hz,
        a.tensor_port_bytes_per_s,
        a.global_buffer_bytes_per_s,
        a.streamed_bytes_per_s,
        1.0 * a.num_vector_cores * a.vector_lanes,
        a.accumulator_bytes,
        a.sustained_share,
        a.exchanged_bytes_per_s,
    ]


# --------------------------------------------------------------------------------------------------- the best mapping


@dataclass(frozen=True, slots=True)
class _Best:
    time_s: FloatArray
    tile: Any
    """Flat index into the menu of core tiles."""
    concurrent: FloatArray


def _best(problem: _Problem, chip: _Chip, flow: Dataflow) -> _Best:
    """Least time over core tiles, splits, blocks and concurrency."""
    p = problem.swapped() if flow is Dataflow.INPUT_STATIONARY else problem
    tiles = _tile_menu(chip)
    best: _Best | None = None
    for concurrent in CONCURRENT[: 1 + sum(c < p.batch.max() for c in CONCURRENT[:-1])]:
        together = np.minimum(concurrent, p.batch)
        core = _on_cores(_wide(p), _wide(chip), flow, tiles, together[:, None, None, None])
        on_cores = core.time_s.reshape(len(p.m), -1)
        tile = on_cores.argmin(axis=1)
        shortest_cycles = np.take_along_axis(on_cores, tile[:, None], axis=1)[:, 0]
        memory_s, spill_s = _from_memory(p, chip, together)
        by_block = np.maximum(memory_s, shortest_cycles[:, None] + spill_s)
        best_mapping = _Best(by_block.min(axis=1), tile, together)
        best = best_mapping if best is None else _better(best, best_mapping)
    assert best is not None
    ends = _ends(problem, chip, best.time_s)
    return _Best(ends, best.tile, best.concurrent)


def _better(a: _Best, b: _Best) -> _Best:
    less = b.time_s < a.time_s
    return _Best(
        np.where(less, b.time_s, a.time_s),
        np.where(less, b.tile, a.tile),
        np.where(less, b.concurrent, a.concurrent),
    )


def _ends(p: _Problem, chip: _Chip, time: FloatArray) -> FloatArray:
    """Add the ends: the epilogue overlaps the GEMM on the vector lanes except for its last array tile, and the first
    operands must arrive before anything starts. What dies must exchange overlaps as well."""
    first = p.e * (np.minimum(chip.rows, p.m) + np.minimum(chip.cols, p.n)) * np.minimum(chip.rows, p.k)
    elements = p.batch * p.m * p.n
    epilogue = elements * p.epilogue_cycles / (chip.lanes * chip.clock)
    last = np.minimum(chip.rows * chip.cols, elements) * p.epilogue_cycles / (chip.lanes * chip.clock)
    exchange = p.batch * _shared_bytes(p.m, p.n, p.k, p.e, chip.accumulator) / chip.exchange
    whole: FloatArray = (
        np.maximum.reduce((time, epilogue, exchange, _in_pieces_s(p, chip))) + last + first / chip.memory_rate
    )
    return whole


def _in_pieces_s(p: _Problem, chip: _Chip) -> FloatArray:
    """Time in which cores load operands that arrive in pieces."""
    seconds: FloatArray = p.batch * p.m * p.n * p.k / (chip.cores * chip.clock * p.most_macs)
    return seconds


def _shared_bytes(m: Floats, n: Floats, k: Floats, operand_bytes: Floats, sum_bytes: Floats) -> Floats:
    """What every die of a package must have of the others', at least: each computes a part of C from operands in its
    own stacks, along n with all of A, along m with all of B, or along k with sums of all of C."""
    shared: Floats = np.minimum(operand_bytes * k * np.minimum(1.0 * m, n), sum_bytes * m * n)
    return shared


def _details(problem: _Problem, chip: _Chip, flow: Dataflow, tile: Any = None) -> tuple[FloatArray, ...]:
    """The chosen mapping priced again with all its terms; ``tile`` (flat indices into the menu of core tiles) replaces
    the best tile, with blocks that suit it."""
    best = _best(problem, chip, flow)
    p = problem.swapped() if flow is Dataflow.INPUT_STATIONARY else problem
    menu = _tile_menu(chip)
    shape = np.broadcast_shapes(*(x.shape[1:] for x in menu))
    i, j, s = np.unravel_index(best.tile if tile is None else tile, shape)
    row = np.arange(len(p.m))
    heights, widths, splits, spilled = (np.broadcast_to(x, (len(p.m), *shape)) for x in menu)
    chosen = tuple(x[row, i, j, s] for x in (heights, widths, splits, spilled))
    core = _on_cores(p, chip, flow, chosen, best.concurrent)
    by_block = _from_memory(p, chip, best.concurrent)
    times = np.maximum(by_block[0], core.time_s[:, None] + by_block[1])
    block = times.argmin(axis=1)
    memory_s, spill_s = (x[row, block] for x in by_block)
    time_s = _ends(problem, chip, times[row, block])
    tile_x, tile_y = np.minimum(chosen[0], p.m), np.minimum(chosen[1], p.n)
    if flow is Dataflow.INPUT_STATIONARY:
        tile_x, tile_y = tile_y, tile_x
    macs = problem.batch * problem.m * problem.n * problem.k
    array = chip.rows * chip.cols
    return (
        time_s,
        np.maximum(core.compute_s, _in_pieces_s(problem, chip)),
        core.buffer_s + spill_s,
        memory_s,
        problem.batch * problem.m * problem.n * problem.epilogue_cycles / (chip.lanes * chip.clock),
        tile_x,
        tile_y,
        chosen[2],
        best.concurrent,
        core.sram_bytes,
        core.buffer_bytes + spill_s * chip.buffer_rate,
        memory_s * chip.memory_rate,
        macs / (chip.cores * array * chip.clock * time_s),
        core.waves,
        macs / (p.batch * core.tiles * core.tile_cycles * array),
        p.batch * core.tiles / (core.waves * chip.cores),
    )


# ------------------------------------------------------------------------------------------- array, cores, their ports


@dataclass(frozen=True, slots=True)
class _OnCores:
    time_s: FloatArray
    compute_s: FloatArray
    buffer_s: FloatArray
    buffer_bytes: FloatArray
    sram_bytes: FloatArray
    tiles: FloatArray
    """Core tiles of one GEMM of the batch."""
    waves: FloatArray
    tile_cycles: FloatArray


def _tile_menu(chip: _Chip) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Core tiles as (height, width, split of k, whether sums are in the global buffer), on three trailing axes. The
    first height is the fallback for private buffers too small for a tile of sums."""
    rows, cols = chip.rows[:, None, None, None], chip.cols[:, None, None, None]
    heights = rows * np.asarray((1, *ROW_TILES), dtype=np.float64)[:, None, None]
    widths = cols * np.asarray(COL_TILES, dtype=np.float64)[:, None]
    spilled = np.asarray([1.0] + [0.0] * len(ROW_TILES))[None, :, None, None]
    return heights, widths, np.asarray(SPLITS_OF_K, dtype=np.float64)[None, None, None], spilled


def _on_cores(p: _Problem, chip: _Chip, flow: Dataflow, tile: tuple[FloatArray, ...], together: FloatArray) -> _OnCores:
    """Time of all core tiles distributed over the cores, ``together`` GEMMs of the batch at a time."""
    height, width, split, spilled = tile
    k = np.ceil(p.k / split)
    tall, wide = np.minimum(height, p.m), np.minimum(width, p.n)
    tiles = np.ceil(p.m / height) * np.ceil(p.n / width) * split
    waves = np.ceil(p.batch / together) * np.ceil(together * tiles / chip.cores)
    passes, streamed = _passes(flow, chip, k, tall, wide)
    loaded = np.maximum(streamed, chip.rows)  # loading the next operand (or draining the last sums) takes a row a cycle
    fill = 2 * chip.rows + chip.cols - 2 - (loaded - streamed)
    steps = np.ceil(k / chip.rows)
    partial = spilled * (0.0 if flow is Dataflow.OUTPUT_STATIONARY else 2.0) * chip.accumulator * (steps - 1)
    result = np.where(split > 1, chip.accumulator, p.o)
    tile_bytes = p.e * k * (tall + wide) + tall * wide * (partial + result)
    sums_s, sums_bytes = _sum_of_splits(p, chip, split)
    buffer_bytes = p.batch * tiles * tile_bytes
    buffer_s = np.maximum(waves * tile_bytes / chip.port, buffer_bytes / chip.buffer_rate)
    tile_cycles = passes * loaded
    compute_s = (waves * tile_cycles + fill) / (chip.clock * chip.sustained)
    fits = _held_bytes(p, flow, chip, k, tall, wide, spilled) <= chip.sram
    time = np.where(fits, np.maximum(compute_s, buffer_s) + sums_s, np.inf)
    feed = p.batch * tiles * passes * (streamed * chip.rows * p.e + chip.rows * chip.cols * p.e)
    sums = 2 * chip.accumulator * p.batch * tiles * tall * wide * steps
    moved = buffer_bytes + sums_bytes
    return _OnCores(time, compute_s + sums_s, buffer_s, moved, feed + sums, tiles, waves, tile_cycles)


def _passes(
    flow: Dataflow, chip: _Chip, k: FloatArray, tall: FloatArray, wide: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Array passes of a core tile, and rows streamed in each. Weight-stationary: a rows x cols block of B stays,
    ``tall`` rows of A stream. Output-stationary: a rows x cols block of C stays, k streams."""
    if flow is Dataflow.OUTPUT_STATIONARY:
        return np.ceil(tall / chip.rows) * np.ceil(wide / chip.cols), k
    return np.ceil(k / chip.rows) * np.ceil(wide / chip.cols), tall


def _held_bytes(
    p: _Problem, flow: Dataflow, chip: _Chip, k: FloatArray, tall: FloatArray, wide: FloatArray, spilled: FloatArray
) -> FloatArray:
    """Bytes of a core tile in its private buffer: sums, and a double-buffered strip of operands that several passes
    use. Stationary blocks are double-buffered in the array's own registers."""
    strip = 2 * p.e * np.minimum(chip.rows, k)
    if flow is Dataflow.OUTPUT_STATIONARY:
        single = (tall <= chip.rows) & (wide <= chip.cols)
        return np.where(single, 0.0, chip.accumulator * tall * wide + strip * (tall + wide))
    sums = chip.accumulator * tall * wide
    return np.where(
        spilled > 0, np.where(wide <= chip.cols, 0.0, np.inf), sums + np.where(wide > chip.cols, strip * tall, strip)
    )


def _sum_of_splits(p: _Problem, chip: _Chip, split: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Time and bytes of adding the partial sums of a split k: they are read from the global buffer and the sum is
    written; each core adds as many elements per cycle as it has columns."""
    elements = p.batch * p.m * p.n
    moved = np.where(split > 1, elements * (split * chip.accumulator + p.o), 0.0)
    adds = np.ceil((split - 1) * elements / (chip.cols * chip.cores)) / chip.clock
    return np.maximum(adds, np.maximum(moved / chip.buffer_rate, moved / (chip.cores * chip.port))), moved


# ---------------------------------------------------------------------------------------------- global buffer, memory


def _from_memory(p: _Problem, chip: _Chip, together: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Time of memory traffic, and of partial sums that return through the global buffer, per block menu (last axis).

    Each GEMM has 1/``together`` of the buffer: half holds a block and half the streamed data, double-buffered:

    - a panel of A with all of k (B streams once per panel), or of B (A streams);
    - a block of C (strips of A and B stream, and its sums are read back for every strip).
    """
    half = chip.buffer / together / 2
    a, b = p.batch * p.m * p.k * p.e, p.batch * p.k * p.n * p.e
    c = p.batch * p.m * p.n * (p.o + p.epilogue_bytes)
    panel = np.floor(half / (p.k * p.e))
    with np.errstate(divide="ignore"):
        panel_a = a + b * np.ceil(p.m / panel) + c
        panel_b = a * np.ceil(p.n / panel) + b + c
    aspect = np.asarray(BLOCK_ASPECTS)
    side = np.sqrt(half / chip.accumulator)[:, None]
    high, wide = np.maximum(np.floor(side * aspect), 1), np.maximum(np.floor(side / aspect), 1)
    blocks = a[:, None] * np.ceil(p.n[:, None] / wide) + b[:, None] * np.ceil(p.m[:, None] / high) + c[:, None]
    lines = np.minimum(high, p.m[:, None]) + np.minimum(wide, p.n[:, None])
    strip = np.maximum(np.floor((half / (2 * p.e))[:, None] / lines), 1)
    again = np.ceil(p.k[:, None] / strip) - 1
    sums = 2 * (p.batch * p.m * p.n * chip.accumulator)[:, None] * again
    moved = np.column_stack((panel_a, panel_b, blocks))
    spill = np.column_stack((np.zeros_like(a), np.zeros_like(a), sums))
    return moved / chip.memory_rate[:, None], spill / chip.buffer_rate[:, None]


def _wide(record: Any) -> Any:
    """A record's arrays with three trailing axes for the menu of core tiles."""
    return type(record)(*(getattr(record, f.name)[:, None, None, None] for f in fields(record)))
