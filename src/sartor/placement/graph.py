"""Layer graphs: topological order, chain test, and the downsets at which a pipeline can be cut.

A pipeline is an increasing sequence of downsets (sets of layers closed under predecessors): the first is empty, the
last has all layers, and a stage is the difference of two neighbours. A chain of L layers has L + 1 downsets, its
prefixes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

from sartor.errors import InputError

Pairs = Sequence[tuple[int, int]]


def topological_order(ids: Sequence[int], pairs: Pairs) -> tuple[int, ...]:
    """``ids`` with every pair (source, dest) going forward; ties by id. Raises `InputError` naming a cycle."""
    waiting = dict.fromkeys(ids, 0)
    after: dict[int, list[int]] = {id_: [] for id_ in ids}
    for source, dest in pairs:
        waiting[dest] += 1
        after[source].append(dest)
    ready = [id_ for id_, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        id_ = heapq.heappop(ready)
        order.append(id_)
        for dest in after[id_]:
            waiting[dest] -= 1
            if waiting[dest] == 0:
                heapq.heappush(ready, dest)
    if len(order) < len(waiting):
        cycle = _some_cycle({id_ for id_ in waiting if id_ not in set(order)}, pairs)
        raise InputError("edges", " -> ".join(map(str, cycle)), "layers must not depend on themselves; this is a cycle")
    return tuple(order)


def _some_cycle(stuck: set[int], pairs: Pairs) -> list[int]:
    """One cycle among layers that each have a predecessor in the set."""
    before = {dest: source for source, dest in pairs if source in stuck and dest in stuck}
    path = [min(stuck)]
    while path[-1] not in path[:-1]:
        path.append(before[path[-1]])
    return path[path.index(path[-1]) :][::-1]


def is_chain(order: Sequence[int], pairs: Pairs) -> bool:
    """Whether all consecutive layers are connected by an edge (there may be further, skipping edges)."""
    joined = set(pairs)
    return all(pair in joined for pair in pairwise(order))


MAX_DOWNSETS = 2500
"""Most downsets of a branching graph: tables grow with their square (2500: 50 MB each, tens of seconds)."""


def downsets(order: Sequence[int], pairs: Pairs) -> list[int]:
    """All downsets as bit masks over positions in ``order``, smaller ones first; `InputError` if too many."""
    position = {id_: index for index, id_ in enumerate(order)}
    needs = [0] * len(order)
    for source, dest in pairs:
        needs[position[dest]] |= 1 << position[source]
    sets = {0}
    layer = [0]
    while layer:
        grown = {
            mask | 1 << v for mask in layer for v, need in enumerate(needs) if not mask >> v & 1 and need & mask == need
        }
        sets |= grown
        if len(sets) > MAX_DOWNSETS:
            raise InputError(
                "edges",
                f"more than {MAX_DOWNSETS} downsets",
                f"the layer graph must have at most {MAX_DOWNSETS} downsets (sets closed under predecessors); long"
                " independent branches multiply them: merge layers of a branch, or join branches by an edge",
            )
        layer = list(grown)
    return sorted(sets, key=lambda mask: (mask.bit_count(), mask))
