"""A schedule as a path over *downsets*: sets of finished operators, closed under predecessors.

A split operator runs alone, so before and after it the finished operators form a downset. A schedule moves from one
downset to the next either by one operator alone or by a *stretch*: operators on one core each, with a time that depends
only on which operators they are. Layers of models are narrow and have a few thousand downsets. With lower bounds as
the stretches' times, the shortest path is a lower bound; with reached times it is a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sartor.schedules.split import OpBlock, bits
from sartor.units import BoolArray, IntArray

FAR = 1 << 60
"""Longer than any schedule; the sum of two still fits in 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Downset before and after each edge [edges], sorted by the former."""

    before: IntArray
    after: IntArray

    def only(self, kept: BoolArray) -> Edges:
        return Edges(before=self.before[kept], after=self.after[kept])

    def ahead(self, cost: IntArray, count: int) -> IntArray:
        """Length of the shortest path [downsets] from the first downset to each."""
        out, first = np.full(count, FAR), np.searchsorted(self.before, np.arange(count + 1)).tolist()
        out[0] = 0
        for k, (a, b) in enumerate(pairwise(first)):
            if a < b:
                np.minimum.at(out, self.after[a:b], out[k] + cost[a:b])
        return np.asarray(np.minimum(out, FAR))

    def behind(self, cost: IntArray, count: int) -> IntArray:
        """Length of the shortest path [downsets] from each downset to the last."""
        order = np.argsort(self.after, kind="stable")
        before, cost = self.before[order], cost[order]
        out, first = np.full(count, FAR), np.searchsorted(self.after[order], np.arange(count + 1)).tolist()
        out[-1] = 0
        for k in range(count - 1, -1, -1):
            if (a := first[k]) < (b := first[k + 1]):
                np.minimum.at(out, before[a:b], out[k] + cost[a:b])
        return np.asarray(np.minimum(out, FAR))


def together(one: Edges, other: Edges) -> tuple[Edges, IntArray]:
    """Edges of both, and the index of each in their concatenation."""
    before, after = np.concatenate([one.before, other.before]), np.concatenate([one.after, other.after])
    order = np.argsort(before, kind="stable")
    return Edges(before=before[order], after=after[order]), order


def downsets(block: OpBlock, most: int) -> list[int] | None:
    """Masks of all downsets, smaller ones first; None if there are more than ``most``."""
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
        """Time of all finished operators, one after another."""

    def __len__(self) -> int:
        return len(self.masks)

    def steps(self) -> tuple[Edges, IntArray]:
        """Edges of one operator running alone, in its shorter mode, and their times."""
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
        """Edges from each downset to each larger one with a lower bound of their time, work over cores; without those
        that are no shorter than their operators one after another, or on no path shorter than ``upper``."""
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

    def busy(self, edges: Edges) -> IntArray:
        """Lower bound [edges] of each stretch's time: work over cores of the operators that start latest or end
        earliest, with the least time before the first of them and after the last."""
        heads, tails = self._paths(self.block.before, within=False), self._paths(self.block.after, within=True)
        before, after, out = edges.before, edges.after, np.zeros_like(edges.before)
        inside = self.has[after] & ~self.has[before]
        for users, count in _work(self.block):
            work = np.array(users, dtype=np.int64)
            for near, own, rest in ((before, heads, tails[after]), (after, tails, heads[before])):
                order = np.argsort(near, kind="stable")
                first = np.searchsorted(near[order], np.arange(len(self) + 1)).tolist()
                for k, (a, b) in enumerate(pairwise(first)):
                    if a < b:
                        some, late = order[a:b], np.argsort(-own[k], kind="stable")
                        late = late[work[late] > 0]
                        mine = inside[some][:, late]
                        least = np.minimum.accumulate(np.where(mine, rest[some][:, late], FAR), axis=1)
                        length = own[k, late] - -np.cumsum(mine * work[late], axis=1) // count + least
                        out[some] = np.maximum(out[some], np.where(mine, length, 0).max(axis=1))
        return out

    def _paths(self, ahead: Sequence[int], *, within: bool) -> IntArray:
        """The longest path [downsets, operators] of one-core times up to each operator, among those of ``ahead`` that
        are in the downset (``within``) or not in it."""
        out, latency, size = np.zeros(self.has.shape, dtype=np.int64), self.block.latency, self.block.size
        for i in range(size)[:: -1 if within else 1]:
            for j in bits(ahead[i]):
                there = self.has[:, j] if within else ~self.has[:, j]
                out[:, i] = np.maximum(out[:, i], np.where(there, out[:, j] + latency[j], 0))
        return out

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
    """For each kind of core in use: one-core time of every operator, and the number of cores."""
    tensor = [time * kind.needs_tensor_core for time, kind in zip(block.latency, block.core_types, strict=True)]
    vector = [time * kind.needs_vector_core for time, kind in zip(block.latency, block.core_types, strict=True)]
    return [(users, count) for users, count in ((tensor, block.num_tc), (vector, block.num_vc)) if any(users)]
