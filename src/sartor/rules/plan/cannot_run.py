"""The trainer cannot run the plan.

## What it finds

Settings that exclude each other or the model: experts and tensor parallelism without sequence parallelism, overlap of
tensor parallelism without it, a sequence longer than the table of learned positions, an `ep` that divides nothing.

## Why it costs

The run ends in the trainer's own check or in an error of the first step.

## Fix

The best plan for the same devices; a search offers none of these. Learned positions need a shorter sequence.

## Source

The limits of the step's mechanisms (`sartor.step.mechanisms`), each with its source.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.rules.plan.rule import PlanContext, PlanRule, PlanSuspicion
from sartor.rules.rule import Grade


def cannot_run(context: PlanContext) -> Iterator[PlanSuspicion]:
    rows, tokens = int(context.job.shape.learned_positions), context.job.seq_len
    if 0 < rows < tokens:
        yield PlanSuspicion(
            grade=Grade.ERROR,
            message=f"seq_len={tokens} is beyond the model's {rows} learned positions",
            field="seq_len",
            value=tokens,
            blocking=True,
        )
    for reason in context.broken:
        yield PlanSuspicion(
            grade=Grade.ERROR,
            message=f"{context.job.trainer.called} cannot run this plan: {reason}",
            field="plan",
            value=reason,
            remedies=() if context.best is None else (context.best,),
            blocking=True,
        )


RULE = PlanRule(code="P11", check=cannot_run, page=__doc__ or "")
