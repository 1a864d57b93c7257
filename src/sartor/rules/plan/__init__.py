"""Rules on plans, waste in how a job is spread over devices: each file in this folder is a rule; here are the table of
all and the lint of one plan.

As with shape rules, a rule contains no formula: ``step.step`` and ``step.footprint`` price every remedy, so a finding
cannot contradict the prediction.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np

from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.rules.plan.rule import PlanContext, PlanFinding, PlanRule, PlanSuspicion, Remedy
from sartor.rules.rule import rules_in, without
from sartor.step.footprint import footprint
from sartor.step.step import step as step_of

PLAN_RULES: tuple[PlanRule, ...] = rules_in(sys.modules[__name__], PlanRule)
"""All plan rules, in the order of their codes."""
LEAST_GAIN = 0.01
"""Least share of the step a remedy must save to be reported; less is within the model's error."""
LEAST_FREED, MOST_PAID = 0.05, 0.05
"""A remedy for memory frees at least this share of the fullest device, for at most that share of the step."""


def lint_plan(context: PlanContext, *, allow: Iterable[str] = ()) -> tuple[PlanFinding, ...]:
    """All findings on one plan, most severe and most expensive first; ``allow`` switches rules off by name or code.

    Raises ``InputError`` for an unknown rule.
    """
    findings = [
        finding
        for rule in without(PLAN_RULES, allow, "is not a plan rule")
        for suspicion in rule.check(context)
        if (finding := _priced(context, rule, suspicion)) is not None
    ]
    return tuple(sorted(findings, key=lambda f: (-f.grade.severity, -(f.gain_s or 0.0), int(f.code[1:]))))


def _priced(context: PlanContext, rule: PlanRule, suspicion: PlanSuspicion) -> PlanFinding | None:
    best: tuple[float, float, Remedy] | None = None
    for remedy in suspicion.remedies:
        price = _price(context, remedy)
        if price is not None and (best is None or price[0] < best[0]):
            best = (*price, remedy)
    gain = context.step_s - best[0] if best else 0.0
    saved = float(context.footprint.device_bytes) - best[1] if best else 0.0
    frees = saved >= LEAST_FREED * float(context.footprint.device_bytes) and gain >= -MOST_PAID * context.step_s
    worth = gain / context.step_s >= LEAST_GAIN or (suspicion.frees_memory and frees)
    if not suspicion.blocking and not (best and worth):
        return None
    running = not suspicion.blocking
    return PlanFinding(
        rule=rule.name,
        code=rule.code,
        grade=suspicion.grade.of(gain / context.step_s),
        message=suspicion.message,
        field=suspicion.field,
        value=suspicion.value,
        gain_s=gain if running else None,
        gain_fraction=gain / context.step_s if running else None,
        fix=_stated_fix(context, best[2]) if best else {},
        saves_bytes=max(saved, 0.0),
        step_s=best[0] if best else None,
    )


def _stated_fix(context: PlanContext, remedy: Remedy) -> JsonDict:
    """A remedy's fields, with the batch where it would change with them: it stays as it is."""
    moves = context.batch_follows and remedy.fix.keys() & {"tp", "pp", "cp", "dp", "microbatch_size"}
    return {**remedy.fix, **({"global_batch_size": context.job.global_batch_size} if moves else {})}


def _price(context: PlanContext, remedy: Remedy) -> tuple[float, float] | None:
    """Seconds per step and bytes of the fullest device with a remedy; None if it cannot run or does not fit."""
    job = remedy.job or context.job
    if not context.runs(job, remedy.plan):
        return None
    try:
        bytes_then = float(footprint(job, remedy.plan, context.cluster).device_bytes)
        if bytes_then > context.limit_bytes:
            return None
        seconds = float(step_of(job, remedy.plan, context.cluster, context.calibration).step_s)
    except InputError:
        return None
    return (seconds, bytes_then) if np.isfinite(seconds) else None
