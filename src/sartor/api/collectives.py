"""The time of one collective, as estimate, plan and validate compute it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sartor.answers.estimate import CollectiveAnswer
from sartor.api.words import ClusterLike, GpuLike, cluster_and_device, given_size, refuse_on_a_chip, size_of, word_of
from sartor.cost.collective.collective import collective_cost, members
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.cost import Source
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster, own_links
from sartor.hardware.cluster_catalog import usual_cluster
from sartor.hardware.gpu import Gpu
from sartor.operators import Collective, CollectiveKind, CollectiveLibrary

MAX_GROUP = 2**24


def collective(
    kind: str,
    message_bytes: float,
    group_size: int,
    *,
    cluster: ClusterLike | None = None,
    gpu: GpuLike | None = None,
    stride: int = 1,
    alone: bool = False,
    library: str = "nccl",
    eager: bool = False,
) -> CollectiveAnswer:
    """One collective over ``group_size`` devices, ``stride`` apart.

    Parameters
    ----------
    kind
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ...
    message_bytes
        The whole, unsharded buffer of an all-gather or reduce-scatter, else the buffer of each device.
    group_size, stride
        Devices of the group, and how far apart they are.
    cluster, gpu
        The bytes cross the cluster's tiers; without one they stay on the links of ``gpu`` (default: H100).
    alone
        No other group of the nodes communicates, as in a benchmark.
    library, eager
        As in ``Collective``.

    Returns
    -------
    CollectiveAnswer
        ``cost`` with its time and 80% interval [s], and the tiers it crosses.

    Raises
    ------
    InputError
        For a kind, size or group that cannot be.

    Examples
    --------
    >>> collective("all_reduce", 2**20, 8, gpu="h200").cost.source.value
    'calibrated'
    """
    where, device = cluster_and_device(cluster, gpu)
    size = float(message_bytes) if isinstance(message_bytes, int | float | np.number) else math.nan
    if not 0 < size <= 2**50:
        near = "1.125e15" if size > 0 else "1048576"
        raise InputError("message_bytes", message_bytes, "must be a number of bytes above 0 and at most 2^50", near)
    op = Collective(
        name=kind,
        kind=word_of(CollectiveKind, "kind", kind),
        group_size=given_size("group_size", group_size, 8),
        message_bytes=size,
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
    links, cost = where or own_links(device), collective_cost(op, device, load_calibration(device), where)
    imagined = () if where else _one_link(op, device)
    assumed = imagined if where is None else (*_straddling(op, where), *where.unstated)
    return CollectiveAnswer(
        collective=op,
        cluster=links,
        cost=replace(cost, source=Source.ASSUMED) if imagined else cost,
        members=_reach(op, links, alone),
        assumptions=assumed,
    )


def _reach(op: Collective, links: Cluster, alone: bool) -> tuple[int, ...]:
    return tuple(int(each) for each in members(float(op.group_size), float(op.stride), links, alone=alone))


def _straddling(op: Collective, cluster: Cluster) -> tuple[str, ...]:
    """That groups which would fit into a node straddle two where all devices are in such groups side by side."""
    span, reach = cluster.tiers[0].span, int(op.group_size) * int(op.stride)
    if op.alone or reach > span or _reach(op, cluster, False) == _reach(op, cluster, True):
        return ()
    return (
        f"all {cluster.num_devices} devices are in groups of {op.group_size} side by side, some of which cross the "
        f"boundary of two nodes of {span} (--alone prices one group inside a node)",
    )


def _one_link(op: Collective, device: Gpu) -> tuple[str, ...]:
    """What is assumed of a group that is larger than the devices that a scale-up link joins."""
    if device.accelerator is not None:
        return ()
    usual, reach = usual_cluster(device), int(op.group_size) * int(op.stride)
    joined = usual.tiers[0].span
    if not 0 < joined < reach:
        return ()
    return (
        f"one scale-up link joins all {reach} devices; that of {device.name} joins {joined} in {usual.name} "
        "(--cluster prices the network beyond)",
    )


def _check(op: Collective, cluster: Cluster | None) -> None:
    """Check that the cluster has enough devices for the group, and that the library has this collective."""
    reach, most = int(op.group_size) * int(op.stride), (cluster.num_devices if cluster else 0) or MAX_GROUP
    if reach > most:
        near = str(max(most // int(op.stride), 1))
        must = f"times stride={op.stride} must be at most {most}"
        must += f", the devices of the first pool of {cluster.name}" if cluster and cluster.others else ""
        raise InputError("group_size", int(op.group_size), must, near)
    if op.library is not CollectiveLibrary.NCCL and op.kind is not CollectiveKind.ALL_REDUCE:
        raise InputError("library", op.library.value, f"has its own all_reduce but no {op.kind.value}", "nccl")
