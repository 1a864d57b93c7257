"""Closed-form pipeline time for arrays of plans, by schedule, and stalls of chunks with unequal numbers of layers.

A schedule's makespan is the longest path through its tasks. Every path goes down to some stage, stays there, may visit
the last stage and come back for the first and for the last microbatch, and returns; the time is the longest of these
few paths. With equal stages it is the published formula, ``(m + p - 1) (f + b)`` for 1F1B (Narayanan et al. 2021, arXiv
2104.04473, sec. 2.2); with unequal ones it is exact for nearly all stage times and never above the simulation of
`timeline`. docs/concepts/training-step.md derives the terms.

The closed form of `_interleaved_s` adds up a device's chunks. If one chunk has two layers and another one,
neighbours also wait for each other in every round of microbatches: up to a tenth of the step, more with few
microbatches. We know no closed form. But a step lasts as long as its longest path, a path is a count of each block, and
only few paths are ever the longest: they are found once by walking the schedule with block durations spread over the
possible range, and then priced for a million plans like a formula. Up to three rounds the result is at most that of
`simulation` and nearly always equal; with placed layers (``stage_layers``), and in pipelines too large to walk with
sampled durations, the plan's own durations are used: exact.
Further rounds are extrapolated: of 500 random pipelines 3 came out too long, by 5% at most.

Longest paths are found for many task durations at once. Every device works through its tasks in the order of `orders`.
Which tasks can run together does not depend on how long they take: they are laid out in waves once, a task's inputs
always in an earlier one, and every wave is one array operation under all durations. `simulation` does the same task by
task for one set of durations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sartor.model.training import PipelineSchedule
from sartor.step.orders import warmup_chunks
from sartor.step.stages import StageRows, summed
from sartor.units import Array, BoolArray, FloatArray, Floats, IntArray, Ints, distinct, remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineWork:
    """Seconds of one microbatch on every distinct device [R, plans], all its chunks together.

    ``dgrad_s`` is backward without ``wgrad_s``. ``transfer_s`` [plans] is one activation (or its gradient) to the next
    device; with interleaved chunks, ``hidden_share`` of a chunk's forward can hide it; None: the sender waits for it.
    """

    rows: StageRows
    forward_s: FloatArray
    dgrad_s: FloatArray
    wgrad_s: FloatArray
    transfer_s: Floats = 0.0
    hidden_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _PipelineTime:
    """``time_s`` of all microbatches through all stages; the slowest device is busy for ``busy_s`` of it."""

    time_s: FloatArray
    slowest: npt.NDArray[np.intp]
    busy_s: FloatArray
    """Busy time of the slowest row: forward and backward of all microbatches, without transfers."""
    transfer_s: FloatArray
    """Seconds added by transfers."""

    @property
    def bubble_s(self) -> FloatArray:
        return self.time_s - self.busy_s - self.transfer_s


def pipeline_time(work: PipelineWork, num_microbatches: Ints, schedule: Ints) -> _PipelineTime:
    """Makespan of one step's pipeline for arrays of plans that share (pp, virtual_stages)."""
    m = np.asarray(num_microbatches)
    without = _makespan(work.rows, work.forward_s, work.dgrad_s, work.wgrad_s, m, schedule)
    busy = work.forward_s + work.dgrad_s + work.wgrad_s
    slowest = np.argmax(busy, axis=0)
    busy_s = m * np.take_along_axis(busy, slowest[None], axis=0)[0]
    moved = np.zeros_like(without)
    if work.rows.pp > 1 and np.any(np.asarray(work.transfer_s) > 0):
        moved = _transfers(work, m, schedule, without)
    return _PipelineTime(time_s=without + moved, slowest=slowest, busy_s=busy_s, transfer_s=moved)


def _transfers(work: PipelineWork, m: Ints, schedule: Ints, without: FloatArray) -> FloatArray:
    """Seconds added by transfers: each blocks its sender, or runs beside the next chunk and delays its receiver."""
    rows, c = work.rows, np.asarray(work.transfer_s)
    v, pp = rows.virtual_stages, rows.pp
    if work.hidden_share is not None and v > 1:
        chunk = work.forward_s.min(axis=0) / v
        seen = np.maximum(c - work.hidden_share * chunk, 0.0)
        delayed: FloatArray = 2 * (pp * v - 1) * c + m * v * seen
        return delayed
    sends = np.full(len(rows.counts), v)
    forward = work.forward_s + np.where(rows.last == pp - 1, sends - 1, sends)[:, None] * c
    dgrad = work.dgrad_s + np.where(rows.first == 0, sends - 1, sends)[:, None] * c
    waited: FloatArray = _makespan(rows, forward, dgrad, work.wgrad_s, m, schedule) - without
    return waited


