"""Seconds of the optimizer step: traffic of its states, the norm and clipping of gradients, and their all-reduce."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.gpu.memory_bound import memory_bound_cost
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.cluster import Cluster
from sartor.model.lower.optimizer import ADAM_BYTES_PER_PARAM
from sartor.model.training import Optimizer, TrainingJob
from sartor.operators import DType, MemoryBound, MemoryBoundKind, Pass
from sartor.step.mechanisms.mechanism import OPTIMIZER, Condition, Limits, Mechanism
from sartor.step.states import main_bytes, moment_bytes, weight_bytes
from sartor.units import Bools, FloatArray, Floats

if TYPE_CHECKING:
    from sartor.step.stage_seconds import StepWork

CLIP_BYTES = 12.0
"""fp32 gradient read for its norm, read and written to be scaled; half as many in 16 bits."""

NEWTON_SCHULZ_STEPS = 5
"""For Muon (Jordan et al. 2024)."""

NEWTON_SCHULZ_RATE = 0.5
"""Share of the 16-bit peak that its matrix multiplications reach (assumed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerLine:
    """``start_s`` and seconds per parameter that a device updates."""

    start_s: float
    s_per_param: float
    offload_s_per_param: float
    """With states in host memory: gradients out and weights back over the host link, states updated by the host."""

    def seconds(self, params: Floats, offload: Bools = False) -> Any:
        s_per_param = np.where(offload, self.offload_s_per_param, self.s_per_param)
        return np.where(np.greater(params, 0), self.start_s, 0.0) + s_per_param * params


def optimizer_line(job: TrainingJob, cluster: Cluster, calibration: Calibration) -> OptimizerLine:
    """The job's optimizer on one device of the cluster; zero if weights are frozen or never updated."""
    if not job.trains_weights or job.optimizer is Optimizer.NONE:
        return OptimizerLine(start_s=0.0, s_per_param=0.0, offload_s_per_param=0.0)
    if cluster.gpu.accelerator is not None:
        s_per_param = float(chip_update_s_per_param(cluster.gpu.accelerator, job.optimizer)) + _newton_schulz_s(
            job, cluster
        )
        return OptimizerLine(
            start_s=0.0, s_per_param=s_per_param, offload_s_per_param=_in_host_s_per_param(job, cluster)
        )
    many = 1e9
    update = MemoryBound(
        name="optimizer",
        kind=MemoryBoundKind.OPTIMIZER,
        rows=1,
        cols=1,
        bytes_moved=np.array([0.0, many * _bytes_per_param(job)]),
    )
    start, whole = memory_bound_cost(update, cluster.gpu, calibration).time_s  # type: ignore[misc]
    s_per_param = (whole - start) / many + _newton_schulz_s(job, cluster)
    offloaded = _in_host_s_per_param(job, cluster)
    return OptimizerLine(start_s=float(start), s_per_param=float(s_per_param), offload_s_per_param=offloaded)


def _in_host_s_per_param(job: TrainingJob, cluster: Cluster) -> float:
    """Seconds per parameter with states in host memory: gradient and weight cross the host link."""
    link = (job.trainer.grad_dtype.bytes + weight_bytes(job)) / cluster.host_link_bytes_per_s
    return link + _bytes_per_param(job) / cluster.host_memory_bytes_per_s


SECOND_MOMENT_BYTES = 8.0
"""Adam's second moment read and written, in fp32."""
ADAM_FLOPS, MOMENTUM_FLOPS = 12.0, 4.0
"""FLOPs of an update per parameter: momentum takes two multiplications and two additions."""


def chip_update_s_per_param(accelerator: Accelerator, optimizer: Optimizer = Optimizer.ADAM) -> Floats:
    """Seconds of an update per parameter on a chip's vector cores and memory, moments in fp32; candidates give
    arrays."""
    from sartor.cost.chip.vector_core import vector_cost  # no GPU needs it

    params = 1e8
    bytes_per_update = ADAM_BYTES_PER_PARAM + 2.0 - (0.0 if optimizer is Optimizer.ADAM else SECOND_MOMENT_BYTES)
    update = MemoryBound(
        name="optimizer",
        kind=MemoryBoundKind.OPTIMIZER,
        rows=1,
        cols=int(params),
        bytes_moved=bytes_per_update * params,
        flops=(ADAM_FLOPS if optimizer is Optimizer.ADAM else MOMENTUM_FLOPS) * params,
        pass_=Pass.OPTIMIZER,
    )
    return np.asarray(vector_cost(update, accelerator).time_s) / params


def _bytes_per_param(job: TrainingJob) -> float:
    """Bytes moved per parameter: gradient, weight and moments read, weight and moments written, the low-precision copy
    written; plus the gradient's norm and clipping."""
    main, width = main_bytes(job), weight_bytes(job)
    each = job.optimizer.narrow_moment_bytes or moment_bytes(job)
    return 3 * main + 2 * job.optimizer.moments() * each + (width if width < main else 0.0) + CLIP_BYTES * main / 4


def _newton_schulz_s(job: TrainingJob, cluster: Cluster) -> float:
    """Seconds per parameter of Newton-Schulz: five iterations of three GEMMs on an m x n matrix (m <= n) take 2 m (2 +
    m / n) FLOPs per parameter each; m and n are taken to be the hidden size."""
    if job.optimizer is not Optimizer.MUON:
        return 0.0
    flops = NEWTON_SCHULZ_STEPS * 6.0 * float(np.max(job.shape.hidden_size))
    return flops / (NEWTON_SCHULZ_RATE * peak_flops_per_s(cluster.gpu, cluster.gpu.default_dtype))


def _at_step(s: StepWork, _: Mapping[str, FloatArray]) -> FloatArray:
    """Seconds of the slowest stage, with its states on the device or in host memory."""
    structures = s.optimizer_s.shape[1]
    return np.asarray(s.optimizer_s.take(np.where(s.columns["optimizer_offload"] > 0, structures, 0) + s.at))


def _job_limits(job: TrainingJob) -> Iterator[InputError]:
    trainer, moments = job.trainer, job.moments_dtype
    if trainer.fused_loss not in trainer.losses:
        words = ", ".join(kind.value for kind in trainer.losses)
        yield InputError("fused_loss", trainer.fused_loss.value, f"{trainer.called} has {words}", words.split(", ")[-1])
    if job.optimizer not in trainer.optimizers:
        names = " and ".join(kind.value for kind in trainer.optimizers)
        yield InputError(
            "optimizer", job.optimizer.value, f"{trainer.called} supports {names}", trainer.optimizers[0].value
        )
    if moments is not DType.FP32 and job.optimizer is not Optimizer.ADAM:
        yield InputError("moments_dtype", moments.value, "the moments of Adam alone may be narrower", "fp32")
    elif moments is not DType.FP32 and not trainer.narrow_moments:
        must = f"{trainer.called} keeps the optimizer's moments in fp32"
        yield InputError("moments_dtype", moments.value, must, "fp32")


def _zero_limits(job: TrainingJob) -> Limits:
    trainer = job.trainer
    if job.optimizer is Optimizer.MUON and (highest := trainer.most_zero_with_muon) < 3:
        yield Condition(
            reason=f"{trainer.called} shards Muon's states by ZeRO {highest} at most",
            ok=lambda r: r["zero_stage"] <= highest,
        )
    if job.moments_dtype is not DType.FP32:
        stages = trainer.narrow_moments
        yield Condition(
            reason=f"{trainer.called} narrows Adam's moments under ZeRO {' and '.join(map(str, stages))}",
            ok=lambda r: np.isin(r["zero_stage"], stages),
        )


def _offload_limits(job: TrainingJob) -> Limits:
    trainer = job.trainer
    if job.optimizer not in trainer.offloads_states_of:
        names = " and ".join(kind.value for kind in trainer.offloads_states_of)
        yield Condition(reason=f"{trainer.called} offloads states of {names}", ok=lambda r: r["optimizer_offload"] == 0)
    if not trainer.offloads_unsharded:
        yield Condition(
            reason=f"{trainer.called} offloads sharded states",
            ok=lambda r: (r["optimizer_offload"] == 0) | (r["zero_stage"] > 0),
        )


OPTIMIZER_STEP = Mechanism(
    name="optimizer",
    part=OPTIMIZER,
    fields=("optimizer", "optimizer_offload", "zero_stage", "moments_dtype"),
    event="optimizer step",
    limits={"zero_stage": _zero_limits, "optimizer_offload": _offload_limits},
    job_limits=_job_limits,
    at_step=_at_step,
)
