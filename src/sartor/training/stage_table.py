"""One plan's pipeline, rank by rank: which layers each holds, how long a microbatch keeps it, what fills its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.hardware.calibration import Calibration
from sartor.hardware.cluster import Cluster
from sartor.model.training import Recompute, TrainingJob, TrainingPlan
from sartor.training.block_times import block_times
from sartor.training.blocks import BlockKind, blocks
from sartor.training.footprint import every_stage, usable_bytes
from sartor.training.results import BlockTimes
from sartor.training.stages import stage_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One pipeline rank: what it holds, and its load."""

    stage: int
    layers: int
    chunks: tuple[int, ...]
    """Layers of each of its chunks, in the order they are passed."""
    holds: tuple[str, ...]
    """Blocks beside layers: embedding, mtp, head."""
    load_s: float
    """Busy seconds of one microbatch forward and backward: compute, recomputation, exposed communication of layers."""
    state_bytes: float
    """Weights, gradients, optimizer states."""
    stash_bytes: float
    workspace_bytes: float
    device_bytes: float
    limit_bytes: float


def stage_table(
    job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Calibration | None = None
) -> tuple[StageRow, ...]:
    """Every pipeline rank of a single plan, first to last."""
    pp, virtual = int(plan.dims.pp), int(plan.virtual_stages)
    counts = stage_counts(job.shape, pp, virtual, plan.stage_layers)
    kinds = blocks(job.shape)
    is_layer = np.array([block.kind is BlockKind.LAYER for block in kinds])
    loads = counts.sum(axis=1) @ np.array([_load(t) for t in block_times(job, plan, cluster, calibration)])
    loads = loads + _recomputed(job, plan, cluster, calibration, counts, is_layer)
    memory = every_stage(job, plan, cluster)
    limit = usable_bytes(cluster)
    return tuple(
        StageRow(
            stage=s,
            layers=int(counts[s][:, is_layer].sum()),
            chunks=tuple(int(n) for n in counts[s][:, is_layer].sum(axis=1)),
            holds=tuple(b.name for i, b in enumerate(kinds) if not is_layer[i] and counts[s][:, i].any()),
            load_s=float(loads[s]),
            state_bytes=float(memory.states[s, 0]),
            stash_bytes=float(memory.kept[s, 0]),
            workspace_bytes=float(memory.working[s, 0]),
            device_bytes=float(memory.device_bytes[s, 0]),
            limit_bytes=limit,
        )
        for s in range(pp)
    )


def layer_loads(
    job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Calibration | None = None
) -> npt.NDArray[np.float64]:
    """Busy seconds of one microbatch in one block of each kind (of `blocks`), forward and backward, of one plan."""
    times = block_times(job, plan, cluster, calibration)
    extra = {Recompute.FULL: "full_s", Recompute.SELECTIVE: "selective_s"}.get(Recompute(int(plan.recompute)), "")
    every_layer = int(plan.recompute_layers) < 0 or plan.recompute == Recompute.SELECTIVE
    again = [float(getattr(t, extra)) if extra and every_layer else 0.0 for t in times]
    return np.array([_load(t) + more for t, more in zip(times, again, strict=True)])


_PARTS = (
    "forward_s",
    "dgrad_s",
    "wgrad_s",
    "tp_forward_s",
    "tp_backward_s",
    "ep_forward_s",
    "ep_backward_s",
    "cp_forward_s",
    "cp_backward_s",
)


def _load(times: BlockTimes) -> float:
    return float(sum(getattr(times, part) for part in _PARTS))


def _recomputed(
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    calibration: Calibration | None,
    counts: npt.NDArray[Any],
    is_layer: npt.NDArray[np.bool_],
) -> npt.NDArray[np.float64]:
    """Seconds of what each rank computes again for one microbatch."""
    times = block_times(job, plan, cluster, calibration)
    held = np.where(is_layer, counts.sum(axis=1), 0)
    if plan.recompute == Recompute.NONE:
        return np.zeros(len(counts))
    field = "full_s" if plan.recompute == Recompute.FULL else "selective_s"
    whole = held @ np.array([float(getattr(t, field)) for t in times])
    if plan.recompute != Recompute.FULL or int(plan.recompute_layers) < 0:
        return np.asarray(whole)
    layers = np.maximum(held.sum(axis=1), 1)
    return np.asarray(whole * np.minimum(int(plan.recompute_layers) / layers, 1.0))
