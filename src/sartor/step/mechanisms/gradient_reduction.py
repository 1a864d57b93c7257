"""Gradients added up over replicas after the last microbatch, beyond what backward and other stages' work hide.

Also the reductions before it that ZeRO 2 without a full gradient makes, and the all-reduce of a tied table that the
first and the last stage both hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sartor.model.training import TrainingJob
from sartor.step.mechanisms.mechanism import BUBBLE, COMPUTE, REPLICAS, Condition, Limits, Mechanism
from sartor.step.states import reductions
from sartor.units import FloatArray, Floats

if TYPE_CHECKING:
    from sartor.step.stage_seconds import StepWork


def _at_step(s: StepWork, _: Mapping[str, FloatArray]) -> FloatArray:
    last = np.maximum(_last_s(s) - s.work.hides_reduce_s.take(s.of, axis=1), 0.0).max(axis=0)
    return np.asarray(last + _earlier_s(s) + s.x.tied_s.take(s.at))


def _on_ranks(s: StepWork) -> FloatArray:
    seconds = _last_s(s) + _earlier_s(s)
    seconds[0] += s.x.tied_s[s.at]
    if len(seconds) > 1:
        seconds[-1] += s.x.tied_s[s.at]
    return seconds


def _last_s(s: StepWork) -> FloatArray:
    """Exposed gradient reduction after each stage's last microbatch [R, plans]."""
    x, backward = s.x, s.work.rear_s.take(s.of, axis=1)
    return s.or_sharded(s.exposed_s(x.grads_base, x.grads_rest, x.grads_share, backward), s.work.last_s)


def _earlier_s(s: StepWork) -> FloatArray:
    """Exposed reductions before the last: ZeRO 2 that keeps no full gradient between microbatches (or rounds of them)
    reduces in each."""
    out, p, trainer = np.zeros(s.at.size), s.columns, s.trainer
    times = reductions(trainer, p["zero_stage"], p["pp"], p["virtual_stages"], p["num_microbatches"])
    repeated = np.flatnonzero(times > 1)
    if not repeated.size:
        return out
    total, work_row, pp = s.x.grads_total[:, s.at[repeated]], s.of[repeated], p["pp"][repeated]
    beside = (s.work.forward_s[:, work_row] + s.work.rear_s[:, work_row]) * np.where(pp > 1, pp, 1)
    hidden: Floats = np.minimum(total, s.c.dp_overlap_share * beside) if trainer.dp_overlap else 0.0
    out[repeated] = (times[repeated] - 1) * np.max(total - hidden + s.c.sm_contention * hidden, axis=0)
    return out


def _replica_limits(job: TrainingJob) -> Limits:
    yield Condition(
        reason="global_batch_size does not divide over dp",
        ok=lambda r: job.global_batch_size % r["dp"] == 0,
    )


GRADIENT_REDUCTION = Mechanism(
    name="gradient_reduction",
    part=REPLICAS,
    fields=("dp", "cp", "ep", "zero_stage", "shard_group", "trainer.dp_overlap", "trainer.grad_dtype"),
    hidden_behind=(COMPUTE.key, BUBBLE.key),
    event="reduce gradients",
    limits={"dp": _replica_limits},
    at_step=_at_step,
    on_ranks=_on_ranks,
)
