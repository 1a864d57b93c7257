"""Distinct stages of plans that share their cuts: seconds of a microbatch, and what replicas exchange once a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.model.training import Recompute
from sartor.step.data_parallel import (
    DataTraffic,
    Exchange,
    GroupTraffic,
    LayerwiseGather,
    Line,
    grad_exchange,
    layerwise,
    param_exchange,
)
from sartor.step.stages import StageRows, summed
from sartor.step.tables import PlanTables

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class StageSeconds:
    """Distinct stages [R, plans] of plans that share their cuts: seconds of a microbatch, parameters, exchange."""

    def __init__(self, t: PlanTables, rows: StageRows, p: dict[str, IntArray], where: IntArray) -> None:
        self.t, self.rows, self.p = t, rows, p
        self.at = t.seconds_index[where]
        self.traffic = _taken(t.traffic, t.traffic_index[where])
        self.norm_s = t.norm_s[t.traffic_index[where]]
        self.params_at = t.params_index[where]
        self.counts = rows.counts.astype(np.float64)
        seconds = t.seconds
        self.tp_s, self.ep_s, self.cp_s = self._sum(seconds.tp_s), self._sum(seconds.ep_s), self._sum(seconds.cp_s)
        self.host_s, self.deviation_s = self._sum(seconds.host_s), self._sum(seconds.deviation_s)
        self.wgrad_s = self._sum(seconds.wgrad_s)
        self.forward_s = self._sum(seconds.forward_s)
        self.backward_s = self._sum(seconds.backward_s) + self._recomputed_s()
        self.layerwise_s = np.zeros_like(self.forward_s)
        self.gather_s: Any = 0.0
        self.scatter_s: Any = 0.0
        if np.any(p["zero"] >= 3):
            self._gather_layerwise()

    def _sum(self, of_blocks: FloatArray) -> FloatArray:
        """Over the blocks of each stage: [R, K] @ [K, D] handed out to the plans."""
        stages: FloatArray = summed(self.counts, of_blocks)[:, self.at]
        return stages

    def blocks_s(self) -> FloatArray:
        """Forward and backward of one microbatch through every block [K, plans], part of the layers recomputed; weights
        gathered layer by layer not counted."""
        t, kind = self.t.seconds, self.p["recompute"]
        layers = self.t.is_layer @ self.rows.counts.T @ self.rows.times / self.rows.pp
        share = np.where(kind == Recompute.FULL, self._share(np.array([layers]))[0], 0.0)
        again = np.where(kind == Recompute.SELECTIVE, t.selective_s[:, self.at], 0.0)
        again = again + share * (t.full_s * self.t.is_layer[:, None])[:, self.at]
        return np.asarray((t.forward_s + t.backward_s + t.wgrad_s)[:, self.at] + again)

    def _share(self, layers: Any) -> Any:
        """Of stages with so many ``layers`` [R], the share that is recomputed [R, plans]."""
        some = self.p["recompute_layers"]
        return np.where(some < 0, 1.0, np.minimum(some / np.maximum(layers, 1)[:, None], 1.0))

    def returned_s(self) -> FloatArray:
        """Backward of one microbatch, nothing computed again [R, plans]."""
        return self._sum(self.t.seconds.backward_s) + self.wgrad_s

    def _recomputed_s(self) -> Any:
        kind = self.p["recompute"]
        if not np.any(kind):
            return 0.0
        share = self._share(self.rows.counts @ self.t.is_layer)
        full = share * self._sum(self.t.seconds.full_s * self.t.is_layer[:, None])
        selective = self._sum(self.t.seconds.selective_s)
        return np.where(kind == Recompute.FULL, full, np.where(kind == Recompute.SELECTIVE, selective, 0.0))

    def _gather_layerwise(self) -> None:
        """ZeRO 3: what gathering and scattering every block's weights add to its forward and backward."""
        t, c = self.t, self.t.c
        dense, expert = t.dense[:, self.params_at], t.expert[:, self.params_at]
        params = param_exchange(t.job, self.traffic, dense, expert, c.bucket_bytes)
        grads = grad_exchange(t.job, self.traffic, dense, expert, c.bucket_bytes)
        seconds, share = t.seconds, c.dp_overlap_share
        beside = share * seconds.forward_s[:, self.at], share * (seconds.backward_s + seconds.wgrad_s)[:, self.at]
        each: LayerwiseGather = layerwise(params, grads, *beside, t.job.trainer.dp_overlap, c.sm_contention)
        is_3 = self.p["zero"] >= 3
        forward, backward = np.where(is_3, each.forward_s, 0.0), np.where(is_3, each.backward_s, 0.0)
        self.forward_s = self.forward_s + summed(self.counts, forward)
        self.backward_s = self.backward_s + summed(self.counts, backward)
        self.layerwise_s = summed(self.counts, forward + backward)
        if t.job.trainer.dp_overlap:  # what a stage gathers first and scatters last has nothing to hide behind
            first = np.argmax(self.rows.counts > 0, axis=1)
            self.gather_s, self.scatter_s = np.asarray(each.first_s)[first], np.asarray(each.last_s)[first]

    def evened_s(self, busy: FloatArray) -> Any:
        """``busy`` [R, plans] if the work were divided at will over the stages."""
        return self.rows.times @ busy / self.rows.pp

    def exchange_s(self) -> Any:
        """Gradients and parameters among replicas once a step, beyond what compute and the bubble hide."""
        # Stage s is done with its last microbatch while those before it still work, and starts after them.
        before = self.rows.before_first / self.rows.virtual_stages
        out = np.maximum(self.reduced_s() - summed(before, self.backward_s + self.wgrad_s), 0.0).max(axis=0)
        into = np.maximum(self.gathered_s() - summed(before, self.forward_s), 0.0).max(axis=0)
        return out + into + self.earlier_s() + self.tied_s()

    def reduced_s(self) -> Any:
        """What is seen of reducing gradients after each stage's last microbatch [R, plans]."""
        window = self.t.c.dp_overlap_share * (self.backward_s + self.wgrad_s)
        seen = self._grads().seen_s(window, self.t.job.trainer.dp_overlap, self.t.c.sm_contention)
        return np.where(self.p["zero"] >= 3, self.scatter_s, seen)

    def first_reduced_s(self) -> Any:
        """Reducing the first stage's gradients with nothing beside it, latencies left out [plans]."""
        dense, expert = (held[0] for held in self._params_held())
        width, traffic = self.t.job.trainer.grad_dtype.bytes, self.traffic
        return width * (traffic.dense.reduce.s_per_byte * dense + traffic.expert.reduce.s_per_byte * expert)

    def gathered_s(self) -> Any:
        """What is seen of gathering parameters before each stage's first microbatch [R, plans]."""
        zero, window = self.p["zero"], self.t.c.dp_overlap_share * self.forward_s
        seen = self._params().seen_s(window, self.t.job.trainer.dp_overlap, self.t.c.sm_contention)
        if self.t.job.trainer.broadcasts_shards:
            seen = seen + self.t.c.broadcast_s * (np.asarray(self.traffic.dense.shards) - 1)
        return np.where(zero >= 3, self.gather_s, np.where(zero >= 1, seen, 0.0))

    def earlier_s(self) -> Any:
        """ZeRO 2 keeps no whole gradient between microbatches: each but the last reduces its own as well."""
        zero, c = self.p["zero"], self.t.c
        if not np.any(zero == 2):
            return 0.0
        total = self._grads().total_s
        window = c.dp_overlap_share * (self.forward_s + self.backward_s + self.wgrad_s)
        hidden = np.minimum(total, window) if self.t.job.trainer.dp_overlap else 0.0
        each = np.max(total - hidden + c.sm_contention * hidden, axis=0)
        return np.where(zero == 2, (self.p["microbatches"] - 1) * each, 0.0)

    def _grads(self) -> Exchange:
        dense, expert = self._params_held()
        return grad_exchange(self.t.job, self.traffic, dense, expert, self.t.c.bucket_bytes)

    def _params(self) -> Exchange:
        dense, expert = self._params_held()
        return param_exchange(self.t.job, self.traffic, dense, expert, self.t.c.bucket_bytes)

    def _params_held(self) -> tuple[FloatArray, FloatArray]:
        t = self.t
        dense = summed(self.counts, t.dense)[:, self.params_at]
        if self.rows.pp > 1 or t.job.trainer.lockstep:  # a copy of the embedding's table beside the head
            dense[-1] += t.tied[self.params_at]
        return dense, summed(self.counts, t.expert)[:, self.params_at]

    def tied_s(self) -> Any:
        """The table's gradients of first and last stage are added after all else."""
        t = self.t
        if self.rows.pp == 1 or not np.any(t.tied) or not t.job.trains_weights:
            return 0.0
        size = t.tied[self.params_at] * t.job.trainer.grad_dtype.bytes
        return self.traffic.tied.total_s(size, t.c.bucket_bytes)

    def optimizer_s(self) -> Any:
        """The optimizer on the fullest stage, and the norm of all gradients."""
        norm = self.norm_s if self.t.job.trains_weights else 0.0
        return self.updates_s().max(axis=0) + norm

    def updates_s(self) -> FloatArray:
        """Updating the parameters a device of each stage is in charge of [R, plans]."""
        t, zero = self.t, self.p["zero"]
        dense, expert = self._params_held()
        own = [np.where(zero >= 1, of.shards, 1) for of in (self.traffic.dense, self.traffic.expert)]
        seconds: FloatArray = t.optimizer.seconds(dense / own[0] + expert / own[1], self.p["offload"] > 0)
        return t.c.optimizer_factor * seconds

    def flops(self) -> Any:
        """Product FLOPs of one microbatch over one device of every stage."""
        return summed(self.rows.times @ self.counts, self.t.seconds.flops)[self.at]


def _taken(traffic: DataTraffic, index: IntArray) -> DataTraffic:
    def line(of: Line) -> Line:
        return Line(start_s=np.asarray(of.start_s)[index], s_per_byte=np.asarray(of.s_per_byte)[index])

    def group(of: GroupTraffic) -> GroupTraffic:
        return GroupTraffic(reduce=line(of.reduce), gather=line(of.gather), shards=np.asarray(of.shards)[index])

    return DataTraffic(dense=group(traffic.dense), expert=group(traffic.expert), tied=line(traffic.tied))
