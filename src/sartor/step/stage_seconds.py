"""Seconds of a microbatch on the distinct stages of plans that share their cuts: blocks, then what mechanisms add.

Once per step: gradient and parameter exchange among the replicas of every distinct stage, and the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.model.training import Trainer
from sartor.model.workload import PipelineSchedule
from sartor.step import mechanisms
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.data_parallel import Exchange, grad_exchange, param_exchange
from sartor.step.mechanisms.mechanism import StageShare
from sartor.step.mechanisms.recompute import RECOMPUTING, again_s
from sartor.step.stages import StageRows, entries, summed
from sartor.step.states import weight_bytes
from sartor.step.tables import PlanTables
from sartor.units import FloatArray, Floats, IntArray, remembered_if_few


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StageExchange:
    """Times of distinct stages [R, X] under X structures of plans, and of whole plans [X].

    Beside ``compute`` seconds, an exchange is exposed for ``base + max(rest - share * compute, 0)`` seconds.
    """

    grads_total: FloatArray
    grads_base: FloatArray
    grads_rest: FloatArray
    grads_share: FloatArray
    params_base: FloatArray
    params_rest: FloatArray
    params_share: FloatArray
    updates_s: FloatArray
    """Optimizer seconds; ``offloaded_s`` with its states in host memory."""
    offloaded_s: FloatArray
    norm_s: FloatArray
    """[X]: all-reduce of the gradient norm."""
    tied_s: FloatArray
    """[X]: all-reduce of the tied table that first and last stage both hold."""

    def optimizer_s(self) -> FloatArray:
        """Optimizer seconds of the slowest stage [2, X]: states on the device, states in host memory."""
        return np.stack([update_s.max(axis=0) + self.norm_s for update_s in (self.updates_s, self.offloaded_s)])


PER_STAGE = tuple(name for name in StageExchange.__dataclass_fields__ if name not in ("norm_s", "tied_s"))


@remembered_if_few
def stage_exchange(t: PlanTables, rows: StageRows, structure: IntArray) -> StageExchange:
    traffic, params = entries(t.traffic, t.traffic_index[structure]), t.params_index[structure]
    counts, c = rows.counts.astype(np.float64), t.c
    updated, tied_params = (t.dense * t.trained, t.expert * t.trained), t.tied[params] * t.trained[-1]
    # Weights that blocks share are counted at one and taken off another: a stage of such blocks alone has none.
    dense, expert = (np.maximum(summed(counts, x)[:, params], 0.0) for x in updated)
    dense_bytes, expert_bytes = (np.maximum(summed(counts, t.gathered_bytes * x)[:, params], 0.0) for x in updated)
    if rows.pp > 1:  # the head has its own copy of the embedding table
        dense[-1] += tied_params
        dense_bytes[-1] += tied_params * weight_bytes(t.job)
    grads = _seen(t, grad_exchange(t.job, traffic, dense, expert, c.bucket_bytes))
    gathered = _seen(t, param_exchange(traffic, dense_bytes, expert_bytes, c.bucket_bytes))
    sharded = t.sharded[structure]
    renewed = sharded & t.job.trains_weights  # frozen weights are not updated, so not gathered
    if t.job.trainer.broadcasts_shards:
        gathered["base"] = gathered["base"] + c.broadcast_s * (np.asarray(traffic.dense.shards) - 1)
    shard = dense / np.where(sharded, traffic.dense.shards, 1) + expert / np.where(sharded, traffic.expert.shards, 1)
    updates_s, offloaded_s = (c.optimizer_factor * t.optimizer.seconds(shard, away) for away in (False, True))
    size = tied_params * t.job.trainer.grad_dtype.bytes
    tied = rows.pp > 1 and np.any(t.tied) and t.job.trains_weights
    exchange = StageExchange(
        **{f"grads_{name}": value for name, value in grads.items()},
        **{f"params_{name}": np.where(renewed, value, 0.0) for name, value in gathered.items() if name != "total"},
        updates_s=updates_s,
        offloaded_s=offloaded_s,
        norm_s=np.asarray(traffic.norm_s) * (1.0 if t.job.trains_weights else 0.0),
        tied_s=np.asarray(traffic.tied.total_s(size, c.bucket_bytes)) if tied else np.zeros(structure.size),
    )
    return _of_first(exchange) if t.job.trainer.lockstep else exchange


def _of_first(exchange: StageExchange) -> StageExchange:
    """In lockstep the first stage's gradients are complete last, so the step waits only for their exchange and for that
    stage's update."""
    is_first, nothing = np.arange(len(exchange.grads_base))[:, None] == 0, np.zeros_like(exchange.norm_s)
    of_stages = {name: np.where(is_first, getattr(exchange, name), 0.0) for name in PER_STAGE}
    return StageExchange(**of_stages, norm_s=nothing, tied_s=nothing)


