"""Many narrow heads where fewer, wider ones do the same work.

## What it finds

`head_dim` below 128 with unfused attention, or below 64 with flash attention.

## Why it costs

Attention scores do `head_dim * seq / (2 head_dim + seq)` FLOP per byte, so the speed of unfused attention grows with
the head dimension. In the published A100 sweeps, `head_dim=64` runs at 57-62 TFLOP/s for any number of heads, and 128
at 91-104. Fewer heads are faster only because they are wider.

## Example

128 heads of 32; 32 heads of 128 are good.

## Fix

Half or a quarter of the heads, twice or four times as wide: same parameters, same FLOPs. Fewer heads may change model
quality: check on a small proxy model first.

## Source

arXiv 2401.14489 (2024-01), figure 8.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.model.layer import AttentionMixer
from sartor.model.workload import AttentionKernel
from sartor.operators import Role
from sartor.rules.rule import HEAD_DIMS, Context, Grade, Rule, Suspicion, head_fixes

WIDE = {AttentionKernel.UNFUSED: 128, AttentionKernel.FLASH: 64}


def narrow_heads(context: Context) -> Iterator[Suspicion]:
    mixer, kernel = context.shape.attention, context.workload.attention_kernel
    if not isinstance(mixer, AttentionMixer) or mixer.head_dim >= WIDE[kernel]:
        return
    width, heads = int(mixer.head_dim), int(mixer.num_heads)
    wider = [size for size in HEAD_DIMS if size > width and size <= 128]
    yield Suspicion(
        grade=Grade.INFO,
        message=f"head_dim={width} keeps {kernel.value} attention far below {context.gpu.label}'s peak;"
        f" fewer, wider heads than {heads} x {width} do the same work (check model quality)",
        field="head_dim",
        value=width,
        operator=context.operator(Role.ATTENTION, Role.SCORE),
        fixes=head_fixes(mixer, int(context.dims.tp), wider),
        advisory=True,
    )


RULE = Rule(code="R9", check=narrow_heads, worst=Grade.INFO, page=__doc__ or "")
