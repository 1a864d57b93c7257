"""The plan does not fit in device memory.

## What it finds

A plan whose weights, gradients, optimizer states, activations, workspaces and driver need more memory than a device
has, on the pipeline rank that needs most. A warning, not an error, where it is too much by less than the error of a
predicted peak, or the launch has a switch that may save as much and has no price here.

## Why it costs

The run ends in an out-of-memory error, in the first step or at the first long sequence.

## Fix

The fastest single change that makes it fit: more recomputation, a smaller microbatch, a higher ZeRO stage or more model
parallelism.

## Source

``sartor.step.footprint``; its accuracy against published peaks is in docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.json_types import JsonMap
from sartor.rules.plan.rule import PlanContext, PlanRule, PlanSuspicion, Remedy
from sartor.rules.rule import Grade
from sartor.step.changes import what_to_change
from sartor.step.results import MAY_FIT, near_limit
from sartor.units import format_bytes


def does_not_fit(context: PlanContext) -> Iterator[PlanSuspicion]:
    if context.fits:
        return
    need, room = float(context.footprint.device_bytes), context.limit_bytes
    stage = int(context.footprint.stage)
    changes = what_to_change(context.job, context.plan, context.cluster, context.calibration, room)
    where = f"stage {stage} needs" if int(context.plan.dims.pp) > 1 else "a device needs"
    left = f" with {100 * context.headroom:g}% headroom" if context.headroom else ""
    none = "" if changes else "; no single change makes it fit"
    doubt = f"; without a price here, and could save as much: {', '.join(context.unpriced)}" if context.unpriced else ""
    doubt += f"; {MAY_FIT}" if near_limit(need, room) else ""
    yield PlanSuspicion(
        grade=Grade.WARN if doubt else Grade.ERROR,
        message=f"{where} {format_bytes(need)}, {format_bytes(need - room)} more than"
        f" {context.cluster.gpu.label} has available{left}{none}{doubt}",
        field="peak_bytes",
        value=need,
        remedies=tuple(Remedy(fix=_fix(c.field, c.value), plan=c.plan, job=c.job) for c in changes),
        blocking=True,
    )


def _fix(fields: str, values: str) -> JsonMap:
    """``pp and optimizer_offload``, ``4 and true`` as two fields."""
    return dict(zip(fields.split(" and "), values.split(" and "), strict=True))


RULE = PlanRule(code="P1", check=does_not_fit, page=__doc__ or "")
