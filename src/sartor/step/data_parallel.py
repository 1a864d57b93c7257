"""What replicas of a model exchange in a step: gradients and parameters, by ZeRO stage, and how much of it is seen.

Traffic runs in buckets beside compute. Of buckets that take ``c`` each while their share of backward takes ``w``,
``c + (n - 1) max(0, c - w)`` is seen: the first cannot start before its gradients are there, the last starts when
nothing is left to hide behind. docs/concepts/training-step.md derives it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sartor.cost.collective.tiers import network_time_s
from sartor.cost.correction.calibration import Calibration
from sartor.hardware.cluster import Cluster
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.operators import CollectiveKind
from sartor.step.states import expert_replicas
from sartor.units import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Seconds of a collective as a start and a rate: exact at no bytes and at a bucket's."""

    start_s: Floats
    s_per_byte: Floats

    def bucket_s(self, message_bytes: Floats, bucket_bytes: float) -> Floats:
        """Of one bucket, or of the whole message where it is smaller; nothing for nothing."""
        one = self.start_s + self.s_per_byte * np.minimum(message_bytes, bucket_bytes)
        return np.where(np.greater(message_bytes, 0), one, 0.0)

    def total_s(self, message_bytes: Floats, bucket_bytes: float) -> Floats:
        """Of all buckets one after the other."""
        buckets = np.maximum(np.asarray(message_bytes) / bucket_bytes, np.greater(message_bytes, 0))
        return buckets * self.start_s + self.s_per_byte * message_bytes

    def __add__(self, other: Line) -> Line:
        return Line(start_s=self.start_s + other.start_s, s_per_byte=self.s_per_byte + other.s_per_byte)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTraffic:
    """Of one kind of parameters (dense, experts): per byte of gradients, and per byte of 16-bit parameters."""

    reduce: Line
    gather: Line
    shards: Ints
    """Devices the shards are spread over (1: nothing is sharded)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTraffic:
    dense: GroupTraffic
    expert: GroupTraffic
    tied: Line
    """All-reduce of a table that first and last stage both hold."""


def traffic_at(traffic: DataTraffic, index: Ints) -> DataTraffic:
    """Of some plans."""

    def line(of: Line) -> Line:
        return Line(start_s=np.asarray(of.start_s)[index], s_per_byte=np.asarray(of.s_per_byte)[index])

    def group(of: GroupTraffic) -> GroupTraffic:
        return GroupTraffic(reduce=line(of.reduce), gather=line(of.gather), shards=np.asarray(of.shards)[index])

    return DataTraffic(dense=group(traffic.dense), expert=group(traffic.expert), tied=line(traffic.tied))


def data_traffic(
    job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Calibration, bucket_bytes: float
) -> DataTraffic:
    """Lines of all collectives among replicas, for arrays of plans (their dims, ZeRO stage and shard group).

    Plain data parallelism all-reduces gradients. ZeRO (Rajbhandari et al. 2020) reduce-scatters them among the
    ``shard_group``, all-reduces the shards among the groups where there are several (hybrid sharding), and gathers
    parameters.
    """
    d = plan.dims

    most = UNBROKEN_BYTES if job.trainer.lockstep else bucket_bytes

    def line(kind: CollectiveKind, size: Ints, stride: Ints, share: Floats = 1.0) -> Line:
        return _line(kind, size, stride, share, cluster, calibration, most)

    def group(replicas: Ints, stride: Ints) -> GroupTraffic:
        sharded = np.greater_equal(plan.zero_stage, 1)
        shards = np.where(sharded, shard_devices(plan, replicas), 1)
        copies = replicas // shards
        scattered = line(CollectiveKind.REDUCE_SCATTER, shards, stride)
        among = line(CollectiveKind.ALL_REDUCE, copies, stride * shards, 1.0 / shards)
        gathered = line(CollectiveKind.ALL_GATHER, shards, stride)
        return GroupTraffic(reduce=scattered + among, gather=gathered, shards=shards)

    inner = d.tp * d.ep if job.trainer.splits_experts else d.ep
    return DataTraffic(
        dense=group(np.asarray(d.dp * d.cp), np.asarray(d.tp)),
        expert=group(np.asarray(expert_replicas(job, plan)), np.asarray(inner)),
        tied=line(
            CollectiveKind.ALL_REDUCE, np.where(np.greater(d.pp, 1), 2, 1), d.tp * d.cp * d.dp * np.maximum(d.pp - 1, 1)
        ),
    )


UNBROKEN_BYTES = 1e15
"""A message so large that its latencies no longer count: a lockstep trainer sends gradients in one piece."""


def shard_devices(plan: TrainingPlan, replicas: Ints) -> Ints:
    """Devices one copy of ZeRO's shards is spread over."""
    wanted = np.where(np.equal(plan.shard_group, 0), replicas, plan.shard_group)
    return np.minimum(wanted, replicas)


