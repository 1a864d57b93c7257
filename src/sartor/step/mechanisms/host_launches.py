"""Kernel launches of the host, as far as they take longer than the device's work, block by block."""

from __future__ import annotations

import numpy as np

from sartor.step.mechanisms.mechanism import (
    COMPUTE,
    CONTEXTS,
    EXPERTS,
    OVERHEAD,
    TENSOR,
    BlockShare,
    BlockWork,
    Mechanism,
)


def _at_block(block: BlockWork, total: BlockShare) -> BlockShare:
    launch = block.c.graph_launch_s if block.trainer.cuda_graphs else block.c.launch_s
    host = np.maximum(launch * block.times.kernels - total.seconds, 0.0)
    return BlockShare(forward_s=host / 3, backward_s=host * (2 / 3), again_s=host / 3)


HOST_LAUNCHES = Mechanism(
    name="host_launches",
    part=OVERHEAD,
    fields=("microbatch_size", "trainer.cuda_graphs", "trainer.fused_kernels"),
    hidden_behind=(COMPUTE.key, TENSOR.key, EXPERTS.key, CONTEXTS.key),
    at_block=_at_block,
)
