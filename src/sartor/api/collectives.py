"""The time of one collective, as estimate, plan and validate compute it."""

from __future__ import annotations

import math

from sartor.answers import CollectiveAnswer
from sartor.api.words import ClusterLike, GpuLike, device_of, refuse_on_a_chip, size_of, word_of
from sartor.cost.collective.collective import collective_cost
from sartor.cost.collective.tiers import members, own_links
from sartor.cost.correction.calibration import load_calibration
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import load_cluster
from sartor.operators import Collective, CollectiveKind, CollectiveLibrary

MAX_GROUP = 2**24


def collective(
    kind: str,
    message_bytes: float,
    group_size: int,
    *,
    cluster: ClusterLike | None = None,
    gpu: GpuLike = "h100_sxm",
    stride: int = 1,
    alone: bool = False,
    library: str = "nccl",
    eager: bool = False,
) -> CollectiveAnswer:
    """One collective over ``group_size`` devices, ``stride`` apart; ``message_bytes`` is the whole, unsharded buffer.

    With ``cluster`` the bytes cross its tiers; otherwise they stay on the links of ``gpu``. ``alone``: no other group
    of the nodes communicates, as in a benchmark. ``library`` and ``eager`` as in ``Collective``. Raises ``InputError``.

    >>> collective("all_reduce", 2**20, 8, gpu="h200").cost.source.value
    'calibrated'
    """
    where = cluster if isinstance(cluster, Cluster) else load_cluster(cluster) if cluster else None
    device = where.gpu if where else device_of(gpu)
    if not math.isfinite(message_bytes) or not 0 < message_bytes <= 2**50:
        raise InputError(
            "message_bytes", message_bytes, "must be a number of bytes above 0 and at most 2^50", "1048576"
        )
    op = Collective(
        name=kind,
        kind=word_of(CollectiveKind, "kind", kind),
        group_size=size_of("group_size", group_size, 8),
        message_bytes=float(message_bytes),
        stride=size_of("stride", stride, 1),
        alone=alone,
        library=word_of(CollectiveLibrary, "library", library),
        eager=eager,
    )
    if eager:
        refuse_on_a_chip(device, "eager", True, "a GPU's host launches call by call")
    if op.library is not CollectiveLibrary.NCCL:
        refuse_on_a_chip(device, "library", library, "these are kernels of GPU engines")
    _check(op, where)
    links = where or own_links(device)
    return CollectiveAnswer(
        collective=op,
        cluster=links,
        cost=collective_cost(op, device, load_calibration(device), where),
        members=tuple(int(each) for each in members(float(op.group_size), float(op.stride), links)),
    )


def _check(op: Collective, cluster: Cluster | None) -> None:
    """Check that the cluster has enough devices for the group, and that the library has this collective."""
    reach, most = int(op.group_size) * int(op.stride), (cluster.num_devices if cluster else 0) or MAX_GROUP
    if reach > most:
        near = str(max(most // int(op.stride), 1))
        raise InputError("group_size", int(op.group_size), f"times stride={op.stride} must be at most {most}", near)
    if op.library is not CollectiveLibrary.NCCL and op.kind is not CollectiveKind.ALL_REDUCE:
        raise InputError("library", op.library.value, f"has an all_reduce of its own, no {op.kind.value}", "nccl")
