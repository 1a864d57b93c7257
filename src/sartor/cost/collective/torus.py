"""Collectives on a torus of links (TPU): a group uses all axes it covers, and an axis it covers only in part at half.

Devices are numbered along the axes of a slice that is as close to a cube (a square) as its size allows. Sources: How to
Scale Your Model (jax-ml/scaling-book, 2025), chapters TPUs and Sharding: a bidirectional ring along an axis uses both
links, an axis without wraparound takes twice the time, an all-to-all a quarter of an all-gather's.
"""

from __future__ import annotations

import numpy as np

from sartor.cost.collective.ring import volume
from sartor.hardware.cluster import LinkTier
from sartor.operators import CollectiveKind
from sartor.units import Floats

_EPSILON = 1e-6


def torus_terms(
    kind: CollectiveKind, n: Floats, stride: Floats, tier: LinkTier, slice_devices: int
) -> tuple[Floats, Floats, Floats]:
    """Share of the buffer each device sends, its nominal rate [bytes/s], and the number of sequential hops.

    ``n`` members ``stride`` apart on a torus of ``slice_devices`` (0: as many as the largest group needs).
    """
    axes = tier.torus_axes
    devices = slice_devices or float(np.max(n * stride, initial=1.0))
    side = max(devices, 2.0) ** (1.0 / axes)
    full, partial = _axes(n, stride, side, axes)
    covered = np.maximum(full + partial, 1.0)
    if kind is CollectiveKind.SEND_RECV:
        return 1.0, tier.bytes_per_s / (2 * axes) + np.zeros_like(n), np.ones_like(n)
    ring = 1.0 if side + _EPSILON >= tier.torus_wrap else 0.5
    rate = tier.bytes_per_s * np.maximum(full * ring + partial * 0.5, 0.5) / axes
    length = np.maximum(n, 1.0) ** (1.0 / covered)
    if kind is CollectiveKind.ALL_TO_ALL:  # mean distance along an axis: a quarter of its length
        return volume(kind, n) * np.maximum(covered * length / 4, 1.0), rate, np.ceil(covered * length / 2)
    turns = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    return volume(kind, n), rate, turns * np.ceil(covered * length / 2)


def _axes(n: Floats, stride: Floats, side: float, axes: int) -> tuple[Floats, Floats]:
    """How many axes a group covers fully, and how many in part."""
    first = np.log(stride) / np.log(side)
    last = np.log(np.maximum(n * stride, 1.0)) / np.log(side)
    start, end = np.floor(first + _EPSILON), np.ceil(last - _EPSILON)
    touched = np.clip(end - start, 1.0, axes)
    full = np.clip(np.floor(last + _EPSILON) - np.ceil(first - _EPSILON), 0.0, touched)
    return full, touched - full
