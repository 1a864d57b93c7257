"""Tensor parallelism without sequence parallelism.

## What it finds

``tp`` above 1 where norms, residuals and dropout are repeated on every tensor rank.

## Why it costs

The same activations are kept ``tp`` times over, and their memory-bound kernels run ``tp`` times. The collectives move
as many bytes forward; backward gathers inputs once more, and switches that add (NVLS) favour the all-reduce, so what it
frees may cost a few percent of the step: the finding says how much.

## Fix

``--sequence-parallel`` in Megatron-LM.

## Source

Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.rules.plan.rule import PlanContext, PlanRule, PlanSuspicion, changed
from sartor.rules.rule import Grade


def unsplit_sequence(context: PlanContext) -> Iterator[PlanSuspicion]:
    dims, trainer = context.plan.dims, context.job.trainer
    if int(dims.tp) == 1 or dims.sequence_parallel or not trainer.optional_sequence_parallel:
        return
    yield PlanSuspicion(
        grade=Grade.INFO,
        message=f"tp={int(dims.tp)} without sequence parallelism keeps the same activations on every tensor rank",
        field="sequence_parallel",
        value=False,
        remedies=tuple(changed(context, sequence_parallel=True)),
        frees_memory=True,
    )


RULE = PlanRule(code="P4", check=unsplit_sequence, page=__doc__ or "")
