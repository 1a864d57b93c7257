"""Searches over plans: whole spaces priced, against the same plans priced one by one.

    python benchmarks/bench_plan_search.py

The fastest plan alone of small jobs, in CPU seconds and as a ratio to one plan alone; and that of a model eight times
as deep, as a ratio to the model's. Then GPT-3 175B on 512 A100 and DeepSeek-V3 on 2,048 H100: points of the grid, plans
priced, seconds, plans per CPU second; and the ratio to pricing plans one at a time by the same ``step`` and
``footprint``. Set OMP_NUM_THREADS=1 to keep it to one core.

Whole commands against d23335ee (2026-11-29, five runs in turn on a busy machine, the least of each): `plan gpt3-175b
--num-devices 512 --cluster dgx-a100` takes 0.90 of the CPU seconds (0.78 by medians), `estimate` and `lint` of
pythia-2.8b on an H100 0.90 and 0.94, of llama-3-8b 0.90 and 0.90, `advise pythia-2.8b` 0.91, `plan
deepseek-v3 --num-devices 2048` 0.81.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.editing import edit
from sartor.model.zoo import load_model
from sartor.plans.search import HeldPlan, fastest_plan, make_pricer, search_plans
from sartor.plans.space import AXES, chunks, plan_at, plan_space, size_of, structures, with_switches
from sartor.step.question import training_job

QUESTIONS = (("gpt3-175b", "dgx-a100", 512, 1536, 2048), ("deepseek-v3", "dgx-h100", 2048, 15360, 4096))
SMALL = (("llama-3-8b", "dgx-h100", 8, 512), ("llama-3-8b", "dgx-h100", 64, 512))
DEPTHS = (32, 256)
SAMPLE = 40
LEAST_RATIO = 100.0


def main() -> int:
    """Print the figures; 1 if the search is less than LEAST_RATIO times as fast as one plan at a time."""
    for question in SMALL:
        small(*question)
    print(f"{DEPTHS[1]} layers on 64 H100: {deep_s(DEPTHS[1]) / deep_s(DEPTHS[0]):.1f} times the search of {DEPTHS[0]}")
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


def small(model: str, name: str, devices: int, batch: int) -> None:
    """Print CPU seconds of finding the fastest plan, and how many times those of pricing it alone."""
    cluster = load_cluster(name)
    job, _ = training_job(load_model(model), cluster.gpu, global_batch_size=batch)
    cpu = time.process_time()
    fastest = fastest_plan(job, cluster, devices)
    search_s, cpu = time.process_time() - cpu, time.process_time()
    assert fastest is not None
    plan, dims = fastest.plan, fastest.plan.dims
    axes = {axis: int(getattr(dims if hasattr(dims, axis) else plan, axis)) for axis in AXES}
    HeldPlan(job=job, cluster=cluster.reached(devices), num_devices=devices, axes=axes).price()
    alone_s = time.process_time() - cpu
    print(
        f"{model} on {devices} {cluster.gpu.name}: fastest plan in {search_s:.2f} s, {search_s / alone_s:.1f} times one"
    )


def deep_s(num_layers: int) -> float:
    """CPU seconds of finding the fastest plan of Llama 3 8B with so many layers."""
    cluster = load_cluster("dgx-h100")
    job, _ = training_job(edit(load_model("llama-3-8b"), num_layers=num_layers), cluster.gpu, global_batch_size=512)
    cpu = time.process_time()
    fastest_plan(job, cluster, 64)
    return time.process_time() - cpu


if __name__ == "__main__":
    sys.exit(main())
