"""head_dim=64 with flash attention, where 128 uses the tensor cores better.

## What it finds

`head_dim` of 64 with flash attention, in training and prefill.

## Why it costs

For each key and head, a flash kernel computes one exponential per `head_dim` multiply-adds. At 64 the exponentials take
a larger share of the time; 128 reaches about 1.2 to 1.5 times the FLOP/s on A100 and H100, and more on Blackwell.

## Example

32 heads of 64 (Llama 3.2 1B, OPT 1.3B) at long sequences; heads of 128 are good.

## Fix

Half as many heads, twice as wide, and the same for key/value heads: parameters, FLOPs and key/value cache stay the
same. Check model quality.

## Source

FlashAttention-3 (2024-07), tables by head dimension; the factors above still need a measurement of our own.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.model.layer import AttentionMixer
from sartor.model.workload import AttentionKernel, Phase
from sartor.operators import Role
from sartor.rules.rule import Context, Grade, Rule, Suspicion, head_fixes

NARROW, WIDE = 64, 128


def head_dim_64(context: Context) -> Iterator[Suspicion]:
    mixer, workload = context.shape.attention, context.workload
    fused = workload.attention_kernel is AttentionKernel.FLASH and workload.phase is not Phase.DECODE
    if not isinstance(mixer, AttentionMixer) or not fused or mixer.head_dim != NARROW:
        return
    width, heads = int(mixer.head_dim), int(mixer.num_heads)
    yield Suspicion(
        grade=Grade.INFO,
        message=f"head_dim={width}: flash attention on {context.gpu.label} is faster with heads of {WIDE}"
        f" at the same num_heads * head_dim = {heads * width} (check model quality)",
        field="head_dim",
        value=width,
        operator=context.operator(Role.ATTENTION, Role.SCORE),
        fixes=head_fixes(mixer, int(context.dims.tp), (WIDE,)),
        advisory=True,
    )


RULE = Rule(code="R10", check=head_dim_64, worst=Grade.INFO, page=__doc__ or "")
