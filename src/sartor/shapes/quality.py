"""Published evidence on model quality as bounds around the baseline, each with its source.

The search compares shapes of equal size, because loss depends first on size and little on shape, within limits (Kaplan
et al. 2020). The guard keeps candidates within the range of that evidence, and every candidate reports which quantities
changed, by how much, and where the evidence ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from sartor.bounded import packaged_toml
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.model.counts import count_params
from sartor.model.layer import AttentionMixer
from sartor.model.shape import TransformerShape
from sartor.units import Bools, Floats, format_count

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


OF_DENSE = {"vocab_size", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_hidden_size"}
"""Fields whose effect on the loss is known; padded rows of a vocabulary are never targets."""
OF_EXPERTS = {"num_experts", "experts_per_token", "expert_ffn_hidden_size", "num_shared_experts"}
"""Those of a mixture: its granularity (DeepSeekMoE, arXiv 2401.06066: 1, 2 or 4 shared experts are equal)."""
STUDY_TOKENS = 1e11
"""Tokens of most studies, at which the loss is taken of which the feed-forward's term is a share."""


@cache
def _loss_law() -> JsonDict:
    return packaged_toml("shapes", "loss_law.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossChange:
    """Expected change of the training loss at equal tokens [nats per token], with its interval; numbers or arrays."""

    nats: Floats
    low_nats: Floats
    high_nats: Floats
    terms: Mapping[str, Floats]
    """Its parts that are not zero [nats], by the terms of `loss_law.toml`."""
    not_covered: tuple[str, ...]
    """Changed fields about whose effect no study says enough; they count as none."""


def loss_change(after: TransformerShape, before: TransformerShape) -> LossChange:
    """What the shape ``after`` (sizes that are numbers or arrays) in place of ``before`` does to the loss, by published
    laws of size, depth against width, the feed-forward's share, heads and the granularity of experts. Their
    coefficients' errors are independent."""
    new, old = (_quantities(shape, before) for shape in (after, before))
    moves = {name: new[name] - old[name] for name in new.keys() & old.keys()}
    terms: dict[str, Floats] = {}
    below, above = np.float64(0), np.float64(0)
    for term in _loss_law()["terms"]:
        if (name := term["name"]) in moves:
            move = moves[name] if term["credit"] else np.maximum(moves[name], 0.0)
            low, high = (move * (term[end] - term["value"]) for end in ("low", "high"))
            below, above = below + np.minimum(low, high) ** 2, above + np.maximum(low, high) ** 2
            terms[name] = term["value"] * move
    nats = sum(terms.values())
    fields, baseline = after.fields(), before.fields()
    covered = OF_DENSE | (OF_EXPERTS if "num_experts" in baseline else set())
    return LossChange(
        nats=nats,
        low_nats=nats - np.sqrt(below),
        high_nats=nats + np.sqrt(above),
        terms={name: value for name, value in terms.items() if np.any(value)},
        not_covered=tuple(name for name in fields if name not in covered and np.any(fields[name] != baseline[name])),
    )


def doubt(after: TransformerShape, before: TransformerShape, num_params: float, saved: float) -> str:
    """Why not to have the shape ``after`` in place of ``before`` though it saves a share of the time: published models
    have no such sizes, controlled studies found it worse, or its loss is surely worth more than what it saves, spent on
    tokens (20 per parameter). Empty where none holds."""
    moved = quality_of(QualityGuard(), after.fields(), before.fields(), num_params).moved
    for check in moved:
        if not check.within_evidence:
            known = f"{check.low:.4g} to {check.high:.4g}"
            return f"published models of its size have {check.name} of {known}, not {check.value:.4g}"
    if worse := [check.name for check in moved if check.adverse]:
        return f"controlled studies found such a change of {worse[0]} worse"
    loss, gained = float(loss_change(after, before).low_nats), -math.log1p(-saved) * nats_per_efold(20 * num_params)
    return f"the loss rises by {loss:.3f} nats or more, {gained:.3f} is what its speed buys" if loss > gained else ""


def _quantities(shape: TransformerShape, before: TransformerShape) -> dict[str, Floats]:
    """What each term of the law multiplies, of a shape beside the shape ``before``; without those it has no sizes
    for."""
    params, own = (np.asarray(count_params(one).total, dtype=float) for one in (shape, before))
    layers, hidden = (np.asarray(size, dtype=float) for size in (shape.num_layers, shape.hidden_size))
    size = _loss_law()["size"]
    quantities: dict[str, Floats] = {
        "size": (params / 1e9) ** -size["parameters_exponent"],
        "depth": 1 / layers,
        "narrowness": layers / hidden,
    }
    attention, dense, moe = shape.attention, shape.dense_ffn, shape.moe_ffn
    if isinstance(attention, AttentionMixer):
        heads, kv, dim = (np.asarray(x, dtype=float) for x in (shape.num_heads, shape.num_kv_heads, shape.head_dim))
        beyond = np.maximum.reduce(np.broadcast_arrays(dim / 128, 32 / dim, 8 / heads, 1.0))
        quantities |= {"kv_heads": np.log2(heads / kv), "heads": np.log2(beyond) ** 2}
        if dense is not None and moe is None:
            share = (2 + dense.gated) * np.asarray(dense.ffn_hidden_size) / (2 * (heads + kv) * dim)
            share = np.maximum(share, 0.5)
            quantities["feed_forward_share"] = expected_loss(own, STUDY_TOKENS) * (np.log(share) + 1.12 / share)
    if moe is not None:
        grains = 4 * hidden / np.asarray(moe.expert.ffn_hidden_size)
        quantities["granularity"] = 2.1 * grains**-0.58 * own**-0.115
    return quantities


def expected_loss(num_params: Floats, tokens: float) -> Floats:
    """Training loss of a well-shaped model [nats per token], on the data of Gemstones."""
    size = _loss_law()["size"]
    of_size = size["parameters_1b"] * (np.asarray(num_params) / 1e9) ** -size["parameters_exponent"]
    return size["constant"] + of_size + size["tokens_100b"] * (tokens / 1e11) ** -size["tokens_exponent"]  # type: ignore[no-any-return]


def nats_per_efold(tokens: float) -> float:
    """What e times as many tokens take off the loss, at the margin [nats]."""
    size = _loss_law()["size"]
    return float(size["tokens_exponent"] * size["tokens_100b"] * (tokens / 1e11) ** -size["tokens_exponent"])
