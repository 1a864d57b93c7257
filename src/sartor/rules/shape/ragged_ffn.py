"""A feed-forward width whose tensor-parallel shard is misaligned for the tensor cores.

## What it finds

`ffn_hidden_size / tp` that is not a multiple of the minimum for the fast path (error), of the preferred length
(warning) or of 128 (information). The rule `untuned_swiglu` covers gated widths that are ragged before they are split.

## Why it costs

The width is *n* of the up projection and *k* of the down projection, together most of a layer's FLOPs. A shard of
1376 = 21.5 x 64 still allows 32-element loads but ends every row of tiles in half a tile.

## Example

11008 / 8 = 1376 (Llama 2 7B at `tp=8`); 14336 / 8 = 1792 is good.

## Fix

The nearest multiple of `tp` times 64, 128 or 256, whichever is predicted to be fastest for the same work.

## Source

Successor to arXiv 2401.14489's rules; DeepSpeed PR 6828 (2024-12) uses 64 as grain of shards.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.operators import Role
from sartor.rules.rule import Context, Grade, Rule, Suspicion, around, fixes_of, misaligned, ragged, within, words


def ragged_ffn(context: Context) -> Iterator[Suspicion]:
    part, tp = context.shape.dense_ffn, int(context.dims.tp)
    if part is None:
        return
    width = int(part.ffn_hidden_size)
    if part.gated and width % tp == 0 and ragged(width, context.alignment):
        return
    grade, multiple = _grade(context, width, tp)
    if grade is None:
        return
    near = {*around(width, multiple * tp), *within(width, context.alignment.preferred * tp)}
    good = {value for value in near if _grade(context, value, tp)[0] is None} or near
    fixes = fixes_of("ffn_hidden_size", good, width)
    use = sorted(fix["ffn_hidden_size"] for fix in fixes[:2]) if width % tp else around(width, multiple * tp)
    shard = f" / tp={tp} = {width / tp:g}" if tp > 1 else ""
    yield Suspicion(
        grade=grade,
        message=f"{misaligned(context, f'ffn_hidden_size={width}{shard}', multiple)}. Use {words(use, width)}",
        field="ffn_hidden_size",
        value=width,
        operator=context.operator(Role.FFN_DOWN),
        fixes=fixes,
        blocking=width % tp != 0,
        axis="tp",
    )


def _grade(context: Context, width: int, tp: int) -> tuple[Grade | None, int]:
    if width % tp:
        return Grade.ERROR, context.alignment.minimum
    grade = ragged(width // tp, context.alignment)
    if grade is not None:
        return grade
    return (Grade.INFO if (width // tp) % context.grain else None), context.grain


RULE = Rule(code="R6", check=ragged_ffn, worst=Grade.ERROR, page=__doc__ or "")
