"""Run the rules on one context and price what they find: the fixes of all rules go through ``lower`` and the price,
many at a time.

Fixes that change the same fields become one array-valued shape and one call. The fix that is kept is the nearest one
with most of the best fix's gain at equal work that triggers no other finding as severe as the one it solves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from sartor.cost.price import Estimate, price_all
from sartor.cost.uncertainty import compare, work_kept
from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.model.counts import count_params
from sartor.model.editing import edit
from sartor.model.lower import feasible, lower
from sartor.model.lower.setting import near_degrees
from sartor.model.shape import TransformerShape
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.operators import OperatorGraph
from sartor.rules.rule import DIMS_FIELDS, WORKLOAD_FIELDS, Context, Finding, Fix, Grade, Rule, Suspicion, without
from sartor.rules.shape import RULES, UNKNOWN
from sartor.units import Floats

LEAST_GAIN = 0.01
"""Below this share of the step a finding is information only."""

NEARLY_AS_GOOD = 0.8
"""A nearer value is preferred if it keeps this share of the best gain: the smaller edit."""

ROUNDING = 1e-9
"""Share of a time below which a difference is rounding, which another machine's BLAS rounds otherwise: no gain."""

Key: TypeAlias = tuple[tuple[str, int], ...]


def run_rules(context: Context, *, allow: Iterable[str] = (), remarks: bool = True) -> tuple[Finding, ...]:
    """All findings, most severe and most expensive first.

    ``allow`` switches rules off by name or code; an unknown one is an ``InputError`` with the nearest names. Without
    ``remarks`` the rules that only remark are off too.

    Examples
    --------
    >>> run_rules(Context.of(Workload(shape=load_model("gpt2")), load_gpu("a100")))[0].rule    # doctest: +SKIP
    'ragged_vocab'
    """
    rules = [rule for rule in without(RULES, allow, UNKNOWN) if remarks or not rule.remark]
    suspicions = [(rule, _left_open(context, suspicion)) for rule in RULES for suspicion in rule.check(context)]
    heard = {(rule.name, suspicion.grade.severity) for rule, suspicion in suspicions}
    findings = _priced_findings(context, [pair for pair in suspicions if pair[0] in rules], heard)
    return tuple(sorted(findings, key=lambda f: (-f.grade.severity, -(f.gain_s or 0.0), int(f.code[1:]))))


def _left_open(context: Context, suspicion: Suspicion) -> Suspicion:
    """The suspicion without fixes of what the plan's search chose: of all plans with that value, none is faster."""
    if context.run is None or suspicion.blocking or not context.run.searched:
        return suspicion
    return replace(suspicion, fixes=tuple(fix for fix in suspicion.fixes if not fix.keys() & context.run.searched))


def that_divide(context: Context) -> Iterator[Fix]:
    """Changes with which a model divides over degrees that do not divide it, nearest first: two of its sizes, then
    degrees below and above."""
    suspicions = [(rule.name, s) for rule in RULES for s in rule.check(context)]
    heard = {(name, s.grade.severity) for name, s in suspicions}
    of_sizes = [
        list(islice((fix for fix in _that_help(context, s, heard) if not fix.keys() & set(DIMS_FIELDS)), 2))
        for _, s in suspicions
        if s.blocking and s.axis
    ]
    most = max(map(len, of_sizes), default=0) if all(of_sizes) else 0
    for fixes in ([fixes[min(i, len(fixes) - 1)] for fixes in of_sizes] for i in range(most)):
        fix = as_set(context.shape, {name: value for fix in reversed(fixes) for name, value in fix.items()})
        workload, dims, _ = changed(context.workload, context.dims, fix)
        if fix and feasible(workload.shape, dims):
            yield fix
    for axis, stated in (("tp", int(context.dims.tp)), ("ep", int(context.dims.ep))):
        for degree in near_degrees(context.shape, axis, stated):
            if degree != stated and feasible(context.shape, changed(context.workload, context.dims, {axis: degree})[1]):
                yield {axis: degree}