def _makespan(rows: StageRows, f: FloatArray, b: FloatArray, w: FloatArray, m: Ints, schedule: Ints) -> FloatArray:
    if rows.pp == 1:
        single: FloatArray = m * (f + b + w)[0]
        return single
    if rows.virtual_stages > 1:
        return _chunked_s(rows, f, b, w, m, np.asarray(schedule))
    splits = np.asarray(schedule) == PipelineSchedule.ZERO_BUBBLE
    gpipe = np.asarray(schedule) == PipelineSchedule.GPIPE
    whole = _one_f_one_b_s(rows, _b_and_w(b, w, splits), f, m)
    return np.where(gpipe, _gpipe_s(rows, f, b + w, m), whole) if gpipe.any() else whole


def _chunked_s(rows: StageRows, f: FloatArray, b: FloatArray, w: FloatArray, m: Ints, kind: Ints) -> FloatArray:
    """Makespan with several chunks per device, by the schedule of each plan."""
    whole = _interleaved_s(rows, f + b + w, m)
    for schedule, seconds in (
        (PipelineSchedule.ZERO_BUBBLE, _interleaved_zero_bubble_s),
        (PipelineSchedule.ZERO_BUBBLE_V, _zero_bubble_v_s),
        (PipelineSchedule.DUAL_PIPE_V, _dual_pipe_v_s),
    ):
        if np.any(np.equal(kind, schedule)):
            whole = np.where(np.equal(kind, schedule), seconds(rows, f, b, w, m), whole)
    return whole


def _b_and_w(b: FloatArray, w: FloatArray, splits: Floats) -> tuple[FloatArray, FloatArray | None]:
    """Backward that the previous stage waits for, and delayed weight gradients (None if no plan splits them off)."""
    if not np.any(splits):
        return b + w, None
    return np.where(splits, b, b + w), np.where(splits, w, 0.0)


def _one_f_one_b_s(
    rows: StageRows, backward: tuple[FloatArray, FloatArray | None], f: FloatArray, m: Ints
) -> FloatArray:
    """Seconds of 1F1B, or of ZB-H1 (Qi et al. 2023, arXiv 2401.10241) if weight gradients are split off.

    With equal stages: ``m (f + b) + (p - 1) (f + b)``, and ``m (f + b + w) + (p - 1) max(f + b - w, f, b)`` for
    ``m >= p``.
    """
    b, w = backward
    all_f, all_b = summed(rows.times, f), summed(rows.times, b)
    best = np.zeros(np.broadcast_shapes(f.shape[1:], np.shape(m)))
    for r, s in enumerate(rows.last.tolist()):
        late = np.maximum(m - (rows.pp - s), 0)  # forwards after the warm-up
        head_f, head_b = summed(rows.before[r], f), summed(rows.before[r], b)
        down = all_f - head_f - f[r]
        back = all_b - head_b - b[r]
        steady = late * (f[r] + b[r])
        # Paths: stay at the device throughout; detour to the end for the first microbatch; for the last; for both.
        first = down + back + m * b[r] + (1 + late) * f[r]
        final = down + back + m * f[r] + (1 + late) * b[r]
        both = np.where(late > 0, 2 * (down + back) + f[r] + b[r] + steady, 0.0)
        ends = head_f + head_b
        if w is None:
            longest = np.maximum(np.maximum(m * (f[r] + b[r]), first), np.maximum(final, both))
            best = np.maximum(best, ends + longest)
            continue
        after = ends + (w[0] if s else 0.0)  # the first stage's last weight gradient
        done = np.maximum(m - 1 - s, 0) + (s == 0)  # weight gradients before the last backward
        paths = (
            head_f + m * (f[r] + b[r] + w[r]),
            head_f + first + m * w[r],
            after + m * (f[r] + b[r]) + done * w[r],
            after + first + done * w[r],
            after + final + np.maximum(late - s, 0) * w[r],
            after + both + np.where(late > 0, np.maximum(late - s, 0) * w[r], 0.0),
        )
        for path in paths:
            best = np.maximum(best, path)
    return best


