"""Every data-parallel replica keeps the whole optimizer state.

## What it finds

Several replicas with ZeRO stage 0.

## Why it costs

Adam state and fp32 main weights take 12 bytes per parameter on every replica; sharded, they take 12 / ``dp``. The freed
memory allows a larger microbatch or less recomputation, and the step communicates as many bytes.

## Fix

``--use-distributed-optimizer`` in Megatron-LM, ZeRO stage 1 in DeepSpeed.

## Source

Rajbhandari et al. 2020 (arXiv 1910.02054), section 5.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.rules.plan.rule import PlanContext, PlanRule, PlanSuspicion, changed
from sartor.rules.rule import Grade


def unsharded_optimizer(context: PlanContext) -> Iterator[PlanSuspicion]:
    plan = context.plan
    if int(plan.dims.dp) * int(plan.dims.cp) == 1 or int(plan.zero_stage) > 0:
        return
    yield PlanSuspicion(
        grade=Grade.INFO,
        message=f"each of {int(plan.dims.dp) * int(plan.dims.cp)} replicas keeps the whole optimizer state",
        field="zero_stage",
        value=0,
        remedies=tuple(changed(context, zero_stage=1)),
        frees_memory=True,
    )


RULE = PlanRule(code="P5", check=unsharded_optimizer, page=__doc__ or "")
