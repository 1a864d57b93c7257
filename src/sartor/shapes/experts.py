"""Mixtures of experts of equal total and active parameters: experts, experts per token, shared experts, expert width.

A token uses its experts and the shared ones; the model holds all. With one expert's width w, experts E, experts per
token k and a shared width S, both k w + S and E w + S stay, so none of the fields can change alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from sartor.model.counts import count_params
from sartor.model.editing import edit
from sartor.model.shape import TransformerShape
from sartor.shapes.frozen import EXPERT_FIELDS
from sartor.units import IntArray

MOST_SHARED = 4
"""Most shared experts that a published model counts (DeepSeekMoE's ablation, arXiv 2401.06066, tries 1, 2 and 4)."""


def equal_mixes(
    shape: TransformerShape,
    free: Collection[str],
    *,
    step: int,
    grain: int,
    finest: float,
    tolerance: float,
) -> dict[str, IntArray]:
    """Expert fields of the baseline (first) and of all mixes [N] that keep total and active parameters within
    ``tolerance``: experts in multiples of ``step``, widths in multiples of ``grain``, experts at most ``finest`` times
    narrower or wider; fields that are not ``free`` stay."""
    own = {name: int(value) for name, value in shape.fields().items() if name in EXPERT_FIELDS}
    asked = [own, *_mixes(own, step, grain, finest)]
    rows = [row for row in asked if all(row[name] == own[name] for name in own if name not in free)]
    mixes = {name: np.asarray([row[name] for row in rows], dtype=np.int64) for name in own}
    if len(rows) == 1:
        return mixes
    counts, base = count_params(edit(shape, **mixes)), count_params(shape)
    same = np.ones(len(rows), dtype=np.bool_)
    for count, before in ((counts.total, base.total), (counts.active, base.active)):
        same &= np.abs(count / before - 1) <= tolerance
    same[0] = True
    return {name: values[same] for name, values in mixes.items()}


def _mixes(own: Mapping[str, int], step: int, grain: int, finest: float) -> Iterator[dict[str, int]]:
    """Mixes near the two equations, rounded to whole steps and grains."""
    experts, k, width = (own[name] for name in EXPERT_FIELDS[:3])
    for chosen in range(1, math.floor(finest * k) + 1):
        for shared, wide in _shared(own, chosen):
            for each in _near(wide, grain):
                if not 1 / finest <= each / width <= finest:
                    continue
                held = shared.get("num_shared_experts", 0) * each + shared.get("shared_ffn_hidden_size", 0)
                for count in _near((experts * width + _shared_width(own) - held) / each, step):
                    row = dict(zip(EXPERT_FIELDS, (count, chosen, each), strict=False)) | shared
                    if count >= chosen and row != own:
                        yield row


def _shared(own: Mapping[str, int], chosen: int) -> Iterator[tuple[dict[str, int], float]]:
    """Shared experts with ``chosen`` routed ones, and the expert width that keeps the active parameters."""
    k, width = own["experts_per_token"], own["expert_ffn_hidden_size"]
    active = k * width + _shared_width(own)
    if "num_shared_experts" in own:
        for count in range(1, max(MOST_SHARED, own["num_shared_experts"]) + 1):
            yield {"num_shared_experts": count}, active / (chosen + count)
    elif "shared_ffn_hidden_size" in own:
        for moved in range(1 - k, k):
            if (wide := own["shared_ffn_hidden_size"] + moved * width) > 0:
                yield {"shared_ffn_hidden_size": wide}, (active - wide) / chosen
    else:
        yield {}, active / chosen


def _shared_width(own: Mapping[str, int]) -> int:
    return own.get("num_shared_experts", 0) * own["expert_ffn_hidden_size"] + own.get("shared_ffn_hidden_size", 0)


def _near(value: float, step: int) -> tuple[int, ...]:
    """The multiples of ``step`` around a positive value."""
    low = math.floor(value / step) * step
    return tuple(each for each in dict.fromkeys((low, math.ceil(value / step) * step)) if each > 0)
