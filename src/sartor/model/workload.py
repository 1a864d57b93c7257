"""What is run on a model: phase, lengths and batch, their usual values, and degrees of parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import isfinite

import numpy as np

from sartor.errors import InputError
from sartor.model.shape import TransformerShape
from sartor.operators import DType
from sartor.units import Ints

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


def settled_seq_len(seq_len: int | None, shape: TransformerShape) -> tuple[int, tuple[str, ...]]:
    """Tokens per sequence, and the note on a length that was assumed or exceeds the model's maximum. Raises
    ``InputError`` for another length than that of an image."""
    if seq_len is None:
        usual = usual_seq_len(shape)
        return usual, (f"seq_len={usual} (default)",)
    fixed = shape.main.tokens
    if fixed and seq_len != fixed:
        raise InputError(
            "seq_len", seq_len, f"each input of this model is {fixed} tokens, which its config sets", str(fixed)
        )
    return seq_len, too_long("seq_len", seq_len, shape)


def too_long(name: str, tokens: int, shape: TransformerShape) -> tuple[str, ...]:
    """The note on a length that exceeds the model's maximum."""
    beyond = shape.max_positions and tokens > shape.max_positions
    return (f"{name}={tokens} is beyond the model's {shape.max_positions}",) if beyond else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelDims:
    """Degrees of parallelism, in devices. ``tp`` * ``pp`` * ``dp`` * ``cp`` devices in all; ``ep`` is within dp."""

    tp: Ints = 1
    pp: Ints = 1
    dp: Ints = 1
    cp: Ints = 1
    ep: Ints = 1
    sequence_parallel: bool = True
    """Norms, residuals and activations outside the tensor-parallel region are split over ``tp`` as well
    (Korthikanti et al. 2022): all-reduces become reduce-scatter plus all-gather."""

    @property
    def num_devices(self) -> Ints:
        """Devices in all. In inference ``dp`` is 1, and ``ep`` groups of ``tp`` devices share the experts."""
        return self.tp * self.pp * self.cp * np.maximum(self.dp, self.ep)


class Phase(Enum):
    TRAIN = "train"
    PREFILL = "prefill"
    DECODE = "decode"


def phase_weights(text: str) -> dict[Phase, float]:
    """``train:0.7,decode:0.3`` -> weights by phase. Raises ``InputError`` if they are not positive or do not sum to
    one."""
    words = [word.partition(":") for word in text.split(",")]
    names = {phase.value: phase for phase in Phase}
    try:
        weights = {names[name.strip()]: float(value) for name, _, value in words}
    except (KeyError, ValueError):
        must = "must read PHASE:WEIGHT,... with train, prefill and decode"
        raise InputError("objective", text, must, "train:0.7,decode:0.3") from None
    total = sum(weights.values())
    if not all(isfinite(w) and w > 0 for w in weights.values()) or len(weights) != len(words):
        raise InputError("objective", text, "must name each phase once, with a weight above 0", "train:0.7,decode:0.3")
    if abs(total - 1) > 1e-6:
        near = ",".join(f"{phase.value}:{w / total:.3g}" for phase, w in weights.items())
        raise InputError("objective", text, f"weights must sum to 1, not {total:g}", near)
    return weights


class AttentionKernel(Enum):
    """``FLASH``: one fused kernel. ``UNFUSED``: separate kernels for scores, softmax and weighted values."""

    FLASH = "flash"
    UNFUSED = "unfused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One forward pass (and backward, when training) of ``microbatch_size`` sequences of ``seq_len`` tokens.

    In ``Phase.DECODE`` every sequence adds one token to ``context_len`` earlier ones (``seq_len`` is then unused).
    """

    shape: TransformerShape
    phase: Phase = Phase.TRAIN
    microbatch_size: Ints = 1
    seq_len: Ints = SEQ_LEN
    context_len: Ints = 0
    dtype: DType = DType.BF16
    cache_dtype: DType | None = None
    """Type of cached keys and values; None: that of the operands, in at least 16 bits."""
    attention_kernel: AttentionKernel = AttentionKernel.FLASH
    dropout: bool = False
    routing_skew: float = 1.0
    """Tokens of the most loaded expert relative to the mean."""
    document_len: int = 0
    """Tokens of each document packed into a training sequence, a divisor of ``seq_len``: attention stays within it. 0:
    a sequence is one document."""
    encodes: bool = False
    """Prefill of an encoder-decoder: the prompt passes the encoder, and the decoder sees its first token."""

    @property
    def new_tokens(self) -> Ints:
        """Tokens per sequence this workload computes, of an encoder-decoder's those of the decoder."""
        return 1 if self.phase is Phase.DECODE or self.encodes else self.seq_len

    @property
    def tokens(self) -> Ints:
        return self.microbatch_size * self.new_tokens

    @property
    def kv_len(self) -> Ints:
        """Largest number of keys that a full-attention query sees."""
        return self.context_len + 1 if self.phase is Phase.DECODE else self.context_len + self.seq_len
