"""Solve a placement problem, check the plan independently, and price the expert's strategy."""

from __future__ import annotations

import time
from dataclasses import replace

from sartor.placement.check import fixed_strategy_time
from sartor.placement.check_terms import fixed_strategy_time_with_terms
from sartor.placement.infeasible import find_tightest
from sartor.placement.plain import solve
from sartor.placement.plan import Placement, PlacementStatus, TightestLimit
from sartor.placement.problem import PlacementProblem
from sartor.placement.terms import PlacementTerms, types_of
from sartor.placement.with_terms import solve_with_terms


def place(problem: PlacementProblem, terms: PlacementTerms | None = None) -> Placement:
    """The fastest placement, or the tightest constraint if none fits.

    The answer is exact for the published cost model, or for its extension with ``terms``
    (docs/concepts/placement.md): no other tensor width, number of copies and cut into stages is faster. The plan is
    re-priced by :mod:`sartor.placement.check` before it is returned.

    Raises
    ------
    InputError
        If a branching layer graph has more downsets than can be tabulated.
    """
    start = time.perf_counter()
    plan = solve_with_terms(problem, terms) if terms else solve(problem)
    solve_s = time.perf_counter() - start
    fixed_s = fixed_strategy_time_with_terms(problem, terms) if terms else fixed_strategy_time(problem)
    return Placement(
        status=PlacementStatus.OPTIMAL if plan else PlacementStatus.INFEASIBLE,
        plan=plan,
        fixed_strategy_time_per_batch_s=fixed_s,
        checked=True,
        solve_s=solve_s,
        tightest=None if plan else _tightest(problem, terms),
    )


def _tightest(problem: PlacementProblem, terms: PlacementTerms | None) -> TightestLimit:
    """The tightest constraint; with terms, that of the problem without them."""
    if terms is None:
        return find_tightest(problem)
    types = types_of(problem, terms)
    pooled = replace(
        problem,
        num_devices=sum(each.num_devices for each in types),
        memory_bytes=max(each.memory_bytes for each in types),
    )
    tightest = find_tightest(pooled)
    return replace(tightest, message=f"no case fits under the terms given; without them, {tightest.message}")
