"""Speed of the schedule solver: against Gurobi's and HiGHS's listed seconds, and against the paper's program here.

Listed seconds come with the reference instances (the original procedure at gap 0 on Gurobi 13.0.3, and the same program
on HiGHS 1.15.1, on another machine of the same kind; "-" is no proof within its licence or 45 s). The paper's program
also runs here, on SciPy's HiGHS, for at most LIMIT_S seconds and with our split and bounds (which alone solve some
instances). Wall seconds, best of 3 for ours; solve only. Loading OR-Tools (about half a second, once per process) is
not counted on either side.

Run from the repository: `python benchmarks/bench_schedule.py [--no-milp]` (the reference instances lie beside the
checkout).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sartor.read.problems_json import read_schedule_problem
from sartor.schedules import ScheduleProblem, ScheduleResult, Solver, Status, solve

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference" / "scheduling"
LIMIT_S = 20.0
MILP_UP_TO = 20
"""Largest number of operators for which the paper's program runs here."""
WITHIN_S = {True: 20.0, False: 2.0}
"""Time within which true backward layers (True), and all others, must be proved."""


def main(milp: bool) -> None:
    warm_up()
    print(f"{'instance':28}{'ops':>4}{'makespan':>10}{'bound':>9}{'gap':>7}{'ours s':>9}", end="")
    print(f"{'greedy':>8}{'milp s':>9}{'ratio':>8}{'Gurobi':>9}{'ratio':>7}{'HiGHS':>8}{'ratio':>7}")
    missed = [name for name in names() if not report(name, milp)]
    if missed:
        sys.exit(f"not proved or not in time: {', '.join(missed)}")


def names() -> list[str]:
    return sorted(path.name.removesuffix(".expected.json") for path in REFERENCE.glob("*.expected.json"))


def warm_up() -> None:
    """Load OR-Tools and SciPy before anything is timed."""
    small = read_schedule_problem(REFERENCE / "rand04_n8_tc2_vc2.json")
    solve(small)
    solve(small, solver=Solver.MILP)


def report(name: str, milp: bool) -> bool:
    """Print one line; returns whether the instance is proved at the reference's makespan in time."""
    expected = json.loads((REFERENCE / f"{name}.expected.json").read_text())
    problem = read_schedule_problem(REFERENCE / f"{name}.json")
    runs = [solve(problem, LIMIT_S) for _ in range(3)]
    best = min(runs, key=lambda run: run.solve_s)
    at_once = solve(problem, 0)
    size = sum(op.takes_time for op in problem.operators)
    row = f"{name:28}{size:4d}{best.makespan:10d}{best.lower_bound:9d}{best.gap:7.2%}{best.solve_s:9.3f}"
    row += f"{at_once.makespan / best.makespan - 1:8.2%}"
    row += against(here(problem, best) if milp and size <= MILP_UP_TO else None, best, 9)
    walls: dict[str, Any] = expected["wall_seconds"]
    print(row + against(walls["gurobi_gap_0"], best, 9) + against(walls["highs"], best, 8), flush=True)
    right = expected["makespan"] in (None, best.makespan) and best.makespan <= expected["best_known"]
    return right and best.status is Status.OPTIMAL and best.solve_s <= WITHIN_S["_bwd_c" in name and "rev" not in name]


def here(problem: ScheduleProblem, best: ScheduleResult) -> float | None:
    """Seconds of the paper's program on this machine; None without a proof in time."""
    found = solve(problem, LIMIT_S, Solver.MILP)
    assert found.makespan >= best.makespan or best.gap
    return found.solve_s if found.status is Status.OPTIMAL else None


def against(seconds: float | None, best: ScheduleResult, width: int) -> str:
    ratio = f"{seconds / best.solve_s:.1f}x" if seconds else "-"
    return f"{seconds:{width}.2f}{ratio:>8}" if seconds else f"{'-':>{width}}{'-':>8}"


if __name__ == "__main__":
    main("--no-milp" not in sys.argv)
