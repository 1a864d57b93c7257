"""Many narrow heads where fewer, wider ones would do the same work.

## What it finds

`head_dim` below 128 with unfused attention, or below 64 with flash attention.

## Why it costs

The scores do `head_dim * seq / (2 head_dim + seq)` FLOP per byte: their speed on an unfused path follows the head
dimension. On an A100 the first point of every published curve (64) runs at 57-62 TFLOP/s however many heads there
are, and 128 at 91-104. "Fewer heads are faster" is really "wider heads are faster".

## Example

128 heads of 32; good is 32 heads of 128.

## Fix

Half or a quarter of the heads, twice or four times as wide: same parameters, same FLOPs. Fewer heads may change what
the model learns: check quality on a small proxy first.

## Source

arXiv 2401.14489 (2024-01), figure 8; roofline in codesign.md section 2.4.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.model.layer import AttentionMixer
from sartor.model.workload import AttentionKernel
from sartor.rules.candidates import HEAD_DIMS, head_fixes
from sartor.rules.rule import Context, Grade, Rule, Suspicion

WIDE = {AttentionKernel.UNFUSED: 128, AttentionKernel.FLASH: 64}


def narrow_heads(context: Context) -> Iterator[Suspicion]:
    mixer, kernel = context.shape.attention, context.workload.attention_kernel
    if not isinstance(mixer, AttentionMixer) or mixer.head_dim >= WIDE[kernel]:
        return
    width, heads = int(mixer.head_dim), int(mixer.num_heads)
    wider = [each for each in HEAD_DIMS if each > width and each <= 128]
    yield Suspicion(
        grade=Grade.INFO,
        message=f"head_dim={width} keeps {kernel.value} attention far from {context.gpu.name}'s peak;"
        f" fewer, wider heads than {heads} x {width} do the same work (check quality)",
        field="head_dim",
        value=width,
        operator=context.operator("attention", "attn_score"),
        fixes=tuple(head_fixes(mixer, int(context.dims.tp), wider)),
        advisory=True,
    )


RULE = Rule(code="R9", check=narrow_heads, worst=Grade.INFO, page=__doc__ or "")
