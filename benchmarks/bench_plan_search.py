"""Searches over plans: whole spaces priced, against the same plans priced one by one.

    python benchmarks/bench_plan_search.py

GPT-3 175B on 512 A100 and DeepSeek-V3 on 2,048 H100: points of the grid, plans priced, seconds, plans per CPU second;
and the ratio to pricing plans one at a time by the same ``step`` and ``footprint``. Set OMP_NUM_THREADS=1
to keep it to one core.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.zoo import load_model
from sartor.plans.conditions import structures, with_switches
from sartor.plans.search import make_pricer, search_plans
from sartor.plans.space import chunks, plan_at, plan_space, size_of
from sartor.step.question import training_job

QUESTIONS = (("gpt3-175b", "dgx-a100", 512, 1536, 2048), ("deepseek-v3", "dgx-h100", 2048, 15360, 4096))
SAMPLE = 40
LEAST_RATIO = 100.0


def main() -> int:
    """Print the figures; 1 if the search is less than LEAST_RATIO times as fast as one plan at a time."""
    worst = np.inf
    for model, name, devices, batch, seq_len in QUESTIONS:
        cluster = load_cluster(name)
        job, _ = training_job(load_model(model), cluster.gpu, global_batch_size=batch, seq_len=seq_len)
        started, cpu = time.perf_counter(), time.process_time()
        found = search_plans(job, cluster, devices)
        wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
        pricer, space = make_pricer(job, cluster), plan_space(job, devices, {})
        rows = with_switches(job, space, next(chunks(structures(job, space).rows)), {})
        sample = np.random.default_rng(0).integers(0, size_of(rows), SAMPLE)
        cpu = time.process_time()
        for index in sample.tolist():
            plan = plan_at(job, rows, index)
            pricer.step(plan)
            pricer.footprint(plan)
        alone = SAMPLE / (time.process_time() - cpu)
        ratio = found.evaluated / cpu_s / alone
        worst = min(worst, ratio)
        print(f"{model} on {devices} {cluster.gpu.name}: {found.space_size:,} points, {found.evaluated:,} plans priced")
        print(f"  {wall_s:.2f} s, {found.evaluated / cpu_s:,.0f} plans per CPU second; one by one {alone:,.0f}")
        print(f"  ratio {ratio:,.0f}x; layers placed for {found.placed} plans, {found.unplaced} left")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")
    return int(worst < LEAST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
