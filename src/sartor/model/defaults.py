"""Default assumptions, each in one place; answers that use one say so."""

from __future__ import annotations

from sartor.errors import InputError
from sartor.model.shape import TransformerShape

SEQ_LEN = 4096
"""Tokens per sequence, or the model's maximum if shorter: Llama 2, DeepSeek-V3 and OLMo 2 were trained with it
(recalled)."""

VOCAB_MULTIPLE = 128
"""Megatron-LM pads the vocabulary to a multiple of this times tp (``--make-vocab-size-divisible-by``)."""

TRAIN_BYTES_PER_PARAM = 16
"""16-bit weight and gradient, fp32 main weight and Adam's two moments (ZeRO, Rajbhandari et al. 2020, sec. 3.1)."""


def usual_seq_len(shape: TransformerShape) -> int:
    """Default tokens per sequence: as traced, else ``SEQ_LEN`` or the model's maximum."""
    if shape.traced is not None:
        return int(shape.traced.seq_len)
    return min(SEQ_LEN, int(shape.max_positions or SEQ_LEN))


def settled_seq_len(given: int | None, shape: TransformerShape) -> tuple[int, tuple[str, ...]]:
    """Tokens per sequence, and the note on a length that was assumed or exceeds the model's maximum. Raises
    ``InputError`` for another length than that of an image."""
    if given is None:
        usual = usual_seq_len(shape)
        return usual, (f"seq_len={usual} (default)",)
    fixed = shape.main.tokens
    if fixed and given != fixed:
        raise InputError(
            "seq_len", given, f"each input of this model is {fixed} tokens, which its config sets", str(fixed)
        )
    return given, too_long("seq_len", given, shape)


def too_long(name: str, tokens: int, shape: TransformerShape) -> tuple[str, ...]:
    """The note on a length that exceeds the model's maximum."""
    beyond = shape.max_positions and tokens > shape.max_positions
    return (f"{name}={tokens} is beyond the model's {shape.max_positions}",) if beyond else ()
