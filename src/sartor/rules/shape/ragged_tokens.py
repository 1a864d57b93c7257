"""A number of tokens that is not a multiple of the GEMM tile.

## What it finds

In training and prefill: `microbatch_size * seq_len` that is not a multiple of the minimum for the fast path (8 in
16-bit types: warning) or of 128 (information).

## Why it costs

Tokens are *m* of every linear layer and *k* of every weight gradient. An odd number of tokens leaves each weight
gradient with 2-byte loads, and a few tokens over a tile cost a whole row of tiles.

## Example

Packed batches of 4097 tokens (one label too many); 4 x 2048 is good.

## Fix

A sequence length that is a multiple of 128, or packing to one. Times are compared per token.

## Source

arXiv 2401.14489 (2024-01), rule list; NVIDIA Linear/Fully-Connected Layers User's Guide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from sartor.model.workload import Phase
from sartor.rules.rule import Context, Grade, Rule, Suspicion, around, fixes_of, words


def ragged_tokens(context: Context) -> Iterator[Suspicion]:
    workload = context.workload
    tokens, minimum = int(workload.tokens), max(context.alignment.minimum, 1)
    if workload.phase is Phase.DECODE or tokens % context.grain == 0:
        return
    falls = tokens % minimum != 0 and workload.phase is Phase.TRAIN
    field, good = _good(context, minimum)
    if not good:
        return
    now = int(getattr(workload, field))
    yield Suspicion(
        grade=Grade.WARN if falls and context.alignment.graded else Grade.INFO,
        message=f"{workload.microbatch_size} x seq_len={workload.seq_len} is {tokens} tokens, which is not a multiple"
        f" of {minimum if falls else context.grain}. Use {field} {words(good)}",
        field=field,
        value=now,
        fixes=fixes_of(field, good, now),
    )


def _good(context: Context, minimum: int) -> tuple[str, tuple[int, ...]]:
    """The field to change and its values: the length up to the model's longest; where inputs have one length, how many
    of them, so that tokens are a multiple of ``minimum``."""
    workload, fixed = context.workload, int(context.workload.shape.main.tokens or 0)
    length, limit = int(workload.seq_len), int(workload.shape.max_positions or 0)
    if fixed:
        size = int(workload.microbatch_size)
        return "microbatch_size", tuple(n for n in around(size, minimum // math.gcd(fixed, minimum)) if n != size)
    longest = limit if length <= limit else 0
    return "seq_len", tuple(n for n in around(length, context.grain) if n <= (longest or n))


RULE = Rule(code="R3", check=ragged_tokens, worst=Grade.WARN, page=__doc__ or "")