def _interleaved_s(rows: StageRows, busy: FloatArray, m: Ints) -> FloatArray:
    """Interleaved 1F1B: the slowest device's work, plus one chunk of every other (Narayanan et al. 2021, sec. 2.2).

    Exact if the chunks of a device are equal except for the head; else within a few percent of the simulation.
    """
    slowest = busy.max(axis=0)
    total: FloatArray = m * slowest + (summed(rows.times, busy) - slowest) / rows.virtual_stages
    return total


def _interleaved_zero_bubble_s(rows: StageRows, f: FloatArray, b: FloatArray, w: FloatArray, m: Ints) -> FloatArray:
    """Interleaved 1F1B with its bubble filled as in ZB-H1: every other device adds one chunk's f + b - w, but at least
    the longer of f and b (Qi et al. 2023, table 1, by chunks)."""
    busy = f + b + w
    slowest = np.argmax(busy, axis=0)[None]
    waits = np.maximum(f + b - w, np.maximum(f, b))
    others = summed(rows.times, waits) - np.take_along_axis(waits, slowest, axis=0)[0]
    total: FloatArray = m * busy.max(axis=0) + others / rows.virtual_stages
    return total


def _zero_bubble_v_s(rows: StageRows, f: FloatArray, b: FloatArray, w: FloatArray, m: Ints) -> FloatArray:
    """ZB-V: the slowest device's work, plus the longest path at the ends of the V. Exact for equal chunks and m >= 2p:
    the paths are those of the simulation's makespan (tests/step/test_pipeline.py); with unequal devices every chunk is
    taken to be the mean one."""
    f1, b1, w1, q = _mean_chunk(rows, f, b, w)
    paths = (
        q * b1,
        2 * q * (b1 - w1),
        (2 * q - 1) * f1 - (q - 1) * b1,
        (2 * q - 1) * f1 + b1 - 2 * q * w1,
        2 * q * f1 - (2 * q + 1) * w1,
        np.maximum(f1, b1) + (q - 1) * w1,
    )
    total: FloatArray = m * (f + b + w).max(axis=0) + np.maximum.reduce(paths)
    return total


def _dual_pipe_v_s(rows: StageRows, f: FloatArray, b: FloatArray, w: FloatArray, m: Ints) -> FloatArray:
    """DualPipeV, computed like ZB-V."""
    f1, b1, w1, q = _mean_chunk(rows, f, b, w)
    paths = (
        q * f1,
        q * (f1 + b1 - w1),
        2 * q * b1 - f1 - q * w1,
        (2 * q - 1) * (f1 - w1) + b1,
    )
    total: FloatArray = m * (f + b + w).max(axis=0) + np.maximum.reduce(paths)
    return total


def _mean_chunk(
    rows: StageRows, f: FloatArray, b: FloatArray, w: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, int]:
    """Seconds of the mean chunk (f, b, w), and pp - 1."""
    parts = rows.pp * rows.virtual_stages
    of_chunk = [np.asarray(summed(rows.times, block_s)) / parts for block_s in (f, b, w)]
    return of_chunk[0], of_chunk[1], of_chunk[2], rows.pp - 1


def _gpipe_s(rows: StageRows, f: FloatArray, b: FloatArray, m: Ints) -> FloatArray:
    """GPipe (Huang et al. 2019): two flow shops of equal jobs, one after the other; exact for any stages."""
    once = summed(rows.times, f) + summed(rows.times, b)
    total: FloatArray = once + (m - 1) * (f.max(axis=0) + b.max(axis=0))
    return total


class _LongestPaths(NamedTuple):
    """Makespan [n] of a pipeline under each of n durations, and how often each kind of task is on its longest path [n,
    2, pp, v]: forward and backward, device, chunk."""

    makespan_s: FloatArray
    tasks: IntArray


def longest_paths(forward_s: FloatArray, backward_s: FloatArray, microbatches: int) -> _LongestPaths:
    """Longest paths of ``microbatches`` (a multiple of pp) through chunks with these durations [n, pp, v]."""
    count, pp, virtual = forward_s.shape
    tasks = _tasks(pp, virtual, microbatches)
    waited = np.zeros((*tasks.kind.shape, count), dtype=bool)
    final = _finished(tasks, forward_s, backward_s, waited)
    passed = _passed(tasks, final.argmax(axis=0), waited)
    return _LongestPaths(makespan_s=final.max(axis=0), tasks=passed.reshape(count, 2, pp, virtual))


