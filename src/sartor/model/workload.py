"""A workload: train, prefill or decode a number of tokens in a given precision."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sartor.model.defaults import SEQ_LEN
from sartor.model.shape import TransformerShape
from sartor.operators import DType
from sartor.units import Ints


class Phase(Enum):
    TRAIN = "train"
    PREFILL = "prefill"
    DECODE = "decode"


class AttentionKernel(Enum):
    """``FLASH``: one fused kernel. ``UNFUSED``: score, softmax and over-value as kernels of their own."""

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
    attention_kernel: AttentionKernel = AttentionKernel.FLASH
    dropout: bool = False
    routing_skew: float = 1.0
    """Tokens of the busiest expert relative to the mean."""
    document_len: int = 0
    """Tokens of each document packed into a sequence of training: its attention stays within it. It divides
    ``seq_len``; 0: a sequence is one document."""

    @property
    def new_tokens(self) -> Ints:
        """Tokens per sequence this workload computes."""
        return 1 if self.phase is Phase.DECODE else self.seq_len

    @property
    def tokens(self) -> Ints:
        return self.microbatch_size * self.new_tokens

    @property
    def kv_len(self) -> Ints:
        """Most keys that a full-attention query sees."""
        return self.context_len + 1 if self.phase is Phase.DECODE else self.context_len + self.seq_len
