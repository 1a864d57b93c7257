"""A gated feed-forward width taken from a formula instead of a search.

## What it finds

A gated part whose `ffn_hidden_size`, before it is split, is not a multiple of the fast path's length (error) or of
the preferred one (warning).

## Why it costs

8h/3 keeps a gated part's parameters at 8h^2, but is a whole number only if 3 divides h, and a good one hardly ever:
for h = 4096 it is 10922.67, and 10922 loads two elements at a time. Nothing in the architecture asks for exactly 8/3.

## Example

10922 for h = 4096; good is 11008 = 43 * 256 = 2.6875h (Llama 2 7B).

## Fix

The multiple of 64 (times `tp`) within 3% that is predicted to be fastest at equal work.

## Source

arXiv 2401.14489 (2024-01), section on SwiGLU; stas00/ml-engineering, training/performance (2024): 10922 runs at 272.7
TFLOP/s on H100, neighbours tens of percent faster.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.rules.candidates import around, fixes_of, nearest_first, ragged, within, words
from sartor.rules.rule import Context, Grade, Rule, Suspicion


def untuned_swiglu(context: Context) -> Iterator[Suspicion]:
    part, tp = context.shape.dense_ffn, int(context.dims.tp)
    if part is None or not part.gated:
        return
    width, hidden = int(part.ffn_hidden_size), int(context.shape.hidden_size)
    found = ragged(width, context.alignment)
    if found is None:
        return
    grade, multiple = (Grade.ERROR, tp) if width % tp else found
    good = within(width, context.alignment.preferred * tp)
    yield Suspicion(
        grade=grade,
        message=f"ffn_hidden_size={width} ({width / hidden:.4g} h, gated) is no multiple of {multiple}, which"
        f" {context.gpu.name} wants for {context.dtype.value};"
        f" {words(around(width, context.alignment.preferred * tp))} would be",
        field="ffn_hidden_size",
        value=width,
        operator=context.operator("mlp_gate_up", "mlp_gate"),
        fixes=fixes_of("ffn_hidden_size", nearest_first(good, width), width),
        blocking=width % tp != 0,
    )


RULE = Rule(code="R12", check=untuned_swiglu, worst=Grade.ERROR, page=__doc__ or "")
