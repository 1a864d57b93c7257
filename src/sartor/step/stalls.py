"""Stalls of an interleaved pipeline with unequal numbers of layers per chunk.

The closed form of `pipeline.interleaved_s` adds up a device's chunks. If one chunk has two layers and another one,
neighbours also wait for each other in every round of microbatches: up to a tenth of the step, more with few
microbatches. We know no closed form. But a step lasts as long as its longest path, a path is a count of each block, and
only few paths are ever the longest: they are found once by walking the schedule with block durations spread over the
possible range, and then priced for a million plans like a formula. Up to three rounds the result is at most that of
`simulation` and nearly always equal; with placed layers (``stage_layers``) the plan's own durations are used: exact.
Further rounds are extrapolated: of 500 random pipelines 3 came out too long, by 5% at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sartor.step.interleaved import longest_paths, makespan_s
from sartor.step.stages import summed
from sartor.units import BoolArray, FloatArray, Floats, IntArray, Ints

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
    more = spared[-1] + (spared[-1] - spared[-2]) * (rounds - ROUNDS[-1])
    return np.maximum(np.where(rounds > ROUNDS[-1], more, few), _at_least(chunks, seconds, np.asarray(microbatches)))


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
    most = devices.max(axis=0)
    return np.asarray(microbatches * most + (whole - most) / chunks.counts.shape[1])


_Key = tuple[tuple[int, ...], bytes, bytes]


def _key(chunks: Chunks) -> _Key:
    return chunks.counts.shape, chunks.counts.tobytes(), chunks.is_layer.tobytes()


@lru_cache(maxsize=256)
def _paths(key: _Key, microbatches: int) -> FloatArray:
    """Longest paths [P, K] as numbers of each block passed, weighted by forward and backward share."""
    shape, counts, layers = key
    held = np.frombuffer(counts, dtype=np.int64).reshape(shape)
    busy: Any = np.moveaxis(held @ _drawn(np.frombuffer(layers, dtype=bool)), -1, 0)
    longest = longest_paths(FORWARD * busy, (1 - FORWARD) * busy, microbatches)
    share = np.array([FORWARD, 1 - FORWARD])[:, None, None]
    passed = (longest.tasks * share).sum(axis=1)
    return np.unique(np.tensordot(passed, held, axes=2).round(9), axis=0)


def _drawn(is_layer: BoolArray) -> FloatArray:
    """Sampled durations [K, DRAWN]: the slowest kind of layer takes 1, others down to an eighth of it, blocks that are
    not layers (embedding, head) from a 50th to 32 times as much."""
    draw = np.random.default_rng(0)
    size = (is_layer.size, DRAWN)
    layers: Ints = 2.0 ** draw.uniform(-3, 0, size)
    others: Floats = np.stack([draw.permutation(np.geomspace(0.02, 32, DRAWN)) for _ in range(is_layer.size)])
    drawn = np.where(is_layer[:, None], layers, others)
    return np.asarray(drawn / np.where(is_layer[:, None], drawn, 0.0).max(axis=0))
