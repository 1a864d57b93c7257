"""Stalls of an interleaved pipeline with unequal numbers of layers per chunk.

The closed form of `pipeline.interleaved_s` adds up a device's chunks. If one chunk has two layers and another one,
neighbours also wait for each other in every round of microbatches: up to a tenth of the step, more with few
microbatches. We know no closed form. But a step lasts as long as its longest path, a path is a count of each block, and
only few paths are ever the longest: they are found once by walking the schedule with block durations spread over the
possible range, and then priced for a million plans like a formula. Up to three rounds the result is at most that of
`simulation` and nearly always equal; with placed layers (``stage_layers``) the plan's own durations are used: exact.
Further rounds are extrapolated: of 500 random pipelines 3 came out too long, by 5% at most.

Longest paths are found for many task durations at once. Every device works through its tasks in the order of `orders`.
Which tasks can run together does not depend on how long they take: they are sorted into waves once, a task's inputs
always in an earlier one, and every wave is one array operation under all durations. `simulation` does the same task by
task for one set of durations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sartor.step.orders import warmup_chunks
from sartor.step.stages import summed
from sartor.units import BoolArray, FloatArray, Floats, IntArray, Ints


class LongestPaths(NamedTuple):
    """Makespan [n] of a pipeline under each of n durations, and how often each kind of task is on its longest path [n,
    2, pp, v]: forward and backward, device, chunk."""

    makespan_s: FloatArray
    tasks: IntArray


def longest_paths(forward_s: FloatArray, backward_s: FloatArray, microbatches: int) -> LongestPaths:
    """Longest paths of ``microbatches`` (a multiple of pp) through chunks with these durations [n, pp, v]."""
    count, pp, virtual = forward_s.shape
    tasks = _tasks(pp, virtual, microbatches)
    waited = np.zeros((tasks.kind.size, count), dtype=bool)
    final = _finished(tasks, forward_s, backward_s, waited)
    passed = _passed(tasks, tasks.last[final.argmax(axis=0)], waited)
    return LongestPaths(makespan_s=final.max(axis=0), tasks=passed.reshape(count, 2, pp, virtual))


def makespan_s(forward_s: FloatArray, backward_s: FloatArray, microbatches: int) -> FloatArray:
    """`LongestPaths.makespan_s` alone."""
    _, pp, virtual = forward_s.shape
    return np.asarray(_finished(_tasks(pp, virtual, microbatches), forward_s, backward_s).max(axis=0))


def _finished(
    tasks: _Tasks, forward_s: FloatArray, backward_s: FloatArray, waited: BoolArray | None = None
) -> FloatArray:
    """When every device is done [pp, n]; ``waited`` [tasks + 1, n] is set where a task waits for another device."""
    seconds = (
        np.stack([forward_s, backward_s]).reshape(2, len(forward_s), -1).swapaxes(1, 2).reshape(-1, len(forward_s))
    )
    ends = np.zeros((tasks.kind.size, len(forward_s)))  # the last entry: no task
    for start, end in zip(tasks.waves[:-1], tasks.waves[1:], strict=True):
        free, arrived = ends.take(tasks.before[start:end], axis=0), ends.take(tasks.needs[start:end], axis=0)
        if waited is not None:
            np.greater(arrived, free, out=waited[start:end])
        np.maximum(free, arrived, out=ends[start:end])
        ends[start:end] += seconds.take(tasks.kind[start:end], axis=0)
    return np.asarray(ends[tasks.last])


def _passed(tasks: _Tasks, last: IntArray, waited: BoolArray) -> IntArray:
    """Count tasks of each kind on the path that ends in ``last`` [n]: [n, kinds]."""
    count, kinds = last.size, int(tasks.kind[-1])
    path, columns = np.empty((len(tasks.waves) - 1, count), dtype=np.int64), np.arange(count)
    for row in path:
        row[:] = last
        last = np.where(waited.take(last * count + columns), tasks.needs.take(last), tasks.before.take(last))
    kind = tasks.kind.take(path) + columns * (kinds + 1)
    return np.bincount(kind.ravel(), minlength=count * (kinds + 1)).reshape(count, -1)[:, :-1]


class _Tasks(NamedTuple):
    """Tasks of a pipeline, wave by wave, and after them one that stands for none."""

    waves: list[int]
    """Where each wave starts; then the number of tasks."""
    before: IntArray
    """The task that the same device runs before each."""
    needs: IntArray
    """The task of another device that must end before each."""
    kind: IntArray
    """Kind of each task: forward or backward, device, chunk; their number for none."""
    last: IntArray
    """[pp]: every device's last task."""


