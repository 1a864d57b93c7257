"""Activations that wait for backward in host memory: seconds on the host link, and what of them stays on the device.

A layer's share goes out while the layers after it run forward, and comes back while the layers after it run backward
(Megatron-Core's fine_grained_activation_offload.py copies on streams of their own, both ways at once; as of 2026-11).
So a step sees what of a layer's copy is longer than a layer's compute.
"""

from __future__ import annotations

import numpy as np

from sartor.hardware.cluster import Cluster
from sartor.model.parallel import ParallelDims
from sartor.model.training import Recompute, TrainingJob, TrainingPlan
from sartor.step.activations import Activations
from sartor.step.distinct import BlockRows
from sartor.step.kept_bytes import microbatch_of, moved_bytes
from sartor.units import FloatArray, Floats


def host_bytes_per_s(cluster: Cluster) -> float:
    """One way between a device and its host: the link, or the device's share of the host's memory."""
    return min(cluster.host_link_bytes_per_s, cluster.host_memory_bytes_per_s)


def offload_seconds(job: TrainingJob, rows: BlockRows, cluster: Cluster) -> FloatArray | None:
    """One way over the host link, of one microbatch through each block [recomputations, blocks, distinct rows]; None
    where nothing is moved."""
    if not job.offload_modules:
        return None
    dims = ParallelDims(
        tp=rows.tp,
        cp=rows.cp,
        ep=rows.ep,
        sequence_parallel=rows.sequence_parallel,  # type: ignore[arg-type]
    )
    of = microbatch_of(job, TrainingPlan(dims=dims, microbatch_size=rows.microbatch_size)).activations
    every = [[_moved(job, act, kind) + np.zeros(rows.size) for act in of] for kind in Recompute]
    return np.array(every) / host_bytes_per_s(cluster)


def _moved(job: TrainingJob, act: Activations | None, kind: Recompute) -> Floats:
    return 0.0 if act is None else moved_bytes(job, act)[kind]
