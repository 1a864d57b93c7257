"""Activation offloading to host memory: seconds on the host link, and how much of them is exposed.

A layer's activations are copied out while the next layers run forward, and copied back while later layers run backward
(Megatron-Core's fine_grained_activation_offload.py uses separate copy streams, both ways at once; as of 2026-11). So a
step sees only the part of a layer's copy that exceeds a layer's compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.model.training import OffloadModule, Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.step.activations import Activations
from sartor.step.mechanisms.mechanism import COMPUTE, OVERHEAD, Condition, Limits, Mechanism, StageShare
from sartor.step.mechanisms.recompute import again_s, full_share, mean_layers
from sartor.step.rank_activations import microbatch_of, moved_bytes, share_moved
from sartor.step.stages import BlockRows, summed
from sartor.units import FloatArray, Floats

if TYPE_CHECKING:
    from sartor.step.stage_seconds import StageSeconds


def host_bytes_per_s(cluster: Cluster) -> float:
    """Bandwidth between a device and its host, one way: the link, or the device's share of host memory bandwidth."""
    return min(cluster.host_link_bytes_per_s, cluster.host_memory_bytes_per_s)


def offload_seconds(job: TrainingJob, rows: BlockRows, cluster: Cluster) -> FloatArray | None:
    """Seconds one way over the host link for one microbatch through each block [recomputations, blocks, distinct rows];
    None if nothing is offloaded."""
    if not job.offload_modules:
        return None
    dims = ParallelDims(
        tp=rows.tp,
        cp=rows.cp,
        ep=rows.ep,
        sequence_parallel=rows.sequence_parallel,  # type: ignore[arg-type]
    )
    activations = microbatch_of(job, TrainingPlan(dims=dims, microbatch_size=rows.microbatch_size)).activations
    moved = [[_moved(job, act, kind) + np.zeros(rows.size) for act in activations] for kind in Recompute]
    return np.array(moved) / host_bytes_per_s(cluster)


def _moved(job: TrainingJob, act: Activations | None, kind: Recompute) -> Floats:
    return 0.0 if act is None else moved_bytes(job, act)[kind]


def _at_stage(stage: StageSeconds) -> StageShare | None:
    """The part of the copies to and from host memory that a block's compute does not hide."""
    if stage.t.offload_s is None:
        return None
    t, kind = stage.t.seconds, stage.work["recompute"]
    plain, selective, inputs = stage.t.offload_s[:, :, stage.at]
    full = full_share(stage)
    moved = np.where(kind == Recompute.SELECTIVE, selective, full * inputs + (1 - full) * plain)
    moved = moved * share_moved(stage.t.job, mean_layers(stage))
    behind = (t.backward_s + t.wgrad_s)[:, stage.at] + again_s(stage)
    return StageShare(
        forward_s=summed(stage.counts, np.maximum(moved - t.forward_s[:, stage.at], 0.0)),
        backward_s=summed(stage.counts, np.maximum(moved - behind, 0.0)),
    )


def _job_limits(job: TrainingJob) -> Iterator[InputError]:
    trainer, modules = job.trainer, job.offload_modules
    for module in (module for module in OffloadModule if module in modules and module not in trainer.offloads):
        near = trainer.offloads[0].value if trainer.offloads else "none"
        yield InputError("offload_modules", module.value, f"{trainer.called} does not offload it", near)
    if not trainer.offloads_layers_alone:
        return
    if OffloadModule.LAYER in modules and trainer.cuda_graphs:
        must = f"{trainer.called} offloads whole layers without CUDA graphs"
        yield InputError("offload_modules", "layer", must, "core_attn")
    if OffloadModule.ATTN_PROJ in modules and OffloadModule.CORE_ATTN not in modules:
        yield InputError(
            "offload_modules", "attn_proj", f"{trainer.called} needs core_attn with it", "core_attn+attn_proj"
        )
    if modules and OffloadModule.LAYER not in modules and job.offload_layers:
        must = f"{trainer.called} offloads modules of all layers"
        yield InputError("offload_layers", job.offload_layers, must, "all")


def _pipeline_limits(job: TrainingJob) -> Limits:
    if OffloadModule.LAYER in job.offload_modules and job.trainer.offloads_layers_alone:
        yield Condition(reason="whole-layer offloading does not work with a pipeline", ok=lambda r: r["pp"] == 1)


OFFLOADING = Mechanism(
    name="offload",
    part=OVERHEAD,
    fields=("offload_modules", "recompute"),
    page="concepts/memory.md",
    hidden_behind=(COMPUTE.key,),
    limits={"pp": _pipeline_limits},
    job_limits=_job_limits,
    at_stage=_at_stage,
)
