"""The tile formula: what a GEMM takes when its output tiles are dealt to SMs in waves.

Flat arrays in, flat arrays out; GEMMs lie on the last axis and the tile menu on the first, which is reduced
before returning. Only ``+ - * /``, ``ceil``, ``floor``, ``min`` and ``max`` are used, so an entry of an array equals
the scalar call to the last bit, and every term is non-decreasing in m, n, k and batch at equal alignment.
Symbols, fit and accuracy: docs/concepts/gemm.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sartor.cost.correction.coefficients import ADDING, COOPERATIVE, RAGGED, GemmCoefficients
from sartor.cost.gpu.rates import LongRun, lasting_s
from sartor.units import FloatArray

CHUNK = 2048
"""GEMMs evaluated together: few enough that a temporary of tiles x GEMMs stays in cache."""

TERMS = (
    "time_s", "compute_s", "memory_s", "overhead_s",
    "tile_m", "tile_n", "split_k", "waves", "tile_efficiency", "wave_efficiency", "alignment",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """One entry per GEMM."""

    batch: FloatArray
    m: FloatArray
    n: FloatArray
    k: FloatArray
    out_bytes: FloatArray
    """Bytes written (and read, when accumulating) per output element."""
    penalty: FloatArray
    """Main-loop slowdown by misalignment, at least 1."""
    packed_bytes: FloatArray
    """Traffic of copying operands into blocks before the GEMM."""

    def part(self, where: object) -> Problems:
        return Problems(**{name: getattr(self, name)[where] for name in Problems.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The rates a GEMM of one dtype meets on one device."""

    num_sms: float
    sm_flops_per_s: float
    feed_bytes_per_s: float
    """Operand bytes per second into one SM."""
    hbm_bytes_per_s: float
    warm_bytes: float
    """Bytes of the first operand found in L2 on arrival."""
    warm_weight_bytes: float
    """Size up to which the second operand is found in L2 on arrival."""
    near_out_bytes: float
    """Bytes of the result that stay in L2."""
    l2_bytes_per_s: float
    turned_bytes: float
    """Operands and result of which all copies that a short run turns through just fill the memory-side cache; 0: it
    turns through none."""
    turned_share: float
    """Share of memory's time that bytes found there take."""
    turned_step: float
    """Share of ``step_s`` that a step takes whose operands are found there."""
    element_bytes: float
    first_bytes: float
    """Bytes per element of the first operand, if wider than the second's."""
    step_k: float
    """Elements of k that one main-loop step covers."""
    throttle_s: float
    """Compute time at which half of the slowdown of short runs is reached."""
    long_run: LongRun | None
    """Effect of the power limit in long runs; None in short ones and if unknown."""
    quantize_bytes: float
    """Traffic per element of the first operand of a separate quantizing kernel; 0 if there is none."""


def evaluate(p: Problems, machine: Machine, c: GemmCoefficients, details: bool) -> dict[str, FloatArray]:
    """Time of each GEMM, and with ``details`` its terms and the tile and split it takes."""
    keys = TERMS if details else ("time_s",)
    out = {key: np.empty(p.m.size) for key in keys}
    for start in range(0, p.m.size, CHUNK):
        where = slice(start, start + CHUNK)
        part = p.part(where)
        terms = _terms_of_best(part, machine, c) if details else _unsplit({"time_s": _least(part, machine, c)}, part, c)
        for key in keys:
            out[key][where] = terms[key]
    return out


def alternatives(p: Problems, machine: Machine, c: GemmCoefficients) -> dict[str, FloatArray]:
    """Every (tile, split) of the menu: arrays of shape (2 x tiles, GEMMs); ``inf`` where k cannot be split. One more
    row where a cooperative kernel was measured."""
    tiles = _Tiles.of(p, machine, c)
    whole, split = _whole(p, tiles, machine, c), (_streamed if c.stream_k_fills else _split)(p, tiles, machine, c)
    shape = tiles.grid.shape
    ways = {key: [np.broadcast_to(t[key], shape) for t in (whole, split)] for key in TERMS}
    if c.cooperative_s:
        alone = _cooperative(p, machine, c)
        ways = {key: [*columns, np.broadcast_to(alone[key], (1, p.m.size))] for key, columns in ways.items()}
    return _unsplit({key: np.concatenate(columns) for key, columns in ways.items()}, p, c)


