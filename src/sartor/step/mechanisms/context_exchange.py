"""Context parallelism's exchange of keys and values, as far as attention does not hide it (`block_times`)."""

from __future__ import annotations

from sartor.step.mechanisms.mechanism import BlockShare, BlockWork, Mechanism
from sartor.step.mechanisms.part import COMPUTE, CONTEXTS


def _at_block(block: BlockWork, _: BlockShare) -> BlockShare:
    t, factor = block.times, block.c.network_factor
    forward = factor * t.cp_forward_s
    return BlockShare(forward_s=forward, backward_s=factor * t.cp_backward_s, again_s=forward)


CONTEXT_EXCHANGE = Mechanism(
    name="context_exchange",
    part=CONTEXTS,
    fields=("cp", "context_parallel"),
    hidden_behind=(COMPUTE.key,),
    at_block=_at_block,
)
