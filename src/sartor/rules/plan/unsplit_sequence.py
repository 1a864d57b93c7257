"""Tensor parallelism without sequence parallelism.

## What it finds

``tp`` above 1 where every tensor-parallel rank repeats norms, residuals and dropout.

## Why it costs

The same activations are stored ``tp`` times, and their memory-bound kernels run ``tp`` times. Forward collectives move
as many bytes either way; backward gathers inputs once more, and switches that reduce in hardware (NVLS) favour the
all-reduce, so the saved memory may cost a few percent of the step. The finding says how much.

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
        message=f"tp={int(dims.tp)} without sequence parallelism keeps the same activations on every tensor-parallel"
        f" rank",
        field="sequence_parallel",
        value=False,
        remedies=tuple(changed(context, sequence_parallel=True)),
        frees_memory=True,
    )


RULE = PlanRule(code="P4", check=unsplit_sequence, page=__doc__ or "")
