"""A microbatch that is too small to keep the device busy.

## What it finds

A microbatch size that can be doubled (or quadrupled) to make the step shorter, within memory.

## Why it costs

Small GEMMs fill tiles and waves badly, kernel launches are exposed, and every microbatch pays the latency of its
collectives. Larger microbatches lengthen the pipeline bubble; the predicted step time decides.

## Fix

A larger microbatch, and fewer of them.

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
        message=f"a microbatch of {size} sequence{'s' if size > 1 else ''} is too small to keep the device busy",
        field="microbatch_size",
        value=size,
        remedies=tuple(r for k in (2, 4) for r in changed(context, microbatch_size=size * k)),
    )


RULE = PlanRule(code="P6", check=short_microbatch, page=__doc__ or "")
