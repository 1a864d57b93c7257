"""A head dimension that is not a multiple of 64.

## What it finds

`head_dim` that is not a multiple of the minimum for the fast path (8 elements in 16-bit types: error), or not of 64
(warning, on NVIDIA from Ampere on). With flash attention, a size the kernel is compiled for (96, 192) is information
only; the rule `flash_misfit` covers sizes that the kernel pads. On a systolic array (TPU, a described chip)
it names how much of the array such a head dimension fills.

## Why it costs

The head dimension is the contiguous length of Q, K and V, the contracted dimension of the scores and the width of the
attention output. Unfused attention on an A100 reaches 26% of its roofline for odd head dimensions, 53% at multiples of
8 and 61-65% from 32 on; multiples beyond 64 gain nothing more.

## Example

80 (GPT-3 2.7B, Pythia 2.8B, OPT 2.7B, Phi-2) is divisible by 16 only; 100 (OpenLLaMA 3B) by 4 only. 64 and 128 are
good.

## Fix

Change the heads at the same `num_heads * head_dim`: 32 heads of 80 become 20 of 128 or 40 of 64. Parameters and FLOPs
stay the same. Only head counts that split over `tp` are offered.

## Source

arXiv 2401.14489 (2024-01), rule list and figure 7; authors' raw A100 log (2023-10).
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.hardware.gpu import flash_head_dims
from sartor.model.workload import AttentionKernel
from sartor.operators import Role
from sartor.rules.rule import Context, Grade, Rule, Suspicion, head_fixes, matrix_units
from sartor.units import largest_power_of_two_dividing, round_up

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
    if context.gpu.matrix_tile:
        yield from _padded_array(context, width)
        return
    grade = Grade.WARN if alignment.graded else Grade.INFO
    if width % alignment.minimum:
        grade = Grade.ERROR if alignment.cliff else grade
    elif context.workload.attention_kernel is AttentionKernel.FLASH and width in flash_head_dims(context.gpu):
        grade = Grade.INFO
    fixes = head_fixes(mixer, int(context.dims.tp))
    near = " or ".join(f"{fix['num_heads']} heads x {fix['head_dim']}" for fix in fixes[:2])
    yield Suspicion(
        grade=grade,
        message=f"head_dim={width} is {f'divisible by {power} but not by' if power > 1 else 'not divisible by'}"
        f" {min(ENOUGH, alignment.preferred)}, so attention GEMMs lose efficiency on the {matrix_units(context.gpu)} of"
        f" {context.gpu.label}" + (f". Same size: {near}" if near else ""),
        field="head_dim",
        value=width,
        operator=context.operator(Role.ATTENTION, Role.SCORE),
        fixes=fixes,
    )


def _padded_array(context: Context, width: int) -> Iterator[Suspicion]:
    """A systolic array multiplies the next multiple of its side, whatever divides the width."""
    side = context.gpu.matrix_tile
    filled = _filled(width, side)
    if filled == 1:
        return
    fixes = head_fixes(context.shape.attention, int(context.dims.tp))
    better = tuple(fix for fix in fixes if _filled(fix["head_dim"], side) > filled)
    near = " or ".join(f"{fix['num_heads']} heads x {fix['head_dim']}" for fix in better[:2])
    yield Suspicion(
        grade=Grade.WARN,
        message=f"head_dim={width} fills {100 * filled:.0f}% of the {matrix_units(context.gpu)} of {context.gpu.label}"
        f" in attention GEMMs; the rest is padding" + (f". Same size: {near}" if near else ""),
        field="head_dim",
        value=width,
        operator=context.operator(Role.ATTENTION, Role.SCORE),
        fixes=better,
    )


def _filled(width: int, side: int) -> float:
    return width / int(round_up(width, side))


RULE = Rule(code="R4", check=ragged_head_dim, worst=Grade.ERROR, page=__doc__ or "")