def _unsplit(terms: dict[str, FloatArray], p: Problems, c: GemmCoefficients) -> dict[str, FloatArray]:
    """The same with ragged results at least as long as a kernel that takes them, whose blocks do all of k."""
    if c.ragged:
        rows, pace = np.asarray(c.ragged).T
        floor_s = np.where(p.n % RAGGED > 0, p.batch * p.k * np.interp(p.m, rows, pace), 0.0)
    elif c.cooperative_s:
        floor_s = np.where(p.n % ADDING > 0, c.launch_s + p.k * c.cooperative_s, 0.0)
    else:
        return terms
    unsplit = {**terms, "time_s": np.maximum(terms["time_s"], floor_s)}
    if "compute_s" in terms:
        unsplit["compute_s"] = terms["compute_s"] + np.maximum(floor_s - terms["time_s"], 0.0)
    return unsplit


def over_least(p: Problems, machine: Machine, c: GemmCoefficients) -> FloatArray:
    """ln of the time of every (tile, split) of the menu over the least of all, at most 1: (2 x tiles, GEMMs). A way
    near the least may be what a library takes instead. Without the clock and without caches, so sizes alone decide."""
    cold = replace(machine, turned_bytes=0.0)
    tiles = _Tiles.of(p, cold, c)
    waves = np.ceil(tiles.grid / cold.num_sms)
    whole, memory = waves * (tiles.steps * tiles.step_s + tiles.fill_s), _traffic_s(p, cold, c)
    if c.stream_k_fills:
        alternative_s = _combine(_even_s(tiles, waves, cold, c), memory, c.overlap)
    else:
        parts, compute, exchange_s = _cut(p, tiles, cold, c)
        alternative_s = _combine(compute, memory + exchange_s, c.overlap) + _NEVER_S * np.maximum(2.0 - parts, 0.0)
    ways = np.concatenate([_combine(whole, memory, c.overlap), alternative_s + c.split_s]) + c.launch_s
    slower: FloatArray = np.log(np.minimum(ways / np.minimum.reduce(ways), math.e))
    return slower


_NEVER_S = 1e6
"""Added where k cannot be split or a tile does not fit."""


def _terms_of_best(p: Problems, machine: Machine, c: GemmCoefficients) -> dict[str, FloatArray]:
    terms = alternatives(p, machine, c)
    best = terms["time_s"].argmin(axis=0)[None]
    return {key: np.take_along_axis(values, best, axis=0)[0] for key, values in terms.items()}


def _least(p: Problems, machine: Machine, c: GemmCoefficients) -> FloatArray:
    """Least time over the menu. Time grows with compute, so the menu is reduced before memory is added; with split-K,
    k is split only where at least two parts fit."""
    tiles = _Tiles.of(p, machine, c)
    waves = np.ceil(tiles.grid / machine.num_sms)
    compute = (waves * (tiles.steps * tiles.step_s + tiles.fill_s)).min(axis=0)
    overhead, memory = c.launch_s + quantizing_s(p, machine, c), _traffic_s(p, machine, c)
    shortest_s: FloatArray = _combine(_throttled(compute, p, machine, c), memory, c.overlap) + overhead
    if c.cooperative_s:
        shortest_s = np.minimum(shortest_s, _cooperative(p, machine, c)["time_s"][0])
    if c.stream_k_fills:
        even = _throttled(_even_s(tiles, waves, machine, c).min(axis=0), p, machine, c)
        return np.minimum(shortest_s, _combine(even, memory, c.overlap) + (overhead + c.split_s))
    few = np.flatnonzero(tiles.grid.min(axis=0) * 2 <= machine.num_sms)
    if few.size:
        split = _split(p.part(few), tiles.part(few), machine, c)["time_s"].min(axis=0)
        shortest_s[few] = np.minimum(shortest_s[few], split)
    return shortest_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiles:
    """What whole and split tiles share; columns of the menu against rows of GEMMs."""

    tm: FloatArray
    tn: FloatArray
    grid: FloatArray
    """Output tiles."""
    steps: FloatArray
    """Main-loop steps of one tile."""
    step_s: FloatArray
    """One step: matrix rate, operand feed or latency, whichever is slowest."""
    fill_s: FloatArray
    """Pipeline fill and epilogue of a wave."""

    @classmethod
    def of(cls, p: Problems, machine: Machine, c: GemmCoefficients) -> _Tiles:
        tm, tn, share = (column[:, None] for column in np.asarray(c.tiles, dtype=p.m.dtype).T)
        matrix = (tm * tn * (2 * machine.step_k) / (machine.sm_flops_per_s * share)) * p.penalty
        sides = machine.first_bytes * np.minimum(p.m, tm) + machine.element_bytes * np.minimum(p.n, tn)
        feed = sides * (machine.step_k / machine.feed_bytes_per_s)
        latency = c.step_s * _sooner(p, machine, machine.turned_step) if machine.turned_bytes else c.step_s
        cycles = np.maximum(np.maximum(matrix, feed), latency)
        if c.whole_columns:
            cycles = np.where((p.n % tn > 0) & (p.n % tn.min() == 0), _NEVER_S, cycles)
        return cls(
            tm=tm,
            tn=tn,
            grid=np.ceil(p.m / tm) * np.ceil(p.n / tn) * p.batch,
            steps=np.ceil(p.k / machine.step_k),
            step_s=cycles,
            fill_s=c.wave_s + c.tile_s * (tm * tn) / (128 * 256),
        )

    def part(self, where: Any) -> _Tiles:
        return _Tiles(
            tm=self.tm,
            tn=self.tn,
            fill_s=self.fill_s,
            grid=self.grid[:, where],
            steps=self.steps[where],
            step_s=self.step_s[:, where],
        )


