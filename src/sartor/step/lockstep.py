"""A pipeline that advances in lockstep: the runtime that accelerator studies assume (PHAZE, sec. 4.3).

Every slot lasts as long as the slowest device needs for one microbatch, including transfers. With v chunks on each of S
devices, a slot is one chunk's, and the devices work on chunks with the same number: S slots on each, in turn. Replicas
all-reduce and update the first device's parameters, which are complete last. Nothing overlaps:

    step = m * (sum over chunks of their slowest) + (S - 1) * slowest of all
           + all-reduce(first device's gradients) + update(first device's parameters)

`sartor.placement` proves the best placement for this formula with v = 1. With full recomputation a stage keeps its
input and runs its forward again while the gradient arrives; the last stage starts backward at once.

ZeRO 1 reduce-scatters gradients and gathers weights, as many bytes as the all-reduce; each replica updates its share.
On a single stage, ZeRO 2 reduce-scatters after every microbatch, and ZeRO 3 also gathers weights before every forward
and backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sartor.model.blocks import Block, BlockKind
from sartor.model.training import TrainingJob
from sartor.step.activations import Rows, layer_activations
from sartor.units import Floats

if TYPE_CHECKING:
    pass


WIDTH_BYTES = 2.0
"""Bytes of a weight, a gradient and an activation in compute and transfers."""
LOGIT_BYTES = 6.0
"""Per logit: 16-bit logits and their probabilities in fp32, kept for the last stage's current microbatch."""


def block_stash(job: TrainingJob, rows: Rows, block: Block, logits: Floats) -> Floats:
    """Activations that one microbatch leaves in a block until its backward [bytes over plans]."""
    if block.kind is BlockKind.LAYER:
        assert block.layer is not None
        return layer_activations(rows, block.layer, block.stack.hidden_size).whole
    stream = boundary_bytes(job, rows)
    if block.kind is BlockKind.EMBEDDING:
        return stream
    return LOGIT_BYTES * logits + (2 * stream if block.kind is BlockKind.HEAD else 0.0)


def boundary_bytes(job: TrainingJob, rows: Rows) -> Floats:
    """One microbatch's activation between two layers, on one device."""
    return WIDTH_BYTES * rows.outer * job.shape.hidden_size
