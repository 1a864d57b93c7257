"""Heads of 64 under flash attention, where 128 uses the matrix units better.

## What it finds

`head_dim` of 64 with flash attention, in training and prefill.

## Why it costs

Per key and head a flash kernel does one exponential for every `head_dim` multiply-adds; at 64 the exponentials take a
larger share than at 128, which runs at about 1.2 to 1.5 times the FLOP/s on A100 and H100, more on Blackwell.

## Example

32 heads of 64 (Llama 3.2 1B, OPT 1.3B) at long sequences; good are heads of 128.

## Fix

Half the heads, twice as wide, key/value heads likewise: parameters, FLOPs and key/value cache stay the same. Check
quality.

## Source

codesign.md section 3, R10 (from memory, to be confirmed by measurement); FlashAttention-3 (2024-07) tables by head
dimension.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.model.layer import AttentionMixer
from sartor.model.workload import AttentionKernel, Phase
from sartor.rules.candidates import head_fixes
from sartor.rules.rule import Context, Grade, Rule, Suspicion

NARROW, WIDE = 64, 128


def head_dim_64(context: Context) -> Iterator[Suspicion]:
    mixer, workload = context.shape.attention, context.workload
    fused = workload.attention_kernel is AttentionKernel.FLASH and workload.phase is not Phase.DECODE
    if not isinstance(mixer, AttentionMixer) or not fused or mixer.head_dim != NARROW:
        return
    width, heads = int(mixer.head_dim), int(mixer.num_heads)
    yield Suspicion(
        grade=Grade.INFO,
        message=f"head_dim={width}: flash attention on {context.gpu.name} runs faster with heads of {WIDE}"
        f" at the same num_heads * head_dim = {heads * width} (check quality)",
        field="head_dim",
        value=width,
        operator=context.operator("attention", "attn_score"),
        fixes=tuple(head_fixes(mixer, int(context.dims.tp), (WIDE,))),
        advisory=True,
    )


RULE = Rule(code="R10", check=head_dim_64, worst=Grade.INFO, page=__doc__ or "")
