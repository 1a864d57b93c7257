"""One pipeline rank has more work than the others.

## What it finds

Stages split by layer count, where the embedding, the output head or mixed layer kinds make one of them slower.

## Why it costs

Every microbatch waits for the slowest rank.

## Fix

Move a layer or two from the slowest chunk to the fastest: ``--pipeline-model-parallel-layout`` in Megatron-LM,
``module_fqns_per_model_part`` in torchtitan.

## Source

PHAZE (Wang et al., ICML 2024), rule R11: balance load, not layers.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.rules.plan.rule import PlanContext, PlanRule, PlanSuspicion, Remedy, changed
from sartor.rules.rule import Grade
from sartor.step.stage_table import stage_table
from sartor.units import format_share

MUCH = 0.03
"""How far the slowest rank may be above the mean."""
MOST_MOVED = 3


def unbalanced_stages(context: PlanContext) -> Iterator[PlanSuspicion]:
    if int(context.plan.dims.pp) == 1 or context.job.trainer.one_program:
        return
    rows = stage_table(context.job, context.plan, context.cluster, context.calibration)
    loads = [row.load_s for row in rows]
    mean, slowest = sum(loads) / len(loads), max(range(len(loads)), key=loads.__getitem__)
    if loads[slowest] < (1 + MUCH) * mean:
        return
    beside = f" (it also holds {' and '.join(rows[slowest].holds)})" if rows[slowest].holds else ""
    yield PlanSuspicion(
        grade=Grade.INFO,
        message=f"stage {slowest} takes {format_share(loads[slowest] / mean - 1)} longer than the average"
        f" stage{beside}",
        field="stage_layers",
        value=[row.layers for row in rows],
        remedies=tuple(_moved(context, [list(row.chunks) for row in rows], loads)),
    )


def _moved(context: PlanContext, chunks: list[list[int]], loads: list[float]) -> Iterator[Remedy]:
    """One layer after another from the slowest rank's largest chunk to the fastest rank's smallest."""
    layers = sum(sum(ranks) for ranks in chunks)
    load = sum(loads) / max(layers, 1)
    for _ in range(MOST_MOVED):
        slow = max(range(len(loads)), key=loads.__getitem__)
        fast = min(range(len(loads)), key=lambda k: (loads[k], k))
        largest = max(range(len(chunks[slow])), key=chunks[slow].__getitem__)
        smallest = min(range(len(chunks[fast])), key=chunks[fast].__getitem__)
        if slow == fast or chunks[slow][largest] == 0:
            return
        chunks[slow][largest] -= 1
        chunks[fast][smallest] += 1
        loads[slow], loads[fast] = loads[slow] - load, loads[fast] + load
        order = tuple(chunks[rank][k] for k in range(len(chunks[0])) for rank in range(len(chunks)))
        yield from changed(context, stage_layers=order)


RULE = PlanRule(code="P9", check=unbalanced_stages, page=__doc__ or "")
