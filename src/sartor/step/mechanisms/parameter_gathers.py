"""Sharded parameters gathered before a step's first forward (ZeRO), beyond what it and earlier stages hide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sartor.model.training import TrainingJob
from sartor.step.mechanisms.mechanism import BUBBLE, COMPUTE, REPLICAS, Condition, Limits, Mechanism, Rows
from sartor.units import Array, FloatArray

if TYPE_CHECKING:
    from sartor.step.stage_seconds import StepWork


def _at_step(s: StepWork, _: Mapping[str, FloatArray]) -> FloatArray:
    return np.asarray(np.maximum(_on_ranks(s) - s.work.hides_gather_s.take(s.of, axis=1), 0.0).max(axis=0))


def _on_ranks(s: StepWork) -> FloatArray:
    """Exposed gathers before each stage's first microbatch [R, plans]."""
    x, forward = s.x, s.work.forward_s.take(s.of, axis=1)
    return s.or_sharded(s.exposed_s(x.params_base, x.params_rest, x.params_share, forward), s.work.first_s)


def _zero_limits(job: TrainingJob) -> Limits:
    yield Condition(
        reason="ZeRO has nothing to shard: dp x cp is 1",
        ok=lambda r: (r["zero_stage"] == 0) | (r["dp"] * r["cp"] > 1),
    )
    if (highest := job.trainer.most_zero_with_tp) < 3:
        yield Condition(
            reason=f"{job.trainer.called} has ZeRO {highest} at most beside tp",
            ok=lambda r: (r["tp"] == 1) | (r["zero_stage"] <= highest),
        )
    if job.trainer.one_program:
        yield Condition(
            reason=f"{job.trainer.called} shards weights over ranks of experts and contexts",
            ok=lambda r: (r["zero_stage"] == 3) | (r["cp"] * r["ep"] == 1),
        )
        yield Condition(
            reason=f"{job.trainer.called} shards weights and gradients (ZeRO 3), or the optimizer alone (1)",
            ok=lambda r: r["zero_stage"] != 2,
        )
    if job.trainer.shards_fully:
        yield Condition(
            reason=f"{job.trainer.called} shards gradients with the optimizer (ZeRO 2, 3) or nothing",
            ok=lambda r: r["zero_stage"] != 1,
        )
        yield Condition(
            reason=f"{job.trainer.called} shards wherever another degree is above 1",
            ok=lambda r: (
                (r["zero_stage"] > 0) | (r["tp"] * r["pp"] * r["cp"] * r["ep"] == 1) | (r["dp"] * r["cp"] == 1)
            ),
        )
        return
    # Gradients and parameters sharded between microbatches would have to be gathered for each microbatch.
    gathers = job.trainer.one_program  # MaxText does
    yield Condition(
        reason="ZeRO 2 and 3 do not work with a pipeline",
        ok=lambda r: (r["zero_stage"] < 2) | (r["pp"] == 1) | gathers,
        of_search=True,
    )


def _group_limits(job: TrainingJob) -> Limits:
    if not job.trainer.groups_shards:
        yield Condition(reason=f"{job.trainer.called} shards over all replicas", ok=lambda r: r["shard_group"] == 0)
    yield Condition(reason="a shard group needs ZeRO", ok=lambda r: (r["shard_group"] == 0) | (r["zero_stage"] > 0))
    yield Condition(reason="shard_group does not divide dp x cp into several sets", ok=_several_sets)
    yield Condition(reason="shard_group does not hold whole groups of cp", ok=lambda r: r["shard_group"] % r["cp"] == 0)


def _several_sets(rows: Rows) -> Array:
    group, replicas = rows["shard_group"], rows["dp"] * rows["cp"]
    return np.asarray((group == 0) | ((group < replicas) & (replicas % np.maximum(group, 1) == 0)))


PARAMETER_GATHERS = Mechanism(
    name="parameter_gathers",
    part=REPLICAS,
    fields=("zero_stage", "shard_group", "dp", "cp", "trainer.dp_overlap", "trainer.broadcasts_shards"),
    hidden_behind=(COMPUTE.key, BUBBLE.key),
    event="gather parameters",
    before=True,
    limits={"zero_stage": _zero_limits, "shard_group": _group_limits},
    at_step=_at_step,
    on_ranks=_on_ranks,
)
