"""A deep, narrow model that would decode faster with fewer, wider layers.

## What it finds

In decoding: a model that needs less time per token with three quarters, two thirds or half of its layers, widened to
the same parameter count.

## Why it costs

A decode step reads every weight once and launches about ten kernels per layer. Small layers spend more time on
kernel launches than on reading weights, so depth costs launches.

## Example

Pythia 410M has 24 layers of 1024. Pythia 1B, with 16 layers of 2048, decodes faster than the suite's latency trend.

## Fix

Fewer layers, wider by the square root of the ratio, heads in proportion, and the feed-forward width that keeps the
size. Depth may matter for quality: consider this when designing a new model.

## Source

arXiv 2401.14489 (2024-01) covers inference.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log, sqrt

from sartor.model.counts import count_params
from sartor.model.editing import edit
from sartor.model.layer import AttentionMixer
from sartor.model.shape import TransformerShape
from sartor.model.workload import Phase
from sartor.rules.rule import HEAD_DIMS, Context, Fix, Grade, Rule, Suspicion

SHARES = (0.75, 2 / 3, 0.5)
"""Shares of the layers to keep."""
NARROW = 4096
"""Above this hidden size a layer's weights take longer to read than its kernels to launch on every device here."""


def deep_narrow_decode(context: Context) -> Iterator[Suspicion]:
    shape = context.shape
    hidden, layers = int(shape.hidden_size), int(shape.num_layers)
    if context.workload.phase is not Phase.DECODE or hidden >= NARROW or len(shape.main.runs) > 1:
        return
    yield Suspicion(
        grade=Grade.INFO,
        message=f"num_layers={layers} of hidden_size={hidden}: fewer, wider layers with as many parameters decode"
        f" faster on {context.gpu.label} (check model quality)",
        field="num_layers",
        value=layers,
        fixes=tuple(_fixes(context, hidden, layers)),
        advisory=True,
    )


def _fixes(context: Context, hidden: int, layers: int) -> Iterator[Fix]:
    mixer, part = context.shape.attention, context.shape.dense_ffn
    if not isinstance(mixer, AttentionMixer) or part is None:
        return
    tp, grain = int(context.dims.tp), context.grain
    for share in SHARES:
        fewer = max(1, round(layers * share))
        wider = round(hidden * sqrt(layers / fewer) / grain) * grain
        heads = _heads(mixer, hidden, wider, tp) if wider else None
        if not heads:
            continue
        fix = {
            "num_layers": fewer,
            "hidden_size": wider,
            **heads,
            "ffn_hidden_size": max(grain, round(int(part.ffn_hidden_size) * wider / hidden / grain) * grain),
        }
        grouped = mixer.num_kv_heads != mixer.num_heads
        if not grouped or heads["num_heads"] % int(mixer.num_kv_heads) == 0:
            width = _as_large(context.shape, fix, grain)
            if width >= grain:
                yield {**fix, "ffn_hidden_size": width}


def _as_large(shape: TransformerShape, fix: Fix, grain: int) -> int:
    """The feed-forward width that keeps the number of parameters, to the nearest multiple of ``grain``: a wider token
    table takes from it."""
    width = fix["ffn_hidden_size"]
    sizes = (count_params(edit(shape, **{**fix, "ffn_hidden_size": w})).total for w in (width, width + grain))
    before, wider = (float(size) for size in sizes)
    return width + round((float(count_params(shape).total) - before) / (wider - before)) * grain


def _heads(mixer: AttentionMixer, hidden: int, wider: int, tp: int) -> Fix:
    """Heads in proportion to the width. Heads that fill the hidden size still do, at their old width or the nearest
    multiple of 64 that divides; empty if none does."""
    old = int(mixer.head_dim)
    if int(mixer.num_heads) * old != hidden:
        return {"num_heads": max(tp, round(int(mixer.num_heads) * wider / hidden / tp) * tp)}
    for width in sorted({old, *HEAD_DIMS}, key=lambda width: abs(log(width / old))):
        if wider % (width * tp) == 0:
            return {"num_heads": wider // width} | ({"head_dim": width} if width != old else {})
    return {}


RULE = Rule(code="R16", check=deep_narrow_decode, worst=Grade.INFO, page=__doc__ or "", remark=True)
