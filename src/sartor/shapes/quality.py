"""Published evidence on model quality as bounds around the baseline, each with its source.

The search compares shapes of equal size, because loss depends first on size and little on shape, within limits (Kaplan
et al. 2020). The guard keeps candidates within the range of that evidence, and every candidate reports which quantities
changed, by how much, and where the evidence ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from sartor.bounded import packaged_toml
from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.units import Bools, format_count

Fields = JsonMap
"""Shape fields by glossary name, each a number or an array of candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityGuard:
    """How far a candidate may differ from the baseline; relative unless stated otherwise.

    ``width`` scales every relative bound: 0.5 is half as wide, 0 allows only vocabulary padding. Above 1, values may
    leave the range of published models, and such candidates are marked as outside the evidence.
    """

    width: float = 1.0
    depth: float = 0.25
    """Layers, up or down."""
    aspect: float = 0.5
    """Hidden size per layer, up; down to 1 / (1 + aspect)."""
    heads: float = 2.0
    """Factor on the number of query heads, up or down."""
    kv_group: float = 2.0
    """Factor on query heads per key/value head, up or down. A multi-head model stays one."""
    kv_width: float = 0.25
    """How far the key/value cache per token may shrink, over all layers."""
    attention_width: float = 0.25
    """heads * head_dim / hidden size, up or down."""
    ffn: float = 0.25
    """Feed-forward width over hidden size, up or down."""
    experts: float = 2.0
    """Factor on the number and the width of experts, up or down."""
    coarser: bool = False
    """Whether experts may move away from the granularity that controlled studies found best."""
    ranks: float = 0.25
    """Ranks of latent attention, up or down."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.width) and 0 <= self.width <= 4):
            raise InputError("evidence", self.width, "the width of the quality guard must be from 0 to 4", "1")


def freed_guard(guard: QualityGuard, free: Sequence[str]) -> QualityGuard:
    """The guard where experts may be coarser if their number per token is free."""
    return replace(guard, coarser=guard.coarser or "experts_per_token" in free)


ROUNDED = 0.01
"""Relative change that is rounding to a tile, as of experts from 701 to 704: no study resolves it."""


class Evidence(Enum):
    """Evidence for a change's effect on quality. ``KNOWN``: a controlled study of models this large covers it.
    ``EXTRAPOLATED``: published models of this shape, or controlled studies of smaller ones only. ``OUTSIDE``: neither.
    """

    KNOWN = "known"
    EXTRAPOLATED = "extrapolated"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Criterion:
    """One quantity, the product of the fields ``over`` divided by that of the fields ``under``, with its bounds and the
    evidence for it."""

    name: str
    over: tuple[str, ...]
    under: tuple[str, ...] = ()
    around: str = ""
    """Guard field with the share by which it may change, up or down."""
    factor: str | float = ""
    """Guard field with the factor by which it may change, or the factor itself."""
    growth: str = ""
    """Guard field with the share by which it may grow; it may shrink by the same factor."""
    shrink: str = ""
    """Guard field with the share by which it may shrink; growth is not limited."""
    published: tuple[float, float] | None = None
    """Range over published models; None if unknown."""
    best: tuple[float, float] | None = None
    """Range that controlled studies found best (None: unknown); changes away from it are only offered on request."""
    studied_params: float = 0.0
    """Parameters of the largest model in a controlled study; 0: there is none."""
    source: str

    @property
    def needs(self) -> tuple[str, ...]:
        """Fields it is computed from; models without them are not checked."""
        return (*self.over, *self.under)

    def factors(self, guard: QualityGuard) -> tuple[float, float]:
        """Least and greatest factor on the baseline's value."""
        if self.around or self.shrink:
            share = min(getattr(guard, self.around or self.shrink) * guard.width, 0.9)
            return 1 - share, 1 + share if self.around else math.inf
        if not (self.growth or self.factor):
            return 0.0, math.inf
        factor = self.factor if isinstance(self.factor, float) else getattr(guard, self.factor or self.growth)
        factor = 1 + factor if self.growth else factor
        return factor**-guard.width, factor**guard.width

    def quantity(self, fields: Fields) -> Any:
        """Its value; broadcasts like the fields."""
        return math.prod((fields[name] for name in self.over), start=1.0) / math.prod(fields[f] for f in self.under)


@cache
def criteria() -> tuple[_Criterion, ...]:
    """Every quantity with its bounds and evidence."""
    table, lists = packaged_toml("shapes", "criteria.toml"), ("over", "under", "published", "best")
    return tuple(_Criterion(**row | {key: tuple(row[key]) for key in lists if key in row}) for row in table["criteria"])


def allowed(guard: QualityGuard, fields: Fields, baseline: Fields) -> Bools:
    """Where every criterion that ``fields`` has the sizes for is within bounds; broadcasts like the fields."""
    mask: Any = True
    for criterion in judged(fields, baseline):
        low, high = bounds(criterion, guard, baseline)
        value = criterion.quantity(fields)
        mask = mask & (value >= low * (1 - 1e-9)) & (value <= high * (1 + 1e-9))
    return mask  # type: ignore[no-any-return]


def judged(fields: Fields, baseline: Fields) -> tuple[_Criterion, ...]:
    """The criteria that apply: both sides have the fields, and none is zero in the baseline."""
    return tuple(c for c in criteria() if all(name in fields and baseline.get(name) for name in c.needs))


