"""Recomputation of activations that would fit in memory.

## What it finds

Full or selective recomputation where the plan also fits with less.

## Why it costs

Full recomputation runs every layer's forward pass twice: up to a third more compute. Selective recomputation repeats
the attention core, which a flash kernel does not need.

## Fix

No recomputation, or as few layers per stage as memory requires.

## Source

Korthikanti et al. 2022 (arXiv 2205.05198), section 5.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.model.training import Recompute
from sartor.rules.plan.rule import PlanContext, PlanRule, PlanSuspicion, changed
from sartor.rules.rule import Grade


def unneeded_recompute(context: PlanContext) -> Iterator[PlanSuspicion]:
    plan = context.plan
    if plan.recompute == Recompute.NONE:
        return
    remedies = list(changed(context, recompute=Recompute.NONE, recompute_layers=-1))
    trainer = context.job.trainer
    if plan.recompute == Recompute.FULL and trainer.recomputes_parts:
        remedies += changed(context, recompute=Recompute.SELECTIVE, recompute_layers=-1)
    if plan.recompute == Recompute.FULL and trainer.recomputes_some_layers:
        layers = -(-int(context.job.shape.num_layers) // int(plan.dims.pp))
        now = layers if int(plan.recompute_layers) < 0 else min(int(plan.recompute_layers), layers)
        step = int(plan.virtual_stages)
        fewer = sorted({max(now * k // 4 // step * step, step) for k in (1, 2, 3)} - {now})
        remedies += [r for n in fewer for r in changed(context, recompute=Recompute.FULL, recompute_layers=n)]
    word = Recompute(int(plan.recompute)).word
    yield PlanSuspicion(
        grade=Grade.WARN,
        message=f"recompute={word}: the plan also fits with less recomputation",
        field="recompute",
        value=word,
        remedies=tuple(remedies),
    )


RULE = PlanRule(code="P3", check=unneeded_recompute, page=__doc__ or "")
