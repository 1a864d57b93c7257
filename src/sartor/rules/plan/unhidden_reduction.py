"""Gradient reduction does not overlap the backward pass.

## What it finds

A launch that does not overlap gradient reduction, where the exposed communication takes more than 2% of the step.

## Why it costs

The backward pass of the last microbatch could hide most of it.

## Fix

``--overlap-grad-reduce`` and ``--overlap-param-gather`` in Megatron-LM, ``overlap_comm`` in DeepSpeed.

## Source

Li et al. 2020 (PyTorch DDP, arXiv 2006.15704), section 3.2.3.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.rules.plan.rule import PlanContext, PlanRule, PlanSuspicion, switched
from sartor.rules.rule import Grade
from sartor.units import format_share

MUCH = 0.02


def unhidden_reduction(context: PlanContext) -> Iterator[PlanSuspicion]:
    share = context.share("dp_exposed_s")
    if context.job.trainer.dp_overlap or share < MUCH:
        return
    yield PlanSuspicion(
        grade=Grade.WARN,
        message=f"exposed gradient reduction and weight gathering take {format_share(share)} of the step",
        field="dp_overlap",
        value=False,
        remedies=tuple(switched(context, dp_overlap=True)),
    )


RULE = PlanRule(code="P8", check=unhidden_reduction, page=__doc__ or "")
