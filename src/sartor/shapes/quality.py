"""Published evidence on model quality as bounds around the baseline, each with its source.

The search compares shapes of equal size, because loss depends first on size and little on shape, within limits (Kaplan
et al. 2020). The guard keeps candidates within the range of that evidence, and every candidate reports which quantities
changed, by how much, and where the evidence ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.errors import InputError
from sartor.units import Bools

Fields = Mapping[str, Any]
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
    experts: float = 0.25
    """Number of experts, up or down."""
    active: float = 0.05
    """Parameters used per token, up or down (mixtures of experts)."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.width) and 0 <= self.width <= 4):
            raise InputError("evidence", self.width, "the width of the quality guard must be from 0 to 4", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One quantity, its bounds, and the evidence for it."""

    name: str
    needs: tuple[str, ...]
    """Fields it is computed from; models without them are not checked."""
    quantity: Callable[[Fields], Any]
    factors: Callable[[QualityGuard], tuple[float, float]]
    """Least and greatest factor on the baseline's value."""
    published: tuple[float, float] | None
    """Range over published models; None if unknown."""
    source: str


def _around(share: float) -> tuple[float, float]:
    share = min(share, 0.9)
    return 1 - share, 1 + share


def _factor(factor: float, width: float) -> tuple[float, float]:
    return factor**-width, factor**width


_ZOO = "86 published decoders, sartor's zoo (2026-11)"

CRITERIA: tuple[Criterion, ...] = (
    Criterion(
        name="num_layers",
        needs=("num_layers",),
        quantity=lambda f: f["num_layers"],
        factors=lambda g: _around(g.depth * g.width),
        published=None,
        source="Kaplan et al. 2020 (arXiv 2001.08361) fig. 5: at fixed size loss moves by a few percent over a wide "
        "range of shapes (up to 1.5B parameters); MobileLLM (arXiv 2402.14905): below 1B deeper is better",
    ),
    Criterion(
        name="hidden_size_per_layer",
        needs=("hidden_size", "num_layers"),
        quantity=lambda f: f["hidden_size"] / f["num_layers"],
        factors=lambda g: _factor(1 + g.aspect, g.width),
        published=(19.0, 205.0),
        source="Kaplan et al. 2020 sec. 3.1: a 40-fold aspect ratio costs under 3% loss; Levine et al. 2020 "
        f"(arXiv 2006.12467): too much depth for the width costs more than too little; range: {_ZOO}",
    ),
    Criterion(
        name="num_heads",
        needs=("num_heads",),
        quantity=lambda f: f["num_heads"],
        factors=lambda g: _factor(g.heads, g.width),
        published=(8.0, 232.0),
        source="Vaswani et al. 2017 table 3 (A): BLEU within 0.3 from 4 to 16 heads, 0.9 worse with one; Michel et al. "
        f"2019 (arXiv 1905.10650): most heads can be removed after training; range: {_ZOO} from 1B up",
    ),
    Criterion(
        name="head_dim",
        needs=("head_dim",),
        quantity=lambda f: f["head_dim"],
        factors=lambda g: (0.0, math.inf),
        published=(64.0, 256.0),
        source="Kaplan et al. 2020 fig. 5: loss nearly flat in head dimension; Bhojanapalli et al. 2020 "
        f"(arXiv 2002.07028): small head dimensions bound the rank of attention; range: {_ZOO}",
    ),
    Criterion(
        name="heads_per_kv_head",
        needs=("num_heads", "num_kv_heads"),
        quantity=lambda f: f["num_heads"] / f["num_kv_heads"],
        factors=lambda g: _factor(g.kv_group, g.width),
        published=(1.0, 16.0),
        source="GQA (arXiv 2305.13245): 8 key/value heads near multi-head quality, 1 below it (T5-XXL, 64 heads); "
        f"range: {_ZOO} without the multi-query ones",
    ),
    Criterion(
        name="kv_elements_per_token",
        needs=("num_layers", "num_kv_heads", "head_dim"),
        quantity=lambda f: 1.0 * f["num_layers"] * f["num_kv_heads"] * f["head_dim"],
        factors=lambda g: (1 - min(g.kv_width * g.width, 0.9), math.inf),
        published=None,
        source="No controlled study at fixed size; the guard allows only a small decrease",
    ),
    Criterion(
        name="attention_width_over_hidden",
        needs=("num_heads", "head_dim", "hidden_size"),
        quantity=lambda f: f["num_heads"] * f["head_dim"] / f["hidden_size"],
        factors=lambda g: _around(g.attention_width * g.width),
        published=(0.75, 2.0),
        source=f"Range: {_ZOO} (Gemma 3 27B 0.76, Qwen3 2.0); no controlled study",
    ),
    Criterion(
        name="ffn_over_hidden",
        needs=("ffn_hidden_size", "hidden_size"),
        quantity=lambda f: f["ffn_hidden_size"] / f["hidden_size"],
        factors=lambda g: _around(g.ffn * g.width),
        published=(2.3, 8.0),
        source="Kaplan et al. 2020 fig. 5: loss nearly flat in the feed-forward ratio; Shazeer 2020 (arXiv "
        f"2002.05202): 8h/3 where gated is 4h where plain; range: {_ZOO}, gated (plain ones all have 4)",
    ),
    Criterion(
        name="expert_ffn_over_hidden",
        needs=("expert_ffn_hidden_size", "hidden_size"),
        quantity=lambda f: f["expert_ffn_hidden_size"] / f["hidden_size"],
        factors=lambda g: _around(g.ffn * g.width),
        published=(0.25, 3.5),
        source="Krajewski et al. 2024 (arXiv 2402.07871): finer experts are better at equal compute; range: published "
        "mixtures of experts from DeepSeek-V3 (0.29) to Mixtral (3.5)",
    ),
    Criterion(
        name="num_experts",
        needs=("num_experts",),
        quantity=lambda f: f["num_experts"],
        factors=lambda g: _around(g.experts * g.width),
        published=(8.0, 512.0),
        source="Published mixtures of experts (Mixtral 8, Qwen3-Next 512); routing balance is not modelled",
    ),
)


def allowed(guard: QualityGuard, fields: Fields, baseline: Fields) -> Bools:
    """Where every criterion that ``fields`` has the sizes for is within bounds; broadcasts like the fields."""
    mask: Any = True
    for criterion in judged(fields, baseline):
        low, high = bounds(criterion, guard, baseline)
        value = criterion.quantity(fields)
        mask = mask & (value >= low * (1 - 1e-9)) & (value <= high * (1 + 1e-9))
    return mask  # type: ignore[no-any-return]


def judged(fields: Fields, baseline: Fields) -> tuple[Criterion, ...]:
    """The criteria that apply: both sides have the fields, and none is zero in the baseline."""
    return tuple(c for c in CRITERIA if all(name in fields and baseline.get(name) for name in c.needs))


def bounds(criterion: Criterion, guard: QualityGuard, baseline: Fields) -> tuple[float, float]:
    """Smallest and largest value the guard allows, always including the baseline's own."""
    own = float(criterion.quantity(baseline))
    least, most = criterion.factors(guard)
    low, high = own * least, own * most
    if criterion.published is not None and guard.width <= 1:
        low = max(low, min(criterion.published[0], own))
        high = min(high, max(criterion.published[1], own))
    return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityCheck:
    """One quantity that changed. ``within_evidence``: in the published range, or closer to it than the baseline."""

    name: str
    baseline: float
    value: float
    low: float
    high: float
    within_evidence: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Changed quantities that may affect quality, and whether published evidence covers them."""

    within_evidence: bool
    checks: tuple[QualityCheck, ...]
    notes: tuple[str, ...]


STUDIED_PARAMS = 1.5e9
"""Largest model of the controlled shape study: Kaplan et al. 2020, fig. 5."""


def quality_of(guard: QualityGuard, fields: Fields, baseline: Fields, num_params: float) -> Quality:
    """The evidence about one candidate (scalar fields) of a model with ``num_params`` parameters."""
    checks = tuple(
        _check(criterion, guard, fields, baseline)
        for criterion in judged(fields, baseline)
        if not np.isclose(criterion.quantity(fields), criterion.quantity(baseline), rtol=1e-9)
    )
    shallower = fields["num_layers"] < baseline["num_layers"] and num_params < 1e9
    notes = _notes(checks, fields, baseline, num_params)
    return Quality(
        within_evidence=all(c.within_evidence for c in checks) and not shallower,
        checks=checks,
        notes=notes,
    )


def _check(criterion: Criterion, guard: QualityGuard, fields: Fields, baseline: Fields) -> QualityCheck:
    value, own = float(criterion.quantity(fields)), float(criterion.quantity(baseline))
    low, high = bounds(criterion, guard, baseline)
    default_low, default_high = bounds(criterion, QualityGuard(), baseline)
    return QualityCheck(
        name=criterion.name,
        baseline=own,
        value=value,
        low=low,
        high=high,
        within_evidence=bool(default_low * (1 - 1e-9) <= value <= default_high * (1 + 1e-9)),
        source=criterion.source,
    )


def _notes(checks: tuple[QualityCheck, ...], fields: Fields, baseline: Fields, num_params: float) -> tuple[str, ...]:
    notes: list[str] = []
    if not checks:
        return ("only the vocabulary is padded: rows no token uses",)
    if num_params > STUDIED_PARAMS:
        notes.append(
            "controlled studies of shape end at 1.5B parameters; above, the evidence is what published models chose"
        )
    if fields["num_layers"] < baseline["num_layers"] and num_params < 1e9:
        notes.append("fewer layers in a model below 1B parameters: MobileLLM (arXiv 2402.14905) found deeper better")
    if fields["num_layers"] != baseline["num_layers"]:
        depth = levine_depth(float(fields["hidden_size"]))
        notes.append(
            f"Levine et al. 2020 (arXiv 2006.12467) put the useful depth at hidden size {fields['hidden_size']} near "
            f"{depth:.0f} layers; this has {fields['num_layers']}, the baseline {baseline['num_layers']}"
        )
    return tuple(notes)


def levine_depth(hidden_size: float) -> float:
    """Depth beyond which width pays more: hidden = exp(5.039 + 0.0555 L) (Levine et al. 2020, arXiv 2006.12467)."""
    return max(1.0, (math.log(hidden_size) - 5.039) / 0.0555)
