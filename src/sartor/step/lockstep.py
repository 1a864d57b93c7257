"""What a pipeline in lockstep keeps of its microbatches: the runtime of accelerator studies (PHAZE, sec. 4.3), whose
seconds are in `pipelined`."""

from __future__ import annotations

from sartor.model.blocks import Block, BlockKind
from sartor.model.training import TrainingJob
from sartor.step.activations import Rows, layer_activations
from sartor.units import Floats

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