def _seen(t: PlanTables, exchange: Exchange) -> dict[str, FloatArray]:
    """Coefficients of the exposed time of an exchange that runs beside compute: the last bucket is fully exposed, and
    hidden seconds cost too, since compute loses ``sm_contention`` of every second it shares."""
    total = np.asarray(exchange.total_s)
    if not t.job.trainer.dp_overlap:
        return {"total": total, "base": total, "rest": np.zeros_like(total), "share": np.zeros_like(total)}
    last = np.asarray(exchange.last_s)
    share = 1.0 - last / np.where(total > 0, total, 1.0)
    base, rate = last + t.c.sm_contention * (total - last), max(1 - t.c.sm_contention, 0.0)
    return {"total": total, "base": base, "rest": rate * (total - last), "share": rate * t.c.dp_overlap_share * share}


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """Distinct pipeline work rows: seconds of a microbatch on distinct stages [R, W], and of the whole [., W]."""

    forward_s: FloatArray
    rear_s: FloatArray
    """Backward including weight gradients."""
    first_s: FloatArray
    """Exposed first gather and last scatter of ZeRO 3."""
    last_s: FloatArray
    hides_gather_s: FloatArray
    """Time that earlier stages work while the first stage of each kind is idle at start and end, which hides its
    exchange: stage s starts after the stages before it and is done while they still work."""
    hides_reduce_s: FloatArray
    parts: FloatArray
    """Seconds of all microbatches by part of the step, then `BESIDE`."""


BESIDE = ("deviation_s", "imbalance_s", "flops")
"""What pipelines have besides the parts of their time: the standard deviation of their compute, what a better placement
of layers could save at most, and the FLOPs of one replica's microbatches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What happens once a step, for some plans: ``of`` is each plan's index into ``work``, ``at`` its index into
    ``x``."""

    c: TrainingCoefficients
    trainer: Trainer
    columns: dict[str, IntArray]
    work: Worked
    of: IntArray
    x: StageExchange
    at: IntArray
    optimizer_s: FloatArray
    """[2, X]: `StageExchange.optimizer_s`."""
    pipeline_s: FloatArray
    """Makespan of the plans' pipelines."""

    @property
    def devices(self) -> IntArray:
        p = self.columns
        return np.asarray(p["tp"] * p["pp"] * p["dp"] * p["cp"])

    def exposed_s(self, base: FloatArray, rest: FloatArray, share: FloatArray, compute_s: FloatArray) -> FloatArray:
        """Seconds of an exchange [R, X] beside ``compute_s`` [R, plans] of one microbatch, by `StageExchange`.

        Where chunks interleave, each is exchanged as soon as its own microbatches are through, beside the other chunks'
        round of pp: what is left is the last chunk's beside its own microbatch, or what all of these do not hide."""
        p, hidden = self.columns, share.take(self.at, axis=1) * compute_s
        interleaved = p["schedule"] == PipelineSchedule.ONE_F_ONE_B
        chunks = np.where(interleaved, p["virtual_stages"], 1)
        whole, rounds = rest.take(self.at, axis=1), (1 + p["pp"] * (chunks - 1)) / chunks
        left = np.maximum((whole - hidden) / chunks, whole - rounds * hidden)
        return np.asarray(base.take(self.at, axis=1) + np.maximum(left, 0.0))

    def or_sharded(self, seconds: FloatArray, layerwise_s: FloatArray) -> FloatArray:
        """``seconds`` [R, plans], or ``layerwise_s`` [R, W] of plans that gather their weights layer by layer."""
        gathering = np.flatnonzero(self.columns["zero_stage"] >= 3)
        if gathering.size:
            seconds[:, gathering] = layerwise_s[:, self.of[gathering]]
        return seconds
