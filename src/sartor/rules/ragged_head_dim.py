"""A head dimension with too small a power of two in it.

## What it finds

`head_dim` that is not a multiple of the fast path's length (8 elements of 16 bits: error), or whose largest power of
two is below 64 (warning, for NVIDIA from Ampere on). With flash attention a size the kernel is compiled for (96, 192)
is information only; other sizes below are padded, which is `flash_misfit`'s matter.

## Why it costs

The head dimension is the contiguous length of Q, K and V, the contracted dimension of the scores and the width of the
attended values. Unfused attention on an A100 reaches 0.26 of its roofline for odd widths, 0.53 at multiples of 8 and
0.61-0.65 from 32 on; nothing is gained beyond 64.

## Example

80 (GPT-3 2.7B, Pythia 2.8B, OPT 2.7B, Phi-2) holds 16; 100 (OpenLLaMA 3B) holds 4. Good are 64 and 128.

## Fix

Other heads at the same `num_heads * head_dim`: 32 heads of 80 become 20 of 128 or 40 of 64. Parameters and FLOPs stay
the same. Heads must still split over `tp`; a variant that does not is not offered.

## Source

arXiv 2401.14489 (2024-01), rule list and figure 7; authors' raw A100 log (2023-10).
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.hardware.alignment import flash_head_dims
from sartor.model.layer import AttentionMixer
from sartor.model.workload import AttentionKernel
from sartor.rules.candidates import head_fixes
from sartor.rules.rule import Context, Grade, Rule, Suspicion
from sartor.units import largest_power_of_two_dividing

ENOUGH = 64
"""No gain is seen beyond this power of two (caption of figure 7)."""


def ragged_head_dim(context: Context) -> Iterator[Suspicion]:
    mixer, alignment = context.shape.attention, context.alignment
    if mixer is None:
        return
    width = int(mixer.head_dim)
    power = int(largest_power_of_two_dividing(width))
    if power >= min(ENOUGH, alignment.preferred):
        return
    grade = Grade.WARN if alignment.graded else Grade.INFO
    if width % alignment.minimum:
        grade = Grade.ERROR if alignment.cliff else grade
    elif context.workload.attention_kernel is AttentionKernel.FLASH and width in flash_head_dims(context.gpu):
        grade = Grade.INFO
    fixes = tuple(head_fixes(mixer, int(context.dims.tp))) if isinstance(mixer, AttentionMixer) else ()
    near = " or ".join(f"{fix['num_heads']} heads of {fix['head_dim']}" for fix in fixes[:2])
    yield Suspicion(
        grade=grade,
        message=f"head_dim={width} holds a power of two of {power} only; {context.gpu.name} wants"
        f" {min(ENOUGH, alignment.preferred)}" + (f": {near} are as large" if near else ""),
        field="head_dim",
        value=width,
        operator=context.operator("attention", "attn_score"),
        fixes=fixes,
    )


RULE = Rule(code="R4", check=ragged_head_dim, worst=Grade.ERROR, page=__doc__ or "")
