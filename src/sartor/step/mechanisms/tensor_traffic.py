"""Tensor-parallel collectives of a block, less what runs beside GEMMs; hidden seconds still slow the GEMMs.

Megatron always runs collectives that no GEMM waits for beside another GEMM; with ``tp_overlap`` it also splits
collectives into pieces that run beside pieces of the GEMM they belong to.
"""

from __future__ import annotations

import numpy as np

from sartor.model.training import Trainer
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.mechanisms.mechanism import BlockShare, BlockWork, Mechanism
from sartor.step.mechanisms.part import COMPUTE, TENSOR
from sartor.step.results import BlockTimes
from sartor.units import Floats


def _at_block(block: BlockWork, _: BlockShare) -> BlockShare:
    t, c = block.times, block.c
    hidden_forward, hidden_backward = _hidden(t, block.trainer, c)
    forward = c.network_factor * (t.tp_forward_s - (1 - c.sm_contention) * hidden_forward)
    backward = c.network_factor * (t.tp_backward_s - (1 - c.sm_contention) * hidden_backward)
    regathered = c.checkpoint_s * np.greater(t.tp_forward_s, 0)
    return BlockShare(forward_s=forward, backward_s=backward, again_s=forward + regathered)


def _hidden(t: BlockTimes, trainer: Trainer, c: TrainingCoefficients) -> tuple[Floats, Floats]:
    """Seconds hidden in forward and in backward."""
    always = np.asarray(t.tp_beside_s) if trainer.hides_tp_backward else np.zeros_like(t.forward_s)
    if not trainer.tp_overlap:
        return np.zeros_like(t.forward_s), c.tp_overlap_share * always
    forward = np.minimum(t.tp_forward_s, t.products_forward_s)
    backward = np.maximum(np.minimum(t.tp_backward_s, t.products_backward_s), always)
    return c.tp_overlap_share * forward, c.tp_overlap_share * backward


TENSOR_TRAFFIC = Mechanism(
    name="tensor_traffic",
    part=TENSOR,
    fields=("tp", "sequence_parallel", "trainer.tp_overlap", "trainer.hides_tp_backward"),
    hidden_behind=(COMPUTE.key,),
    at_block=_at_block,
)
