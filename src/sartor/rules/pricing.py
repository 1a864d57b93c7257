"""What a suspicion costs: every fix of every rule goes through ``lower`` and ``estimate``, many at a time.

Fixes that change the same fields are one array-valued shape and one call. The fix that is kept is the nearest
that keeps most of the best one's gain at equal work and makes no other rule complain as loudly as the one it answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from sartor.cost.estimate import Estimate, compare, estimate
from sartor.errors import InputError
from sartor.model.editing import edit
from sartor.model.lower import feasible, lower
from sartor.model.parallel import ParallelDims
from sartor.model.shape import TransformerShape
from sartor.model.workload import Workload
from sartor.operators import Pass
from sartor.rules.catalog import RULES
from sartor.rules.rule import DIMS_FIELDS, WORKLOAD_FIELDS, Context, Finding, Fix, Grade, Rule, Suspicion

LEAST_GAIN = 0.01
"""Below this share of the step a finding is information only (codesign.md section 3)."""

NEARLY_AS_GOOD = 0.8
"""A nearer value is preferred that keeps this share of the best one's gain: the smaller edit."""

Key: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A change's device-seconds per token over the baseline's, at equal work, and the factor of its 80% interval."""

    relative: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The fix kept (empty where none gains), what it costs, and what it is compared with."""

    fix: Fix
    offer: Offer
    reference: float = 1.0

    @property
    def saved(self) -> float:
        """Share of the baseline's own time."""
        return self.reference - self.offer.relative


_NO_CHOICE = _Choice(fix={}, offer=Offer(relative=1.0, spread=1.0))


def price(context: Context, suspicions: Sequence[tuple[Rule, Suspicion]]) -> tuple[Finding, ...]:
    """A finding for every suspicion, in the order given; opportunities that gain nothing are left out."""
    wanted = [fix for _, s in suspicions if not s.blocking for fix in (*s.fixes, *_some(s.paced_by))]
    offers = price_fixes(context, wanted)
    heard = {(rule.name, s.grade.severity) for rule, s in suspicions}
    findings = (
        _finding(context, rule, suspicion, _choose(context, suspicion, offers, heard)) for rule, suspicion in suspicions
    )
    return tuple(finding for finding in findings if finding is not None)


def price_fixes(context: Context, fixes: Iterable[Fix]) -> dict[Key, Offer]:
    """Offers by fix. Fixes the model cannot run with are left out."""
    groups: dict[tuple[str, ...], dict[Key, Fix]] = {}
    for fix in fixes:
        groups.setdefault(tuple(sorted(fix)), {})[key_of(fix)] = fix
    offers: dict[Key, Offer] = {}
    for group in groups.values():
        offers |= _price_group(context, list(group.values()))
    return offers


def key_of(fix: Fix) -> Key:
    """A fix as something that can be looked up."""
    return tuple(sorted(fix.items()))


def _price_group(context: Context, fixes: list[Fix]) -> dict[Key, Offer]:
    columns = {name: np.array([fix[name] for fix in fixes]) for name in fixes[0]}
    try:
        workload, split, of_shape = changed(context.workload, context.priced_dims, columns)
        priced = _offers(context, workload, split, of_shape)
    except InputError:
        if len(fixes) == 1:
            return {}
        return {key: offer for fix in fixes for key, offer in _price_group(context, [fix]).items()}
    fits = feasible(workload.shape, split)
    relative, spread, fits = (np.broadcast_to(each, (len(fixes),)) for each in (*priced, fits))
    return {
        key_of(fix): Offer(relative=float(relative[i]), spread=float(spread[i]))
        for i, fix in enumerate(fixes)
        if fits[i]
    }


def changed(
    workload: Workload, dims: ParallelDims, changes: Mapping[str, Any]
) -> tuple[Workload, ParallelDims, frozenset[str]]:
    """Workload and dims with some fields changed (to numbers or arrays), and which of them are the shape's."""
    of_workload = {name: value for name, value in changes.items() if name in WORKLOAD_FIELDS}
    of_dims = {name: value for name, value in changes.items() if name in DIMS_FIELDS}
    of_shape = {name: value for name, value in changes.items() if name not in (*WORKLOAD_FIELDS, *DIMS_FIELDS)}
    shape = edit(workload.shape, **of_shape) if of_shape else workload.shape
    return replace(workload, shape=shape, **of_workload), replace(dims, **of_dims), frozenset(of_shape)


