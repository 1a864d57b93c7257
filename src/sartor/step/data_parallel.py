"""Gradient and parameter traffic between replicas of a model in a step, by ZeRO stage, and how much is exposed.

Traffic runs in buckets beside compute. If each of n buckets takes ``c`` and its share of backward takes ``w``, ``c + (n
- 1) max(0, c - w)`` is exposed: the first bucket waits for its gradients, and the last one starts when no compute is
left to hide it. docs/concepts/training-step.md derives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sartor.cost.collective.collective import network_time_s
from sartor.cost.correction.calibration import Calibration
from sartor.hardware.cluster import Cluster
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.operators import CollectiveKind
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.states import expert_replicas, shard_devices
from sartor.units import Bools, Floats, Ints, plain, remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Seconds of a collective as a latency and a rate, fitted exactly at zero bytes and at one bucket."""

    start_s: Floats
    s_per_byte: Floats

    def bucket_s(self, message_bytes: Floats, bucket_bytes: float) -> Floats:
        """Seconds of one bucket, or of the whole message if smaller; 0 for an empty message."""
        bucket = self.start_s + self.s_per_byte * np.minimum(message_bytes, bucket_bytes)
        return np.where(np.greater(message_bytes, 0), bucket, 0.0)

    def total_s(self, message_bytes: Floats, bucket_bytes: float) -> Floats:
        """Seconds of all buckets one after the other."""
        buckets = np.maximum(np.asarray(message_bytes) / bucket_bytes, np.greater(message_bytes, 0))
        return buckets * self.start_s + self.s_per_byte * message_bytes

    def __add__(self, other: _Line) -> _Line:
        return _Line(start_s=self.start_s + other.start_s, s_per_byte=self.s_per_byte + other.s_per_byte)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupTraffic:
    """Traffic of one kind of parameters (dense, experts): per byte of gradients, and per byte of 16-bit parameters."""

    reduce: _Line
    gather: _Line
    shards: Ints
    """Devices the shards are spread over (1: nothing is sharded)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTraffic:
    dense: _GroupTraffic
    expert: _GroupTraffic
    tied: _Line
    """All-reduce of the tied table that the first and the last stage both hold."""
    norm_s: Floats
    """All-reduce of the squared gradient norm over all devices: pure latency."""


network_cost = remembered(network_time_s)
"""Plans of a search and fixes of a lint ask for the same groups again and again."""


def data_traffic(
    job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Calibration, c: TrainingCoefficients
) -> DataTraffic:
    """Lines of all collectives among replicas, for arrays of plans (their dims, ZeRO stage and shard group).

    Plain data parallelism all-reduces gradients. ZeRO (Rajbhandari et al. 2020) reduce-scatters them among the
    ``shard_group``, all-reduces the shards among the groups where there are several (hybrid sharding), and gathers
    parameters.
    """
    d = plan.dims
    bucket_bytes = UNBROKEN_BYTES if job.trainer.lockstep else c.bucket_bytes
    factors = (0.0 if job.trainer.lockstep else c.network_factor), c.network_factor

    def lines(kind: CollectiveKind, *groups: _Group) -> list[_Line]:
        return _lines(kind, groups, cluster, calibration, bucket_bytes, factors)

    inner = job.trainer.expert_tp(d.tp, d.ep) * d.ep
    whole = ((np.asarray(d.dp * d.cp), np.asarray(d.tp)), (np.asarray(expert_replicas(job, plan)), np.asarray(inner)))
    sharded = np.greater_equal(plan.zero_stage, 1)
    shards = [np.where(sharded, shard_devices(plan, replicas), 1) for replicas, _ in whole]
    shard_groups = [_Group(size, stride) for size, (_, stride) in zip(shards, whole, strict=True)]
    pairs = zip(whole, shards, strict=True)
    among = [_Group(replicas // size, stride * size, 1.0 / size) for (replicas, stride), size in pairs]
    tied = _Group(np.where(np.greater(d.pp, 1), 2, 1), d.tp * d.cp * d.dp * np.maximum(d.pp - 1, 1))
    scattered, gathered = (
        lines(CollectiveKind.REDUCE_SCATTER, *shard_groups),
        lines(CollectiveKind.ALL_GATHER, *shard_groups),
    )
    *added, of_tied = lines(CollectiveKind.ALL_REDUCE, *among, tied)
    devices = np.asarray(d.tp * d.cp * d.dp * d.pp)
    norm_s = network_cost(CollectiveKind.ALL_REDUCE, NORM_BYTES, devices, 1, cluster, calibration).time_s
    dense, expert = (
        _GroupTraffic(reduce=scatter + added_line, gather=gather, shards=size)
        for scatter, added_line, gather, size in zip(scattered, added, gathered, shards, strict=True)
    )
    return DataTraffic(dense=dense, expert=expert, tied=of_tied, norm_s=norm_s)


NORM_BYTES = 4.0
"""Message of the gradient norm's all-reduce."""


