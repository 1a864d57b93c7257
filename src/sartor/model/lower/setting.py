"""What a lowering depends on: the workload, the split, and the kernels of the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sartor.model.choices import ContextParallel, Recipe
from sartor.model.workload import AttentionKernel, ParallelDims, Phase, Workload
from sartor.operators import CollectiveLibrary, DType
from sartor.units import Ints, ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """How a recipe quantizes a 16-bit tensor to 8 or 4 bits."""

    reads: int = 1
    """Reads of the 16-bit tensor: one, and a second one if its largest value must be known first."""
    copies: int = 2
    """Quantized copies written: a second one if the weight gradient needs another layout or scales along tokens."""
    kernels: int = 1
    gathered: bool = True
    """Whether sequence parallelism gathers tensors after they are quantized."""
    weights: bool = False
    """Whether weights are quantized again for every microbatch instead of once per step."""


NARROWING: Mapping[Recipe, Narrowing] = MappingProxyType(
    {
        Recipe.FP8_DELAYED: Narrowing(reads=1, copies=2, kernels=1),
        Recipe.FP8_CURRENT: Narrowing(reads=2, copies=2, kernels=2),
        Recipe.FP8_ROWWISE: Narrowing(reads=4, copies=2, kernels=4, gathered=False),
        Recipe.FP8_BLOCK: Narrowing(reads=1, copies=2, kernels=1),
        Recipe.MXFP8: Narrowing(reads=1, copies=2, kernels=1),
        Recipe.NVFP4: Narrowing(reads=2, copies=2, kernels=3),
    }
)
"""Transformer Engine's cast kernels: current scaling and NVFP4 (its outer fp32 scale) need the largest value before
they quantize, hence a second read. Two copies: Hopper multiplies FP8 in layout TN only, so the weight gradient needs a
transpose; block and row scales run along the contracted dimension, so it needs a copy of its own on every device.
Row-wise scales take one pass for the largest value and one to quantize in each direction, and torchao gathers 16 bits.
NVFP4's copy for the weight gradient goes through a Hadamard transform in a separate kernel (NVIDIA, arXiv 2509.25149,
sec. 4). Kernels recalled from transformer_engine/common (2.8), 2026-11-21."""


def usual_narrowing(dtype: DType) -> Narrowing | None:
    """How training in an 8- or 4-bit type quantizes if no recipe is named: Transformer Engine's first recipe for that
    type. None for types of 16 bits and more."""
    if dtype.activation_bytes >= 2:
        return None
    return next((how for recipe, how in NARROWING.items() if recipe.dtype is dtype), Narrowing())


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKernels:
    """What a serving engine runs otherwise than a trainer (``served.as_served``)."""

    all_reduce: CollectiveLibrary = CollectiveLibrary.CUSTOM
    wide_attention: bool = False
    """Attention's linear layers stay in 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Properties of a trainer that change which operators its devices run. The defaults are Megatron-LM's."""

    fused: bool = True
    """Norm, activation, rotary embedding, and dropout with its residual sum are one kernel each; otherwise they are
    chains of elementwise kernels."""
    narrowing: Narrowing | None = None
    """None: training uses the usual recipe for its type (``usual_narrowing``); serving has one cast beside the
    quantizing kernel that a GEMM's calibration may include."""
    weight_gradients: bool = True
    """False: the weights are frozen (adapters)."""
    widened_bytes: float = 0.0
    """Bytes per stored weight, if a kernel converts weights to 16 bits before each GEMM (QLoRA); 0: none does."""
    accumulates: bool = True
    """The GEMM itself adds weight gradients to a main gradient (Megatron's gradient accumulation fusion); otherwise
    they are written in 16 bits."""
    gradient_bytes: float = 0.0
    """Bytes moved per weight by a separate kernel that adds the gradient to that of earlier microbatches."""
    strided_heads: bool = False
    """Activations are laid out as [tokens, batch, width] (Megatron). Unfused attention reads heads in that layout:
    heads not starting at multiples of 16 bytes can't use tensor cores. State-space mixers copy what they scan."""
    grouped_apart: bool = False
    """Experts may run as one library GEMM each, side by side on a few streams, if that is faster."""
    expert_bias_apart: bool = True
    """The bias of experts' outputs is weighted and added by separate kernels per expert; a limit on their gates is
    applied before the activation."""
    fused_experts: bool = False
    """Dispatch writes rows in expert order, and a gated activation between MXFP8 GEMMs is fused into them (HybridEP;
    Transformer Engine's fused grouped MLP on Blackwell)."""
    pads_experts: bool = True
    """Rows of 8- and 4-bit experts are copied to padded buffers and back."""
    main_grad: DType = DType.FP32
    context_parallel: ContextParallel = ContextParallel.RING
    dispatch_once_per: int = 0
    """Size of a group of adjacent devices that receives a token once, however many of its experts it holds. 0: a token
    is sent to each of its experts."""
    splits_experts: bool = True
    """Tensor parallelism splits every expert. Otherwise its ranks serve as expert-parallel ranks and experts stay whole
    (Megatron's ``expert_tensor_parallel_size`` 1)."""
    engine: EngineKernels | None = None
    """In inference: what the serving engine changes; None: no engine runs the pass."""


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
        length = self.workload.document_len if self.training else 0
        return self.seq_q // length if length else 1

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
