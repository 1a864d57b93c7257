"""Assign cores to operators with known times: solvers count cores, but a schedule names them.

An operator in single mode takes one core of its type. A fused one takes the tensor and the vector core of the same
index if such a pair is free; others avoid free pairs as long as an unpaired core is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sartor.schedules.problem import CoreType, ScheduledOperator

Rows = Sequence[tuple[ScheduledOperator, int, int, bool]]
"""Operators with start, end and whether they are split over all cores."""


def assign_cores(num_tc: int, num_vc: int, rows: Rows) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Tensor and vector cores of each row, lowest index first unless pairing decides."""
    out: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())] * len(rows)
    free_at = {"tensor": [0] * num_tc, "vector": [0] * num_vc}
    # Of operators that start together, fused ones first: pairs are scarcer than cores.
    order = sorted(range(len(rows)), key=lambda k: (rows[k][1], rows[k][0].core_type is not CoreType.FUSED, k))
    for k in order:
        op, start, end, split = rows[k]
        kind = op.core_type
        if split or end == start:
            tensor = range(num_tc) if split else range(1)
            vector = range(num_vc) if split else range(1)
            out[k] = (
                tuple(tensor) if kind.needs_tensor_core else (),
                tuple(vector) if kind.needs_vector_core else (),
            )
            continue
        out[k] = _one_core(kind, *(_free(free_at[name], start) for name in ("tensor", "vector")))
        for name, cores in zip(("tensor", "vector"), out[k], strict=True):
            for core in cores:
                free_at[name][core] = end
    return out


def _free(free_at: Iterable[int], start: int) -> list[int]:
    """Free cores; the first one if none is free, which the checker will reject."""
    return [core for core, time in enumerate(free_at) if time <= start] or [0]


def _one_core(kind: CoreType, tensor: list[int], vector: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """One core of each kind needed, among those free."""
    pairs = sorted(set(tensor) & set(vector))
    if kind is CoreType.FUSED:
        return (pairs[0] if pairs else tensor[0],), (pairs[0] if pairs else vector[0],)
    if kind is CoreType.TC:
        return (next((c for c in tensor if c not in pairs), tensor[-1]),), ()
    return (), (next((c for c in vector if c not in pairs), vector[-1]),)
