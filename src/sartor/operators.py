"""The operators that a device runs: GEMMs, attention, memory-bound kernels and collectives.

An operator knows its FLOPs, the least bytes it must move, and its place in a model; ``sartor.cost`` computes its time.
Every size is ``Ints``: one number, or an array of candidates that broadcasts against the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TypeAlias

import numpy as np

from sartor.units import Floats, Ints


class DType(Enum):
    """Element types, with their width in memory. Block-scaled formats include their scales."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"
    INT8 = "int8"
    INT4 = "int4"
    INT8_WO = "int8_wo"
    INT4_WO = "int4_wo"

    @property
    def bytes(self) -> float:
        """Bytes of one stored element, block scales included (OCP MX v1.0: 32-element blocks, 1-byte scale;
        NVFP4: 16-element blocks, 1-byte scale; fp8_block: one fp32 scale per 128 x 128)."""
        return _DTYPE_BYTES[self]

    @property
    def weight_only(self) -> bool:
        """Whether weights are stored in few bits and converted for 16-bit GEMMs; activations stay in 16 bits."""
        return self in (DType.INT8_WO, DType.INT4_WO)

    @property
    def activation_bytes(self) -> float:
        """Bytes of one element of a GEMM's first operand."""
        return 2.0 if self.weight_only else self.bytes


_DTYPE_BYTES: dict[DType, float] = {
    DType.FP64: 8,
    DType.FP32: 4,
    DType.TF32: 4,
    DType.BF16: 2,
    DType.FP16: 2,
    DType.FP8: 1,
    DType.FP8_BLOCK: 1 + 4 / (128 * 128),
    DType.MXFP8: 1 + 1 / 32,
    DType.NVFP4: 0.5 + 1 / 16,
    DType.MXFP4: 0.5 + 1 / 32,
    DType.INT8: 1,
    DType.INT4: 0.5,
    DType.INT8_WO: 1,  # one 16-bit scale per output channel: negligible
    DType.INT4_WO: 0.5 + 2 / 128,  # a 16-bit scale per 128 (GPTQ, Frantar et al. 2022; AWQ, Lin et al. 2023)
}
WEIGHT_ONLY_NAMES = {"w4a16": "int4_wo", "gptq": "int4_wo", "awq": "int4_wo", "w8a16": "int8_wo"}
"""Other names of types in which only weights are stored."""


class Pass(Enum):
    """Which part of a training step an operator belongs to."""

    FORWARD = "forward"
    DGRAD = "dgrad"
    WGRAD = "wgrad"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    RECOMPUTE = "recompute"
    """Forward operators that run again before backward (activation checkpointing)."""

    @property
    def computes_outputs(self) -> bool:
        """Whether a kernel of this pass does what the forward pass does."""
        return self in (Pass.FORWARD, Pass.RECOMPUTE)


class Part(StrEnum):
    """Whether an operator is part of the layers or of what surrounds them."""

    LAYER = "layer"
    EMBEDDING = "embedding"
    HEAD = "head"
    OPTIMIZER = "optimizer"


