"""The bubble: what a schedule leaves idle on the slowest stage, and stalls of unequal chunks (`pipeline`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sartor.model.plan import UNEVEN_CHUNKS
from sartor.model.shape import layer_order
from sartor.model.training import PipelineSchedule, TrainingJob
from sartor.step.mechanisms.mechanism import BUBBLE, Condition, Limits, Mechanism, Rows, num_microbatches
from sartor.units import Array, FloatArray

if TYPE_CHECKING:
    from sartor.step.pipeline import Pipelined


def _at_pipeline(pipeline: Pipelined) -> FloatArray:
    return pipeline.bubble_s


def _stage_limits(job: TrainingJob) -> Limits:
    layers = len(layer_order(job.shape))
    yield Condition(reason="fewer layers than pipeline stages", ok=lambda r: r["pp"] <= layers)
    if not job.trainer.pipelines:
        yield Condition(reason=f"{job.trainer.called} has no pipeline", ok=lambda r: r["pp"] == 1)
    if job.shape.lm_head and job.shape.tied_embeddings and not job.trainer.ties_over_stages:
        yield Condition(
            reason=f"{job.trainer.called} has no pipeline of models whose embedding is tied to the head",
            ok=lambda r: r["pp"] == 1,
        )


def _chunk_limits(job: TrainingJob) -> Limits:
    layers = len(layer_order(job.shape))
    yield Condition(
        reason="virtual stages need a pipeline",
        ok=lambda r: (r["virtual_stages"] == 1) | (r["pp"] > 1),
    )
    yield Condition(
        reason="fewer layers than virtual stages",
        ok=lambda r: (r["pp"] * r["virtual_stages"] <= layers) | _ends_alone(layers, r),
    )
    yield Condition(
        reason="layers do not divide into so many virtual stages",
        ok=lambda r: (r["virtual_stages"] <= UNEVEN_CHUNKS) | (layers % (r["pp"] * r["virtual_stages"]) == 0),
        of_search=True,
    )
    if job.trainer.one_program:
        yield Condition(
            reason=f"{job.trainer.called} has equal chunks of layers",
            ok=lambda r: layers % (r["pp"] * r["virtual_stages"]) == 0,
        )
    if job.trainer.lockstep:
        yield Condition(
            reason=f"{job.trainer.called} interleaves equal chunks of layers",
            ok=lambda r: (r["virtual_stages"] == 1) | (layers % (r["pp"] * r["virtual_stages"]) == 0),
        )
    if not job.trainer.interleaves:
        yield Condition(
            reason=f"{job.trainer.called} does not interleave",
            ok=lambda r: np.asarray(r["virtual_stages"] == 1),
        )


def _ends_alone(layers: int, rows: Rows) -> Array:
    """Whether every chunk is one layer, and embedding and head have their own chunks (Llama 3, sec. 3.3.2)."""
    return np.asarray((rows["pp"] * rows["virtual_stages"] == layers + 2) & (rows["virtual_stages"] > 1))


def _batch_limits(job: TrainingJob) -> Limits:
    """Microbatches of an interleaved pipeline come in rounds of pp, or of any number from pp on."""
    rounds, bent = not job.trainer.one_program, _has_v(job)
    if job.trainer.ragged_rounds:
        yield Condition(
            reason="interleaving needs at least pp microbatches",
            ok=lambda r: (r["virtual_stages"] == 1) | (num_microbatches(job, r) >= r["pp"]),
        )
        return
    yield Condition(
        reason=f"{'interleaving' if rounds else job.trainer.called} needs num_microbatches to be a multiple of pp",
        ok=lambda r: (
            ((r["virtual_stages"] == 1) & rounds)
            | (num_microbatches(job, r) % r["pp"] == 0)
            | ((r["virtual_stages"] == 2) & bent)  # decided by the schedule
        ),
    )


def _has_v(job: TrainingJob) -> bool:
    """Whether the trainer has V-shaped schedules."""
    return max(job.trainer.schedules) >= PipelineSchedule.ZERO_BUBBLE_V


def _schedule_limits(job: TrainingJob) -> Limits:
    schedules, circular = [int(s) for s in job.trainer.schedules], job.trainer.one_program
    zero_chunks = job.trainer.zero_bubble_chunks

    def chunked(rows: Rows) -> Array:
        """Rows with a schedule that allows several chunks."""
        kind = rows["schedule"]
        return np.asarray((kind >= PipelineSchedule.ZERO_BUBBLE_V) | ((kind == 1) & (zero_chunks > 1)))

    yield Condition(
        reason=f"{job.trainer.called} has no such schedule",
        ok=lambda r: np.isin(r["schedule"], schedules) | ((r["pp"] == 1) & (r["schedule"] == 0)),
    )
    yield Condition(
        reason="a schedule other than 1f1b needs a pipeline" + ("" if circular else " without virtual stages"),
        ok=lambda r: (r["schedule"] == 0) | ((r["pp"] > 1) & (circular | (r["virtual_stages"] == 1) | chunked(r))),
    )
    if _has_v(job):
        yield Condition(
            reason="interleaving needs num_microbatches to be a multiple of pp",
            ok=lambda r: (
                (r["virtual_stages"] == 1)
                | (r["schedule"] >= PipelineSchedule.ZERO_BUBBLE_V)
                | (num_microbatches(job, r) % r["pp"] == 0)
            ),
        )
        yield Condition(
            reason="a V-shaped schedule needs two chunks per device and two microbatches per stage",
            ok=lambda r: (
                (r["schedule"] < PipelineSchedule.ZERO_BUBBLE_V)
                | ((r["virtual_stages"] == 2) & (num_microbatches(job, r) >= 2 * r["pp"]))
            ),
        )
    if zero_chunks > 1:
        yield Condition(
            reason=f"{job.trainer.called}'s zero_bubble needs {zero_chunks} chunks per device",
            ok=lambda r: (r["schedule"] != PipelineSchedule.ZERO_BUBBLE) | (r["virtual_stages"] >= zero_chunks),
        )


PIPELINE_BUBBLE = Mechanism(
    name="pipeline_bubble",
    part=BUBBLE,
    fields=("pp", "virtual_stages", "schedule", "num_microbatches", "stage_layers"),
    limits={
        "pp": _stage_limits,
        "virtual_stages": _chunk_limits,
        "microbatch_size": _batch_limits,
        "schedule": _schedule_limits,
    },
    at_pipeline=_at_pipeline,
)
