"""ZeRO 3: every microbatch gathers each block's weights before its forward and its backward, and scatters gradients.

A layer's traffic hides behind the layer before it (`data_parallel.layerwise`); the first gather and the last scatter of
a step hide behind other stages' work alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sartor.step.data_parallel import LayerwiseGather, grad_exchange, layerwise, param_exchange
from sartor.step.mechanisms.mechanism import COMPUTE, REPLICAS, Mechanism, StageShare
from sartor.step.mechanisms.recompute import again_s
from sartor.step.stages import entries, summed
from sartor.units import FloatArray, Floats, IntArray

if TYPE_CHECKING:
    from sartor.step.stage_seconds import StageSeconds


def _at_stage(stage: StageSeconds) -> StageShare | None:
    gathering = np.flatnonzero(stage.work["zero_stage"] >= 3)
    if not gathering.size:
        return None

    def of_all(values: Floats) -> FloatArray:
        out = np.zeros_like(stage.forward_s)
        out[:, gathering] = values
        return out

    block = _block_traffic(stage, gathering)
    share = {
        "forward_s": of_all(summed(stage.counts, block.forward_s)),
        "backward_s": of_all(summed(stage.counts, block.backward_s)),
    }
    if stage.t.job.trainer.dp_overlap:  # the first gather and last scatter are exposed
        first = np.argmax(stage.rows.counts > 0, axis=1)
        share["first_s"] = of_all(np.asarray(block.first_s)[first])
        share["last_s"] = of_all(np.asarray(block.last_s)[first])
    return StageShare(**share)


def _block_traffic(stage: StageSeconds, gathering: IntArray) -> LayerwiseGather:
    """Exposed traffic of every block [K] in the work rows ``gathering``."""
    t, c, trainer = stage.t, stage.t.c, stage.t.job.trainer
    rows, structure = stage.at[gathering], stage.work["structure"][gathering]
    # Weights that blocks share are counted at one and taken off another, which has nothing less than none to gather.
    dense, expert = (np.maximum(params[:, t.params_index[structure]], 0.0) for params in (t.dense, t.expert))
    if trainer.lockstep and stage.rows.pp > 1:  # the head has its own copy of the embedding table
        dense[-1] += t.tied[t.params_index[structure]]
    traffic = entries(t.traffic, t.traffic_index[structure])
    weights = param_exchange(traffic, t.gathered_bytes * dense, t.gathered_bytes * expert, c.bucket_bytes)
    grads = grad_exchange(t.job, traffic, dense * t.trained, expert * t.trained, c.bucket_bytes)
    backward_s = (t.seconds.backward_s + t.seconds.wgrad_s)[:, rows] + again_s(stage)[:, gathering]
    beside = c.dp_overlap_share * t.seconds.forward_s[:, rows], c.dp_overlap_share * backward_s
    room = (dense + expert) * trainer.memory.layers_gathered <= trainer.memory.most_gathered
    return layerwise(weights, grads, *beside, trainer.dp_overlap, c.sm_contention, room)


SHARDED_WEIGHTS = Mechanism(
    name="sharded_weights",
    part=REPLICAS,
    fields=("zero_stage", "shard_group", "dp", "cp", "trainer.dp_overlap"),
    hidden_behind=(COMPUTE.key,),
    at_stage=_at_stage,
)