UNBROKEN_BYTES = 1e15
"""Message size at which latency is negligible: a lockstep trainer sends in one piece, and pays no latency."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Devices of one collective, how far apart they are, and the share of a message that it moves."""

    size: Ints
    stride: Ints
    share: Floats = 1.0


def _lines(
    kind: CollectiveKind,
    groups: Sequence[_Group],
    cluster: Cluster,
    calibration: Calibration,
    bucket_bytes: float,
    factors: tuple[float, float],
) -> list[_Line]:
    """Lines through a message of one byte and one of a bucket, of all groups in one pass; times ``factors``."""
    parts = [np.broadcast_arrays(group.size, group.stride, group.share) for group in groups]
    size, stride, share = (
        np.concatenate([np.ravel(column) for column in fields]) for fields in zip(*parts, strict=True)
    )
    message = np.array([[1.0], [bucket_bytes]]) * share
    start, whole = np.asarray(network_cost(kind, message, size, stride, cluster, calibration).time_s)
    start, slope = factors[0] * start, factors[1] * ((whole - start) / (bucket_bytes - 1.0))
    lines_of_kind, first = list[_Line](), 0
    for of_size, *_ in parts:
        where = slice(first, first + of_size.size)
        start_s, s_per_byte = (plain(column[where].reshape(of_size.shape)) for column in (start, slope))
        lines_of_kind.append(_Line(start_s=start_s, s_per_byte=s_per_byte))
        first += of_size.size
    return lines_of_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Traffic of one device's gradients (or parameters): bytes of dense and expert ones, and their timing lines."""

    dense: _Line
    expert: _Line
    dense_bytes: Floats
    expert_bytes: Floats
    bucket_bytes: float

    @property
    def total_s(self) -> Floats:
        b = self.bucket_bytes
        return self.dense.total_s(self.dense_bytes, b) + self.expert.total_s(self.expert_bytes, b)

    @property
    def last_s(self) -> Floats:
        """Seconds of the last bucket."""
        b = self.bucket_bytes
        return np.maximum(self.dense.bucket_s(self.dense_bytes, b), self.expert.bucket_s(self.expert_bytes, b))


def grad_exchange(
    job: TrainingJob, traffic: DataTraffic, dense: Floats, expert: Floats, bucket_bytes: float
) -> Exchange:
    """Traffic of this many parameters' gradients, in the trainer's gradient type; 0 bytes if weights are frozen."""
    width = job.trainer.grad_dtype.bytes if job.trains_weights else 0.0
    return Exchange(
        dense=traffic.dense.reduce,
        expert=traffic.expert.reduce,
        dense_bytes=dense * width,
        expert_bytes=expert * width,
        bucket_bytes=bucket_bytes,
    )


def param_exchange(traffic: DataTraffic, dense_bytes: Floats, expert_bytes: Floats, bucket_bytes: float) -> Exchange:
    """Traffic of parameters of this many bytes (`gathered_bytes` of each)."""
    return Exchange(
        dense=traffic.dense.gather,
        expert=traffic.expert.gather,
        dense_bytes=dense_bytes,
        expert_bytes=expert_bytes,
        bucket_bytes=bucket_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerwiseGather:
    """ZeRO 3 (FSDP) for one block and microbatch: seconds that gathers and scatters add to compute."""

    forward_s: Floats
    backward_s: Floats
    first_s: Floats
    """Its gather fully exposed: what the first block of a step costs."""
    last_s: Floats
    """Its gradient scatter fully exposed."""


def layerwise(
    params: Exchange,
    grads: Exchange,
    forward_s: Floats,
    backward_s: Floats,
    overlaps: bool,
    contention: float,
    prefetches: Bools = True,
) -> LayerwiseGather:
    """A layer's parameters are gathered while the previous layer computes, and again in backward, where the next
    layer's gradients use the same links: ``max(compute, communication)`` per layer (PyTorch FSDP, Zhao et al. 2023,
    arXiv 2304.11277, sec. 3.3). Without memory to prefetch (``prefetches``), compute waits for every gather."""
    gather, scatter = params.total_s, grads.total_s
    ahead = np.where(prefetches, gather, 0.0)
    waited = gather - ahead
    return LayerwiseGather(
        forward_s=waited + _beyond(ahead, forward_s, overlaps, contention),
        backward_s=waited + _beyond(ahead + scatter, backward_s, overlaps, contention),
        first_s=gather,
        last_s=scatter,
    )


def _beyond(network_s: Floats, compute_s: Floats, overlaps: Bools, contention: float) -> Floats:
    hidden = np.where(overlaps, np.minimum(network_s, compute_s), 0.0)
    return network_s - hidden + contention * hidden
