"""Bytes of every device of a pipeline, part by part, for arrays of plans that share (pp, virtual_stages)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sartor.hardware.cluster import Cluster
from sartor.hardware.gpu import Gpu
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.step.held_bytes import HeldBytes, held_bytes, params_of
from sartor.step.kept_bytes import KeptBytes, kept_bytes, kept_in_lockstep, microbatch_of, ranks_of
from sartor.step.stages import stage_counts
from sartor.units import BoolArray, FloatArray, IntArray

USABLE_SHARE = 0.99
"""Share of a device's memory that processes can use (recalled: PyTorch reports 79.15 to 79.33 GiB in total on 80-GiB
A100 and H100)."""

TIGHT_FRAGMENTATION = 1.03
"""Fragmentation on a full device, where the allocator frees cached blocks before it runs out of memory (assumed)."""


def usable_of(gpu: Gpu) -> float:
    """Bytes of a device's memory that a process can fill."""
    return gpu.hbm_bytes * (USABLE_SHARE if gpu.accelerator is None else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """Bytes [devices, plans] of some devices of a pipeline (``device``: their ranks)."""

    device: IntArray
    held: HeldBytes
    kept: KeptBytes
    reserved: FloatArray
    """Bytes reserved by the allocator."""

    @property
    def stash(self) -> FloatArray:
        """Kept for backward, all microbatches in flight."""
        return self.kept.layers_kept + self.kept.head_kept

    @property
    def buffers(self) -> FloatArray:
        """Communication buckets, transfers between stages, library workspaces."""
        return self.kept.moving + self.held.buckets

    @property
    def working(self) -> FloatArray:
        """Peak of forward and backward on top of what is kept."""
        peak = np.maximum(self.kept.layer_peak, self.kept.head_peak)
        return peak + self.held.gathered + self.held.placeholders + self.buffers

    @property
    def steps(self) -> BoolArray:
        """Whether memory peaks in the optimizer's step."""
        return self.held.step_peak + self.buffers > self.stash + self.working

    @property
    def allocated(self) -> FloatArray:
        """Bytes allocated to tensors at the peak."""
        return self.held.states + np.maximum(self.stash + self.working, self.held.step_peak + self.buffers)

    @property
    def device_bytes(self) -> FloatArray:
        return self.reserved + self.held.context


def stage_bytes(
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    counts: IntArray,
    device: IntArray,
) -> StageBytes:
    """Bytes of the pipeline ranks ``device`` that hold ``counts`` [devices, chunks, blocks] of `blocks`; the fields of
    ``plan`` are flat arrays of equal length with a single pp and number of virtual stages."""
    held = held_bytes(job, plan, cluster.gpu, params_of(job, plan), counts.sum(axis=1)[:, None])
    microbatch = microbatch_of(job, plan)
    if job.trainer.lockstep:
        kept = kept_in_lockstep(job, plan, microbatch, counts, device)
    else:
        d, in_flight = plan.dims, (plan.schedule, plan.num_microbatches)
        ranks = ranks_of(int(d.pp[0]), *in_flight, counts, device)  # type: ignore[index, arg-type]
        kept = kept_bytes(job, plan, cluster.gpu, microbatch, ranks)
    passing = kept.layers_kept + kept.head_kept + np.maximum(kept.layer_peak, kept.head_peak)
    passing = passing + held.gathered + held.placeholders
    base = held.states + held.buckets + kept.moving
    reserved = reserved_bytes(job, cluster, base, passing, held.step_peak, held.context)
    return StageBytes(device=device, held=held, kept=kept, reserved=reserved)


def reserved_bytes(
    job: TrainingJob,
    cluster: Cluster,
    base: FloatArray,
    passing: FloatArray,
    step_peak: FloatArray,
    context: FloatArray,
) -> FloatArray:
    """Bytes reserved by the allocator: states and buffers (``base``), activations and temporaries (``passing``) with
    fragmentation, and separate blocks for the optimizer's step; near the device's limit the allocator frees idle blocks
    first."""
    habits = job.trainer.memory
    tight = min(habits.fragmentation, TIGHT_FRAGMENTATION)
    full = (USABLE_SHARE * cluster.gpu.hbm_bytes - context) * (1 - 1e-9)
    tight_bytes, loose = passing * tight, passing * habits.fragmentation
    if np.any(step_peak):
        tight_bytes = np.maximum(tight_bytes, step_peak)
        loose = np.maximum(loose + step_peak if habits.steps_in_own_blocks else loose, step_peak)
    reserved: FloatArray = np.maximum(base + tight_bytes, np.minimum(base + loose, full))
    return reserved


def devices_of(
    job: TrainingJob,
    pp: int,
    virtual: int,
    stage_layers: tuple[int, ...] | None,
    *,
    every: bool,
    v_shaped: bool = False,
) -> tuple[IntArray, IntArray]:
    """Counts [devices, chunks, blocks] and ranks: of every device, or only of the first of each kind. The first needs
    the most memory of its kind, since no later rank has more microbatches in flight."""
    counts = stage_counts(job.shape, pp, virtual, stage_layers, v_shaped=v_shaped)
    if every or v_shaped:  # in a V the number in flight differs on every device
        return counts, np.arange(pp)
    seen: dict[bytes, int] = {}
    for d, row in enumerate(counts):
        seen.setdefault(row.tobytes(), d)
    first = np.array(sorted(seen.values()))
    return counts[first], first
