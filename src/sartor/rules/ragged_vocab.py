"""Vocabulary that is no multiple of what the matrix units load at once.

## What it finds

`vocab_size` that is not a multiple of the fast path's length (8 elements of 16 bits on NVIDIA: error), of the
preferred one (64: warning), or whose vocabulary-parallel shard is not (information). One that does not divide by `tp`
at all cannot run (error). On AMD the same sizes cost little and are information; FP8 asks for 16 and 128; systolic
arrays for their side.

## Why it costs

The vocabulary is *n* of the logits and *k* of their input gradient: the one product in which a large contiguous
dimension comes from a text file rather than from a designer. A model read without an output head (an encoder) pays
only where one is trained, so its finding is information. An odd length leaves 2-byte loads only. On an A100 a product
with k swept over 51136..51264 runs at 74 TFLOP/s for odd k and 256 for multiples of 64.

## Example

50257 (GPT-2, GPT-3), 30522 (BERT); good are 50304, 128256, 151936.

## Fix

Pad the embedding table to the next multiple: 50257 to 50304. The added rows are never looked up. When decoding,
padding only adds bytes to read, so there the finding stays information.

## Source

arXiv 2401.14489 (2024-01), rule list; authors' raw A100 sweep (2023-10); NVIDIA Linear/Fully-Connected Layers User's
Guide; NVIDIA/TransformerEngine PR 2894 for FP8.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.rules.candidates import above, fixes_of, ragged, steps, words
from sartor.rules.rule import Context, Grade, Rule, Suspicion


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
    shard = "" if whole else f" (a shard of {vocab / tp:g} on each of tp={tp})"
    yield Suspicion(
        grade=grade,
        message=f"vocab_size={vocab}{shard} is no multiple of {multiple}, which {context.gpu.name} wants for"
        f" {context.dtype.value}; {words(above(vocab, (multiple, tp * context.alignment.preferred)))} would be",
        field="vocab_size",
        value=vocab,
        operator=context.operator("logits"),
        fixes=fixes_of("vocab_size", good, vocab),
    )


def _unsplit(context: Context, vocab: int, tp: int) -> Suspicion:
    good = above(vocab, steps(context, tp))
    return Suspicion(
        grade=Grade.ERROR,
        message=f"vocab_size={vocab} does not split over tp={tp}; {words(good)} would",
        field="vocab_size",
        value=vocab,
        operator=context.operator("logits"),
        fixes=fixes_of("vocab_size", good, vocab),
        blocking=True,
    )


RULE = Rule(code="R1", check=ragged_vocab, worst=Grade.ERROR, page=__doc__ or "")
