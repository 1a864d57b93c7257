"""What a trained module keeps in memory from forward until backward.

Eager autograd keeps what each operator's gradient reads. A kernel that fuses several operators keeps its inputs instead
of what it computes on the way, and backward computes that again: fp32 copies of a norm, a gate's activation.
"""

from __future__ import annotations

from collections.abc import Mapping

from sartor.operators import Pass
from sartor.read.torch_trace.kernels import Traffic
from sartor.read.torch_trace.records import Record, Saved


def kept_tensors(saved: Mapping[tuple[int, int], Saved], records: list[Record], traffic: Traffic) -> tuple[Saved, ...]:
    """Every tensor kept, once: those saved, or the inputs of the fused kernel that makes them and writes none out."""
    out: dict[tuple[int, int], Saved] = {}
    for tensor, each in saved.items():
        group = traffic.group_of.get(each.producer, ()) if each.producer >= 0 else ()
        if len(group) < 2 or traffic.writes(each.producer, group):
            out.setdefault(tensor, each)
            continue
        for read in (r for i in group for r in records[i].reads if r.producer not in group and not r.held):
            found = Saved(path=each.path, producer=read.producer, bytes=read.whole_bytes, varies=read.varies)
            out.setdefault(read.tensor, found)
    return tuple(out.values())


def recomputed_tensors(records: list[Record], traffic: Traffic) -> tuple[Saved, ...]:
    """What checkpointing computes again and backward reads: there while one layer's backward runs."""
    read: dict[tuple[int, int], Saved] = {}
    for record in (each for each in records if each.backward):
        for one in record.reads:
            if one.producer >= 0 and records[one.producer].pass_ is Pass.RECOMPUTE:
                path = records[one.producer].path
                found = Saved(path=path, producer=one.producer, bytes=one.whole_bytes, varies=one.varies)
                read.setdefault(one.tensor, found)
    kept = kept_tensors(read, records, traffic)
    return tuple(each for each in kept if each.producer >= 0 and records[each.producer].pass_ is Pass.RECOMPUTE)
