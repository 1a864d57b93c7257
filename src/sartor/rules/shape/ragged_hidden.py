"""A hidden size, or its tensor-parallel shard, that is misaligned for the tensor cores.

## What it finds

`hidden_size` that is not a multiple of the minimum for the fast path (error) or of the preferred length (warning), and
attention shards `num_heads * head_dim / tp` that are not (warning). Tensor parallelism splits the total width of the
heads, which is the hidden size in most models; where it differs (decoupled heads), the rule looks at the heads.

## Why it costs

The hidden size is *k* of the QKV and up projections and *n* of the projections back; the shard is *k* of the
attention's output projection.

## Example

1600 / 8 = 200 is divisible by 8 only; 5140 (GPT-3 13B as printed) by 4 only. 8192 / 8 = 1024 is good.

## Fix

The nearest multiple for the hidden size, with as many heads as fill it; a different head count for the shard.

## Source

arXiv 2401.14489 (2024-01), rule list ("h/t divisible by a power of two").
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.model.layer import AttentionMixer
from sartor.operators import Role
from sartor.rules.rule import (
    Context,
    Fix,
    Grade,
    Rule,
    Suspicion,
    around,
    head_fixes,
    misaligned,
    nearest_first,
    ragged,
    words,
)


def ragged_hidden(context: Context) -> Iterator[Suspicion]:
    hidden, mixer, tp = int(context.shape.hidden_size), context.shape.attention, int(context.dims.tp)
    fault = ragged(hidden, context.alignment)
    if fault is not None:
        grade, multiple = fault
        good = around(hidden, context.alignment.preferred)
        yield Suspicion(
            grade=grade,
            message=f"{misaligned(context, f'hidden_size={hidden}', multiple)}. Use {words(good)}",
            field="hidden_size",
            value=hidden,
            operator=context.operator(Role.QKV),
            fixes=tuple(_hidden_fixes(context, good)),
        )
    elif mixer is not None and tp > 1 and mixer.num_heads % tp == 0:
        yield from _ragged_shard(context, int(mixer.num_heads * mixer.value_dim), tp)


def _hidden_fixes(context: Context, sizes: tuple[int, ...]) -> Iterator[Fix]:
    """Each size alone, and with as many heads as fill it if heads filled the old size."""
    mixer = context.shape.attention
    for size in nearest_first(sizes, int(context.shape.hidden_size)):
        yield {"hidden_size": size}
        if isinstance(mixer, AttentionMixer) and mixer.num_heads == mixer.num_kv_heads and size % mixer.head_dim == 0:
            yield {"hidden_size": size, "num_heads": int(size // mixer.head_dim)}


def _ragged_shard(context: Context, inner: int, tp: int) -> Iterator[Suspicion]:
    fault, mixer = ragged(inner // tp, context.alignment), context.shape.attention
    if fault is None:
        return
    grade, multiple = fault
    yield Suspicion(
        grade=Grade.WARN if grade is Grade.ERROR else grade,
        message=misaligned(context, f"num_heads * head_dim / tp = {inner} / {tp} = {inner // tp}", multiple),
        field="head_dim",
        value=int(mixer.head_dim) if mixer is not None else 0,
        operator=context.operator(Role.ATTENTION_OUTPUT),
        fixes=head_fixes(mixer, tp),
    )


RULE = Rule(code="R5", check=ragged_hidden, worst=Grade.ERROR, page=__doc__ or "")
