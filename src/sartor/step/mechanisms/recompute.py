"""Recomputation: a microbatch's forward, or parts of it, run again in backward (Korthikanti et al. 2022, sec. 5).

Counted as compute, with the communication that is repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sartor.model.training import Recompute
from sartor.step.mechanisms.mechanism import Mechanism, StageShare
from sartor.step.mechanisms.part import COMPUTE
from sartor.step.stages import summed
from sartor.units import FloatArray, Floats

if TYPE_CHECKING:
    from sartor.step.stage_seconds import StageSeconds


def _at_stage(stage: StageSeconds) -> StageShare | None:
    t, kind, some = stage.t.seconds, stage.work["recompute"], stage.work["recompute_layers"]
    if not np.any(kind):
        return None
    selective = summed(stage.counts, t.selective_s)
    full = summed(stage.counts, t.full_s * stage.t.is_layer[:, None])
    if np.all(some < 0):
        ways = np.concatenate([np.zeros_like(full), selective, full], axis=1)
        return StageShare(backward_s=np.asarray(ways.take(kind * full.shape[1] + stage.at, axis=1)))
    layers = stage.rows.counts @ stage.t.is_layer
    share = np.where(kind == Recompute.FULL, _share(stage, layers), 0.0)
    again = np.where(kind == Recompute.SELECTIVE, selective[:, stage.at], share * full[:, stage.at])
    return StageShare(backward_s=np.asarray(again))


def _share(stage: StageSeconds, layers: Floats) -> FloatArray:
    """Share of layers recomputed [R, W] on stages that have ``layers`` [R]."""
    some = stage.work["recompute_layers"]
    return np.where(some < 0, 1.0, np.minimum(some / np.maximum(layers, 1)[:, None], 1.0))


def mean_layers(stage: StageSeconds) -> FloatArray:
    """Mean number of layers per stage."""
    return np.asarray(stage.t.is_layer @ stage.rows.counts.T @ stage.rows.times / stage.rows.pp)


def full_share(stage: StageSeconds) -> Floats:
    """Share of the layers that is fully recomputed [W], on the mean stage."""
    share = _share(stage, np.array([mean_layers(stage)]))[0]
    return np.where(stage.work["recompute"] == Recompute.FULL, share, 0.0)


def again_s(stage: StageSeconds) -> FloatArray:
    """Recomputation seconds of one microbatch in every block [K, W]."""
    t, kind = stage.t.seconds, stage.work["recompute"]
    again = np.where(kind == Recompute.SELECTIVE, t.selective_s[:, stage.at], 0.0)
    return np.asarray(again + full_share(stage) * (t.full_s * stage.t.is_layer[:, None])[:, stage.at])


RECOMPUTING = Mechanism(
    name="recompute",
    part=COMPUTE,
    fields=("recompute", "recompute_layers", "recompute_modules"),
    at_stage=_at_stage,
)