def _whole(p: Problems, tiles: _Tiles, machine: Machine, c: GemmCoefficients) -> dict[str, FloatArray]:
    """Every block computes a whole tile."""
    waves = np.ceil(tiles.grid / machine.num_sms)
    compute = _throttled(waves * (tiles.steps * tiles.step_s + tiles.fill_s), p, machine, c)
    overhead = c.launch_s + quantizing_s(p, machine, c)
    return _terms(p, tiles, machine, c, np.ones(1), waves, compute, _traffic_s(p, machine, c), overhead)


def _split(p: Problems, tiles: _Tiles, machine: Machine, c: GemmCoefficients) -> dict[str, FloatArray]:
    """k is cut into as many parts as still fit in one wave (split-K); partial sums meet in L2."""
    parts, compute, exchange_s = _cut(p, tiles, machine, c)
    overhead = np.where(parts > 1, c.launch_s + c.split_s, np.inf) + quantizing_s(p, machine, c)
    memory = _traffic_s(p, machine, c) + exchange_s
    return _terms(p, tiles, machine, c, parts, np.ones(1), _throttled(compute, p, machine, c), memory, overhead)


def _cooperative(p: Problems, machine: Machine, c: GemmCoefficients) -> dict[str, FloatArray]:
    """Blocks of a few waves each that share out k for a small tile, and among blocks as far as these fill the SMs."""
    tile, unsplit = np.full((1, 1), float(COOPERATIVE)), np.ones((1, 1))
    grid = (np.ceil(p.m / COOPERATIVE) * np.ceil(p.n / COOPERATIVE) * p.batch)[None]
    tiles = _Tiles(tm=tile, tn=tile, grid=grid, steps=p.k, step_s=c.cooperative_s * unsplit, fill_s=0.0 * unsplit)
    parts = np.minimum(np.maximum(np.floor(machine.num_sms / grid), 1.0), _MOST_ADDING)
    parts = np.where(p.n % ADDING > 0, 1.0, parts)
    waves = np.ceil(grid * parts / machine.num_sms)
    compute = _throttled(waves * (p.k / parts) * c.cooperative_s, p, machine, c)
    overhead = c.launch_s + quantizing_s(p, machine, c)
    return _terms(p, tiles, machine, c, parts, waves, compute, _traffic_s(p, machine, c), overhead)


_MOST_ADDING = 16.0
"""Most blocks that share out k: 8 to 32 do equally well on rows withheld."""


