"""Memory of a plan: bytes of the fullest device, of every stage, and whether they fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.hardware.cluster import Cluster
from sartor.model.parallel import ParallelDims
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.step.memory_coefficients import USABLE_SHARE
from sartor.step.results import Footprint
from sartor.step.stage_bytes import StageBytes, devices_of, stage_bytes
from sartor.units import Bools

_PARTS = (
    "param_bytes",
    "grad_bytes",
    "optimizer_bytes",
    "stash_bytes",
    "workspace_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "device_bytes",
    "stage",
)


def footprint(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> Footprint:
    """Bytes of the fullest device at its fullest moment, for one plan or for arrays of plans.

    Derivation: docs/concepts/memory.md. ``InputError`` where ``stage_layers`` are not layers of the model.

    >>> from sartor.hardware.cluster_catalog import load_cluster
    >>> from sartor.model.zoo import load_model
    >>> job = TrainingJob(shape=load_model("llama-3.1-8b"), seq_len=8192, global_batch_size=128)
    >>> plan = TrainingPlan(dims=ParallelDims(tp=2, dp=4), num_microbatches=32, zero_stage=1)
    >>> round(footprint(job, plan, load_cluster("dgx-h100")).allocated_bytes / 2**30)
    54
    """
    flat, shape = flatten(plan)
    out = np.zeros((len(_PARTS), int(np.prod(shape, dtype=int))))
    for where, part in _by_pipeline(flat):
        pp, virtual = int(part.dims.pp[0]), int(part.virtual_stages[0])
        counts, device = devices_of(job, pp, virtual, plan.stage_layers, every=False)
        out[:, where] = _fullest(stage_bytes(job, part, cluster, counts, device))
    values = {name: (row.reshape(shape) if shape else float(row[0])) for name, row in zip(_PARTS, out, strict=True)}
    stage = values.pop("stage")
    return Footprint(**values, stage=stage.astype(np.int64) if isinstance(stage, np.ndarray) else int(stage))


def every_stage(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> StageBytes:
    """Bytes of all pipeline ranks of one plan, part by part: arrays [pp, 1]."""
    flat, _ = flatten(plan)
    pp, virtual = int(flat.dims.pp[0]), int(flat.virtual_stages[0])  # type: ignore[index]
    counts, device = devices_of(job, pp, virtual, plan.stage_layers, every=True)
    return stage_bytes(job, flat, cluster, counts, device)


def fits(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> Bools:
    """Whether the fullest device's bytes are within its memory: a bool or an array over plans."""
    inside = np.asarray(footprint(job, plan, cluster).device_bytes) <= usable_bytes(cluster)
    return inside if inside.ndim else bool(inside)


def usable_bytes(cluster: Cluster) -> float:
    """Memory of a device of the cluster that a process can fill; of a mixed cluster, of its smallest device."""
    return USABLE_SHARE * min(gpu.hbm_bytes for gpu in cluster.gpus)


def flatten(plan: TrainingPlan) -> tuple[TrainingPlan, tuple[int, ...]]:
    """The plan with all fields as flat arrays of one length, and the shape they broadcast to."""
    d = plan.dims
    values = [*(getattr(d, name) for name in _DIMS), *(getattr(plan, name) for name in _FIELDS)]
    arrays = np.broadcast_arrays(*(np.asarray(value) for value in values))
    fields: dict[str, Any] = dict(zip((*_DIMS, *_FIELDS), map(np.ravel, arrays), strict=True))
    dims = ParallelDims(**{name: fields.pop(name) for name in _DIMS})
    return replace(plan, dims=dims, **fields), arrays[0].shape


_DIMS = ("tp", "pp", "dp", "cp", "ep", "sequence_parallel")
_FIELDS = (
    "microbatch_size",
    "num_microbatches",
    "virtual_stages",
    "schedule",
    "zero_stage",
    "shard_group",
    "recompute",
    "recompute_layers",
    "optimizer_offload",
)


def _by_pipeline(flat: TrainingPlan) -> Any:
    """Plans of equal (pp, virtual_stages): where they stand and they themselves."""
    pp, virtual = np.asarray(flat.dims.pp, dtype=np.int64), np.asarray(flat.virtual_stages, dtype=np.int64)
    code = pp * (int(virtual.max(initial=1)) + 1) + virtual
    for each in np.unique(code):
        where = np.flatnonzero(code == each)
        yield where, (flat if len(where) == len(code) else _take(flat, where))


def _take(flat: TrainingPlan, where: npt.NDArray[np.intp]) -> TrainingPlan:
    d = flat.dims
    dims = {n: getattr(d, n)[where] for n in _DIMS}
    return replace(flat, dims=ParallelDims(**dims), **{n: getattr(flat, n)[where] for n in _FIELDS})


def _fullest(of: StageBytes) -> npt.NDArray[np.float64]:
    """Rows of `_PARTS` of the device with most bytes, for every plan."""
    most = np.argmax(of.device_bytes, axis=0)[None]

    def at(values: Any) -> Any:
        return np.take_along_axis(np.broadcast_to(values, of.allocated.shape), most, axis=0)[0]

    steps = of.steps
    stash = np.where(steps, 0.0, of.kept)
    work = np.where(steps, of.step_peak + of.buffers, of.working)
    rows = (of.weights + of.narrow_weights, of.grads, of.optimizer, stash, work)
    return np.stack([*map(at, rows), at(of.allocated), at(of.reserved), at(of.device_bytes), of.device[most[0]]])
