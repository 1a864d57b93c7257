"""Compute: the kernels of every block, times what a run adds to them (``compute_factor``).

A block computed again repeats its forward; its communication is repeated by the mechanisms it belongs to.
"""

from __future__ import annotations

import numpy as np

from sartor.step.mechanisms.mechanism import BlockShare, BlockWork, Mechanism
from sartor.step.mechanisms.part import COMPUTE


def _at_block(block: BlockWork, _: BlockShare) -> BlockShare:
    t, factor = block.times, block.c.compute_factor
    again = np.maximum(t.full_s - t.tp_forward_s - t.ep_forward_s - t.cp_forward_s, 0.0)
    return BlockShare(
        forward_s=factor * t.forward_s,
        backward_s=factor * t.dgrad_s,
        wgrad_s=factor * np.asarray(t.wgrad_s),
        again_s=factor * again,
    )


COMPUTING = Mechanism(name="compute", part=COMPUTE, fields=("microbatch_size", "tp", "cp", "ep"), at_block=_at_block)
