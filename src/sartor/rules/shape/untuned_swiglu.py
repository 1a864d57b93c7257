"""A gated feed-forward width from the 8h/3 formula that is misaligned.

## What it finds

A gated feed-forward layer whose `ffn_hidden_size`, before it is split, is not a multiple of the minimum for the fast
path (error) or of the preferred length (warning).

## Why it costs

A width of 8h/3 keeps the parameters at 8h^2, but it is rarely well aligned: for h = 4096 it is 10922.67, and 10922 can
be loaded only two elements at a time. Nothing in the architecture requires exactly 8/3.

## Example

10922 for h = 4096; 11008 = 43 * 256 = 2.6875h (Llama 2 7B) is good.

## Fix

The multiple of 64 (times `tp`) within 3% that is predicted to be fastest for the same work.

## Source

arXiv 2401.14489 (2024-01), section on SwiGLU; stas00/ml-engineering, training/performance (2024): 10922 runs at 272.7
TFLOP/s on H100, nearby widths tens of percent faster.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.operators import Role
from sartor.rules.rule import Context, Grade, Rule, Suspicion, around, fixes_of, misaligned, ragged, within, words


def untuned_swiglu(context: Context) -> Iterator[Suspicion]:
    part, tp = context.shape.dense_ffn, int(context.dims.tp)
    if part is None or not part.gated:
        return
    width, hidden = int(part.ffn_hidden_size), int(context.shape.hidden_size)
    fault = ragged(width, context.alignment)
    if fault is None:
        return
    grade, multiple = (Grade.ERROR, tp) if width % tp else fault
    good = within(width, context.alignment.preferred * tp)
    yield Suspicion(
        grade=grade,
        message=f"{misaligned(context, f'ffn_hidden_size={width} ({width / hidden:.4g} h, gated)', multiple)}."
        f" Use {words(around(width, context.alignment.preferred * tp))}",
        field="ffn_hidden_size",
        value=width,
        operator=context.operator(Role.FFN_UP),
        fixes=fixes_of("ffn_hidden_size", good, width),
        blocking=width % tp != 0,
        axis="tp",
    )


RULE = Rule(code="R12", check=untuned_swiglu, worst=Grade.ERROR, page=__doc__ or "")
