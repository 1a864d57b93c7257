"""Context parallelism's exchange of keys and values, as far as attention does not hide it (`block_times`)."""

from __future__ import annotations

import numpy as np

from sartor.model.lower.setting import contexts_divide
from sartor.model.training import ContextParallel, TrainingJob
from sartor.model.workload import AttentionKernel
from sartor.step.mechanisms.mechanism import COMPUTE, CONTEXTS, BlockShare, BlockWork, Condition, Limits, Mechanism


def _at_block(block: BlockWork, _: BlockShare) -> BlockShare:
    t, factor = block.times, block.c.network_factor
    forward = factor * t.cp_forward_s
    return BlockShare(forward_s=forward, backward_s=factor * t.cp_backward_s, again_s=forward)


def _trainer_limits(job: TrainingJob) -> Limits:
    if not job.trainer.contexts:
        yield Condition(reason=f"{job.trainer.called} has no context parallelism", ok=lambda r: r["cp"] == 1)
    if job.shape.mtp_layers and not job.trainer.spreads_mtp:
        yield Condition(
            reason="multi-token prediction does not work with pipeline or context parallelism",
            ok=lambda r: r["pp"] * r["cp"] == 1,
        )


def _split_limits(job: TrainingJob) -> Limits:
    """What cp splits, after what tp splits."""
    yield Condition(reason="seq_len does not split over cp", ok=lambda r: contexts_divide(job.seq_len, r["cp"]))
    if job.attention_kernel is AttentionKernel.UNFUSED:  # Megatron-Core's dot_product_attention.py asserts it
        yield Condition(reason="context parallelism needs fused attention", ok=lambda r: np.asarray(r["cp"] == 1))
    heads = job.shape.num_heads
    if job.context_parallel is ContextParallel.ALL_TO_ALL:
        yield Condition(
            reason="num_heads does not split over tp x cp",
            ok=lambda r: (r["cp"] == 1) | (heads % (r["tp"] * r["cp"]) == 0),
        )
    if len(job.shape.stacks) > 1 and any(s.is_text and s is not job.shape.main for s in job.shape.stacks):
        yield Condition(reason="context parallelism needs a model of one stack", ok=lambda r: np.asarray(r["cp"] == 1))


CONTEXT_EXCHANGE = Mechanism(
    name="context_exchange",
    part=CONTEXTS,
    fields=("cp", "context_parallel"),
    hidden_behind=(COMPUTE.key,),
    limits={"cp": _trainer_limits, "tp": _split_limits},
    at_block=_at_block,
)
