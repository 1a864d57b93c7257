"""The experts' all-to-all, forward and backward, less what a schedule hides behind another microbatch's compute.

DualPipeV pairs a forward with a backward of another microbatch (DeepSeek-V3, 2024, sec. 3.2.1; torchtitan PR 1721);
``ep_overlap`` does the same between the chunks of an interleaved pipeline. `tables` says which plans do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.step.mechanisms.mechanism import BlockShare, BlockWork, Mechanism
from sartor.step.mechanisms.part import COMPUTE, EXPERTS


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


EXPERT_EXCHANGE = Mechanism(
    name="expert_exchange",
    part=EXPERTS,
    fields=("ep", "schedule", "virtual_stages", "trainer.ep_overlap", "trainer.dispatch_once"),
    hidden_behind=(COMPUTE.key,),
    at_block=_at_block,
)
