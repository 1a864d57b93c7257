"""Sizes that do not divide into the scale blocks of an 8- or 4-bit format.

## What it finds

With FP8, block-scaled FP8, MXFP8, MXFP4 or NVFP4: a hidden size, or a tensor-parallel shard of the attention or
feed-forward width, that is not a multiple of the format's scale block (16, 128, 32, 32 and 32 elements).

## Why it costs

Libraries reject such operands, pad them, or fall back to 16 bits at half the rate or less.

## Example

4544 (Falcon 7B) with 128 x 128 blocks; 7168 and 2048 are good.

## Fix

The nearest multiples of the block, times `tp` where the size is split.

## Source

NVIDIA/TransformerEngine PR 2894 and issue 2966 (2025); DeepSeek-V3 `weight_block_size` [128, 128] (2024-12).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sartor.rules.rule import Context, Fix, Grade, Rule, Suspicion, around, fixes_of, head_fixes, words


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
            message=f"{_words(context, name, size)}{shard} is not a multiple of {block}, the scale block of"
            f" {context.dtype.value}. Use {words(good)}",
            field=field,
            value=int(context.shape.head_dim) if field == "head_dim" else size,
            fixes=_fixes(context, field, size, good, tp),
        )


def _words(context: Context, name: str, size: int) -> str:
    shape = context.shape
    return f"{name}={size}" if " " not in name else f"{name} = {shape.num_heads} * {shape.head_dim} = {size}"


def _fixes(context: Context, field: str, size: int, good: Iterable[int], tp: int) -> tuple[Fix, ...]:
    return head_fixes(context.shape.attention, tp) if field == "head_dim" else fixes_of(field, good, size)


def _sizes(context: Context) -> Iterator[tuple[str, int, int]]:
    """Name, size and split of every size that is k or n of a GEMM."""
    shape, tp = context.shape, int(context.dims.tp)
    yield "hidden_size", int(shape.hidden_size), 1
    if shape.attention is not None:
        yield "num_heads * head_dim", int(shape.attention.num_heads * shape.attention.value_dim), tp
    if shape.dense_ffn is not None:
        yield "ffn_hidden_size", int(shape.dense_ffn.ffn_hidden_size), tp
    if shape.moe_ffn is not None:
        yield "expert_ffn_hidden_size", int(shape.moe_ffn.expert.ffn_hidden_size), tp


RULE = Rule(code="R21", check=ragged_scale_blocks, worst=Grade.WARN, page=__doc__ or "")
