"""Compute: the kernels of every block, times what a run adds to them (``compute_factor``).

A block computed again repeats its forward; its communication is repeated by the mechanisms it belongs to.
"""

from __future__ import annotations

import numpy as np

from sartor.model.training import TrainingJob
from sartor.step.mechanisms.mechanism import COMPUTE, BlockShare, BlockWork, Condition, Limits, Mechanism


def _at_block(block: BlockWork, _: BlockShare) -> BlockShare:
    t, factor = block.times, block.c.compute_factor
    again = np.maximum(t.full_s - t.tp_forward_s - t.ep_forward_s - t.cp_forward_s, 0.0)
    return BlockShare(
        forward_s=factor * t.forward_s,
        backward_s=factor * t.dgrad_s,
        wgrad_s=factor * np.asarray(t.wgrad_s),
        again_s=factor * again,
    )


def _device_limits(job: TrainingJob) -> Limits:
    if job.shape.traced is not None:
        yield Condition(reason="traced on one device: tp and cp are 1", ok=lambda r: (r["tp"] == 1) & (r["cp"] == 1))


def _batch_limits(job: TrainingJob) -> Limits:
    yield Condition(
        reason="global_batch_size does not divide into dp x microbatch_size",
        ok=lambda r: job.global_batch_size % (r["dp"] * r["microbatch_size"]) == 0,
    )


COMPUTING = Mechanism(
    name="compute",
    part=COMPUTE,
    fields=("microbatch_size", "tp", "cp", "ep"),
    limits={"pp": _device_limits, "microbatch_size": _batch_limits},
    at_block=_at_block,
)
