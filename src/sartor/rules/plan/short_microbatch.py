"""A microbatch that leaves the device short of work.

## What it finds

A microbatch size whose double (or four times) fits and makes the step shorter.

## Why it costs

Small products fill tiles and waves badly, launches are not hidden, and every microbatch pays its collectives' latency.
Larger ones lengthen the bubble of a pipeline: the step decides.

## Fix

The larger microbatch, with as many fewer of them.

## Source

arXiv 2401.14489 (2024-01), rule list ("microbatch as large as possible").
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.rules.plan.rule import PlanContext, PlanRule, PlanSuspicion, changed
from sartor.rules.rule import Grade


def short_microbatch(context: PlanContext) -> Iterator[PlanSuspicion]:
    size = int(context.plan.microbatch_size)
    yield PlanSuspicion(
        grade=Grade.INFO,
        message=f"microbatches of {size} sequence{'s' if size > 1 else ''} leave the device short of work",
        field="microbatch_size",
        value=size,
        remedies=tuple(r for k in (2, 4) for r in changed(context, microbatch_size=size * k)),
    )


RULE = PlanRule(code="P6", check=short_microbatch, page=__doc__ or "")
