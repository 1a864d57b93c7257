"""Heads whose total width is neither the hidden size nor a multiple of 128.

## What it finds

`num_heads * head_dim` that differs from `hidden_size` and, per tensor-parallel shard, is not a multiple of 128.

## Why it costs

Decoupled heads are fine, and many current models have them. The attention projections then have a width of their own,
which should also be a multiple of the GEMM tile.

## Example

Good: Qwen3 (32 x 128, hidden size 2560), Gemma, gpt-oss (64 x 64, hidden size 2880). Bad: 25 heads of 72 at hidden
size 2048.

## Fix

Change the number of heads or the head dimension so that `num_heads * head_dim` is a multiple of 128.

## Source

Derived from the tile size of common GEMM kernels; no published measurement (2024).
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.model.layer import AttentionMixer
from sartor.operators import Role
from sartor.rules.rule import Context, Fix, Grade, Rule, Suspicion, around, head_fixes


def ragged_decoupled_heads(context: Context) -> Iterator[Suspicion]:
    mixer, tp = context.shape.attention, int(context.dims.tp)
    if not isinstance(mixer, AttentionMixer):
        return
    inner, hidden = int(mixer.num_heads * mixer.head_dim), int(context.shape.hidden_size)
    if inner == hidden or inner % (context.grain * tp) == 0:
        return
    yield Suspicion(
        grade=Grade.INFO,
        message=f"num_heads * head_dim = {inner} is neither hidden_size={hidden} nor a multiple of"
        f" {context.grain * tp}",
        field="num_heads",
        value=int(mixer.num_heads),
        operator=context.operator(Role.QKV),
        fixes=tuple(_fixes(mixer, inner, tp, context.grain)),
    )


def _fixes(mixer: AttentionMixer, inner: int, tp: int, grain: int) -> Iterator[Fix]:
    for size in around(inner, grain * tp):
        heads = size // int(mixer.head_dim)
        whole = size % int(mixer.head_dim) == 0 and heads % tp == 0
        if whole and (mixer.num_kv_heads == mixer.num_heads or heads % mixer.num_kv_heads == 0):
            yield {"num_heads": heads}
    yield from head_fixes(mixer, tp)


RULE = Rule(code="R22", check=ragged_decoupled_heads, worst=Grade.INFO, page=__doc__ or "")
