"""Experts with a ragged width, or with too few tokens each to fill a tile.

## What it finds

`expert_ffn_hidden_size` that is not divisible by `tp` or whose shard has rows that are not a multiple of 16 bytes
(error), or whose shard is not a multiple of 128 (warning); and fewer tokens per expert than a tile has rows
(information, if a larger batch is faster).

## Why it costs

An expert's GEMM has as many rows as tokens routed to it, rounded up to a tile and, in FP8, padded to 16 or 32. A
ragged width adds a partial tile to each of hundreds of small GEMMs. Rows that are not a multiple of 16 bytes are
refused by torch's grouped GEMM (`torch._grouped_mm`), and leave the fast path of others.

## Example

701 (rows of 1402 bytes); 1408 at `tp=8` = 176 (DeepSeek-V2-Lite), 2880 (gpt-oss); 2048 is good.

## Fix

For such rows: the nearest width of about the same size that the tensor cores prefer, as 704 for 701. Else a multiple of
128 times `tp`; a larger microbatch, or fewer, larger experts.

## Source

NVIDIA/TransformerEngine issue 2966 (2025) for padding of groups; PyTorch 2.8, aten/src/ATen/native/GroupedMMUtils.h
("strides should be multiple of 16 bytes"), read 2026-11.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.model.layer import MoeFfn
from sartor.model.workload import Phase
from sartor.operators import Role
from sartor.rules.rule import Context, Grade, Rule, Suspicion, around, fixes_of, nearest_first, words
from sartor.units import ceil_div

SAME_SIZE = 0.05
"""Share by which a width of about the same size may differ."""


def ragged_experts(context: Context) -> Iterator[Suspicion]:
    part = context.shape.moe_ffn
    if part is None:
        return
    yield from _narrow(context, int(part.expert.ffn_hidden_size))
    if context.workload.phase is not Phase.DECODE:
        yield from _thin(context, part)


def _narrow(context: Context, width: int) -> Iterator[Suspicion]:
    tp, minimum = int(context.dims.tp), context.alignment.minimum
    if width % (context.grain * tp) == 0:
        return
    if width % tp == 0 and width % (minimum * tp) and context.alignment.cliff:
        yield _unaligned(context, width, tp, minimum)
        return
    grade = Grade.ERROR if width % tp else Grade.WARN if context.alignment.graded else Grade.INFO
    good = around(width, context.grain * tp)
    shard = f" / tp={tp} = {width / tp:g}" if tp > 1 else ""
    yield Suspicion(
        grade=grade,
        message=f"expert_ffn_hidden_size={width}{shard} is not a multiple of {context.grain}. Use {words(good)}",
        field="expert_ffn_hidden_size",
        value=width,
        operator=context.operator(Role.EXPERT_DOWN),
        fixes=fixes_of("expert_ffn_hidden_size", good, width),
        blocking=width % tp != 0,
        axis="tp",
    )


def _unaligned(context: Context, width: int, tp: int, minimum: int) -> Suspicion:
    """Rows that grouped GEMMs refuse: the nearest width that the matrix units prefer, if of about the same size."""
    preferred = context.alignment.preferred * tp
    near = [size for size in around(width, preferred) if abs(size - width) <= SAME_SIZE * width]
    good = nearest_first(near or around(width, minimum * tp), width)
    shard = f" / tp={tp} = {width // tp}" if tp > 1 else ""
    return Suspicion(
        grade=Grade.ERROR,
        message=f"expert_ffn_hidden_size={width}{shard} is not a multiple of {minimum}: torch's grouped GEMM takes rows"
        f" of multiples of 16 bytes only. Use {words(good)}",
        field="expert_ffn_hidden_size",
        value=width,
        operator=context.operator(Role.EXPERT_DOWN),
        fixes=fixes_of("expert_ffn_hidden_size", good, width),
        required=True,
    )


def _thin(context: Context, part: MoeFfn) -> Iterator[Suspicion]:
    workload = context.workload
    sequences = int(workload.microbatch_size)
    rows = int(workload.tokens) * int(part.experts_per_token) / int(part.num_experts)
    if rows >= context.grain:
        return
    batch = sequences * int(ceil_div(context.grain, max(rows, 1e-9)))
    yield Suspicion(
        grade=Grade.INFO,
        message=f"microbatch_size={sequences} sends {rows:.0f} tokens to an expert on average, but a GEMM tile has"
        f" {context.grain} rows; microbatch_size={batch} fills one",
        field="microbatch_size",
        value=sequences,
        operator=context.operator(Role.EXPERT_UP),
        fixes=({"microbatch_size": batch},),
        advisory=True,
    )


RULE = Rule(code="R20", check=ragged_experts, worst=Grade.ERROR, page=__doc__ or "")
