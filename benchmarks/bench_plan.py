"""Speed of pricing plans: arrays of plans against one plan at a time, the step alone and with its memory.

GPT-3 175B on 512 A100: random plans (degrees, microbatches, schedules, ZeRO stages, recomputation; many occur more than
once), and every legal plan of the search once. CPU seconds of one process, the first time and again, when what plans
share (blocks, traffic, paths through uneven chunks, states of a device) is remembered; set OMP_NUM_THREADS=1 to keep it
to one core.

Run from the repository: `python benchmarks/bench_plan.py`. Exits with 1 below 200,000 plans a second in arrays.
Compare with another commit in pairs in one hour; against a9fe2c1d (2026-11-29, a busy machine), step and memory: 20
plans one by one 8 times as many a second, 400 different ones the first time 4; every legal plan 2.1 times. Against
d23335ee (2026-11-29, busy): 40 plans one by one the first time 1.2 times as many, arrays as many.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.plans.space import chunks, plan_space, structures, to_plan, with_switches
from sartor.step.footprint import footprint
from sartor.step.step import step

DEVICES, BATCH = 512, 1536
LEAST_PER_S = 200_000
MANY = 100_000
SINGLE = 20


def main() -> None:
    shape = replace(load_model("gpt3-175b"), vocab_size=51200)
    job = TrainingJob(shape=shape, seq_len=2048, global_batch_size=BATCH)
    cluster = load_cluster("dgx-a100", DEVICES)

    def both(plan: TrainingPlan) -> None:
        step(job, plan, cluster)
        footprint(job, plan, cluster)

    def alone(plan: TrainingPlan) -> None:
        step(job, plan, cluster)

    slowest = np.inf
    print(f"{'':16}{'plans':>10}{'first/s':>12}{'again/s':>12}{'one by one/s':>14}{'ratio':>10}")
    for name, price in (("step", alone), ("step and memory", both)):
        one_by_one = singles(SINGLE)
        first, single = (
            SINGLE / taken for taken in seconds_of(lambda price=price, few=one_by_one: list(map(price, few)))
        )
        print(f"{name:16}{SINGLE:>10,}{first:>12,.0f}{single:>12,.0f}")
        whole = every_plan(job, cluster)
        for plan in (plans(10_000), plans(100_000), plans(1_000_000), whole):
            count = np.size(plan.schedule)
            first, rate = (count / taken for taken in seconds_of(lambda price=price, plan=plan: price(plan)))
            print(
                f"{name:16}{count:>10,}{first:>12,.0f}{rate:>12,.0f}{single:>14,.1f}{rate / single:>10,.0f}", flush=True
            )
            slowest = min(slowest, rate) if count >= MANY else slowest
    if slowest < LEAST_PER_S:
        sys.exit(f"{slowest:,.0f} plans a second, less than {LEAST_PER_S:,}")


def plans(count: int) -> TrainingPlan:
    """Random plans that use all devices, interleaved if the number of microbatches allows it."""
    draw = np.random.default_rng(0)
    tp, pp = draw.choice([1, 2, 4, 8], count), draw.choice([1, 2, 4, 8, 16, 32], count)
    dp = DEVICES // tp // pp
    size = draw.choice([1, 2, 4, 8], count)
    microbatches = np.maximum(BATCH // dp // size, 1)
    can = (pp > 1) & (microbatches % pp == 0)
    virtual = np.where(can, draw.choice([1, 2, 3], count), 1)
    return TrainingPlan(
        dims=ParallelDims(tp=tp, pp=pp, dp=dp),
        microbatch_size=size,
        num_microbatches=microbatches,
        virtual_stages=virtual,
        schedule=np.where(virtual == 1, draw.choice([0, 1, 2], count), 0),
        zero_stage=draw.choice([0, 1, 2, 3], count),
        recompute=draw.choice([0, 1, 2], count),
    )


def every_plan(job: TrainingJob, cluster: Cluster) -> TrainingPlan:
    """Every plan that the search would price, whether it fits in memory or not."""
    space = plan_space(job, DEVICES, {})
    rows = [with_switches(job, space, chunk, {}) for chunk in chunks(structures(job, space).rows)]
    return to_plan(job, {name: np.concatenate([each[name] for each in rows]) for name in rows[0]})


def singles(count: int) -> list[TrainingPlan]:
    many = plans(count)
    out = []
    for i in range(count):
        dims = ParallelDims(**{name: int(getattr(many.dims, name)[i]) for name in ("tp", "pp", "dp")})  # type: ignore[index]
        values = {f.name: getattr(many, f.name) for f in fields(TrainingPlan) if f.name != "dims"}
        single = {name: int(v[i]) for name, v in values.items() if isinstance(v, np.ndarray)}
        out.append(replace(many, dims=dims, **single))
    return out


def seconds_of(call: Callable[[], Any]) -> tuple[float, float]:
    """CPU seconds of the first call, and of the fastest of three."""
    taken = []
    for _ in range(3):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return taken[0], min(taken)


if __name__ == "__main__":
    main()
