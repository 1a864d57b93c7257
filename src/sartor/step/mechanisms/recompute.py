"""Recomputation: a microbatch's forward, or parts of it, run again in backward (Korthikanti et al. 2022, sec. 5).

Counted as compute, with the communication that is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from sartor.errors import InputError
from sartor.model.training import OffloadModule, PipelineSchedule, Recompute, TrainingJob
from sartor.step.mechanisms.mechanism import COMPUTE, Condition, Limits, Mechanism, StageShare
from sartor.step.stages import summed
from sartor.units import FloatArray, Floats

if TYPE_CHECKING:
    from sartor.step.stage_seconds import StageSeconds


def _at_stage(stage: StageSeconds) -> StageShare | None:
    t, kind, num_recomputed = stage.t.seconds, stage.work["recompute"], stage.work["recompute_layers"]
    if not np.any(kind):
        return None
    selective = summed(stage.counts, t.selective_s)
    full = summed(stage.counts, t.full_s * stage.t.is_layer[:, None])
    if np.all(num_recomputed < 0):
        ways = np.concatenate([np.zeros_like(full), selective, full], axis=1)
        return StageShare(backward_s=np.asarray(ways.take(kind * full.shape[1] + stage.at, axis=1)))
    layers = stage.rows.counts @ stage.t.is_layer
    share = np.where(kind == Recompute.FULL, _share(stage, layers), 0.0)
    again = np.where(kind == Recompute.SELECTIVE, selective[:, stage.at], share * full[:, stage.at])
    return StageShare(backward_s=np.asarray(again))


def _share(stage: StageSeconds, layers: Floats) -> FloatArray:
    """Share of layers recomputed [R, W] on stages that have ``layers`` [R]."""
    num_recomputed = stage.work["recompute_layers"]
    return np.where(num_recomputed < 0, 1.0, np.minimum(num_recomputed / np.maximum(layers, 1)[:, None], 1.0))


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


def _limits(job: TrainingJob) -> Limits:
    if job.trainer.lockstep:
        yield Condition(
            reason=f"{job.trainer.called} recomputes nothing on the last stage, and at pp = 1 there is no other",
            ok=lambda r: (r["recompute"] != Recompute.FULL) | (r["pp"] > 1),
        )
    if not job.trainer.recomputes_parts:
        yield Condition(
            reason=f"{job.trainer.called} recomputes all layers or none",
            ok=lambda r: (r["recompute"] != Recompute.SELECTIVE) & (r.get("recompute_layers", -1) < 0),
        )
    if job.trainer.recomputes_by_chunk:
        yield Condition(
            reason=f"{job.trainer.called} recomputes as many layers in every chunk",
            ok=lambda r: (
                (r.get("recompute_layers", -1) < 0) | (r.get("recompute_layers", 0) % r["virtual_stages"] == 0)
            ),
        )
    if job.trainer.always_again:
        words = " and ".join(module.value for module in job.trainer.always_again)
        yield Condition(
            reason=f"{job.trainer.called} always recomputes {words}",
            ok=lambda r: r["recompute"] != Recompute.NONE,
        )
    if PipelineSchedule.DUAL_PIPE_V in job.trainer.schedules and not job.trainer.always_again:
        yield Condition(
            # torchtitan's overlap has no checkpoints (PR 1721)
            reason="DualPipeV with expert parallelism does not work with recomputation",
            ok=lambda r: (
                (r["schedule"] != PipelineSchedule.DUAL_PIPE_V) | (r["ep"] == 1) | (r["recompute"] == Recompute.NONE)
            ),
        )
    if job.trainer.ep_overlap and not job.trainer.overlaps_recomputed:
        yield Condition(
            reason="overlap of the experts' exchange does not work with full recomputation",
            ok=lambda r: (r["recompute"] != Recompute.FULL) | (r["ep"] == 1) | (r["virtual_stages"] == 1),
        )
    if OffloadModule.LAYER in job.offload_modules and job.trainer.offloads_layers_alone:
        yield Condition(
            reason="whole-layer offloading does not work with recomputation",
            ok=lambda r: r["recompute"] == Recompute.NONE,
        )
    if job.recomputes_nothing:
        yield Condition(
            reason="selective recomputation saves nothing with flash attention",
            ok=lambda r: np.asarray(r["recompute"] != Recompute.SELECTIVE),
            of_search=True,
        )


def _job_limits(job: TrainingJob) -> Iterator[InputError]:
    trainer, habits = job.trainer, job.trainer.memory
    switched = {"fp8_act_store": habits.narrow_act, "fp8_transpose_cache": not habits.keeps_transposes}
    for name, is_switched in switched.items():
        if is_switched and name not in trainer.saving:
            word, usual = ("on", "off") if name == "fp8_act_store" else ("off", "on")
            yield InputError(name, word, f"{trainer.called} has no such switch", usual)


RECOMPUTING = Mechanism(
    name="recompute",
    part=COMPUTE,
    fields=("recompute", "recompute_layers", "recompute_modules"),
    limits={"recompute": _limits},
    job_limits=_job_limits,
    at_stage=_at_stage,
)
