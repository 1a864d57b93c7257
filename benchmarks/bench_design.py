"""How much time bounds and list schedules save in the joint search for chip and plan, as ratios from one run.

    python benchmarks/bench_design.py [MODEL ...]

For GPT-3 175B and BERT large on 1,024 devices over the published grid: CPU seconds until the proof; the time to
evaluate every point, extrapolated from a sample; and, for layers on sampled chips, list schedules against those that
CP-SAT proves: solver time, and how much longer the schedule is. Exits with 1 if pruning saves less than LEAST_RATIO.
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import replace

import numpy as np

from sartor.designs.baselines import options_of
from sartor.designs.bounds import lower_models
from sartor.designs.candidates import Candidates, candidates_of
from sartor.designs.point import Point, ScheduleStore, evaluate_point
from sartor.designs.question import DesignModel, DesignQuestion
from sartor.designs.search import search_design
from sartor.designs.space import published_space
from sartor.model.zoo import load_model
from sartor.schedules.makespan import schedule_problem
from sartor.schedules.problem import ScheduleProblem
from sartor.schedules.solve import solve

SEQ_LEN = {"gpt3-175b": 2048, "bert-large": 512}
POINTS, CHIPS, PROOF_S = 3, 4, 2.0
LEAST_RATIO = 100.0


def main(names: list[str]) -> int:
    """Print the figures; 1 if the search is less than LEAST_RATIO times as fast as evaluating every point."""
    worst = np.inf
    for name in names or list(SEQ_LEN):
        shape = load_model(name)
        tokens = SEQ_LEN.get(name) or min(4096, int(shape.max_positions or 4096))
        model = DesignModel(name=name, shape=shape, seq_len=tokens)
        asked = DesignQuestion(models=(model,), num_devices=1024, global_batch_size=4096)
        worst = min(worst, pruning(asked))
        schedules(asked)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")
    return int(worst < LEAST_RATIO)


def pruning(asked: DesignQuestion) -> float:
    """CPU time to evaluate every point over CPU time of the search."""
    space = published_space()
    cpu = time.process_time()
    found = search_design(asked, space)
    search_s = time.process_time() - cpu
    points = found.evaluated + found.pruned
    candidates, _ = candidates_of(asked, space)
    sample = np.random.default_rng(0).integers(0, len(candidates), POINTS)
    cpu = time.process_time()
    for point in sampled(asked, candidates, sample):
        evaluate_point(asked, point, ScheduleStore())
    every_s = (time.process_time() - cpu) / POINTS * points
    print(f"{asked.models[0].name}: {found.status.value}, {found.evaluated} of {points:,} points evaluated")
    print(f"  search {search_s:.1f} s of CPU; every point {every_s / 3600:,.1f} h: ratio {every_s / search_s:,.0f}x")
    return every_s / search_s


def sampled(asked: DesignQuestion, candidates: Candidates, index: np.ndarray) -> list[Point]:
    """Points with every option that fits, without any pruning by bounds."""
    models, memory, points = lower_models(asked), float(candidates.hbm_bytes.max()), []
    for i in index.tolist():
        chip = candidates.accelerator(i)
        array = replace(chip, num_tensor_cores=np.array([chip.num_tensor_cores]))
        (options,) = options_of(asked, models, array, np.array([memory]))
        points.append(Point(index=i, accelerator=chip, hbm_bytes=memory, options=options))
    return points


def schedules(asked: DesignQuestion) -> None:
    """List schedules against CP-SAT on one layer, forward and backward, on sampled chips with several cores."""
    candidates, _ = candidates_of(asked, published_space())
    (model,) = lower_models(asked)
    part = next(iter(model.parts.values())).parts[1]
    chips = [candidates.accelerator(i) for i in np.random.default_rng(1).permutation(len(candidates)).tolist()]
    several = [chip for chip in chips if min(chip.num_tensor_cores, chip.num_vector_cores) > 1][:CHIPS]
    for way, graph in (("forward", part.forward), ("backward", part.backward)):
        rows = [timed(schedule_problem(graph, chip)) for chip in several]
        lists_s, solver_s, excess, proved = (np.array(column) for column in zip(*rows, strict=True))
        said = f"{excess.mean():.2%} longer (at most {excess.max():.2%})"
        proof = f"CP-SAT {1e3 * solver_s.mean():,.0f} ms, {proved.mean():.0%} proved"
        ratio = f"ratio {solver_s.sum() / lists_s.sum():,.0f}x"
        print(f"  a layer's {way} on {len(rows)} chips: lists {1e3 * lists_s.mean():.1f} ms, {said}; {proof}; {ratio}")


def timed(problem: ScheduleProblem) -> tuple[float, float, float, bool]:
    """Seconds of both, how much longer the list schedule is, and whether CP-SAT proved its own."""
    start = time.perf_counter()
    lists = solve(problem, 0.0)
    middle = time.perf_counter()
    best = solve(problem, PROOF_S)
    end = time.perf_counter()
    return middle - start, end - middle, lists.makespan / best.makespan - 1, not best.gap


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
