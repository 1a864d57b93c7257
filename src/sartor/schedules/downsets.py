"""A schedule as a path: from nothing done to all done, over the sets of operators that may be done at one moment.

A split operator runs alone, so before and after it nothing runs: what is done then is a *downset*, a set closed under
predecessors. A schedule steps from one to the next either by one operator alone, or by a *stretch*: operators that run
on one core each, whose time depends on which they are and on nothing else. The layers of models are narrow, and have a
few thousand downsets; with lower bounds for the stretches' times the shortest path is a lower bound, with times that
were reached it is a schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sartor.schedules.split import OpBlock, bits
from sartor.units import BoolArray, IntArray

FAR = 1 << 60
"""Longer than any schedule, so that two of them still fit in an integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Numbers of the downset before and after each [edges], in the order of the former."""

    before: IntArray
    after: IntArray

    def only(self, kept: BoolArray) -> Edges:
        return Edges(before=self.before[kept], after=self.after[kept])

    def ahead(self, cost: IntArray, count: int) -> IntArray:
        """The shortest way [downsets] from the first to each."""
        out, first = np.full(count, FAR), np.searchsorted(self.before, np.arange(count + 1)).tolist()
        out[0] = 0
        for k, (a, b) in enumerate(pairwise(first)):
            if a < b:
                np.minimum.at(out, self.after[a:b], out[k] + cost[a:b])
        return np.asarray(np.minimum(out, FAR))

    def behind(self, cost: IntArray, count: int) -> IntArray:
        """The shortest way [downsets] from each to the last."""
        order = np.argsort(self.after, kind="stable")
        before, cost = self.before[order], cost[order]
        out, first = np.full(count, FAR), np.searchsorted(self.after[order], np.arange(count + 1)).tolist()
        out[-1] = 0
        for k in range(count - 1, -1, -1):
            if (a := first[k]) < (b := first[k + 1]):
                np.minimum.at(out, before[a:b], out[k] + cost[a:b])
        return np.asarray(np.minimum(out, FAR))


def together(one: Edges, other: Edges) -> tuple[Edges, IntArray]:
    """All of them, and where each stands among both in turn."""
    before, after = np.concatenate([one.before, other.before]), np.concatenate([one.after, other.after])
    order = np.argsort(before, kind="stable")
    return Edges(before=before[order], after=after[order]), order


def downsets(block: OpBlock, most: int) -> list[int] | None:
    """Masks of all downsets, smaller ones first; None if there are more than so many."""
    before, layer, found = block.before, {0}, [0]
    for _ in range(block.size):
        layer = {
            mask | 1 << i for mask in layer for i in range(block.size) if not mask >> i & 1 and not before[i] & ~mask
        }
        found += sorted(layer)
        if len(found) > most:
            return None
    return found


class Lattice:
    """The downsets [downsets] of a block, with which operators are in each [downsets, operators]."""

    def __init__(self, block: OpBlock, masks: list[int]) -> None:
        self.block, self.masks = block, np.array(masks, dtype=np.uint64)
        self.has = (self.masks[:, None] >> np.arange(block.size, dtype=np.uint64) & np.uint64(1)).astype(bool)
        self.serial = self.has @ np.array(block.serial, dtype=np.int64)
        """Time of all that is done, one operator after another."""

    def __len__(self) -> int:
        return len(self.masks)

    def steps(self) -> tuple[Edges, IntArray]:
        """One operator alone, in its shorter mode, and its time."""
        number = {mask: k for k, mask in enumerate(self.masks.tolist())}
        found = [
            (k, number[mask | 1 << i], self.block.serial[i])
            for mask, k in number.items()
            for i in range(self.block.size)
            if not mask >> i & 1 and mask | 1 << i in number
        ]
        before, after, cost = np.array(found, dtype=np.int64).T
        return Edges(before=before, after=after), cost

    def stretches(self, upper: int) -> tuple[Edges, IntArray]:
        """From each downset to each larger one, and a lower bound of its time: work over cores. Without those that are
        no shorter than their operators in turn, or on no way shorter than ``upper``."""
        work = [(self.has @ np.array(users, dtype=np.int64), count) for users, count in _work(self.block)]
        fronts, found = np.full(len(self), FAR), list[tuple[IntArray, IntArray, IntArray]]()
        fronts[0] = 0
        for k, mask in enumerate(self.masks):
            later = np.flatnonzero((self.masks[k + 1 :] & mask) == mask) + k + 1
            least = np.max([-((done[k] - done[later]) // count) for done, count in work], axis=0)
            in_turn = self.serial[later] - self.serial[k]
            np.minimum.at(fronts, later, fronts[k] + np.minimum(least, in_turn))
            kept = (least < in_turn) & (fronts[k] + least < upper)
            found.append((np.full(int(kept.sum()), k), later[kept], least[kept]))
        before, after, cost = (np.concatenate(column) for column in zip(*found, strict=True))
        return Edges(before=before, after=after), cost

    def longest_chains(self, edges: Edges) -> IntArray:
        """The longest path [edges] of one-core times among the operators of each stretch."""
        ahead, latency = [list(bits(mask)) for mask in self.block.before], self.block.latency
        out, first = np.zeros_like(edges.before), np.searchsorted(edges.before, np.arange(len(self) + 1)).tolist()
        for k, (a, b) in enumerate(pairwise(first)):
            if a == b:
                continue
            chain = [0] * self.block.size
            for i in np.flatnonzero(~self.has[k]).tolist():
                chain[i] = latency[i] + max((chain[j] for j in ahead[i]), default=0)
            out[a:b] = (self.has[edges.after[a:b]] * np.array(chain)).max(axis=1)
        return out


def _work(block: OpBlock) -> list[tuple[list[int], int]]:
    """One-core time of each operator on either kind of core, and how many of these there are."""
    tensor = [time * kind.needs_tensor_core for time, kind in zip(block.latency, block.core_types, strict=True)]
    vector = [time * kind.needs_vector_core for time, kind in zip(block.latency, block.core_types, strict=True)]
    return [(users, count) for users, count in ((tensor, block.num_tc), (vector, block.num_vc)) if any(users)]