class Role(StrEnum):
    """What an operator does in a model. Code asks for the role; the name is for people.

    A linear layer has the same role in every pass: the weight gradient of the query projection is ``QKV`` too. Kernels
    that serve a GEMM (casts, gradient accumulation) have their own roles.
    """

    EMBEDDING = "embedding"
    NORM = "norm"
    RESIDUAL = "residual"
    QKV = "qkv"
    """A projection from the residual stream to queries, keys or values, fused or separate."""
    Q_DOWN = "q_down"
    Q_UP = "q_up"
    KV_DOWN = "kv_down"
    KV_UP = "kv_up"
    """Of latent attention, also when decoding absorbs it into queries and outputs."""
    ROTARY = "rotary"
    SCORE = "score"
    SOFTMAX = "softmax"
    """Softmax of the attention scores, and dropout of the probabilities."""
    OVER_VALUE = "over_value"
    ATTENTION = "attention"
    """The fused attention kernel."""
    INDEX = "index"
    """The scores of sparse attention's indexer, and its choice of keys."""
    ATTENTION_OUTPUT = "attention_output"
    STATE_SPACE_IN = "state_space_in"
    CONVOLUTION = "convolution"
    SCAN = "scan"
    STATE_SPACE_OUT = "state_space_out"
    FFN_UP = "ffn_up"
    """The up projection of a dense feed-forward part and its gate, fused or separate."""
    FFN_DOWN = "ffn_down"
    ACTIVATION = "activation"
    ROUTER = "router"
    """The linear layer that scores experts."""
    ROUTING = "routing"
    """The choice of experts from those scores."""
    DISPATCH = "dispatch"
    """Sends tokens to their experts' devices and sorts them by expert."""
    COMBINE = "combine"
    """Returns expert outputs to their tokens."""
    EXPERT_UP = "expert_up"
    EXPERT_DOWN = "expert_down"
    SHARED_UP = "shared_up"
    """Up projection of a shared expert, which every token visits."""
    SHARED_DOWN = "shared_down"
    PARALLEL_IN = "parallel_in"
    """The single input projection of a parallel layer, for attention and feed-forward together."""
    PARALLEL_OUT = "parallel_out"
    PROJECTION = "projection"
    """Any other linear layer."""
    CAST = "cast"
    GRAD_ACCUMULATION = "grad_accumulation"
    INPUT_GATHER = "input_gather"
    """Gathers a region's input over tensor-parallel ranks; in backward once more, for the weight gradient."""
    OUTPUT_REDUCE = "output_reduce"
    OUTPUT_GATHER = "output_gather"
    GRAD_GATHER = "grad_gather"
    """Gathers the gradient of a region's output over tensor-parallel ranks."""
    GRAD_REDUCE = "grad_reduce"
    """Sums the gradient of a region's input over tensor-parallel ranks."""
    CONTEXT_EXCHANGE = "context_exchange"
    """Sends keys and values, or parts of sequences, between context-parallel ranks."""
    LOGITS = "logits"
    LOSS = "loss"
    OPTIMIZER = "optimizer"


class Layout(Enum):
    """Which operand dimension is contiguous, in BLAS letters for C[m,n] = A[m,k] B[k,n].

    ``TN``: A is stored m x k (k contiguous), B is stored n x k (k contiguous): PyTorch's forward.
    ``NN``: A m x k (k contiguous), B k x n (n contiguous): dgrad.
    ``NT``: A k x m (m contiguous), B k x n (n contiguous): wgrad.
    ``TILED``: as TN, with B stored in the tiles that matrix units load (aiter's pre-shuffled weights on AMD).
    C is always m x n (n contiguous).
    """

    TN = "TN"
    NN = "NN"
    NT = "NT"
    TILED = "TILED"

    @property
    def second_along_k(self) -> bool:
        """Whether B is contiguous along k."""
        return self in (Layout.TN, Layout.TILED)

    @property
    def contiguous(self) -> dict[str, str]:
        """For each contiguous dimension, the operands that are contiguous along it."""
        along = ("m" if self is Layout.NT else "k", "k" if self.second_along_k else "n")
        of: dict[str, list[str]] = {}
        for operand, length in zip("ABC", (*along, "n"), strict=True):
            of.setdefault(length, []).append(operand)
        return {length: " and ".join(operands) for length, operands in of.items()}


class CollectiveKind(Enum):
    """The collectives a plan is made of (NCCL's names)."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"


class CollectiveLibrary(Enum):
    """The library that runs a collective. ``NCCL``: NCCL, or RCCL and oneCCL on other devices. ``CUSTOM``: the
    all-reduce that vLLM and SGLang run inside a node for messages up to 8 MiB, and NCCL above. ``TRTLLM``:
    TensorRT-LLM's."""

    NCCL = "nccl"
    CUSTOM = "custom"
    TRTLLM = "trtllm"


class Axis(Enum):
    """Which degree of parallelism a collective belongs to."""

    TENSOR = "tp"
    CONTEXT = "cp"
    EXPERT = "ep"
    DATA = "dp"
    PIPELINE = "pp"


