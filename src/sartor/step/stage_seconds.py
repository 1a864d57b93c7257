"""Seconds of a microbatch on the distinct stages of plans that share their cuts: blocks, then what mechanisms add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.step import mechanisms
from sartor.step.mechanisms.mechanism import StageShare
from sartor.step.mechanisms.recompute import RECOMPUTING, again_s
from sartor.step.stages import StageRows, summed
from sartor.step.tables import PlanTables
from sartor.units import FloatArray, Floats, IntArray


class StageSeconds:
    """Distinct stages [R, W] of W work rows: ``structure`` (of the tables), recompute, recompute_layers, zero."""

    def __init__(self, t: PlanTables, rows: StageRows, work: dict[str, IntArray]) -> None:
        self.t, self.rows, self.work = t, rows, work
        self.at = t.seconds_index[work["structure"]]
        self.counts = rows.counts.astype(np.float64)
        self.wgrad_s = self._sum(t.seconds.wgrad_s)
        self.forward_s = self._sum(t.seconds.forward_s)
        self.backward_s = self._sum(t.seconds.backward_s)
        self.shares: dict[str, StageShare] = {}
        """What mechanisms that act on stages add, by name; ``forward_s`` and ``backward_s`` include it."""
        for mechanism in mechanisms.acting("at_stage"):
            assert mechanism.at_stage is not None
            share = mechanism.at_stage(self)
            if share is not None:
                self._add(mechanism.name, share)

    def _sum(self, of_blocks: FloatArray) -> FloatArray:
        """Sum over the blocks of each stage: [R, K] @ [K, D], mapped to the work rows."""
        stages: FloatArray = summed(self.counts, of_blocks).take(self.at, axis=1)
        return stages

    def _add(self, name: str, share: StageShare) -> None:
        self.shares[name] = share
        self.forward_s = self.forward_s + share.forward_s
        self.backward_s = self.backward_s + share.backward_s

    @property
    def busy_s(self) -> FloatArray:
        """A microbatch, forward and backward."""
        return self.forward_s + self.backward_s + self.wgrad_s

    @property
    def first_s(self) -> FloatArray:
        """Exposed once, before a stage's first microbatch [R, W]."""
        return self._total([share.first_s for share in self.shares.values()])

    @property
    def last_s(self) -> FloatArray:
        """Exposed once, after a stage's last microbatch [R, W]."""
        return self._total([share.last_s for share in self.shares.values()])

    def _total(self, seconds: Sequence[Floats]) -> FloatArray:
        return np.asarray(sum(seconds, np.zeros_like(self.forward_s)))

    def returned_s(self) -> FloatArray:
        """Backward of one microbatch without recomputation [R, W]."""
        shares = [share.backward_s for name, share in self.shares.items() if name != RECOMPUTING.name]
        return self._total([self._sum(self.t.seconds.backward_s), self.wgrad_s, *shares])

    def of_slowest(self, values: FloatArray, slowest: npt.NDArray[np.intp]) -> FloatArray:
        """``values`` of blocks [K, D], summed over the blocks of the slowest stage [W]."""
        stages = summed(self.counts, values)
        return np.asarray(stages.take(slowest * stages.shape[1] + self.at))

    def block_part_s(self, name: str, slowest: npt.NDArray[np.intp]) -> FloatArray:
        """What a mechanism that acts on blocks adds to a microbatch on the slowest stage [W]."""
        return self.of_slowest(self.t.seconds.share_s(name), slowest)

    def deviation_s(self, slowest: npt.NDArray[np.intp]) -> FloatArray:
        """Standard deviation of a microbatch on the slowest stage [W]."""
        return self.of_slowest(self.t.seconds.deviation_s, slowest)

    def blocks_s(self) -> FloatArray:
        """Forward and backward of one microbatch through every block [K, W], including recomputation, without
        layer-by-layer weight gathers."""
        t = self.t.seconds
        return np.asarray((t.forward_s + t.backward_s + t.wgrad_s)[:, self.at] + again_s(self))

    def evened_s(self, busy: FloatArray) -> Floats:
        """``busy`` [R, W] if the work were divided evenly over the stages."""
        return self.rows.times @ busy / self.rows.pp

    def flops(self) -> Any:
        """FLOPs of matrix multiplications per microbatch, summed over one device of every stage."""
        return summed(self.rows.times @ self.counts, self.t.seconds.flops)[self.at]