def _offers(context: Context, workload: Workload, dims: ParallelDims, shape_fields: frozenset[str]) -> tuple[Any, Any]:
    """Relative device-seconds per token at equal work, and the interval's factor."""
    before = context.baseline
    after = estimate(lower(workload, dims), context.gpu, context.calibration, details=False)
    # The optimizer runs once a step, however the step is cut into microbatches: a larger one does not dilute it.
    once_s = _optimizer_s(after) * (after.graph.tokens / before.graph.tokens - 1.0)
    time = _per_token(after, after.time_s + once_s, dims) / _per_token(before, before.time_s, context.priced_dims)
    work = _per_token(after, after.matmul_flops, dims) / _per_token(before, before.matmul_flops, context.priced_dims)
    less_work = np.maximum(1.0, 1.0 / work) if shape_fields else 1.0
    compared = compare(before, after)
    return time * less_work, compared.high / compared.speedup


def _optimizer_s(of: Estimate) -> Any:
    pairs = zip(of.graph.operators, of.costs, strict=True)
    return sum((cost.time_s * op.count for op, cost in pairs if op.pass_ is Pass.OPTIMIZER), 0.0)


def _per_token(of: Estimate, amount: Any, dims: ParallelDims) -> Any:
    return amount * dims.tp / of.graph.tokens


def _choose(
    context: Context, suspicion: Suspicion, offers: Mapping[Key, Offer], heard: set[tuple[str, int]]
) -> _Choice:
    if suspicion.blocking:
        return replace(_NO_CHOICE, fix=_first_that_helps(context, suspicion, heard))
    if suspicion.remedy is not None:
        return _remedy(context, suspicion.remedy)
    paced = offers.get(key_of(suspicion.paced_by)) if suspicion.paced_by else None
    reference = paced.relative if paced else 1.0
    runnable = [fix for fix in suspicion.fixes if key_of(fix) in offers]
    saved = {key_of(fix): reference - offers[key_of(fix)].relative for fix in runnable}
    gaining = [fix for fix in runnable if saved[key_of(fix)] > 0]
    enough = NEARLY_AS_GOOD * max(saved.values(), default=0.0)
    # Fixes come nearest first: those nearly as good as the best keep that order, the others follow by their gain.
    for fix in sorted(gaining, key=lambda fix: -min(saved[key_of(fix)], enough)):
        if not _breaks(context, fix, suspicion, heard):
            return _Choice(fix=fix, offer=offers[key_of(fix)], reference=reference)
    return _NO_CHOICE


def _first_that_helps(context: Context, suspicion: Suspicion, heard: set[tuple[str, int]]) -> Fix:
    """Where nothing runs there is nothing to be faster than: the nearest fix, one that breaks no other rule if any."""
    clean = (fix for fix in suspicion.fixes if not _breaks(context, fix, suspicion, heard))
    return next(clean, next(iter(suspicion.fixes), {}))


def _remedy(context: Context, shape: TransformerShape) -> _Choice:
    workload = replace(context.workload, shape=shape)
    relative, spread = _offers(context, workload, context.priced_dims, frozenset())
    return _Choice(fix={}, offer=Offer(relative=float(relative), spread=float(spread)))


def _breaks(context: Context, fix: Fix, suspicion: Suspicion, heard: set[tuple[str, int]]) -> bool:
    """Whether, after the fix, a rule speaks up as loudly as the suspicion (a warning at least) that did not before."""
    threshold = max(suspicion.grade.severity, Grade.WARN.severity)
    workload, dims, _ = changed(context.workload, context.dims, fix)
    after = replace(context, workload=workload, dims=dims)
    before = {name for name, severity in heard if severity >= threshold}
    loud = (rule for rule in RULES if rule.worst.severity >= threshold and rule.name not in before)
    return any(each.grade.severity >= threshold for rule in loud for each in rule.check(after))


def _finding(context: Context, rule: Rule, suspicion: Suspicion, choice: _Choice) -> Finding | None:
    step_s = float(context.baseline.time_s)
    fraction = max(0.0, choice.saved / choice.reference)
    if suspicion.advisory and fraction < LEAST_GAIN:
        return None
    demoted = fraction < LEAST_GAIN and not suspicion.blocking
    found = Finding(
        rule=rule.name,
        code=rule.code,
        grade=Grade.INFO if demoted else suspicion.grade,
        message=suspicion.message,
        operator=suspicion.operator,
        field=suspicion.field,
        value=suspicion.value,
        gain_s=max(0.0, step_s * choice.saved),
        gain_fraction=fraction,
        fix=dict(choice.fix),
        gain_low_s=step_s * (choice.reference - choice.offer.relative * choice.offer.spread),
        gain_high_s=step_s * (choice.reference - choice.offer.relative / choice.offer.spread),
        source=context.baseline.source,
    )
    if suspicion.blocking:
        return replace(found, gain_s=None, gain_fraction=None, gain_low_s=None, gain_high_s=None)
    return found


def _some(fix: Fix | None) -> tuple[Fix, ...]:
    return () if fix is None else (fix,)
