"""Tensor-parallel collectives of a block, less what runs beside GEMMs; hidden seconds still slow the GEMMs.

Megatron always runs collectives that no GEMM waits for beside another GEMM; with ``tp_overlap`` it also splits
collectives into pieces that run beside pieces of the GEMM they belong to.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from sartor.model.lower.setting import divisions, sequence_divides
from sartor.model.training import Trainer, TrainingJob
from sartor.model.workload import ParallelDims
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.mechanisms.mechanism import COMPUTE, TENSOR, BlockShare, BlockWork, Condition, Limits, Mechanism, Rows
from sartor.step.results import BlockTimes
from sartor.units import Array, Floats


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


def _split_limits(job: TrainingJob) -> Limits:
    """Fields of the shape that tp must divide, each once; a padded vocabulary always divides."""
    padded = {"vocab_size"} if job.trainer.vocab_multiple else set()
    fields = {d.field for d in divisions(job.shape, ParallelDims(tp=np.arange(1, 2)))} - padded
    for field in sorted(fields, key=lambda f: (f != "num_heads", f)):
        yield Condition(reason=f"{field} does not split over tp", ok=partial(_divides, job, field))
    if not job.trainer.replicates_kv_heads:
        yield Condition(
            reason=f"num_kv_heads does not split over tp, and {job.trainer.called} copies no heads",
            ok=partial(_divides, job, "num_kv_heads", whole=True),
        )


def _divides(job: TrainingJob, field: str, rows: Rows, *, whole: bool = False) -> Array:
    split = [d for d in divisions(job.shape, ParallelDims(tp=rows["tp"])) if d.field == field]
    terms = [d.value % d.degree == 0 if whole else d.ok for d in split]
    return np.asarray(np.logical_and.reduce(terms) | (rows["tp"] == 1))


def _sequence_limits(job: TrainingJob) -> Limits:
    yield Condition(
        reason="sequence parallelism needs tp > 1",
        ok=lambda r: (r["sequence_parallel"] == 0) | (r["tp"] > 1),
    )
    if job.trainer.lockstep or job.trainer.one_program:
        yield Condition(
            reason=f"{job.trainer.called} always splits the sequence over tp",
            ok=lambda r: (r["sequence_parallel"] == 1) | (r["tp"] == 1),
        )
    if job.trainer.tp_overlap and job.trainer.optional_sequence_parallel:
        # Megatron-LM, arguments.py; Transformer Engine's userbuffers communicate what sequence parallelism splits.
        yield Condition(
            reason="overlap of tensor parallelism needs sequence parallelism",
            ok=lambda r: (r["sequence_parallel"] == 1) | (r["tp"] == 1),
        )
    if not job.trainer.splits_sequence:
        yield Condition(
            reason=f"{job.trainer.called} has no sequence parallelism",
            ok=lambda r: r["sequence_parallel"] == 0,
        )
    yield Condition(
        reason="seq_len does not split over tp x cp",
        ok=lambda r: (r["sequence_parallel"] == 0) | sequence_divides(job.seq_len, r["tp"], r["cp"]),
    )


TENSOR_TRAFFIC = Mechanism(
    name="tensor_traffic",
    part=TENSOR,
    fields=("tp", "sequence_parallel", "trainer.tp_overlap", "trainer.hides_tp_backward"),
    hidden_behind=(COMPUTE.key,),
    limits={"tp": _split_limits, "sequence_parallel": _sequence_limits},
    at_block=_at_block,
)
