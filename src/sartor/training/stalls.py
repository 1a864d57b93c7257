"""A step whose pipeline interleaves chunks of unequal layers: what its devices wait for each other, simulated.

The closed form of `pipeline.interleaved_s` takes a device's chunks together; where one holds two layers and another
one, neighbours wait for each other in every round of microbatches, up to a tenth of the step. No closed form is known
to us, so the event simulation counts it: two short pipelines tell what every further round adds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sartor.hardware.calibration import Calibration
from sartor.hardware.cluster import Cluster
from sartor.model.training import PipelineSchedule, TrainingJob, TrainingPlan
from sartor.training.results import StepEstimate
from sartor.training.simulation import PipelineTimes, makespan_s, simulate
from sartor.training.stage_loads import StageLoads, block_loads
from sartor.training.stages import stage_counts
from sartor.training.step import step

FORWARD = 1 / 3
"""Share of a chunk's time that is forward (products: one forward, two backward); stalls hardly depend on it."""
ROUNDS = (2, 3)
"""Rounds of pp microbatches that are simulated; every further one adds what the second of these added."""


def stalled_step(
    job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Calibration | None = None
) -> StepEstimate:
    """`step` of a single plan; where its ``stage_layers`` are chunks, with the stalls between them in ``pp_bubble_s``.

    Raises ``InputError`` as `step`.
    """
    priced = step(job, plan, cluster, calibration)
    if not has_unequal_chunks(plan):
        return priced
    return with_stalls(job, plan, priced, block_loads(job, plan, cluster, calibration)[0])


def has_unequal_chunks(plan: TrainingPlan) -> bool:
    return bool(plan.stage_layers) and int(plan.virtual_stages) > 1


def with_stalls(job: TrainingJob, plan: TrainingPlan, priced: StepEstimate, loads: StageLoads) -> StepEstimate:
    """``priced`` with what unequal chunks add to its bubbles; what is per second falls with it."""
    stall = stall_s(job, plan, loads)
    share = float(priced.step_s) / (float(priced.step_s) + stall)
    return replace(
        priced,
        step_s=priced.step_s + stall,
        pp_bubble_s=priced.pp_bubble_s + stall,
        tokens_per_s_per_device=priced.tokens_per_s_per_device * share,
        mfu=priced.mfu * share,
    )


def stall_s(job: TrainingJob, plan: TrainingPlan, loads: StageLoads) -> float:
    """Seconds a step of an interleaved plan takes beyond the closed form, transfers not counted."""
    pp, virtual, m = int(plan.dims.pp), int(plan.virtual_stages), int(plan.num_microbatches)
    counts = stage_counts(job.shape, pp, virtual, plan.stage_layers)
    busy = np.stack([loads.of(counts[d], d) for d in range(pp)])
    times = PipelineTimes(
        forward_s=FORWARD * busy, dgrad_s=(1 - FORWARD) * busy, wgrad_s=np.zeros_like(busy), transfer_s=0.0
    )
    whole = busy.sum(axis=1)

    def beyond(microbatches: int) -> float:
        closed = microbatches * whole.max() + (whole.sum() - whole.max()) / virtual
        return makespan_s(simulate(PipelineSchedule.ONE_F_ONE_B, times, microbatches)) - float(closed)

    if m <= ROUNDS[1] * pp:
        return max(beyond(m), 0.0)
    first, second = (beyond(rounds * pp) for rounds in ROUNDS)
    return max(second + (second - first) * (m / pp - ROUNDS[1]), 0.0)
