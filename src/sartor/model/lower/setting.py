"""The setting in which a part of a model is lowered."""

from __future__ import annotations

from dataclasses import dataclass, field

from sartor.model.lower.kernels import Kernels
from sartor.model.parallel import ParallelDims
from sartor.model.workload import AttentionKernel, Phase, Workload
from sartor.operators import DType
from sartor.units import Ints, ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A workload on one device of a tensor-parallel group, for a stack of residual width ``hidden_size``.

    ``seq_q`` new tokens per sequence and ``seq_kv`` keys they may see; ``encoder_len`` keys of cross-attention.
    """

    workload: Workload
    dims: ParallelDims
    hidden_size: Ints
    seq_q: Ints
    seq_kv: Ints
    encoder_len: Ints = 0
    kernels: Kernels = field(default_factory=Kernels)

    @property
    def tp(self) -> Ints:
        return self.dims.tp

    @property
    def batch(self) -> Ints:
        return self.workload.microbatch_size

    @property
    def training(self) -> bool:
        return self.workload.phase is Phase.TRAIN

    @property
    def decoding(self) -> bool:
        return self.workload.phase is Phase.DECODE

    @property
    def documents(self) -> Ints:
        """Documents in a sequence."""
        each = self.workload.document_len if self.training else 0
        return self.seq_q // each if each else 1

    @property
    def flash(self) -> bool:
        return self.workload.attention_kernel is AttentionKernel.FLASH

    @property
    def dropout(self) -> bool:
        return self.workload.dropout and self.training

    @property
    def sequence_parallel(self) -> bool:
        """Only training splits activations along the sequence; inference does not."""
        return self.dims.sequence_parallel and self.training and self.is_split

    @property
    def is_split(self) -> bool:
        return not (isinstance(self.tp, int) and self.tp == 1)

    @property
    def is_shared(self) -> bool:
        """Whether context parallelism splits sequences: in every phase but decoding."""
        return not (isinstance(self.dims.cp, int) and self.dims.cp == 1) and not self.decoding

    @property
    def tokens(self) -> Ints:
        """Rows of every GEMM in the tensor-parallel region (context parallelism divides each sequence)."""
        tokens: Ints = self.batch * ceil_div(self.seq_q, self.dims.cp)
        return tokens

    @property
    def outer_tokens(self) -> Ints:
        """Rows outside that region: norms, residuals, replicated linears."""
        rows: Ints = ceil_div(self.tokens, self.tp) if self.sequence_parallel else self.tokens
        return rows

    @property
    def dtype(self) -> DType:
        """Type of the operands of linear layers."""
        return self.workload.dtype

    @property
    def wide(self) -> DType:
        """Type of activations, attention, router and logits: 8- and 4-bit training and serving keep these in 16 bits
        (DeepSeek-V3, arXiv 2412.19437, sec. 3.3.1)."""
        return self.dtype if self.dtype.bytes >= 2 else DType.BF16

    @property
    def element(self) -> float:
        """Bytes of one activation."""
        return self.wide.bytes


def is_zero(size: Ints) -> bool:
    """Whether a size is surely 0, so that its operators can be left out."""
    return isinstance(size, int) and size == 0
