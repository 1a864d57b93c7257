"""Memory-bound operators: which run as one kernel, the bytes it moves, and its name.

Eager PyTorch launches a kernel for every operator. With fusion (torch.compile, hand-written kernels), consecutive
operators of one module without a GEMM in between are one kernel, which reads inputs from outside and writes outputs
used outside; in backward it reads the forward kernel's inputs and recomputes. What autograd keeps follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from sartor.model.traced import Grows
from sartor.operators import MemoryBound, MemoryBoundKind, Pass
from sartor.read.torch_trace.nouns import Made, dtype_of, is_product, suffix_of
from sartor.read.torch_trace.records import Read, Record, Saved

Group = tuple[int, ...]
"""Indices of records that form one kernel; it runs at the position of the last one."""

ACTIVATIONS = {
    "silu", "gelu", "relu", "tanh", "sigmoid", "softplus", "mish", "leaky_relu", "hardswish", "elu", "threshold",
    "celu", "hardtanh", "hardsigmoid", "log_sigmoid_forward", "prelu", "erf",
}  # fmt: skip
ROUTING = {
    "topk", "sort", "index", "index_put", "scatter", "gather", "index_select", "histc", "bincount", "scatter_add",
    "index_add", "argsort", "one_hot", "searchsorted", "masked_scatter",
}  # fmt: skip
NORMS = {
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm", "rms_norm", "cudnn_batch_norm",
    "_native_batch_norm_legit", "_batch_norm_with_update", "_batch_norm_no_update",
}  # fmt: skip
LOOKUPS = {"embedding", "index", "index_select", "gather"}
COPIES = {"_to_copy", "copy_", "clone", "contiguous"}


def group_kernels(indices: Sequence[int], records: list[Record], owner: dict[str, str], fused: bool) -> list[Group]:
    """Records of one part of a model in execution order, as kernels: GEMMs alone, the rest together if ``fused``.

    ``owner`` maps a module's path to the module whose kernel it joins (an activation function: the module around it).
    """
    groups: list[list[int]] = []
    key: tuple[str, Pass] | None = None
    for i in indices:
        record = records[i]
        mine = None if is_product(record) else (owner.get(record.path, record.path), record.pass_)
        if mine is not None and mine == key and fused:
            groups[-1].append(i)
        else:
            groups.append([i])
        key = mine
    return _joined([tuple(group) for group in groups], records, owner) if fused else [tuple(g) for g in groups]


def _joined(groups: list[Group], records: list[Record], owner: dict[str, str]) -> list[Group]:
    """Join two kernels of one module that a GEMM separates, such as an activation and its product with another branch.
    The later one moves up if all its inputs exist there, else the earlier one moves down to its only reader."""
    of_record = {i: g for g, group in enumerate(groups) for i in group}
    readers: dict[int, set[int]] = {}
    for i in of_record:
        for read in records[i].reads:
            if read.producer in of_record:
                readers.setdefault(of_record[read.producer], set()).add(of_record[i])
    alive: dict[int, Group] = dict(enumerate(groups))
    last: dict[tuple[str, Pass], int] = {}
    for index, group in enumerate(groups):
        first = records[group[0]]
        if is_product(first):
            continue
        key = (owner.get(first.path, first.path), first.pass_)
        before = last.get(key)
        last[key] = index
        if before is None or before not in alive or index not in readers.get(before, set()):
            continue
        outside = {r.producer for i in group for r in records[i].reads if r.producer not in group}
        if all(p <= alive[before][-1] for p in outside):
            alive[before] = (*group, *alive[before])
            del alive[index]
            last[key] = before
        elif {r for r in readers[before] - {before} if records[groups[r][0]].pass_ is first.pass_} == {index}:
            alive[index] = (*alive[before], *group)
            del alive[before]
    return [alive[i] for i in sorted(alive)]


class Traffic:
    """Bytes of fused kernels, over all groups of a trace."""

    def __init__(self, records: list[Record], groups: Iterable[Group]) -> None:
        self.records = records
        self.group_of = {i: group for group in groups for i in group}
        self.consumers: dict[int, set[int]] = {}
        for i, record in enumerate(records):
            for read in record.reads:
                if read.producer >= 0:
                    self.consumers.setdefault(read.producer, set()).add(i)

    def bytes_moved(self, group: Group) -> float:
        if len(group) == 1:
            record = self.records[group[0]]
            return sum(_distinct(record).values()) + record.output_bytes
        outside = sum(self._inputs(group, backward=self.records[group[0]].backward).values())
        return outside + sum(self.records[i].output_bytes for i in group if self.writes(i, group))

    def _inputs(self, group: Group, *, backward: bool) -> dict[tuple[int, int], float]:
        """Bytes by tensor that a kernel reads. In backward, forward tensors that were never written out are recomputed
        from the inputs of the kernel that made them."""
        members, out = set(group), dict[tuple[int, int], float]()
        for i in group:
            for read in self.records[i].reads:
                if read.producer in members:
                    continue
                before = self.group_of.get(read.producer) if read.producer >= 0 else None
                hidden = backward and before is not None and len(before) > 1 and not self.records[before[0]].backward
                if hidden and before is not None and not self.writes(read.producer, before):
                    sizes = self._inputs(before, backward=False)
                else:
                    sizes = {(read.producer, read.storage): _size(self.records[i], read)}
                for key, size in sizes.items():
                    out[key] = max(out.get(key, 0.0), size)
        return out

    def writes(self, i: int, group: Group) -> bool:
        """Whether a kernel must write the output of ``i``: another kernel of the same pass reads it, or none at all."""
        readers = self.consumers.get(i, set())
        same_pass = {r for r in readers if self.records[r].pass_ is self.records[i].pass_}
        return bool(same_pass - set(group)) or not readers


def _distinct(record: Record) -> dict[tuple[int, int], float]:
    """Bytes of every tensor a record reads, each counted once."""
    sizes: dict[tuple[int, int], float] = {}
    for read in record.reads:
        key = (read.producer, read.storage)
        sizes[key] = max(sizes.get(key, 0.0), _size(record, read))
    return sizes


def _size(record: Record, read: Read) -> float:
    """Bytes read; for a table lookup only the rows taken."""
    looked_up = record.call.split("::")[-1] in LOOKUPS and read is record.reads[0]
    return min(read.bytes, record.output_bytes) if looked_up else read.bytes


def memory_bound(group: Group, records: list[Record], traffic: Traffic, module_class: str) -> Made:
    """The operator of one kernel; rows and columns are those of the largest tensor it touches."""
    members = [records[i] for i in group]
    looked_up = any(r.call.split("::")[-1] in LOOKUPS for r in members)
    shapes = [s for r in members for s in (*r.outputs, *(() if looked_up else (read.shape for read in r.reads)))]
    shape = max(shapes, key=prod, default=(1,)) or (1,)
    kind = _kernel_kind(members, module_class)
    operator = MemoryBound(
        name="",
        kind=kind,
        rows=prod(shape[:-1]),
        cols=shape[-1],
        bytes_moved=traffic.bytes_moved(group),
        flops=float(sum(prod(s) for r in members for s in r.outputs if r.call.split("::")[-1] not in COPIES)),
        kernel=_kernel_name(kind, {r.call.split("::")[-1].removesuffix("_") for r in members}),
        dtype=dtype_of(members[0].dtype),
        pass_=members[0].pass_,
    )
    varies = any(r.varies for r in members) and kind is not MemoryBoundKind.OPTIMIZER
    return Made(operator, suffix_of(operator.pass_), Grows.ROWS if varies else Grows.NOTHING)


def _kernel_kind(members: Sequence[Record], module_class: str) -> MemoryBoundKind:
    """The kind of a kernel by its operators and the class of its module."""
    raw = {r.call.split("::")[-1] for r in members}
    calls = {word.removesuffix("_backward").removesuffix("_dense").removesuffix("_") for word in raw}
    kinds = MemoryBoundKind
    if any("embedding" in word for word in calls):
        return kinds.EMBEDDING
    if any("nll_loss" in word or "log_softmax" in word or "cross_entropy" in word for word in calls):
        return kinds.CROSS_ENTROPY
    if "Norm" in module_class or calls & NORMS:
        return kinds.NORM
    if any(word.startswith(("_softmax", "_safe_softmax")) for word in calls):
        return kinds.SOFTMAX
    recurrent = any(word in module_class for word in ("Mamba", "SSM", "Delta", "Rwkv"))
    if "Rotary" in module_class or ({"cat", "neg"} <= calls and not recurrent) or {"view_as_complex", "polar"} & calls:
        return kinds.ROTARY
    if calls & ROUTING:
        return kinds.ROUTING
    if calls & {"cumsum", "logcumsumexp"} and recurrent:
        return kinds.SCAN
    if any(word.removesuffix("_backward") in ACTIVATIONS for word in calls):
        return kinds.ACTIVATION
    return kinds.CAST if calls <= {"_to_copy", "copy", "clone", "contiguous"} else kinds.RESIDUAL


def _kernel_name(kind: MemoryBoundKind, calls: set[str]) -> str:
    """The kernel name used by calibrations, as in the built-in lowering."""
    if kind is not MemoryBoundKind.ACTIVATION:
        return ""
    return "silu_and_mul" if {"silu", "mul"} <= calls else "gelu" if "gelu" in calls else ""


def kept_tensors(saved: Mapping[tuple[int, int], Saved], records: list[Record], traffic: Traffic) -> tuple[Saved, ...]:
    """Every tensor kept, once: those saved, or the inputs of the fused kernel that makes them and writes none out."""
    out: dict[tuple[int, int], Saved] = {}
    for tensor, tensor_read in saved.items():
        group = traffic.group_of.get(tensor_read.producer, ()) if tensor_read.producer >= 0 else ()
        if len(group) < 2 or traffic.writes(tensor_read.producer, group):
            out.setdefault(tensor, tensor_read)
            continue
        for read in (r for i in group for r in records[i].reads if r.producer not in group and not r.held):
            tensor_saved = Saved(
                path=tensor_read.path, producer=read.producer, bytes=read.whole_bytes, varies=read.varies
            )
            out.setdefault(read.tensor, tensor_saved)
    return tuple(out.values())


def recomputed(records: list[Record], traffic: Traffic) -> tuple[Saved, ...]:
    """What checkpointing computes again and backward reads: there while one layer's backward runs."""
    read: dict[tuple[int, int], Saved] = {}
    for record in (candidate for candidate in records if candidate.backward):
        for source in record.reads:
            if source.producer >= 0 and records[source.producer].pass_ is Pass.RECOMPUTE:
                path = records[source.producer].path
                tensor = Saved(path=path, producer=source.producer, bytes=source.whole_bytes, varies=source.varies)
                read.setdefault(source.tensor, tensor)
    tensors = kept_tensors(read, records, traffic)
    return tuple(
        candidate
        for candidate in tensors
        if candidate.producer >= 0 and records[candidate.producer].pass_ is Pass.RECOMPUTE
    )
