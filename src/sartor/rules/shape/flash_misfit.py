"""A head dimension without a flash attention kernel of its own, or too few thread blocks.

## What it finds

With flash attention: a head dimension above the largest supported size (256) or between two compiled sizes (both
warnings); in training and prefill, fewer than two thread blocks per SM (information).

## Why it costs

A kernel compiled for 96 spends a sixth of its lanes on padding when heads are 80 wide. Heads that are no multiple of
8 (16 bytes) are copied to the next multiple before the kernel, and results back after it; Transformer Engine runs
these unfused. Above the largest size, frameworks fall back to unfused attention. Each head, sequence and group of 128
query rows is one thread block: with fewer blocks than SMs, some SMs stay idle.

## Example

80 runs as 96; 512 (global layers of Gemma 4) is unsupported (flash-attention issue 2427). 128 is good. 100 (OpenLLaMA
3B) is copied: on H100 and H200 its layer took 1.17 times as long as one with heads of 192, and the same work
([measured](../measured.md)).

## Fix

Heads of a compiled size at the same `num_heads * head_dim`; a larger microbatch for more blocks.

## Source

Dao-AILab/flash-attention (2.x, 2023-07; hopper, 2024-07; flash_attn_interface.py pads to 8); NVIDIA/TransformerEngine
issue 3006 (2026-05).
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.hardware.gpu import FLASH_MULTIPLE, flash_head_dims
from sartor.model.layer import AttentionMixer
from sartor.model.workload import AttentionKernel, Phase
from sartor.operators import Role
from sartor.rules.rule import Context, Grade, Rule, Suspicion, head_fixes
from sartor.units import ceil_div

QUERY_ROWS = 128
BLOCKS_PER_SM = 2


def flash_misfit(context: Context) -> Iterator[Suspicion]:
    mixer = context.shape.attention
    if not isinstance(mixer, AttentionMixer) or context.workload.attention_kernel is not AttentionKernel.FLASH:
        return
    if context.gpu.matrix_tile:  # Systolic arrays have attention kernels of their own, padded to the array's side.
        return
    yield from _wrong_width(context, mixer)
    if context.workload.phase is not Phase.DECODE:
        yield from _few_blocks(context, mixer)


def _wrong_width(context: Context, mixer: AttentionMixer) -> Iterator[Suspicion]:
    compiled, width = flash_head_dims(context.gpu), int(mixer.head_dim)
    if width in compiled or (width < compiled[0] and width % FLASH_MULTIPLE == 0):
        return
    padded = next((d for d in compiled if d > width), None)
    fate = f"is padded to {padded}" if padded else "is not supported"
    if padded and width % FLASH_MULTIPLE:
        fate += f" (and copied before and after, because it is not a multiple of {FLASH_MULTIPLE})"
    yield Suspicion(
        grade=Grade.WARN,
        message=f"head_dim={width} {fate} by flash attention on {context.gpu.label}, whose kernels are compiled for"
        f" {', '.join(str(d) for d in compiled)}",
        field="head_dim",
        value=width,
        operator=context.operator(Role.ATTENTION, Role.SCORE),
        fixes=head_fixes(mixer, int(context.dims.tp), compiled),
    )


def _few_blocks(context: Context, mixer: AttentionMixer) -> Iterator[Suspicion]:
    workload, tp = context.workload, int(context.dims.tp)
    sequences, enough = int(workload.microbatch_size), BLOCKS_PER_SM * context.gpu.num_sms
    blocks = sequences * int(ceil_div(mixer.num_heads, tp)) * int(ceil_div(workload.seq_len, QUERY_ROWS))
    if blocks >= enough:
        return
    batch = sequences * int(ceil_div(enough, blocks))
    yield Suspicion(
        grade=Grade.INFO,
        message=f"microbatch_size={sequences} gives flash attention {blocks} thread blocks for {context.gpu.num_sms}"
        f" SMs;"
        f" microbatch_size={batch} gives at least two per SM",
        field="microbatch_size",
        value=sequences,
        operator=context.operator(Role.ATTENTION, Role.SCORE),
        fixes=({"microbatch_size": batch},),
        advisory=True,
    )


RULE = Rule(code="R14", check=flash_misfit, worst=Grade.WARN, page=__doc__ or "")