def bounds(criterion: _Criterion, guard: QualityGuard, baseline: Fields) -> tuple[float, float]:
    """Smallest and largest value the guard allows, always including the baseline's own."""
    center = float(criterion.quantity(baseline))
    low_factor, high_factor = criterion.factors(guard)
    low, high = center * low_factor, center * high_factor
    if guard.width <= 1:
        for range_, slack in ((criterion.published, 0.0), (None if guard.coarser else criterion.best, ROUNDED)):
            if range_ is not None:
                low, high = (
                    max(low, min(range_[0], center * (1 - slack))),
                    min(high, max(range_[1], center * (1 + slack))),
                )
    return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityCheck:
    """One quantity, before and after. ``low`` to ``high`` is what the guard allows; ``within_evidence``: in the range
    of published models, or closer to it than the baseline."""

    name: str
    baseline: float
    value: float
    low: float
    high: float
    studied_params: float
    evidence: Evidence
    within_evidence: bool
    adverse: bool
    """Whether it moves away from the range that controlled studies found best."""
    source: str

    @property
    def moved(self) -> bool:
        return not np.isclose(self.value, self.baseline, rtol=1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Effects on quality: every quantity with evidence, and the weakest evidence among those that changed."""

    evidence: Evidence
    within_evidence: bool
    studied_params: float
    """Parameters up to which controlled studies cover all changed quantities; 0: some was never studied."""
    checks: tuple[QualityCheck, ...]
    notes: tuple[str, ...]

    @property
    def moved(self) -> tuple[QualityCheck, ...]:
        """The checks of the quantities that changed."""
        return tuple(check for check in self.checks if check.moved)

    @property
    def adverse(self) -> bool:
        """Whether controlled studies found such a change worse."""
        return any(check.adverse for check in self.checks)


def quality_of(guard: QualityGuard, fields: Fields, baseline: Fields, num_params: float) -> Quality:
    """The evidence about one candidate (scalar fields) of a model with ``num_params`` parameters."""
    checks = tuple(_check(criterion, guard, fields, baseline, num_params) for criterion in judged(fields, baseline))
    moved = [check for check in checks if check.moved]
    shallower = fields["num_layers"] < baseline["num_layers"] and num_params < 1e9
    weakest = [*(check.evidence for check in moved), *([Evidence.OUTSIDE] if shallower else [])]
    return Quality(
        evidence=max(weakest, key=list(Evidence).index, default=Evidence.KNOWN),
        within_evidence=all(check.within_evidence for check in moved) and not shallower,
        studied_params=min((check.studied_params for check in moved), default=num_params),
        checks=checks,
        notes=_notes(moved, fields, baseline, num_params),
    )


def _check(
    criterion: _Criterion, guard: QualityGuard, fields: Fields, baseline: Fields, num_params: float
) -> QualityCheck:
    value, center = float(criterion.quantity(fields)), float(criterion.quantity(baseline))
    (low, high), (low_factor, high_factor) = (
        bounds(criterion, width_guard, baseline) for width_guard in (guard, QualityGuard())
    )
    within = bool(low_factor * (1 - 1e-9) <= value <= high_factor * (1 + 1e-9))
    covered = Evidence.KNOWN if num_params <= criterion.studied_params else Evidence.EXTRAPOLATED
    return QualityCheck(
        name=criterion.name,
        baseline=center,
        value=value,
        low=low,
        high=high,
        studied_params=criterion.studied_params,
        evidence=covered if within else Evidence.OUTSIDE,
        within_evidence=within,
        adverse=criterion.best is not None and _away(criterion.best, value) > _away(criterion.best, center) + ROUNDED,
        source=criterion.source,
    )


def _away(range_: tuple[float, float], value: float) -> float:
    """How far a value is outside a range, as the logarithm of a factor."""
    return max(0.0, math.log(range_[0] / value), math.log(value / range_[1]))


def _notes(moved: Sequence[QualityCheck], fields: Fields, baseline: Fields, num_params: float) -> tuple[str, ...]:
    if not moved:
        return ("only the vocabulary is padded: rows no token uses",)
    notes = [f"{check.name} moves away from what controlled studies found best" for check in moved if check.adverse]
    notes += [_reach(check, num_params) for check in moved if num_params > check.studied_params]
    if fields["num_layers"] < baseline["num_layers"] and num_params < 1e9:
        notes.append("fewer layers in a model below 1B parameters: MobileLLM (arXiv 2402.14905) found deeper better")
    if fields["num_layers"] != baseline["num_layers"]:
        depth = levine_depth(float(fields["hidden_size"]))
        notes.append(
            f"Levine et al. 2020 (arXiv 2006.12467) put the useful depth at hidden size {fields['hidden_size']} near "
            f"{depth:.0f} layers; this has {fields['num_layers']}, the baseline {baseline['num_layers']}"
        )
    return tuple(notes)


def _reach(check: QualityCheck, num_params: float) -> str:
    """A phrase on how far beyond its evidence a quantity is."""
    if not check.studied_params:
        return f"{check.name}: no controlled study at fixed size; published models of such a shape are the evidence"
    return (
        f"{check.name}: controlled studies end at {format_count(check.studied_params)} parameters; this extrapolates "
        f"to {format_count(num_params)}, {num_params / check.studied_params:.2g} times as many"
    )


def levine_depth(hidden_size: float) -> float:
    """Depth beyond which width pays more: hidden = exp(5.039 + 0.0555 L) (Levine et al. 2020, arXiv 2006.12467)."""
    return max(1.0, (math.log(hidden_size) - 5.039) / 0.0555)
