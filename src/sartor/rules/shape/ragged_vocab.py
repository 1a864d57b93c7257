"""A vocabulary size that is misaligned for the tensor cores.

## What it finds

`vocab_size` that is not a multiple of the minimum for the fast path (8 elements in 16-bit types on NVIDIA: error) or
of the preferred length (64: warning), or whose tensor-parallel shard is not (information). A vocabulary that is not
divisible by `tp` cannot run (error). On AMD the same sizes cost little and are information. FP8 needs 16 and prefers
128; a systolic array prefers multiples of its side.

## Why it costs

The vocabulary is *n* of the logits GEMM and *k* of its input gradient, and the tokenizer sets it, not the model
designer. An odd length allows only 2-byte loads: on an A100, a GEMM with k swept over 51136..51264 runs at 74 TFLOP/s
for odd k and at 256 for multiples of 64. In a model without an output head (an encoder) the finding is information.

## Example

50257 (GPT-2, GPT-3), 30522 (BERT); 50304, 128256 and 151936 are good.

## Fix

Pad the embedding table to the next multiple: 50257 to 50304. The added rows are never looked up. In decoding, padding
only adds bytes to read, so the finding is information.

## Source

arXiv 2401.14489 (2024-01), rule list; authors' raw A100 sweep (2023-10); NVIDIA Linear/Fully-Connected Layers User's
Guide; NVIDIA/TransformerEngine PR 2894 for FP8.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.operators import Role
from sartor.rules.rule import Context, Grade, Rule, Suspicion, above, fixes_of, misaligned, ragged, steps, words


def ragged_vocab(context: Context) -> Iterator[Suspicion]:
    vocab, tp = int(context.shape.vocab_size), int(context.dims.tp)
    if vocab % tp:
        yield _unsplit(context, vocab, tp)
        return
    whole = ragged(vocab, context.alignment)
    if whole is None and (tp == 1 or vocab % (tp * context.alignment.preferred) == 0):
        return
    grade, multiple = whole or (Grade.INFO, tp * context.alignment.preferred)
    good = above(vocab, steps(context, tp))
    shard = "" if whole else f" (tp={tp}: a shard of {vocab / tp:g} each)"
    yield Suspicion(
        grade=grade,
        message=f"{misaligned(context, f'vocab_size={vocab}{shard}', multiple)}."
        f" Pad to {words(above(vocab, (multiple, tp * context.alignment.preferred)))}",
        field="vocab_size",
        value=vocab,
        operator=context.operator(Role.LOGITS),
        fixes=fixes_of("vocab_size", good, vocab),
    )


def _unsplit(context: Context, vocab: int, tp: int) -> Suspicion:
    good = above(vocab, steps(context, tp))
    return Suspicion(
        grade=Grade.ERROR,
        message=f"vocab_size={vocab} is not divisible by tp={tp}. Pad to {words(good)}",
        field="vocab_size",
        value=vocab,
        operator=context.operator(Role.LOGITS),
        fixes=fixes_of("vocab_size", good, vocab),
        blocking=True,
        axis="tp",
    )


RULE = Rule(code="R1", check=ragged_vocab, worst=Grade.ERROR, page=__doc__ or "", turned_by=("framework",))
