"""Prices of single operators: one collective, one operator by its columns, or every row of a file of shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sartor.answers.estimate import CollectiveAnswer
from sartor.api.words import (
    ClusterLike,
    GpuLike,
    cluster_and_device,
    device_of,
    given_size,
    own_calibration,
    refuse_on_a_chip,
    size_of,
    with_kernels_of,
    with_kernels_or_any,
    word_of,
)
from sartor.cost.collective.collective import collective_cost, members
from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.correction.calibration_file import own_calibration_of_file
from sartor.cost.cost import Source
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster, own_links
from sartor.hardware.cluster_catalog import usual_cluster
from sartor.hardware.gpu import Gpu
from sartor.operators import Collective, CollectiveKind, CollectiveLibrary

if TYPE_CHECKING:
    from sartor.records.shapes import Shapes
    from sartor.validate.untimed import PricedOperators

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


def operators(
    shapes: str | Path,
    columns: Mapping[str, object] | None = None,
    *,
    gpu: GpuLike | None = None,
    kernels: str | None = None,
    clock: str = "boost",
    calibration: str | Path | None = None,
) -> PricedOperators:
    """What single operators take: every row of a file of shapes, or one operator by its columns.

    Parameters
    ----------
    shapes
        A file (.csv, .parquet), or a kind of operator: gemm, attention, memory_bound, moe, collectives.
    columns
        The sizes of that one operator: columns of tables of measurements (docs/howto/price-operators.md).
    gpu
        Prices every row, in place of the file's column; one operator without it runs on H100 SXM.
    kernels
        The framework of rows that name none, without which intervals cover all.
    clock, calibration
        As in `sartor.gemm`.

    Returns
    -------
    PricedOperators
        An array per number (``rows.numbers``: ``time_s`` [s], ...) and word (``rows.texts``) in the order of the rows;
        ``rows.texts["reason"]`` says why a row has no price.

    Raises
    ------
    InputError
        For a file or columns that cannot be read, in one sentence.
    MissingExtraError
        Without pyarrow.

    Examples
    --------
    >>> answer = operators("gemm", {"m": 4096, "n": 4096, "k": 1024}, gpu="h100")
    >>> answer.rows.texts["source"]
    array(['calibrated'], dtype=object)
    >>> answer.rows.numbers["time_s"] < 1e-4
    array([ True])
    """
    from sartor.validate.untimed import price_shapes

    clock_mode = word_of(Clock, "clock", clock)
    device = None if gpu is None else device_of(gpu)
    words = {name: str(value) for name, value in (columns or {}).items()}
    shapes_read, device, notes = _read(str(shapes), words, device)
    own = own_calibration_of_file(calibration) if device is None else own_calibration(calibration, device)
    if device is not None and kernels is not None:
        with_kernels_of(kernels, device, own)  # an unknown one is an error, not a reason for every row
    priced = price_shapes(
        shapes_read,
        lambda of: with_kernels_or_any(kernels, of, own if own and own.gpu == of.name else None),
        clock_mode,
        {} if device is None else {device.name: device},
    )
    return replace(priced, assumptions=(*notes, *priced.assumptions))


def _read(source: str, words: Mapping[str, str], device: Gpu | None) -> tuple[Shapes, Gpu | None, list[str]]:
    """The shapes asked about, the one device that prices them (None: each row's own), and what is assumed."""
    from sartor.records.shapes import OPERATORS, one_shape

    if source not in {kind.name for kind in OPERATORS}:
        return _read_file(source, words, device)
    named = words.get("gpu")
    if named and device is not None:
        raise InputError("columns", f"gpu={named}", "names a device, as --gpu does; leave one out")
    notes = ["gpu=h100_sxm (default)"] if device is None and named is None else []
    device = device or device_of(named or "h100_sxm")
    own = {name: value for name, value in words.items() if name != "gpu"}
    implied = _implied(own) if source == "attention" else {}
    notes += [f"{name}={value} (default)" for name, value in implied.items()]
    shapes_read = one_shape(source, own, {"gpu": device.name}, {"dtype": device.default_dtype.value, **implied})
    return shapes_read, device, notes + _default_dtype(shapes_read, device)


def _implied(words: Mapping[str, str]) -> dict[str, str]:
    """What attention's stated columns imply of others: one query token in a decode step, else as many as keys."""
    decode = words.get("phase", "").lower() in ("decode", "generation")
    queries, keys = ("1", None) if decode else (words.get("seq_kv"), words.get("seq_q"))
    implied = {"batch": "1", "kv_heads": words.get("heads"), "seq_q": queries, "seq_kv": keys}
    return {name: value for name, value in implied.items() if value is not None and name not in words}


def _read_file(path: str, words: Mapping[str, str], device: Gpu | None) -> tuple[Shapes, Gpu | None, list[str]]:
    """The shapes of a file. One ``device`` prices all of them; its type is that of rows in files without a dtype."""
    from sartor.records.shapes import read_shapes

    columns_of_device = {} if device is None else {"gpu": device.name}
    defaults = {} if device is None else {"dtype": device.default_dtype.value}
    shapes_read = read_shapes(path, columns_of_device, defaults)
    if words:
        must = "belong to one operator, after its kind; a file has its own"
        raise InputError("columns", " ".join(f"{name}={value}" for name, value in words.items()), must)
    if device is None:
        return shapes_read, None, []
    others = ", ".join(name or "an empty cell" for name in shapes_read.gpus if name != device.name)
    notes = (
        [f"gpu={device.name} (--gpu) prices every row, in place of {others} in the file's gpu column"] if others else []
    )
    if not shapes_read.gpus:
        notes = [f"gpu={device.name} (--gpu) prices every row: the file has no gpu column"]
    return shapes_read, device, notes + _default_dtype(shapes_read, device)


def _default_dtype(shapes_read: Shapes, device: Gpu) -> list[str]:
    return [] if "dtype" in shapes_read.own else [f"dtype={device.default_dtype.value} (default)"]