def _line(
    kind: CollectiveKind,
    size: Ints,
    stride: Ints,
    share: Floats,
    cluster: Cluster,
    calibration: Calibration,
    bucket_bytes: float,
) -> Line:
    def seconds(message: float) -> Floats:
        return network_time_s(kind, message * share, size, stride, cluster, calibration).time_s

    start, whole = seconds(1.0), seconds(bucket_bytes)
    return Line(start_s=start, s_per_byte=(whole - start) / (bucket_bytes - 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Gradients (or parameters) of one device: bytes of dense and expert ones, and what moves them."""

    dense: Line
    expert: Line
    dense_bytes: Floats
    expert_bytes: Floats
    bucket_bytes: float

    @property
    def total_s(self) -> Floats:
        b = self.bucket_bytes
        return self.dense.total_s(self.dense_bytes, b) + self.expert.total_s(self.expert_bytes, b)

    @property
    def last_s(self) -> Floats:
        """Of the bucket that is there last."""
        b = self.bucket_bytes
        return np.maximum(self.dense.bucket_s(self.dense_bytes, b), self.expert.bucket_s(self.expert_bytes, b))


def grad_exchange(job: TrainingJob, of: DataTraffic, dense: Floats, expert: Floats, bucket_bytes: float) -> Exchange:
    """Gradients of so many parameters, in the framework's gradient type; of none where weights are not trained."""
    width = job.trainer.grad_dtype.bytes if job.trains_weights else 0.0
    return Exchange(
        dense=of.dense.reduce,
        expert=of.expert.reduce,
        dense_bytes=dense * width,
        expert_bytes=expert * width,
        bucket_bytes=bucket_bytes,
    )


def param_exchange(of: DataTraffic, dense_bytes: Floats, expert_bytes: Floats, bucket_bytes: float) -> Exchange:
    """Parameters of so many bytes (`gathered_bytes` of each)."""
    return Exchange(
        dense=of.dense.gather,
        expert=of.expert.gather,
        dense_bytes=dense_bytes,
        expert_bytes=expert_bytes,
        bucket_bytes=bucket_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerwiseGather:
    """ZeRO 3 (FSDP) for one block and microbatch: what gathering ahead and scattering behind add to its compute."""

    forward_s: Floats
    backward_s: Floats
    first_s: Floats
    """Gathering it with nothing to hide behind: what the first block of a step costs."""
    last_s: Floats
    """Scattering its gradients with nothing to hide behind."""


def layerwise(
    params: Exchange,
    grads: Exchange,
    forward_s: Floats,
    backward_s: Floats,
    overlaps: bool,
    contention: float,
    prefetches: Bools = True,
) -> LayerwiseGather:
    """A layer's parameters are gathered while the one before computes, again in backward, where the gradients of the
    one after leave by the same links: ``max(compute, communication)`` per layer (PyTorch FSDP, Zhao et al. 2023,
    arXiv 2304.11277, sec. 3.3). Without room for more parameters (``prefetches``) compute waits for every gather."""
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