def added_up(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings whose gains add up: those that change the same field are one finding, the worst and most expensive, with
    the others as further reasons. Remarks come last."""
    merged: list[Finding] = []
    for result in findings:
        same = next((i for i, earlier in enumerate(merged) if _alike(earlier, result)), None)
        if same is None:
            merged.append(result)
        else:
            merged[same] = _with(merged[same], result)
    return tuple(sorted(merged, key=lambda finding: finding.remark))


def _with(first: Finding, second: Finding) -> Finding:
    """A finding with another as a further reason. One degree that does not divide several sizes is one fault: its fix
    changes them all, or the degree where one of them cannot change."""
    others = (*first.others, second)
    for finding in (first, second):
        if first.gain_s is None and finding.axis in finding.fix:
            return replace(first, fix=finding.fix, params_change=0.0, others=others)
    if first.gain_s is not None or first.fix.keys() & second.fix.keys():
        return replace(first, others=others)
    change = first.params_change + second.params_change
    return replace(first, fix={**first.fix, **second.fix}, params_change=change, others=others)


def _alike(first: Finding, second: Finding) -> bool:
    """Whether one change fixes both. A finding that cannot run has no gain to share, and remarks need other changes."""
    if first.gain_s is None and second.gain_s is None and first.axis and first.axis == second.axis:
        return True
    both_run = (first.gain_s is None) == (second.gain_s is None)
    return both_run and first.remark == second.remark and bool(first.fix.keys() & second.fix.keys())


@dataclass(frozen=True, slots=True)
class _Offer:
    """A change's device-seconds per token relative to the baseline, at equal work, and its 80% interval's factor;
    ``kept`` is the work that it keeps, of the baseline's."""

    relative: float
    spread: float
    kept: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The fix to keep (empty if none gains), its price, and the price it is compared with. ``step_s``: the training
    step with the fix, at equal work."""

    fix: Fix
    offer: _Offer
    reference: float = 1.0
    step_s: float | None = None


_NO_CHOICE = _Choice(fix={}, offer=_Offer(relative=1.0, spread=1.0, kept=1.0))


def _priced_findings(
    context: Context, suspicions: Sequence[tuple[Rule, Suspicion]], heard: set[tuple[str, int]]
) -> tuple[Finding, ...]:
    """A finding for every suspicion, in order; opportunities that gain nothing are left out. ``heard``: the rules that
    suspect something, switched off or not, and how severe it is."""
    fixes = [fix for _, s in suspicions if not s.blocking for fix in (*s.fixes, *([s.paced_by] if s.paced_by else []))]
    remedies = [s.remedy for _, s in suspicions if s.remedy is not None]
    offers, remedied = _price(context, fixes, remedies)
    findings = (
        _finding(
            context, rule, suspicion, _placed(context, suspicion, _choose(context, suspicion, offers, remedied, heard))
        )
        for rule, suspicion in suspicions
    )
    return tuple(finding for finding in findings if finding is not None)


def _price(
    context: Context, fixes: Iterable[Fix], remedies: Sequence[TransformerShape]
) -> tuple[dict[Key, _Offer], dict[int, _Offer]]:
    """Offers by fix (without those the model cannot run) and by the id of the remedy, all priced in one pass."""
    groups: dict[tuple[str, ...], dict[Key, Fix]] = {}
    for fix in fixes:
        groups.setdefault(tuple(sorted(fix)), {})[_key_of(fix)] = fix
    changes = [change for group in groups.values() for change in _changes(context, list(group.values()))]
    plain = [_whole(context, shape) for shape in remedies]
    prices = _relative(context, [*changes, *plain])
    offers = {
        key: offer
        for change, priced in zip(changes, prices, strict=False)
        for key, offer in _by_fix(change, priced).items()
    }
    remedied = (_Offer(*map(float, remedy)) for remedy in prices[len(changes) :])
    return offers, {id(shape): offer for shape, offer in zip(remedies, remedied, strict=True)}


def _key_of(fix: Fix) -> Key:
    """A fix as a dictionary key."""
    return tuple(sorted(fix.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A workload with some fields changed to arrays, one entry per fix; no fixes if it is a remedy's shape."""

    fixes: tuple[Fix, ...]
    workload: Workload
    dims: ParallelDims
    of_shape: bool
    graph: OperatorGraph


def _changes(context: Context, fixes: list[Fix]) -> list[_Change]:
    """Fixes of the same fields as one change, or one by one if some of them are invalid."""
    columns = {name: np.array([fix[name] for fix in fixes]) for name in fixes[0]}
    try:
        workload, split, of_shape = changed(context.workload, context.priced_dims, columns)
        graph = lower(workload, split, context.kernels)
    except InputError:
        return [] if len(fixes) == 1 else [change for fix in fixes for change in _changes(context, [fix])]
    return [_Change(fixes=tuple(fixes), workload=workload, dims=split, of_shape=bool(of_shape), graph=graph)]


def _whole(context: Context, shape: TransformerShape) -> _Change:
    workload, dims = replace(context.workload, shape=shape), context.priced_dims
    return _Change(fixes=(), workload=workload, dims=dims, of_shape=False, graph=lower(workload, dims, context.kernels))


def _by_fix(change: _Change, priced: tuple[Any, Any, Any]) -> dict[Key, _Offer]:
    fits = feasible(change.workload.shape, change.dims)
    *columns, fits = (np.broadcast_to(column, (len(change.fixes),)) for column in (*priced, fits))
    return {
        _key_of(fix): _Offer(*(float(column[i]) for column in columns)) for i, fix in enumerate(change.fixes) if fits[i]
    }


def changed(workload: Workload, dims: ParallelDims, changes: JsonMap) -> tuple[Workload, ParallelDims, frozenset[str]]:
    """Workload and dims with some fields changed (to numbers or arrays), and which of those are shape fields."""
    of_workload = {name: value for name, value in changes.items() if name in WORKLOAD_FIELDS}
    of_dims = {name: value for name, value in changes.items() if name in DIMS_FIELDS}
    of_shape = {name: value for name, value in changes.items() if name not in (*WORKLOAD_FIELDS, *DIMS_FIELDS)}
    shape = edit(workload.shape, **of_shape) if of_shape else workload.shape
    return replace(workload, shape=shape, **of_workload), replace(dims, **of_dims), frozenset(of_shape)


def _relative(context: Context, changes: Sequence[_Change]) -> list[tuple[Any, Any, Any]]:
    """The fields of ``_Offer`` for each change."""
    after = price_all([change.graph for change in changes], context.gpu, context.calibration)
    return [_offered(context, change, estimate) for change, estimate in zip(changes, after, strict=True)]


def _offered(context: Context, change: _Change, after: Estimate) -> tuple[Any, Any, Any]:
    before, dims = context.baseline, change.dims
    if context.run is not None:
        before, after = context.run.in_step(before), context.run.in_step(after)
    time = _per_token(after, after.time_s, dims) / _per_token(before, before.time_s, context.priced_dims)
    work = _per_token(after, after.matmul_flops, dims) / _per_token(before, before.matmul_flops, context.priced_dims)
    work_left = work_kept(work, *_size_ratios(context, change)) if change.of_shape else 1.0
    compared = compare(before, after)
    return time / work_left, compared.high / compared.speedup, work_left


def _size_ratios(context: Context, change: _Change) -> tuple[Floats, Floats]:
    """Parameters over the baseline's: all, and those that one token uses."""
    now, then = count_params(context.shape), count_params(change.workload.shape)
    return then.total / now.total, then.active / now.active


def _per_token(estimate: Estimate, amount: Floats, dims: ParallelDims) -> Floats:
    return amount * dims.tp / estimate.graph.tokens


def _choose(
    context: Context,
    suspicion: Suspicion,
    offers: Mapping[Key, _Offer],
    remedied: Mapping[int, _Offer],
    heard: set[tuple[str, int]],
) -> _Choice:
    if suspicion.blocking:
        return replace(_NO_CHOICE, fix=next(_that_help(context, suspicion, heard), {}))
    if suspicion.remedy is not None:
        return _Choice(fix={}, offer=remedied[id(suspicion.remedy)])
    paced = offers.get(_key_of(suspicion.paced_by)) if suspicion.paced_by else None
    reference = paced.relative if paced else 1.0
    runnable = [fix for fix in suspicion.fixes if _key_of(fix) in offers]
    saved = {_key_of(fix): reference - offers[_key_of(fix)].relative for fix in runnable}
    gaining = [fix for fix in runnable if saved[_key_of(fix)] > ROUNDING]
    enough = NEARLY_AS_GOOD * max(saved.values(), default=0.0)
    # Fixes come nearest first: those nearly as good as the best keep that order, the others follow by gain.
    ranked = sorted(gaining, key=lambda fix: -round(min(saved[_key_of(fix)], enough) / ROUNDING))
    for fix in [] if suspicion.required else ranked:
        if not _breaks(context, fix, suspicion, heard):
            return _Choice(fix=fix, offer=offers[_key_of(fix)], reference=reference)
    if suspicion.required and runnable:
        return _Choice(fix=runnable[0], offer=offers[_key_of(runnable[0])], reference=reference)
    return _NO_CHOICE


def _placed(context: Context, suspicion: Suspicion, choice: _Choice) -> _Choice:
    """The choice with the training step of its shape and axes of the plan: a microbatch's ratio says neither which
    stage becomes the slowest nor which traffic stays hidden, nor whether it fits."""
    run = context.run
    if run is None or suspicion.blocking or choice.reference != 1.0 or "seq_len" in choice.fix:
        return choice
    if not choice.fix and suspicion.remedy is None:
        return choice
    axes = {name: value for name, value in choice.fix.items() if name in (*WORKLOAD_FIELDS, *DIMS_FIELDS)}
    of_shape = axes.keys() != choice.fix.keys()
    shape = changed(context.workload, context.dims, choice.fix)[0].shape if of_shape else None
    after_s = run.step_with(suspicion.remedy or shape, axes)
    if after_s is None:
        return _NO_CHOICE if axes else choice
    return replace(choice, step_s=after_s / choice.offer.kept)


def _that_help(context: Context, suspicion: Suspicion, heard: set[tuple[str, int]]) -> Iterator[Fix]:
    """Without a working baseline there is no gain: the nearest fixes that break no other rule, then the others."""
    others = []
    for fix in suspicion.fixes:
        if _breaks(context, fix, suspicion, heard):
            others.append(fix)
        else:
            yield fix
    yield from others


def _breaks(context: Context, fix: Fix, suspicion: Suspicion, heard: set[tuple[str, int]]) -> bool:
    """Whether the fix triggers a new finding as severe as the suspicion (at least a warning)."""
    threshold = max(suspicion.grade.severity, Grade.WARN.severity)
    workload, dims, _ = changed(context.workload, context.dims, fix)
    after = replace(context, workload=workload, dims=dims)
    before = {name for name, severity in heard if severity >= threshold}
    loud = (rule for rule in RULES if rule.worst.severity >= threshold and rule.name not in before)
    return any(hint.grade.severity >= threshold for rule in loud for hint in rule.check(after))


def _finding(context: Context, rule: Rule, suspicion: Suspicion, choice: _Choice) -> Finding | None:
    busy_s = whole_s = float(context.baseline.time_s) * choice.reference
    if context.run is not None:
        busy_s, whole_s = context.run.whole.busy_s, context.run.whole.step_s

    def gained_s(relative: float) -> float:
        if choice.step_s is not None:
            return whole_s - choice.step_s * relative / choice.offer.relative
        return 0.0 if of_devices else busy_s * (1.0 - relative / choice.reference)

    # Fewer devices for a pass of inference leave others free, but its time is no shorter.
    of_devices = bool(choice.fix.keys() & set(DIMS_FIELDS)) and context.workload.phase is not Phase.TRAIN
    spared = max(0.0, 1.0 - choice.offer.relative / choice.reference) if of_devices else 0.0
    gain_s = gained_s(choice.offer.relative)
    gain_s = gain_s if gain_s > ROUNDING * whole_s else 0.0
    fraction = gain_s / whole_s
    if suspicion.advisory and max(fraction, spared) < LEAST_GAIN:
        return None
    demoted = max(fraction, spared) < LEAST_GAIN and not (suspicion.blocking or suspicion.required)
    fix = as_set(context.shape, choice.fix)
    finding = Finding(
        rule=rule.name,
        code=rule.code,
        grade=Grade.INFO if demoted else suspicion.grade if rule.remark else suspicion.grade.of(fraction),
        message=suspicion.message,
        operator=suspicion.operator,
        field=suspicion.field,
        value=suspicion.value,
        gain_s=gain_s,
        gain_fraction=fraction,
        fix=fix,
        params_change=_params_change(context, fix),
        device_seconds_spared=spared,
        gain_low_s=gained_s(choice.offer.relative * choice.offer.spread),
        gain_high_s=gained_s(choice.offer.relative / choice.offer.spread),
        source=context.baseline.source,
        remark=rule.remark,
        axis=suspicion.axis if suspicion.blocking else "",
    )
    if suspicion.blocking:
        return replace(finding, gain_s=None, gain_fraction=None, gain_low_s=None, gain_high_s=None)
    return finding


def as_set(shape: TransformerShape, fix: Fix) -> dict[str, int]:
    """The fix as ``--set`` takes it, which would make heads that fill the hidden size fill it again."""
    fields = dict(fix)
    if {"num_heads", "hidden_size"} & fix.keys() and "head_dim" in shape.fields() and "head_dim" not in fix:
        heads, hidden = (int(fix.get(name, getattr(shape, name))) for name in ("num_heads", "hidden_size"))
        width = int(shape.head_dim)
        if shape.num_heads * width == shape.hidden_size and heads * width != hidden:
            fields["head_dim"] = width
    return fields


def _params_change(context: Context, fix: Fix) -> float:
    """Share of its parameters that the model gains with a fix."""
    after, _, of_shape = changed(context.workload, context.dims, fix)
    return float(count_params(after.shape).total / count_params(context.shape).total) - 1.0 if of_shape else 0.0
