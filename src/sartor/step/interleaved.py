"""Longest paths through interleaved 1F1B with unequal chunks, for many task durations at once.

Every device works through its tasks in the order of `orders`; each round of a loop runs the next task of every device
that has its inputs, under all durations at once. `simulation` does the same task by task for one set of durations.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sartor.step.orders import warmup_chunks
from sartor.units import BoolArray, FloatArray, Floats, IntArray


class LongestPaths(NamedTuple):
    """Makespan [n] of a pipeline under each of n durations, and how often each kind of task is on its longest path [n,
    2, pp, v]: forward and backward, device, chunk."""

    makespan_s: FloatArray
    tasks: IntArray


def longest_paths(forward_s: FloatArray, backward_s: FloatArray, microbatches: int) -> LongestPaths:
    """Longest paths of ``microbatches`` (a multiple of pp) through chunks with these durations [n, pp, v]."""
    count, pp, virtual = forward_s.shape
    of = _tasks(pp, virtual, microbatches)
    seconds = np.stack([forward_s, backward_s]).reshape(2, count, -1).swapaxes(1, 2).reshape(-1, count)
    ends = np.zeros((of.kind.size + 1, count))  # the last entry: no input needed
    waited = np.zeros((of.kind.size, count), dtype=bool)
    known = np.zeros(len(ends), dtype=bool)
    known[-1] = True
    position, ranks = np.zeros(pp, dtype=np.int64), np.arange(pp)
    while (ranks := ranks[position[ranks] < of.order.shape[1]]).size:
        task = of.order[ranks, position[ranks]]
        ready = known[of.needs[task]]
        assert ready.any(), "an order of tasks that waits for itself"
        task = task[ready]
        free, arrived = ends[of.before[task]], ends[of.needs[task]]
        waited[task] = arrived > free
        ends[task] = np.maximum(free, arrived) + seconds[of.kind[task]]
        known[task] = True
        position[ranks[ready]] += 1
    final = ends[of.order[:, -1]]
    passed = _backwards(of, of.order[final.argmax(axis=0), -1], waited, len(seconds))
    return LongestPaths(makespan_s=final.max(axis=0), tasks=passed.reshape(count, 2, pp, virtual))


def _backwards(of: _Tasks, last: IntArray, waited: BoolArray, kinds: int) -> IntArray:
    """Count tasks of each kind on the path that ends in ``last`` [n]."""
    columns = np.arange(last.size)
    passed = np.zeros((last.size, kinds), dtype=np.int64)
    task = last
    while (on := task >= 0).any():
        columns, task = columns[on], task[on]
        passed[columns, of.kind[task]] += 1
        task = np.where(waited[task, columns], of.needs[task], of.before[task])
    return passed


class _Tasks(NamedTuple):
    """Tasks of a pipeline by number; -1 stands for none."""

    order: IntArray
    """[pp, 2 m v]: every device's tasks, first to last."""
    before: IntArray
    """The task that the same device runs before each."""
    needs: IntArray
    """The task of another device that must end before each."""
    kind: IntArray
    """Kind of each task: forward or backward, device, chunk."""


@lru_cache(maxsize=64)
def _tasks(pp: int, virtual: int, microbatches: int) -> _Tasks:
    parts, device = pp * virtual, np.arange(pp)[:, None]
    backward, number = _alternating(pp, virtual, microbatches)
    group, within = np.divmod(number, parts)
    chunk = np.where(backward, virtual - 1 - within // pp, within // pp)
    microbatch, part = group * pp + within % pp, chunk * pp + device

    def named(of_part: IntArray) -> IntArray:
        return np.asarray((backward * parts + of_part) * microbatches + microbatch)

    order, alone = named(part), np.where(backward, part == parts - 1, part == 0)
    by_number = np.empty((3, order.size), dtype=np.int64)
    by_number[0, order] = np.concatenate([np.full((pp, 1), -1), order[:, :-1]], axis=1)
    by_number[1, order] = np.where(alone, -1, named(np.where(backward, part + 1, part - 1)))
    by_number[2, order] = (backward * pp + device) * virtual + chunk
    return _Tasks(order, *by_number)


def _alternating(pp: int, virtual: int, microbatches: int) -> tuple[Floats, Floats]:
    """For every device's tasks in order [pp, 2 m v]: whether it is a backward, and its index among its direction."""
    warm = np.array([[warmup_chunks(d, pp, virtual, microbatches)] for d in range(pp)])
    count = microbatches * virtual
    k = np.arange(2 * count)
    steady = (k >= warm) & (k < 2 * count - warm)
    backward = np.where(steady, (k - warm) % 2 == 1, k >= warm)
    in_pair = (k - warm) // 2
    return backward, np.where(steady, np.where(backward, in_pair, warm + in_pair), k - count * backward)