class MemoryBoundKind(Enum):
    """Kinds of memory-bound kernels."""

    EMBEDDING = "embedding"
    NORM = "norm"
    SOFTMAX = "softmax"
    ACTIVATION = "activation"
    RESIDUAL = "residual"
    ROTARY = "rotary"
    CROSS_ENTROPY = "cross_entropy"
    OPTIMIZER = "optimizer"
    SCAN = "scan"
    CONV = "conv"
    ROUTING = "routing"
    CAST = "cast"


@dataclass(frozen=True, slots=True, kw_only=True)
class _OperatorBase:
    """The place of an operator in a model.

    ``count`` is how often it runs in the workload, over all layers that have it. ``role`` is None for an operator that
    is not part of a model. ``block`` is an index into `sartor.model.shape.blocks` of the model's shape.
    """

    name: str
    count: Ints = 1
    pass_: Pass = Pass.FORWARD
    role: Role | None = None
    block: int = 0
    part: Part = Part.LAYER


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(_OperatorBase):
    """``batch`` independent products C[m,n] = A[m,k] B[k,n].

    ``bytes_moved`` is the least traffic: each operand read once, the result written once.
    """

    m: Ints
    n: Ints
    k: Ints
    batch: Ints = 1
    dtype: DType = DType.BF16
    out_dtype: DType | None = None
    layout: Layout = Layout.TN
    accumulates: bool = False
    """The result is added to C (wgrad into an fp32 or bf16 main gradient), so C is read as well."""
    quantized: bool = False
    """Another operator quantizes the operands, so this GEMM's own quantizing kernel is left out."""

    @property
    def flops(self) -> Floats:
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def bytes_moved(self) -> Floats:
        out = (self.out_dtype or _output_dtype(self.dtype)).bytes * (2 if self.accumulates else 1)
        first, second = self.dtype.activation_bytes, self.dtype.bytes
        return self.batch * (first * self.m * self.k + second * self.k * self.n + out * self.m * self.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGemm(_OperatorBase):
    """One GEMM per expert: ``groups`` weights [k,n] on one device, ``rows`` token rows over all of them.

    ``groups`` is a fraction where it is the expected number of experts that have rows.

    ``skew`` is the largest group's rows over the mean (1 = balanced). In ``Pass.WGRAD`` ``n`` and ``k`` are
    still the weight's and the rows are contracted: each group's GEMM is [n, rows/groups] x [rows/groups, k].
    """

    groups: Floats
    rows: Ints
    n: Ints
    k: Ints
    dtype: DType = DType.BF16
    layout: Layout = Layout.TN
    skew: Floats = 1.0
    visited_evenly: bool = False
    """``groups`` are those that even routing visits, whatever the skew; else those that rows as uneven do visit."""
    masked_rows: Ints = 0
    """Rows of other devices' experts that a kernel still visits if tokens are not exchanged."""
    tokens: Ints = 0
    """Tokens that the rows (with ``masked_rows``) belong to; 0: unknown, one per row."""
    experts: Ints = 0
    """Experts on the device, including those without rows; 0: unknown, taken as ``groups``."""
    out_dtype: DType | None = None
    """Type of the weight gradient, if not 16 bits."""
    apart: bool = False
    """May run as one library GEMM per group, side by side (Transformer Engine's grouped linear), if that is faster."""
    accumulates: bool = False
    """The result is added to what is there (a weight gradient into a main gradient)."""
    quantized: bool = False
    """Another operator quantizes the operands, so this GEMM's own quantizing kernel is left out."""

    @property
    def flops(self) -> Floats:
        return 2.0 * self.rows * self.n * self.k

    @property
    def bytes_moved(self) -> Floats:
        """Least bytes moved. Every expert's weights are read: assumes at least as many rows as experts."""
        out = (self.out_dtype or _output_dtype(self.dtype)).bytes * (2 if self.accumulates else 1)
        weights = 1.0 * self.groups * self.k * self.n
        if self.pass_ is Pass.WGRAD:
            return self.dtype.bytes * self.rows * (self.k + self.n) * 1.0 + out * weights
        first = self.dtype.activation_bytes * self.rows * self.k
        return first + self.dtype.bytes * weights + out * self.rows * self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(_OperatorBase):
    """A fused (flash) attention kernel: score, softmax and over-value without an s x s tensor in HBM.

    ``batch`` sequences, ``num_heads`` query and ``num_kv_heads`` key/value heads on this device; ``seq_q`` new
    tokens against ``seq_kv`` keys (the last ``seq_q`` of which are the new ones); ``window`` keys at most per
    query (0 = all). ``pass_`` BACKWARD does 5 products for the forward's 2 (FlashAttention, Dao 2022, sec. 3.1).
    """

    batch: Ints
    num_heads: Ints
    num_kv_heads: Ints
    seq_q: Ints
    seq_kv: Ints
    head_dim: Ints
    v_head_dim: Ints
    causal: bool = True
    window: Ints = 0
    latent: bool = False
    """Absorbed multi-head latent attention: keys and values are one tensor of width ``head_dim``."""
    dtype: DType = DType.BF16
    kv_dtype: DType | None = None
    """Type of cached keys and values if not ``dtype``."""

    @property
    def kv_element(self) -> float:
        """Bytes of one element of the keys and values."""
        return (self.kv_dtype or self.dtype).bytes

    @property
    def pairs(self) -> Floats:
        """Query-key pairs of one head and sequence that the mask lets through."""
        pairs: Floats = attention_pairs(self.seq_q, self.seq_kv, self.causal, self.window)
        return pairs

    @property
    def flops(self) -> Floats:
        d, dv = self.head_dim, self.v_head_dim
        widths = 2.0 * (d + dv) if self.pass_.computes_outputs else 2.0 * (3 * d + 2 * dv)
        return self.batch * self.num_heads * self.pairs * widths

    @property
    def cached_bytes(self) -> Floats:
        """Bytes of the keys and values that one new token's window reaches."""
        reach = np.where(
            np.asarray(self.window) > 0, np.minimum(self.seq_kv, self.window), np.asarray(self.seq_kv) * 1.0
        )
        width = np.asarray(self.head_dim) if self.latent else np.asarray(self.head_dim) + self.v_head_dim
        cached: Floats = self.batch * np.maximum(np.asarray(self.num_kv_heads), 1) * reach * width * self.kv_element
        return cached

    @property
    def bytes_moved(self) -> Floats:
        q_and_out = 1.0 * self.num_heads * self.seq_q * (self.head_dim + self.v_head_dim)
        kv_width = self.head_dim if self.latent else self.head_dim + self.v_head_dim
        kv = 1.0 * self.num_kv_heads * self.seq_kv * kv_width * self.kv_element / self.dtype.bytes
        # Backward reads q, k, v, out, dout and writes dq, dk, dv: each side about twice the forward, plus one more.
        factor = 1.0 if self.pass_.computes_outputs else 2.0
        return factor * self.batch * self.dtype.bytes * (q_and_out + kv)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound(_OperatorBase):
    """A memory-bound kernel of size ``rows`` x ``cols``; ``bytes_moved`` is what it reads and writes."""

    kind: MemoryBoundKind
    rows: Ints
    cols: Ints
    bytes_moved: Floats
    flops: Floats = 0.0
    kernels: Ints = 1
    """Kernel launches per execution."""
    kernel: str = ""
    """Which kernel of its kind (``gelu``, ``layernorm``, ...), if a calibration may know it; else empty."""
    dtype: DType = DType.BF16


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(_OperatorBase):
    """Communication among ``group_size`` devices; ``message_bytes`` is the full (unsharded) buffer per device."""

    kind: CollectiveKind
    group_size: Ints
    message_bytes: Floats
    stride: Ints = 1
    """Spacing of the group's members in device numbers: 1 are neighbours, the tensor-parallel degree for the group
    outside it, and so on. With ``group_size`` it says which links a cluster's group crosses."""
    alone: bool = False
    """No other group of the node communicates at the same time, as in a benchmark: its members need not share network
    adapters. In a plan all groups communicate at once."""
    axis: Axis = Axis.TENSOR
    library: CollectiveLibrary = CollectiveLibrary.NCCL
    eager: bool = False
    """Launched by the host one at a time, not queued or replayed from a CUDA graph."""

    @property
    def flops(self) -> Floats:
        return 0.0

    @property
    def bytes_moved(self) -> Floats:
        return self.message_bytes


PLACE = ("name", "count", "role", "block", "part")
"""Fields for an operator's place in a model; the cost of one execution does not depend on them."""

Operator: TypeAlias = Gemm | GroupedGemm | Attention | MemoryBound | Collective

KIND_NAMES: dict[type, str] = {
    Gemm: "gemm",
    GroupedGemm: "grouped_gemm",
    Attention: "attention",
    Collective: "collective",
}


def kernel_role(kind: MemoryBoundKind) -> Role:
    """The role of a memory-bound kernel that follows from its kind."""
    return {MemoryBoundKind.CROSS_ENTROPY: Role.LOSS, MemoryBoundKind.CONV: Role.CONVOLUTION}.get(kind) or Role(
        kind.value
    )


def kind_name(operator: Operator) -> str:
    """The ``kind`` of an operator in tables and JSON: gemm, grouped_gemm, attention, collective, norm, ..."""
    return operator.kind.value if isinstance(operator, MemoryBound) else KIND_NAMES[type(operator)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorGraph:
    """What one device runs in a workload: operators in execution order, each with its count.

    ``edges`` are pairs of positions in ``operators``; empty means a chain in the order given.
    """

    operators: tuple[Operator, ...] = field(repr=False)
    edges: tuple[tuple[int, int], ...] = ()
    tokens: Ints = field(default=0)
    """Tokens this device's data-parallel rank works on in one execution."""

    @property
    def flops(self) -> Floats:
        return sum((op.flops * op.count for op in self.operators), 0.0)

    @property
    def matmul_flops(self) -> Floats:
        """FLOPs of matrix multiplications only, as model FLOPs utilization counts them: without recomputed ones."""
        return sum((op.flops * op.count for op in self.operators if is_model_product(op)), 0.0)

    @property
    def bytes_moved(self) -> Floats:
        return sum((op.bytes_moved * op.count for op in self.operators), 0.0)


def is_model_product(operator: Operator) -> bool:
    """Whether it is a matrix multiplication of the model: not one that is recomputed."""
    return isinstance(operator, (Gemm, GroupedGemm, Attention)) and operator.pass_ is not Pass.RECOMPUTE


def attention_pairs(seq_q: Floats, seq_kv: Floats, causal: bool, window: Floats) -> Floats:
    """Query-key pairs let through by a causal and/or sliding-window mask, queries aligned to the end of the keys.

    Query i (0-based) of ``seq_q`` sees keys up to ``seq_kv - seq_q + i`` when causal, and the nearest ``window``
    of those (both sides when not causal) when ``window`` is not 0.
    """
    q, kv = np.asarray(seq_q, dtype=np.float64), np.asarray(seq_kv, dtype=np.float64)
    w = np.asarray(window, dtype=np.float64)
    if causal:
        full = q * kv - q * (q - 1) / 2
        # Queries whose visible prefix exceeds w lose the excess; visible prefix runs from kv-q+1 to kv.
        first = np.maximum(kv - q + 1 - w, 0)
        last = np.maximum(kv - w, 0)
        terms = np.minimum(q, last)
        lost = np.where(first > 0, q * (first + last) / 2, terms * (terms + 1) / 2)
    else:
        full = q * kv
        half = np.minimum(w, kv)
        lost = full - q * np.minimum(kv, 2 * half + 1) if np.ndim(w) or w else 0.0
    out = np.where(w > 0, full - lost, full)
    return float(out) if out.ndim == 0 else out


def _output_dtype(dtype: DType) -> DType:
    """GEMMs on narrow types write their result in 16 bits."""
    return dtype if dtype.bytes >= 2 else DType.BF16
