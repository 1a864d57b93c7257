"""Another plan for the same devices is faster.

## What it finds

A search over all valid plans for the same model, batch and devices found one with a shorter predicted step.

## Why it costs

Every step takes longer than it has to.

## Fix

The best plan; ``sartor plan MODEL --write`` writes its launch files.

## Source

``sartor.plans.search``: every plan of the grid priced, the best of those that fit.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.rules.plan.rule import PlanContext, PlanRule, PlanSuspicion
from sartor.rules.rule import Grade


def slower_than_best(context: PlanContext) -> Iterator[PlanSuspicion]:
    if context.best is None:
        return
    yield PlanSuspicion(
        grade=Grade.WARN,
        message="another plan for the same devices is predicted to be faster",
        field="plan",
        value="as launched",
        remedies=(context.best,),
    )


RULE = PlanRule(code="P10", check=slower_than_best, page=__doc__ or "")
