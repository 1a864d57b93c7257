"""Seconds that blocks add to a pipeline stage: compute, and communication and launches that are not hidden."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sartor.model.blocks import BlockKind
from sartor.model.training import Trainer
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.mechanisms import acting
from sartor.step.mechanisms.mechanism import BlockShare, BlockWork
from sartor.step.results import BlockTimes
from sartor.units import FloatArray, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSeconds:
    """Seconds of one microbatch through each block [K, D]: blocks by distinct rows of plans.

    ``forward_s`` and ``backward_s`` (without weight gradients) include exposed communication and host time.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    wgrad_s: FloatArray
    selective_s: FloatArray
    full_s: FloatArray
    shares_s: FloatArray
    """[mechanisms that act on blocks, K, D]: what each adds, for forward, backward and ``wgrad_s`` together."""
    deviation_s: FloatArray
    """Standard deviation of their sum."""
    flops: FloatArray

    def share_s(self, name: str) -> FloatArray:
        """``shares_s`` of one mechanism [K, D]."""
        names = [mechanism.name for mechanism in acting("at_block")]
        return np.asarray(self.shares_s[names.index(name)])


def block_seconds(
    times: tuple[BlockTimes, ...],
    kinds: Sequence[BlockKind],
    trainer: Trainer,
    c: TrainingCoefficients,
    *,
    overlapped: bool = False,
) -> BlockSeconds:
    """`BlockTimes` of distinct rows with the trainer's overlap and constants applied; ``overlapped`` if the schedule
    hides the experts' all-to-all behind another microbatch."""
    blocks_of = zip(times, compute_factors(kinds, trainer, c), strict=True)
    columns = [_exposed(t, trainer, replace(c, compute_factor=factor), overlapped) for t, factor in blocks_of]
    stacked = {name: np.stack([column[name] for column in columns], axis=-2) for name in columns[0]}
    return BlockSeconds(**stacked)


def compute_factors(kinds: Iterable[BlockKind], trainer: Trainer, c: TrainingCoefficients) -> tuple[float, ...]:
    """Seconds of each block's compute in the step over its kernels alone.

    ``compute_factor`` applies only to layers: it stands for gaps between their many kernels and for kernels not
    modelled. The embedding and the head have a few long kernels, for which gaps do not matter.
    """
    return tuple(c.compute_factor if has_gaps(kind, trainer) else 1.0 for kind in kinds)


def has_gaps(kind: BlockKind, trainer: Trainer) -> bool:
    """Whether a block has many short kernels; in lockstep a module for later tokens is part of the head."""
    return kind is BlockKind.LAYER or (kind is BlockKind.MTP and not trainer.lockstep)


def _exposed(t: BlockTimes, trainer: Trainer, c: TrainingCoefficients, overlapped: bool) -> dict[str, Floats]:
    """What every mechanism that acts on blocks adds, in order."""
    block, total, claimed = BlockWork(times=t, trainer=trainer, c=c, overlapped=overlapped), BlockShare(), []
    for mechanism in acting("at_block"):
        assert mechanism.at_block is not None
        share = mechanism.at_block(block, total)
        claimed.append(share.seconds)
        total = total + share
    busy = t.forward_s + t.dgrad_s + t.wgrad_s + t.tp_forward_s + t.tp_backward_s + t.ep_forward_s + t.ep_backward_s
    return {
        "forward_s": total.forward_s,
        "backward_s": total.backward_s,
        "wgrad_s": total.wgrad_s,
        "selective_s": c.compute_factor * np.asarray(t.selective_s),
        "full_s": np.where(np.greater(t.full_s, 0), total.again_s, 0.0),
        "shares_s": np.stack(np.broadcast_arrays(*claimed)),
        "deviation_s": t.log_sigma * busy,
        "flops": np.asarray(t.flops),
    }