def _makespan_s(forward_s: FloatArray, backward_s: FloatArray, microbatches: int) -> FloatArray:
    """`LongestPaths.makespan_s` alone."""
    _, pp, virtual = forward_s.shape
    return np.asarray(_finished(_tasks(pp, virtual, microbatches), forward_s, backward_s).max(axis=0))


def _finished(
    tasks: _Tasks, forward_s: FloatArray, backward_s: FloatArray, waited: BoolArray | None = None
) -> FloatArray:
    """When every device is done [pp, n]; ``waited`` [waves + 1, pp, n] is set where a task waits for another device."""
    count, (waves, pp) = len(forward_s), tasks.kind.shape
    of_kinds = np.stack([forward_s, backward_s]).reshape(2, count, -1).swapaxes(1, 2).reshape(-1, count)
    seconds, depth = np.concatenate([of_kinds, np.zeros((1, count))]), tasks.reach + 1
    latest = np.zeros((depth * pp + 1, count))  # ends of the last waves, each in place of one that is over; then 0
    of_waves = latest[:-1].reshape(depth, pp, count)
    needs = np.where(tasks.needs, tasks.needs % (depth * pp), depth * pp)
    for wave in range(1, waves):
        free, ends, arrived = of_waves[(wave - 1) % depth], of_waves[wave % depth], latest.take(needs[wave], axis=0)
        if waited is not None:
            np.greater(arrived, free, out=waited[wave])
        np.maximum(free, arrived, out=ends)
        ends += seconds.take(tasks.kind[wave], axis=0)
    return np.asarray(of_waves[(waves - 1) % depth])


def _passed(tasks: _Tasks, device: IntArray, waited: BoolArray) -> IntArray:
    """Count tasks of each kind on the path that ends on a ``device`` [n]: [n, kinds]."""
    (waves, pp), count = tasks.kind.shape, device.size
    kinds, columns = int(tasks.kind[0, 0]), np.arange(count)
    path, cell = np.empty((waves - 1, count), dtype=np.int64), (waves - 1) * pp + device
    for row in path:
        row[:] = cell
        cell = np.where(waited.take(cell * count + columns), tasks.needs.take(cell), np.maximum(cell - pp, 0))
    kind = tasks.kind.take(path) + columns * (kinds + 1)
    return np.bincount(kind.ravel(), minlength=count * (kinds + 1)).reshape(count, -1)[:, :-1]


class _Tasks(NamedTuple):
    """Tasks of a pipeline as cells [waves + 1, pp]: in every wave, one of each device or none; none in the first."""

    kind: Array
    """Kind of each task: forward or backward, device, chunk; their number for none."""
    needs: Array
    """The cell whose task another device must end before; 0 for none."""
    reach: int
    """Most waves between two such tasks."""


def _num_tasks(pp: int, virtual: int, microbatches: int) -> int:
    return 2 * pp * virtual * microbatches


