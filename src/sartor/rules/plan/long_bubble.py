"""A large pipeline bubble.

## What it finds

More than 5% of the step spent filling and draining the pipeline.

## Why it costs

With p stages, m microbatches and v chunks per device, devices idle for (p - 1) / (v m) of their busy time.

## Fix

More chunks per device (interleaving), fewer stages with more replicas, or smaller microbatches: the fastest that fits.

## Source

Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.rules.plan.rule import PlanContext, PlanRule, PlanSuspicion, Remedy, changed
from sartor.rules.rule import Grade
from sartor.units import format_share

MUCH = 0.05


def long_bubble(context: PlanContext) -> Iterator[PlanSuspicion]:
    share, pp = context.share("pp_bubble_s"), int(context.plan.dims.pp)
    if pp == 1 or share < MUCH:
        return
    yield PlanSuspicion(
        grade=Grade.WARN,
        message=f"the pipeline bubble takes {format_share(share)} of the step ({pp} stages,"
        f" {int(context.plan.num_microbatches)} microbatches)",
        field="pp",
        value=pp,
        remedies=tuple(_remedies(context)),
    )


def _remedies(context: PlanContext) -> Iterator[Remedy]:
    plan, layers = context.plan, int(context.job.shape.num_layers)
    pp, virtual, size = int(plan.dims.pp), int(plan.virtual_stages), int(plan.microbatch_size)
    for v in range(virtual + 1, layers // pp + 1):
        if layers % (pp * v) == 0 and int(plan.num_microbatches) % pp == 0:
            yield from changed(context, virtual_stages=v)
    if pp % 2 == 0:
        yield from changed(context, pp=pp // 2)
    if size % 2 == 0:
        yield from changed(context, microbatch_size=size // 2)


RULE = PlanRule(code="P7", check=long_bubble, page=__doc__ or "")