def _cut(
    p: Problems, tiles: _Tiles, machine: Machine, c: GemmCoefficients
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Number of parts, their compute time, and that of exchanging partial sums."""
    parts = np.minimum(np.minimum(np.floor(machine.num_sms / tiles.grid), tiles.steps), c.max_split)
    parts = np.maximum(np.floor(parts), 1.0)
    if c.split_columns:
        parts = np.where(p.n % c.split_columns > 0, 1.0, parts)
    compute = np.ceil(tiles.steps / parts) * tiles.step_s + tiles.fill_s
    partial_bytes = np.minimum(machine.num_sms, tiles.grid * c.max_split) * (8 * tiles.tm * tiles.tn)
    return parts, compute, partial_bytes / (c.split_rate * machine.hbm_bytes_per_s)


def _streamed(p: Problems, tiles: _Tiles, machine: Machine, c: GemmCoefficients) -> dict[str, FloatArray]:
    """The steps of all tiles are dealt evenly to the SMs, so that no wave is left half empty (stream-K, arXiv
    2301.03598); a tile that several SMs share is added up at the end."""
    waves = np.ceil(tiles.grid / machine.num_sms)
    compute = _throttled(_even_s(tiles, waves, machine, c), p, machine, c)
    overhead = c.launch_s + quantizing_s(p, machine, c) + c.split_s
    parts = np.minimum(np.minimum(np.maximum(np.ceil(machine.num_sms / tiles.grid), 2.0), tiles.steps), c.max_split)
    terms = _terms(p, tiles, machine, c, np.floor(parts), waves, compute, _traffic_s(p, machine, c), overhead)
    busy = tiles.grid * tiles.steps / (machine.num_sms * _even_steps(tiles, machine, c))
    return terms | {"wave_efficiency": busy}


def _even_s(tiles: _Tiles, waves: FloatArray, machine: Machine, c: GemmCoefficients) -> FloatArray:
    """Compute time with all steps dealt evenly."""
    steps = _even_steps(tiles, machine, c) * (1 + c.stream_k_cost)
    return steps * tiles.step_s + (waves + c.stream_k_fills) * tiles.fill_s


def _even_steps(tiles: _Tiles, machine: Machine, c: GemmCoefficients) -> FloatArray:
    """Steps of the SM with most, where all are dealt evenly and a tile has at most ``max_split`` parts."""
    return np.ceil(np.maximum(tiles.grid * tiles.steps / machine.num_sms, tiles.steps / c.max_split))


def _terms(
    p: Problems,
    tiles: _Tiles,
    machine: Machine,
    c: GemmCoefficients,
    parts: FloatArray,
    waves: FloatArray,
    compute: FloatArray,
    memory: FloatArray,
    overhead: FloatArray,
) -> dict[str, FloatArray]:
    return {
        "time_s": _combine(compute, memory, c.overlap) + overhead,
        "compute_s": compute,
        "memory_s": memory,
        "overhead_s": overhead,
        "tile_m": tiles.tm,
        "tile_n": tiles.tn,
        "split_k": parts,
        "waves": waves,
        "tile_efficiency": p.batch * p.m * p.n / (tiles.grid * (tiles.tm * tiles.tn)),
        "wave_efficiency": tiles.grid * parts / (waves * machine.num_sms),
        "alignment": 1.0 / p.penalty,
    }


def _throttled(compute: FloatArray, p: Problems, machine: Machine, c: GemmCoefficients) -> FloatArray:
    """Under load the clock falls to what the power limit allows: at once in long runs, gradually in short ones."""
    run, short = machine.long_run, compute * (1 + c.throttle * (compute / (compute + machine.throttle_s)))
    if run is None:
        return short
    lasting: FloatArray = np.asarray(lasting_s(compute, 2 * p.batch * p.m * p.n * p.k, run))
    return lasting if run.uniform else np.maximum(lasting, short)


def _combine(compute: FloatArray, memory: FloatArray, overlap: float) -> FloatArray:
    """The larger of both, plus the part of the smaller that is not hidden."""
    return np.maximum(compute, memory) + overlap * np.minimum(compute, memory)


def _traffic_s(p: Problems, machine: Machine, c: GemmCoefficients) -> FloatArray:
    """Seconds of memory traffic: first operand (less what is in L2), second operand, result."""
    time_s = _from_memory_s(p, machine, c)
    return time_s * _sooner(p, machine, machine.turned_share) if machine.turned_bytes else time_s


def _sooner(p: Problems, machine: Machine, share: float) -> FloatArray:
    """Factor on a time that is ``share`` of itself in the memory-side cache: all is found there up to half of what
    fills it, nothing from one and a half times that on."""
    moved = p.batch * (p.k * (p.m * machine.first_bytes + p.n * machine.element_bytes) + p.m * p.n * p.out_bytes)
    shortened: FloatArray = np.minimum(np.maximum(1.5 - moved / machine.turned_bytes, 0.0), 1.0)
    return 1.0 - shortened * (1.0 - share)


def _from_memory_s(p: Problems, machine: Machine, c: GemmCoefficients) -> FloatArray:
    first = np.maximum(p.batch * p.m * p.k * machine.first_bytes - machine.warm_bytes, 0.0)
    if machine.warm_weight_bytes == 0 and machine.near_out_bytes == 0:
        rest = p.batch * p.n * (p.k * machine.element_bytes + p.m * p.out_bytes * c.write_cost)
        return (first + rest) / machine.hbm_bytes_per_s
    second, out = p.batch * p.n * p.k * machine.element_bytes, p.batch * p.n * p.m * p.out_bytes
    rate = np.where(second <= machine.warm_weight_bytes, machine.l2_bytes_per_s, machine.hbm_bytes_per_s)
    near = np.minimum(out, machine.near_out_bytes)
    far = first + (out - near) * c.write_cost
    return far / machine.hbm_bytes_per_s + second / rate + near / machine.l2_bytes_per_s


def quantizing_s(p: Problems, machine: Machine, c: GemmCoefficients) -> FloatArray:
    """Seconds before the GEMM: a kernel that quantizes the first operand, if the dtype needs one, and copies of
    operands into blocks, if the library makes them."""
    elements = p.batch * p.m * p.k
    traffic = elements * machine.quantize_bytes + p.packed_bytes
    before = c.quantize_s + traffic / machine.hbm_bytes_per_s
    return before + c.quantize_more_s * elements / (elements + c.quantize_half) if c.quantize_more_s else before