@lru_cache(maxsize=64)
def _tasks(pp: int, virtual: int, microbatches: int) -> _Tasks:
    parts, device = pp * virtual, np.arange(pp)[:, None]
    backward, number = _alternating(pp, virtual, microbatches)
    group, within = np.divmod(number, parts)
    chunk = np.where(backward, virtual - 1 - within // pp, within // pp)
    microbatch, part = group * pp + within % pp, chunk * pp + device

    def named(of_part: IntArray) -> IntArray:
        return np.asarray((backward * parts + of_part) * microbatches + microbatch)

    alone = np.where(backward, part == parts - 1, part == 0)
    cell, cell_of = _waves(backward, number, virtual) * pp + device, np.zeros(number.size, dtype=np.int64)
    cell_of[named(part)] = cell
    needed = np.where(alone, 0, cell_of[named(np.where(backward, part + 1, part - 1)) * ~alone])
    reach = np.where(alone, 1, cell // pp - needed // pp)
    assert reach.min() > 0, "a task in a wave before its input's"
    size = int(cell.max()) // pp * pp + pp
    kind, needs = np.full(size, 2 * parts, dtype=np.int32), np.zeros(size, dtype=np.int32)
    kind[cell], needs[cell] = (backward * pp + device) * virtual + chunk, needed
    return _Tasks(kind.reshape(-1, pp), needs.reshape(-1, pp), int(reach.max()))


def _waves(backward: BoolArray, number: IntArray, virtual: int) -> IntArray:
    """Wave of every task [pp, 2 m v], from 1, if all take equally long. The last device never waits once it has begun:
    the others take their k-th backward after it, and a forward after it has done that of the chunk before."""
    pp, device = len(number), np.arange(len(number))[:, None]
    began = np.flatnonzero(~backward[-1]), np.flatnonzero(backward[-1])
    after_forward = pp + 1 + device + began[0][np.maximum(number - pp, 0)]
    after = np.where(number % (pp * virtual) < pp, 0, after_forward)
    after = np.where(backward, 2 * pp - 1 - device + began[1][number], after)
    order = np.arange(number.shape[1])
    return np.asarray(order + np.maximum.accumulate(np.maximum(after - order, device + 1), axis=1))


def _alternating(pp: int, virtual: int, microbatches: int) -> tuple[BoolArray, IntArray]:
    """For every device's tasks in order [pp, 2 m v]: whether it is a backward, and its index among its direction."""
    warm = np.array([[warmup_chunks(d, pp, virtual, microbatches)] for d in range(pp)])
    count = microbatches * virtual
    k = np.arange(2 * count)
    steady = (k >= warm) & (k < 2 * count - warm)
    backward = np.where(steady, (k - warm) % 2 == 1, k >= warm)
    in_pair = (k - warm) // 2
    number = np.where(steady, np.where(backward, in_pair, warm + in_pair), k - count * backward)
    return np.asarray(backward), np.asarray(number)


FORWARD = 1 / 3
"""Share of a chunk's time that is forward (GEMMs: one forward, two backward); stalls hardly depend on it."""
ROUNDS = (1, 2, 3)
"""Rounds of pp microbatches that are simulated; every further round adds as much as the last of these."""
DRAWN = 384
"""Number of sampled block durations in the search for paths."""
SAMPLED = 1 << 25
"""Most tasks times `DRAWN` for which paths are sampled: beyond, a pipeline's plans have fewer durations than that."""
WALKED = 1 << 23
"""Tasks times durations walked at once: 8 MiB of waits, however large the pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """The chunks of a pipeline: number of every block in each [pp, v, K], and which of the blocks are layers."""

    counts: IntArray
    is_layer: BoolArray
    exact: bool = False
    """Simulate the plans' own block seconds (few plans, their layers placed)."""

    @property
    def unequal(self) -> bool:
        layers = (self.counts * self.is_layer).sum(axis=-1)
        return self.counts.shape[1] > 1 and bool(layers.min() < layers.max())

    @property
    def simulated(self) -> bool:
        """Whether plans' own block seconds are simulated; it does not depend on the plans, so neither does a price."""
        pp, virtual, _ = self.counts.shape
        return self.exact or _num_tasks(pp, virtual, ROUNDS[-1] * pp) * DRAWN > SAMPLED


def stall_s(chunks: Chunks, seconds: FloatArray, microbatches: IntArray) -> FloatArray:
    """Seconds [n] a step takes beyond the closed form (negative: less), if a microbatch takes ``seconds`` [K, n]
    through each block."""
    pp = len(chunks.counts)
    rounds = np.asarray(microbatches) / pp
    full = np.clip(rounds.astype(np.int64), 1, ROUNDS[-1])
    needed = set(full.tolist())
    needed |= set(ROUNDS[-2:]) if (rounds > ROUNDS[-1]).any() else set()
    spared = np.zeros((len(ROUNDS), rounds.size))
    for several in needed:
        spared[several - 1] = _beyond(chunks, several * pp, seconds)
    few = spared[full - 1, np.arange(rounds.size)]
    extrapolated = spared[-1] + (spared[-1] - spared[-2]) * (rounds - ROUNDS[-1])
    return np.maximum(
        np.where(rounds > ROUNDS[-1], extrapolated, few), _at_least(chunks, seconds, np.asarray(microbatches))
    )


def _beyond(chunks: Chunks, microbatches: int, seconds: FloatArray) -> FloatArray:
    if chunks.simulated:
        longest = _simulated(chunks, microbatches, seconds)
    else:
        longest = summed(_paths(_key(chunks), microbatches), seconds).max(axis=0)
    return np.asarray(longest - _closed_form(chunks, seconds, microbatches))


def _simulated(chunks: Chunks, microbatches: int, seconds: FloatArray) -> FloatArray:
    """Makespan [n] under the plans' own ``seconds`` [K, n]; those that are a multiple of each other are walked once."""
    scale = seconds[chunks.is_layer].max(axis=0)
    distinct, index = np.unique((seconds / scale).round(12), axis=1, return_inverse=True)
    busy: FloatArray = np.moveaxis(summed(chunks.counts, distinct), -1, 0)
    walked = [
        _makespan_s(FORWARD * busy[few], (1 - FORWARD) * busy[few], microbatches)
        for few in _walks(busy.shape, microbatches)
    ]
    return np.asarray(np.concatenate(walked)[index.reshape(-1)] * scale)


def _walks(shape: tuple[int, ...], microbatches: int) -> Iterator[slice]:
    """Durations [n, pp, v] in pieces of at most `WALKED` tasks times durations."""
    count, pp, virtual = shape
    size = max(1, WALKED // _num_tasks(pp, virtual, microbatches))
    return (slice(start, start + size) for start in range(0, count, size))


def _at_least(chunks: Chunks, seconds: FloatArray, microbatches: IntArray) -> FloatArray:
    """Lower bound from paths that stay on one device: a microbatch comes down to it through the first chunks of the
    devices before it, all microbatches are processed there, and the last one goes back the same way."""
    firsts = np.cumsum(chunks.counts[:, 0], axis=0) - chunks.counts[:, 0]
    lingering: FloatArray = summed(chunks.counts.sum(axis=1), seconds) * microbatches + summed(firsts, seconds)
    return np.asarray(lingering.max(axis=0) - _closed_form(chunks, seconds, microbatches))


def _closed_form(chunks: Chunks, seconds: FloatArray, microbatches: Ints) -> FloatArray:
    """`pipeline.interleaved_s` without its stalls."""
    devices = summed(distinct(chunks.counts.sum(axis=1), axis=0), seconds)
    whole = summed(chunks.counts.sum(axis=(0, 1)), seconds)
    slowest = devices.max(axis=0)
    return np.asarray(microbatches * slowest + (whole - slowest) / chunks.counts.shape[1])


_Key = tuple[tuple[int, ...], bytes, bytes]


def _key(chunks: Chunks) -> _Key:
    return chunks.counts.shape, chunks.counts.tobytes(), chunks.is_layer.tobytes()


@lru_cache(maxsize=256)
def _paths(key: _Key, microbatches: int) -> FloatArray:
    """Longest paths [P, K] as numbers of each block passed, weighted by forward and backward share."""
    shape, counts, layers = key
    chunk_counts = np.frombuffer(counts, dtype=np.int64).reshape(shape)
    busy: Any = np.moveaxis(chunk_counts @ _drawn(np.frombuffer(layers, dtype=bool)), -1, 0)
    share = np.array([FORWARD, 1 - FORWARD])[:, None, None]
    walks = (busy[few] for few in _walks(busy.shape, microbatches))
    passed = np.concatenate(
        [(longest_paths(FORWARD * few, (1 - FORWARD) * few, microbatches).tasks * share).sum(axis=1) for few in walks]
    )
    return np.asarray(distinct(np.tensordot(passed, chunk_counts, axes=2).round(9), axis=0))


@remembered
def _drawn(is_layer: BoolArray) -> FloatArray:
    """Sampled durations [K, DRAWN]: the slowest kind of layer takes 1, others down to an eighth of it, blocks that are
    not layers (embedding, head) from a 50th to 32 times as much."""
    draw = np.random.default_rng(0)
    size = (is_layer.size, DRAWN)
    layers: Ints = 2.0 ** draw.uniform(-3, 0, size)
    others: Floats = np.stack([draw.permutation(np.geomspace(0.02, 32, DRAWN)) for _ in range(is_layer.size)])
    drawn = np.where(is_layer[:, None], layers, others)
    return np.asarray(drawn / np.where(is_layer[:, None], drawn, 0.0).max(axis=0))
