"""The experts' all-to-all, forward and backward, less what a schedule hides behind another microbatch's compute.

DualPipeV pairs a forward with a backward of another microbatch (DeepSeek-V3, 2024, sec. 3.2.1; torchtitan PR 1721);
``ep_overlap`` does the same between the chunks of an interleaved pipeline. `tables` says which plans do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.model.training import TrainingJob
from sartor.step.mechanisms.mechanism import (
    COMPUTE,
    EXPERTS,
    BlockShare,
    BlockWork,
    Condition,
    Limits,
    Mechanism,
    Rows,
)
from sartor.units import Array


def _at_block(block: BlockWork, _: BlockShare) -> BlockShare:
    factor = block.c.network_factor * _exposed_share(block)
    forward, backward = factor * block.times.ep_forward_s, factor * block.times.ep_backward_s
    return BlockShare(forward_s=forward, backward_s=backward, again_s=forward)


def _exposed_share(block: BlockWork) -> Any:
    """The share that is hidden runs beside another microbatch's compute and only slows it."""
    if not block.overlapped:
        return 1.0
    t, c = block.times, block.c
    exchange = np.asarray(t.ep_forward_s + t.ep_backward_s)
    compute = np.asarray(t.forward_s + t.dgrad_s + t.wgrad_s)
    hidden = c.ep_overlap_share * np.minimum(compute / np.maximum(exchange, 1e-30), 1.0)
    return 1 - hidden * (1 - c.sm_contention)


def _rank_limits(job: TrainingJob) -> Limits:
    """ep divides dp x cp, or tp x dp x cp if tp does not split experts (``expert_tensor_parallel_size`` 1), and where
    shards are in sets, the part of it that is one set."""
    whole, alone = not job.trainer.splits_experts, job.trainer.one_program  # MaxText's mesh: dp holds the expert axis
    if not job.trainer.expert_parallel:
        yield Condition(reason=f"{job.trainer.called} has no expert parallelism", ok=lambda r: r["ep"] == 1)
    yield Condition(
        reason=f"ep does not divide {'tp x ' if whole else ''}dp{'' if alone else ' x cp'}",
        ok=lambda r: r["dp"] * np.where(alone, 1, r["cp"]) * np.where(whole, r["tp"], 1) % r["ep"] == 0,
    )
    if job.trainer.experts_fill_groups and job.shape.moe_ffn is not None:
        yield Condition(
            reason=f"ep is not a multiple of {'tp x ' if whole else ''}cp",
            ok=lambda r: (
                (r["ep"] % (r["cp"] * np.where(whole, r["tp"], 1)) == 0) | (r["ep"] * np.where(whole, r["tp"], 1) == 1)
            ),
        )


def _set_limits(job: TrainingJob) -> Limits:
    """Experts spread within a set of shards, whose replicas are outside of all (torchtitan's ``efsdp``, Megatron's
    ``expert_data_parallel_size % num_distributed_optimizer_instances``; MaxText's mesh has an axis for each degree)."""
    if job.shape.moe_ffn is None:
        return
    trainer = job.trainer

    def fit(r: Rows) -> Array:
        inside = r["shard_group"] * r["tp"]
        taken = r["ep"] * trainer.expert_tp(r["tp"], r["ep"]) * np.where(trainer.one_program, r["cp"] * r["tp"], 1)
        return np.asarray((r["shard_group"] == 0) | (inside % taken == 0))

    within = "shard_group" if trainer.splits_experts else "tp x shard_group"
    yield Condition(
        reason=f"ep does not divide {within}: {trainer.called} spreads experts inside a set of shards", ok=fit
    )


def _sequence_limits(job: TrainingJob) -> Limits:
    if job.shape.moe_ffn is not None:
        # Megatron-LM, arguments.py: experts with tensor parallelism require sequence parallelism.
        yield Condition(
            reason="experts and tp together need sequence parallelism",
            ok=lambda r: (r["sequence_parallel"] == 1) | (r["tp"] == 1) | (r["ep"] == 1),
            of_search=not job.trainer.optional_sequence_parallel,  # others do not assert it
        )


EXPERT_EXCHANGE = Mechanism(
    name="expert_exchange",
    part=EXPERTS,
    fields=("ep", "schedule", "virtual_stages", "trainer.ep_overlap", "trainer.dispatch_once"),
    hidden_behind=(COMPUTE.key,),
    limits={"ep": _rank_limits, "sequence_parallel": _sequence_limits, "shard_group": _set_limits},
    at_block=_at_block,
)