@lru_cache(maxsize=64)
def _tasks(pp: int, virtual: int, microbatches: int) -> _Tasks:
    parts, device = pp * virtual, np.arange(pp)[:, None]
    backward, number = _alternating(pp, virtual, microbatches)
    group, within = np.divmod(number, parts)
    chunk = np.where(backward, virtual - 1 - within // pp, within // pp)
    microbatch, part = group * pp + within % pp, chunk * pp + device
    none = number.size

    def named(of_part: IntArray) -> IntArray:
        return np.asarray((backward * parts + of_part) * microbatches + microbatch)

    order, alone = named(part), np.where(backward, part == parts - 1, part == 0)
    needs = np.where(alone, none, named(np.where(backward, part + 1, part - 1)))
    waves, place = _waves(order, needs)
    placed = place[order]
    before, waits, kind = np.full((3, none + 1), none)
    before[placed[:, 1:]] = placed[:, :-1]
    waits[placed] = place[needs]
    kind[placed], kind[none] = (backward * pp + device) * virtual + chunk, 2 * parts
    return _Tasks(waves, before, waits, kind, placed[:, -1])


def _waves(order: IntArray, needs: IntArray) -> tuple[list[int], IntArray]:
    """Where each wave starts, and every task's place [tasks + 1] if they are sorted by wave: in each, the next task of
    every device whose input is of an earlier one. ``order`` and ``needs`` are by device and position."""
    ranks, position = np.arange(len(order)), np.zeros(len(order), dtype=np.int64)
    place = np.full(order.size + 1, -1, dtype=np.int64)
    place[-1] = order.size
    waves = [0]
    while (ranks := ranks[position[ranks] < order.shape[1]]).size:
        ready = ranks[place[needs[ranks, position[ranks]]] >= 0]
        assert ready.size, "an order of tasks that waits for itself"
        place[order[ready, position[ready]]] = waves[-1] + np.arange(ready.size)
        position[ready] += 1
        waves.append(waves[-1] + ready.size)
    return waves, place


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
    if chunks.exact:
        busy: FloatArray = np.moveaxis(summed(chunks.counts, seconds), -1, 0)
        longest = makespan_s(FORWARD * busy, (1 - FORWARD) * busy, microbatches)
    else:
        longest = summed(_paths(_key(chunks), microbatches), seconds).max(axis=0)
    return np.asarray(longest - _closed_form(chunks, seconds, microbatches))


def _at_least(chunks: Chunks, seconds: FloatArray, microbatches: IntArray) -> FloatArray:
    """Lower bound from paths that stay on one device: a microbatch comes down to it through the first chunks of the
    devices before it, all microbatches are processed there, and the last one goes back the same way."""
    firsts = np.cumsum(chunks.counts[:, 0], axis=0) - chunks.counts[:, 0]
    lingering: FloatArray = summed(chunks.counts.sum(axis=1), seconds) * microbatches + summed(firsts, seconds)
    return np.asarray(lingering.max(axis=0) - _closed_form(chunks, seconds, microbatches))


def _closed_form(chunks: Chunks, seconds: FloatArray, microbatches: Ints) -> FloatArray:
    """`pipeline.interleaved_s` without its stalls."""
    devices = summed(np.unique(chunks.counts.sum(axis=1), axis=0), seconds)
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
    longest = longest_paths(FORWARD * busy, (1 - FORWARD) * busy, microbatches)
    share = np.array([FORWARD, 1 - FORWARD])[:, None, None]
    passed = (longest.tasks * share).sum(axis=1)
    return np.unique(np.tensordot(passed, chunk_counts, axes=2).round(9), axis=0)


def _drawn(is_layer: BoolArray) -> FloatArray:
    """Sampled durations [K, DRAWN]: the slowest kind of layer takes 1, others down to an eighth of it, blocks that are
    not layers (embedding, head) from a 50th to 32 times as much."""
    draw = np.random.default_rng(0)
    size = (is_layer.size, DRAWN)
    layers: Ints = 2.0 ** draw.uniform(-3, 0, size)
    others: Floats = np.stack([draw.permutation(np.geomspace(0.02, 32, DRAWN)) for _ in range(is_layer.size)])
    drawn = np.where(is_layer[:, None], layers, others)
    return np.asarray(drawn / np.where(is_layer[:, None], drawn, 0.0).max(axis=0))
