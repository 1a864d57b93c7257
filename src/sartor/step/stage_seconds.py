"""Seconds of a microbatch on the distinct stages of plans that share their cuts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.model.training import Recompute
from sartor.step.data_parallel import grad_exchange, layerwise, param_exchange, traffic_at
from sartor.step.kept_bytes import share_moved
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
        self.backward_s = self._backward_s()
        self.layerwise_s = np.zeros_like(self.forward_s)
        self.gather_s, self.scatter_s, self.regathered_s = self.layerwise_s, self.layerwise_s, self.layerwise_s
        self.offload_s = np.zeros_like(self.forward_s)
        if t.offload_s is not None:
            self._offload(t.offload_s)
        if np.any(work["zero"] >= 3):
            self._gather_layerwise()

    def _sum(self, of_blocks: FloatArray) -> FloatArray:
        """Sum over the blocks of each stage: [R, K] @ [K, D], mapped to the work rows."""
        stages: FloatArray = summed(self.counts, of_blocks).take(self.at, axis=1)
        return stages

    def _backward_s(self) -> FloatArray:
        """Backward including recomputation."""
        t, kind, some = self.t.seconds, self.work["recompute"], self.work["recompute_layers"]
        plain = summed(self.counts, t.backward_s)
        if not np.any(kind):
            return np.asarray(plain.take(self.at, axis=1))
        selective = summed(self.counts, t.selective_s)
        full = summed(self.counts, t.full_s * self.t.is_layer[:, None])
        if np.all(some < 0):
            ways = np.concatenate([plain, plain + selective, plain + full], axis=1)
            return np.asarray(ways.take(kind * plain.shape[1] + self.at, axis=1))
        share = np.where(kind == Recompute.FULL, self._share(self.rows.counts @ self.t.is_layer), 0.0)
        again = np.where(kind == Recompute.SELECTIVE, selective[:, self.at], share * full[:, self.at])
        return np.asarray(plain[:, self.at] + again)

    def returned_s(self) -> FloatArray:
        """Backward of one microbatch without recomputation [R, W]."""
        return self._sum(self.t.seconds.backward_s) + self.wgrad_s + self.regathered_s

    def _share(self, layers: Floats) -> FloatArray:
        """Share of layers recomputed [R, W] on stages that have ``layers`` [R]."""
        some = self.work["recompute_layers"]
        return np.where(some < 0, 1.0, np.minimum(some / np.maximum(layers, 1)[:, None], 1.0))

    def of_slowest(self, name: str, slowest: npt.NDArray[np.intp]) -> FloatArray:
        """Part ``name`` of the block seconds, of the slowest stage [W]."""
        stages = summed(self.counts, getattr(self.t.seconds, name))
        return np.asarray(stages.take(slowest * stages.shape[1] + self.at))

    def blocks_s(self) -> FloatArray:
        """Forward and backward of one microbatch through every block [K, W], including recomputation, without
        layer-by-layer weight gathers."""
        t = self.t.seconds
        return np.asarray((t.forward_s + t.backward_s + t.wgrad_s)[:, self.at] + self._again_s())

    def _mean_layers(self) -> FloatArray:
        """Mean number of layers per stage."""
        return self.t.is_layer @ self.rows.counts.T @ self.rows.times / self.rows.pp

    def _full_share(self) -> Floats:
        """Share of the layers that is fully recomputed [W]."""
        share = self._share(np.array([self._mean_layers()]))[0]
        return np.where(self.work["recompute"] == Recompute.FULL, share, 0.0)

    def _again_s(self) -> FloatArray:
        """Recomputation seconds of one microbatch in every block [K, W]."""
        t, kind, share = self.t.seconds, self.work["recompute"], self._full_share()
        again = np.where(kind == Recompute.SELECTIVE, t.selective_s[:, self.at], 0.0)
        return np.asarray(again + share * (t.full_s * self.t.is_layer[:, None])[:, self.at])

    def _offload(self, one_way_s: FloatArray) -> None:
        """Add the exposed part of copies to and from host memory."""
        t, kind = self.t.seconds, self.work["recompute"]
        plain, selective, inputs = one_way_s[:, :, self.at]
        full = self._full_share()
        moved = np.where(kind == Recompute.SELECTIVE, selective, full * inputs + (1 - full) * plain)
        moved = moved * share_moved(self.t.job, self._mean_layers())
        behind = (t.backward_s + t.wgrad_s)[:, self.at] + self._again_s()
        forward = summed(self.counts, np.maximum(moved - t.forward_s[:, self.at], 0.0))
        backward = summed(self.counts, np.maximum(moved - behind, 0.0))
        self.forward_s, self.backward_s = self.forward_s + forward, self.backward_s + backward
        self.offload_s = np.asarray(forward + backward)

    def _gather_layerwise(self) -> None:
        """ZeRO 3: add the exposed part of gathering and scattering every block's weights."""
        t, c = self.t, self.t.c
        of = np.flatnonzero(self.work["zero"] >= 3)
        at, structure = self.at[of], self.work["structure"][of]
        dense, expert = (x[:, t.params_index[structure]] for x in (t.dense, t.expert))
        if t.job.trainer.lockstep and self.rows.pp > 1:  # the head has its own copy of the embedding table
            dense[-1] += t.tied[t.params_index[structure]]
        traffic = traffic_at(t.traffic, t.traffic_index[structure])
        gathered = t.gathered_bytes
        params = param_exchange(traffic, gathered * dense, gathered * expert, c.bucket_bytes)
        grads = grad_exchange(t.job, traffic, dense * t.trained, expert * t.trained, c.bucket_bytes)
        seconds, share = t.seconds, c.dp_overlap_share
        behind = (seconds.backward_s + seconds.wgrad_s)[:, at] + self._again_s()[:, of]
        beside = share * seconds.forward_s[:, at], share * behind
        held = t.job.trainer.memory
        room = (dense + expert) * held.layers_gathered <= held.most_gathered
        each = layerwise(params, grads, *beside, t.job.trainer.dp_overlap, c.sm_contention, room)

        def of_these(values: Floats) -> FloatArray:
            out = np.zeros_like(self.forward_s)
            out[:, of] = values
            return out

        forward, backward = summed(self.counts, each.forward_s), summed(self.counts, each.backward_s)
        self.forward_s = self.forward_s + of_these(forward)
        self.backward_s = self.backward_s + of_these(backward)
        self.layerwise_s, self.regathered_s = of_these(forward + backward), of_these(backward)
        if t.job.trainer.dp_overlap:  # the first gather and last scatter are exposed
            first = np.argmax(self.rows.counts > 0, axis=1)
            self.gather_s = of_these(np.asarray(each.first_s)[first])
            self.scatter_s = of_these(np.asarray(each.last_s)[first])

    def evened_s(self, busy: FloatArray) -> Floats:
        """``busy`` [R, W] if the work were divided evenly over the stages."""
        return self.rows.times @ busy / self.rows.pp

    def flops(self) -> Any:
        """FLOPs of matrix multiplications per microbatch, summed over one device of every stage."""
        return summed(self.rows.times @ self.counts, self.t.seconds.flops)[self.at]
