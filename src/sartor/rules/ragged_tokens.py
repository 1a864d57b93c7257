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

from collections.abc import Iterator

from sartor.model.workload import Phase
from sartor.rules.candidates import around, fixes_of, nearest_first, words
from sartor.rules.rule import Context, Grade, Rule, Suspicion


def ragged_tokens(context: Context) -> Iterator[Suspicion]:
    workload = context.workload
    tokens, minimum = int(workload.tokens), max(context.alignment.minimum, 1)
    if workload.phase is Phase.DECODE or tokens % context.grain == 0:
        return
    falls = tokens % minimum != 0 and workload.phase is Phase.TRAIN
    length = int(workload.seq_len)
    good = around(length, context.grain)
    yield Suspicion(
        grade=Grade.WARN if falls and context.alignment.graded else Grade.INFO,
        message=f"{workload.microbatch_size} x seq_len={length} is {tokens} tokens, which is not a multiple"
        f" of {minimum if falls else context.grain}. Use seq_len {words(good, length)}",
        field="seq_len",
        value=length,
        fixes=fixes_of("seq_len", nearest_first(good, length), length),
    )


RULE = Rule(code="R3", check=ragged_tokens, worst=Grade.WARN, page=__doc__ or "")
