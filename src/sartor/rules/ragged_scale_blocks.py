"""Sizes that 8- and 4-bit formats cannot divide into their scale blocks.

## What it finds

When the chosen data type is FP8, block-scaled FP8, MXFP8, MXFP4 or NVFP4: sizes that are not a multiple of its block
(16, 128, 32, 32, 32): hidden size, the heads' width and the feed-forward widths per tensor-parallel shard.

## Why it costs

Libraries refuse such operands, or pad them, or fall back to 16 bits at half the rate or less.

## Example

4544 (Falcon 7B) with 128 x 128 blocks; good are 7168 and 2048.

## Fix

The nearest multiples of the block, times `tp` where the size is split.

## Source

NVIDIA/TransformerEngine PR 2894 and issue 2966 (2025); DeepSeek-V3 `weight_block_size` [128, 128] (2024-12).
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.model.layer import AttentionMixer
from sartor.rules.candidates import around, fixes_of, head_fixes, nearest_first, words
from sartor.rules.rule import Context, Fix, Grade, Rule, Suspicion


def ragged_scale_blocks(context: Context) -> Iterator[Suspicion]:
    block = context.alignment.scale_block
    if block == 1:
        return
    for name, size, tp in _sizes(context):
        if size % (block * tp) == 0:
            continue
        good, field = around(size, block * tp), "head_dim" if " " in name else name
        shard = f" / tp={tp}" if tp > 1 else ""
        yield Suspicion(
            grade=Grade.WARN,
            message=f"{_words(context, name, size)}{shard} is no multiple of {block}, the scale block of"
            f" {context.dtype.value}; {words(good)} would be",
            field=field,
            value=int(context.shape.head_dim) if field == "head_dim" else size,
            fixes=_fixes(context, field, size, nearest_first(good, size), tp),
        )


def _words(context: Context, name: str, size: int) -> str:
    shape = context.shape
    return f"{name}={size}" if " " not in name else f"{name} = {shape.num_heads} * {shape.head_dim} = {size}"


def _fixes(context: Context, field: str, size: int, good: list[int], tp: int) -> tuple[Fix, ...]:
    if field != "head_dim":
        return fixes_of(field, good, size)
    mixer = context.shape.attention
    return tuple(head_fixes(mixer, tp)) if isinstance(mixer, AttentionMixer) else ()


def _sizes(context: Context) -> Iterator[tuple[str, int, int]]:
    """Name, size and split of what stands as k or n in a product."""
    shape, tp = context.shape, int(context.dims.tp)
    yield "hidden_size", int(shape.hidden_size), 1
    if shape.attention is not None:
        yield "num_heads * head_dim", int(shape.attention.num_heads * shape.attention.value_dim), tp
    if shape.dense_ffn is not None:
        yield "ffn_hidden_size", int(shape.dense_ffn.ffn_hidden_size), tp
    if shape.moe_ffn is not None:
        yield "expert_ffn_hidden_size", int(shape.moe_ffn.expert.ffn_hidden_size), tp


RULE = Rule(code="R21", check=ragged_scale_blocks, worst=Grade.WARN, page=__doc__ or "")
