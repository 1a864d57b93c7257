"""Time of a collective: NCCL's over the tiers of links it crosses (``tiers``), or a serving engine's own.

A serving framework's all-reduce has two more algorithms: every device reads all peers' buffers (one-shot), or reduces a
part and gathers the parts (two-shot); the fastest is used. docs/concepts/collectives.md has symbols and fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from sartor.cost.collective.tiers import network_time_s, ring_sigma, source_within, within_innermost
from sartor.cost.correction.calibration import Calibration
from sartor.cost.correction.coefficients import CollectiveCoefficients
from sartor.cost.cost import Cost, select_cost
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster, own_links
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict
from sartor.operators import Collective, CollectiveKind, CollectiveLibrary
from sartor.units import Floats, Ints, plain

DIRECT_MOST_BYTES = 8 * 2**20
"""Largest message of vLLM's and SGLang's own all-reduce: 8 MiB, recalled, consistent with the tables (2026)."""


def collective_cost(op: Collective, gpu: Gpu, calibration: Calibration, cluster: Cluster | None = None) -> Cost:
    """Cost of one collective over ``group_size`` devices; zero for a group of one.

    Without a ``cluster`` the devices are connected by the scale-up link (or PCIe); with one, bytes go over the tiers
    that the group, with its ``stride``, crosses.
    """
    where = cluster or own_links(gpu)
    if cluster is None and gpu.accelerator is not None and not gpu.link_bytes_per_s and np.any(op.group_size > 1):
        must = f"joins no {np.max(op.group_size)} chips: {gpu.name} has no links of its own"
        raise InputError("num_links", 0, must, "1 or more, or a cluster file")
    group = (op.message_bytes, op.group_size, op.stride)
    across = network_time_s(op.kind, *group, where, calibration, alone=op.alone)
    if op.library is CollectiveLibrary.NCCL and not op.eager:
        return across
    near = within_innermost(op.group_size, op.stride, where, alone=op.alone)
    return select_cost(near, _of_engine(op, gpu, calibration, across), across) if np.any(near) else across


def collective_costs(
    ops: Sequence[Collective], gpu: Gpu, calibration: Calibration, cluster: Cluster | None = None
) -> list[Cost]:
    """Costs of collectives, in the order given: those of one kind are evaluated together, as flat arrays."""
    costs: dict[int, Cost] = {}
    for kind in dict.fromkeys(_kind(op) for op in ops):
        chosen = [i for i, op in enumerate(ops) if _kind(op) == kind]
        costs |= dict(zip(chosen, _together([ops[i] for i in chosen], gpu, calibration, cluster), strict=True))
    return [costs[i] for i in range(len(ops))]


def _kind(op: Collective) -> tuple[object, ...]:
    return op.kind, op.library, op.eager, op.alone


def _together(ops: Sequence[Collective], gpu: Gpu, calibration: Calibration, cluster: Cluster | None) -> Iterator[Cost]:
    if len(ops) == 1:
        yield collective_cost(ops[0], gpu, calibration, cluster)
        return
    parts = [np.broadcast_arrays(op.message_bytes, op.group_size, op.stride) for op in ops]
    size, group, stride = (
        np.concatenate([np.ravel(column) for column in columns]) for columns in zip(*parts, strict=True)
    )
    flat = replace(ops[0], message_bytes=size, group_size=group, stride=stride)
    whole, where, start = collective_cost(flat, gpu, calibration, cluster), cluster or own_links(gpu), 0
    near = within_innermost(group, stride, where, alone=flat.alone)
    for message_bytes, *_ in parts:
        of_one, start = slice(start, start + message_bytes.size), start + message_bytes.size
        terms: JsonDict = {name: _part(getattr(whole, name), of_one, message_bytes.shape) for name in _TERMS}
        source, mixed = source_within(near[of_one].reshape(message_bytes.shape), where, calibration)
        yield Cost(**terms, source=source, details=mixed)


def _part(values: Floats, where: slice, shape: tuple[int, ...]) -> Floats:
    """One collective's entries of a flat row (or the number that stands for all)."""
    part: Floats = plain(values[where].reshape(shape)) if isinstance(values, np.ndarray) else values
    return part


_TERMS = ("time_s", "network_s", "overhead_s", "log_sigma")


def _of_engine(op: Collective, gpu: Gpu, calibration: Calibration, ring: Cost) -> Cost:
    """A serving engine's all-reduce among devices on the scale-up link; ``ring`` is NCCL's cost."""
    c = calibration.collective
    link = own_links(gpu).tiers[0].bytes_per_s
    n = np.asarray(op.group_size, dtype=np.float64)
    size = np.asarray(op.message_bytes, dtype=np.float64)
    network, overhead = ring.network_s, ring.overhead_s
    if op.kind is CollectiveKind.ALL_REDUCE and op.library is not CollectiveLibrary.NCCL:
        near, start = _direct(op.library, n, size, link, c)
        faster = (near + start < network + overhead) & (size <= DIRECT_MOST_BYTES)
        network, overhead = np.where(faster, near, network), np.where(faster, start, overhead)
    if op.eager:  # the host's call hides the kernel, or the copy into a shared buffer comes on top
        overhead = overhead + 2 * size / (_COPY_SHARE * gpu.hbm_bytes_per_s)
        overhead = np.maximum(overhead, c.eager_s - network)
    together = n > 1
    network, overhead = np.where(together, network, 0.0), np.where(together, overhead, 0.0)
    return replace(
        ring,
        time_s=plain(network + overhead),
        network_s=plain(network),
        overhead_s=plain(overhead),
        log_sigma=_sigma(op, c),
    )


_COPY_SHARE = 0.87
"""Share of HBM bandwidth of a copy: from eager minus graph-replayed times at 1 GiB on three GPUs of collectives.parquet
(2026-11-21), not fitted."""


def _direct(
    library: CollectiveLibrary, n: Ints, size: Ints, link: float, c: CollectiveCoefficients
) -> tuple[Floats, Floats]:
    """The faster of one-shot and two-shot: seconds on the links, and overhead."""
    launch, peer, one_share, second, two_share = next(row[1:6] for row in c.direct if row[0] == library.value)
    one_way_s = (n - 1) * size / (one_share * link)
    two = 2 * (n - 1) / n * size / (two_share * link)
    start = launch + peer * (n - 1)
    twice = two + second < one_way_s
    return np.where(twice, two, one_way_s), start + np.where(twice, second, 0.0)


def _sigma(op: Collective, c: CollectiveCoefficients) -> float:
    if op.library is CollectiveLibrary.NCCL:
        return ring_sigma(op.kind, c)
    return next((row[-1] for row in c.direct if row[0] == op.library.value), c.log_sigma)
