"""Problems to test with, and an exact solver by enumeration that shares nothing with sartor's."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from math import ceil
from typing import Any

from hypothesis import strategies as st

from sartor.schedules import CoreType, ScheduledOperator, ScheduleProblem

KINDS = tuple(CoreType)


def operator(id_: Any, kind: Any, latency: int, intra_latency: int) -> ScheduledOperator:
    return ScheduledOperator(id=id_, core_type=kind, latency=latency, intra_latency=intra_latency)


def problem(num_tc: int, num_vc: int, operators: list[tuple[Any, str, int, int]], *edges: tuple[Any, Any]) -> Any:
    """``problem(2, 1, [(0, "TC", 8, 4)], (0, 1))``."""
    rows = tuple(operator(*row) for row in operators)
    return ScheduleProblem(num_tc=num_tc, num_vc=num_vc, operators=rows, edges=edges)


def sharing(given: Any, *traffic: dict[str, int]) -> Any:
    """The problem with traffic of each operator, at most its shorter latency."""
    pairs = zip(given.operators, traffic, strict=True)
    rows = (
        replace(op, traffic=tuple((k, min(t, op.latency, op.intra_latency)) for k, t in each.items()))
        for op, each in pairs
    )
    return replace(given, operators=tuple(rows))


@st.composite
def problems(
    draw: Any, max_size: int = 6, max_cores: int = 3, longest: int = 12, *, shared: bool = False
) -> ScheduleProblem:
    """Small problems of every kind: chains and bags, Nops, splits that gain, cost, or take no time at all, and
    operators that share memory and links."""
    size = draw(st.integers(0, max_size))
    num_tc, num_vc = draw(st.integers(1, max_cores)), draw(st.integers(1, max_cores))
    rows = [
        (k, draw(st.sampled_from(KINDS)).value, draw(st.integers(0, longest)), draw(st.integers(0, longest)))
        for k in range(size)
    ]
    pairs = [(a, b) for b in range(size) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    given = problem(num_tc, num_vc, rows, *edges)
    if not shared:
        return given
    times = st.integers(0, longest)
    return sharing(given, *(draw(st.just({}) | st.fixed_dictionaries({"hbm": times, "links": times})) for _ in rows))


def random_problem(
    seed: int, size: int, num_tc: int, num_vc: int, share: float = 0.3, *, shared: bool = False
) -> ScheduleProblem:
    """A random graph; splitting gains about what the cores allow, sometimes nothing, rarely it costs. ``shared``:
    operators share memory and a buffer."""
    rng = random.Random(seed)
    rows = []
    for k in range(size):
        kind = rng.choice(("TC", "TC", "VC", "VC", "TCandVC", "TCandVC", "Nop"))
        latency, cores = rng.randint(20, 1000), num_vc if kind == "VC" else num_tc
        gain = rng.choice((1.0, 0.9, *(cores * x for x in (0.7, 0.8, 0.9, 0.95, 1.0, 1.0, 1.0, 1.0))))
        rows.append((k, kind, latency, ceil(latency / gain)))
    edges = [(a, b) for b in range(size) for a in range(max(0, b - 6), b) if rng.random() < share]
    given = problem(num_tc, num_vc, rows, *edges)
    if not shared:
        return given
    moved = (
        {"hbm": int(row[2] * rng.choice((0.0, 0.2, 0.5, 1.0))), "buffer": int(row[2] * rng.random() / 2)}
        for row in rows
    )
    return sharing(given, *moved)


def best_by_enumeration(given: ScheduleProblem) -> int:
    """The optimal makespan, for about seven operators: whatever may start at each event, in every mode, or wait.

    In some optimal schedule every operator starts at 0 or when another ends, so events are the only choices.
    """
    ops = given.operators
    where = {op.id: k for k, op in enumerate(ops)}
    preds = [{where[a] for a, b in given.edges if where[b] == k} for k in range(len(ops))]

    @cache
    def rest(done: frozenset[int], running: tuple[tuple[int, int, bool], ...]) -> int:
        busy = {k for k, _, _ in running}
        ready = [k for k in range(len(ops)) if k not in done and k not in busy and preds[k] <= done]
        for k in ready:
            # What takes no time overlaps nothing: it is over at once, in whichever mode that is.
            if ops[k].core_type == "Nop" or not min(ops[k].latency, ops[k].intra_latency):
                return rest(done | {k}, running)
        if len(done) == len(ops):
            return 0
        choices = [next_event(done, running)] if running else []
        if not any(split for _, _, split in running):
            for k in ready:
                kind = ops[k].core_type
                tensor = sum(ops[j].core_type in ("TC", "TCandVC") for j in busy) + (kind in ("TC", "TCandVC"))
                vector = sum(ops[j].core_type in ("VC", "TCandVC") for j in busy) + (kind in ("VC", "TCandVC"))
                if tensor <= given.num_tc and vector <= given.num_vc:
                    choices.append(rest(done, tuple(sorted((*running, (k, ops[k].latency, False))))))
                if not running:
                    choices.append(rest(done, ((k, ops[k].intra_latency, True),)))
        return min(choices)

    def next_event(done: frozenset[int], running: tuple[tuple[int, int, bool], ...]) -> int:
        step = min(left for _, left, _ in running)
        over = {k for k, left, _ in running if left == step}
        return step + rest(done | over, tuple((k, left - step, s) for k, left, s in running if left > step))

    return rest(frozenset(), ())


def best_with_sharing(given: ScheduleProblem) -> int:
    """The optimal makespan of a few operators that share things: every mode at every whole start."""
    ops = given.operators
    preds = {op.id: [a for a, b in given.edges if b == op.id] for op in ops}
    best = sum(min(op.latency, op.intra_latency) for op in ops if op.core_type != "Nop")

    def fits(rows: dict[Any, tuple[int, int, bool]]) -> bool:
        busy = [(ops[k], s, e, alone) for k, (s, e, alone) in rows.items() if e > s]
        for _, s, _, _ in busy:
            running = [other for other in busy if other[1] <= s < other[2]]
            tensor = sum(other[0].core_type in ("TC", "TCandVC") for other in running)
            vector = sum(other[0].core_type in ("VC", "TCandVC") for other in running)
            if len(running) > 1 and (tensor > given.num_tc or vector > given.num_vc or any(r[3] for r in running)):
                return False
            for _, _, e, _ in busy:
                inside = [dict(o.traffic) for o, begin, end, _ in busy if begin >= s and end <= e]
                if any(sum(t.get(name, 0) for t in inside) > max(e - s, 0) for name in ("hbm", "links")):
                    return False
        return True

    def place(k: int, rows: dict[Any, tuple[int, int, bool]]) -> None:
        nonlocal best
        if k == len(ops):
            best = min(best, max((end for _, end, _ in rows.values()), default=0))
            return
        op = ops[k]
        first = max((rows[a][1] for a in preds[op.id]), default=0)
        times = {(0, False)} if op.core_type == "Nop" else {(op.latency, False), (op.intra_latency, True)}
        for time, alone in times:
            for start in range(first, best - time if time else first + 1):
                rows[op.id] = (start, start + time, alone)
                if fits(rows):
                    place(k + 1, rows)
                del rows[op.id]

    place(0, {})
    return best
