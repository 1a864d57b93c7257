"""What a lowering depends on, and which shapes tensor and expert parallelism can split.

How a serving engine runs a pass: what it fuses, and what its devices exchange.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from sartor.errors import InputError
from sartor.model.editing import edit
from sartor.model.layer import AttentionMixer, DenseFfn, LatentAttentionMixer, Layer
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, ContextParallel, ParallelDims, Phase, Recipe, Workload
from sartor.operators import (
    Attention,
    Collective,
    CollectiveKind,
    CollectiveLibrary,
    DType,
    Gemm,
    GroupedGemm,
    MemoryBound,
    MemoryBoundKind,
    Operator,
    OperatorGraph,
    Part,
    Role,
)
from sartor.units import Array, Bools, Ints, ceil_div, divisors


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
        Recipe.MXFP4: Narrowing(reads=1, copies=2, kernels=1),
    }
)
"""Transformer Engine's cast kernels: current scaling and NVFP4 (its outer fp32 scale) need the largest value before
they quantize, hence a second read. Two copies: Hopper multiplies FP8 in layout TN only, so the weight gradient needs a
transpose; block and row scales run along the contracted dimension, so it needs a copy of its own on every device.
Row-wise scales take one pass for the largest value and one to quantize in each direction, and torchao gathers 16 bits.
NVFP4's copy for the weight gradient goes through a Hadamard transform in a separate kernel (NVIDIA, arXiv 2509.25149,
sec. 4); MXFP4, whose blocks have no outer scale, is taken as MXFP8. Kernels recalled
from transformer_engine/common (2.8), 2026-11-21."""


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


MOST_DEGREES = 4096
"""Degrees that are tried for the nearest valid ones."""


@dataclass(frozen=True, slots=True)
class Division:
    """``value`` of ``field`` must be a multiple of ``degree`` (or, with ``or_divides``, a divisor of it)."""

    field: str
    value: Ints
    by: str
    degree: Ints
    or_divides: bool = False

    @property
    def ok(self) -> Any:
        whole = np.equal(self.value % self.degree, 0)
        return whole | np.equal(self.degree % self.value, 0) if self.or_divides else whole

    def words(self, shape: TransformerShape) -> str:
        """``does not split num_heads=28 (24 and 32 do)``, of a single size; the degrees that do, where no size does."""
        sizes = [size_words(self.field, change) for change in near_sizes(shape, self)]
        if not sizes:
            sizes = [f"{self.by}={degree}" for degree in near_degrees(shape, self.by, int(self.degree))]
        return f"does not split {self.field}={int(self.value)} ({' and '.join(sizes)} {'do' if sizes[1:] else 'does'})"


def feasible(shape: TransformerShape, dims: ParallelDims) -> Bools:
    """Whether every device gets whole heads, columns, vocabulary rows and experts: a bool, or a mask that broadcasts
    over the arrays in ``shape`` and ``dims``."""
    mask: Any = True
    for division in divisions(shape, dims):
        mask = mask & division.ok
    return bool(mask) if np.ndim(mask) == 0 else mask


def check(shape: TransformerShape, dims: ParallelDims) -> None:
    """Raise ``InputError`` for the first degree that does not divide a single size, with the nearest degrees that
    divide all sizes. For arrays use ``feasible``."""
    for division in undivided(shape, dims):
        near = near_degrees(shape, division.by, int(division.degree))
        raise InputError(division.by, int(division.degree), division.words(shape), " or ".join(map(str, near)))


def undivided_words(shape: TransformerShape, dims: ParallelDims) -> str:
    """``tp=8 does not split num_heads=28 (24 and 32 do)``; empty if all is divided."""
    return next((f"{d.by}={int(d.degree)} {d.words(shape)}" for d in undivided(shape, dims)), "")


def undivided(shape: TransformerShape, dims: ParallelDims) -> Iterator[Division]:
    """The divisions of single sizes that do not come out even, in order of the layers."""
    return (division for division in divisions(shape, dims) if np.ndim(division.ok) == 0 and not division.ok)


def near_sizes(shape: TransformerShape, division: Division) -> list[dict[str, int]]:
    """The nearest sizes below and above with which a division comes out even and that the model can have, each with
    the key/value heads that it needs; none for a size that no field sets. A tokenizer's vocabulary only grows."""
    name, value, degree, fields = division.field, int(division.value), int(division.degree), shape.fields()
    if any(np.ndim(fields.get(size, 1)) for size in (name, "num_heads", "num_kv_heads")):
        return []  # one answer for many shapes: degrees alone
    if fields.get(name) != value or degree > 2 * value:  # a model more than twice as wide is another model
        return []
    if name == "num_kv_heads":
        groups = np.array(divisors(int(fields["num_heads"])))
        groups = groups[(groups % degree == 0) | (degree % groups == 0)]
        near = [int(size) for size in (*groups[groups < value][-1:], *groups[groups > value][:1])]
        return [{name: size} for size in near]
    whole = int(fields["num_kv_heads"]) if name == "num_heads" else 1
    keeps = whole in (1, value) or whole % degree == 0 or degree % whole == 0  # or other key/value heads are needed
    if name == "num_experts" and shape.moe_ffn is not None:
        whole = shape.moe_ffn.routing_groups
    if name.endswith(("ffn_hidden_size", "vocab_size")):
        whole = math.gcd(value, 128)  # as aligned as it is
    step = math.lcm(degree, whole) if keeps and whole != value else degree
    below = value // step * step
    sizes = [size for size in (below, below + step) if size and not (name == "vocab_size" and size < value)]
    changes = [
        {name: size} if keeps else {name: size, "num_kv_heads": kv_heads_for(size, whole, degree)} for size in sizes
    ]
    return [change for change in changes if _can_be(shape, change)]


def _can_be(shape: TransformerShape, change: dict[str, int]) -> bool:
    try:
        edit(shape, **change)
    except InputError:
        return False
    return True


def size_words(name: str, change: Mapping[str, int]) -> str:
    """``27 with num_kv_heads=3``: a size and what must change with it."""
    others = [f"{other}={size}" for other, size in change.items() if other != name]
    return f"{change[name]}{' with ' if others else ''}{' and '.join(others)}"


def kv_heads_for(heads: int, target: float, tp: int) -> int:
    """The divisor of ``heads`` nearest to ``target`` that splits over ``tp`` or is replicated evenly."""
    fitting = [g for g in range(1, heads + 1) if heads % g == 0 and (g % tp == 0 or tp % g == 0)]
    return min(fitting, key=lambda g: (abs(math.log(g / max(target, 0.5))), g))


def near_degrees(shape: TransformerShape, by: str, degree: int) -> list[int]:
    """The valid degrees below and above one that is not; the model runs on one device in any case."""
    degrees = np.arange(1, min(2 * degree, MOST_DEGREES) + 1)
    single = (
        division
        for division in divisions(shape, ParallelDims(tp=degrees) if by == "tp" else ParallelDims(ep=degrees))
        if np.ndim(division.value) == 0
    )
    works = degrees[np.logical_and.reduce([division.ok for division in single]) | (degrees == 1)]
    return [int(near) for near in (*works[works < degree][-1:], *works[works > degree][:1])]


def contexts_divide(seq_len: Ints, cp: Ints) -> Array:
    """Whether each of ``cp`` devices gets two equal pieces of a sequence, from both ends, to balance causal attention
    (as in Megatron and Llama 3)."""
    return np.asarray(np.equal(cp, 1) | np.equal(seq_len % (2 * np.asarray(cp)), 0))


def sequence_divides(seq_len: Ints, tp: Ints, cp: Ints) -> Array:
    """Whether sequence parallelism gives each of ``tp`` x ``cp`` devices an equal piece."""
    return np.asarray(np.equal(tp, 1) | np.equal(seq_len % np.multiply(tp, cp), 0))


def check_sizes(workload: Workload, dims: ParallelDims) -> None:
    """Raise ``InputError`` for a single (not array) count of sequences, tokens or devices that is not positive."""
    counts: list[tuple[str, Ints, int]] = [
        ("microbatch_size", workload.microbatch_size, 1),
        ("seq_len", workload.seq_len, 1),
        ("context_len", workload.context_len, 0),
        ("tp", dims.tp, 1),
        ("cp", dims.cp, 1),
        ("ep", dims.ep, 1),
    ]
    for name, value, smallest in counts:
        if np.ndim(value) == 0 and value < smallest:
            raise InputError(name, value, f"must be at least {smallest}", str(smallest))


def divisions(shape: TransformerShape, dims: ParallelDims) -> Iterator[Division]:
    """All divisions that must come out even; none for a degree of 1."""
    tp, ep = dims.tp, dims.ep
    layers = [run.layer for stack in shape.stacks if stack.is_text for run in stack.runs]
    if not _is_one(tp):
        for layer in layers:
            yield from _layer_divisions(layer, tp)
        yield Division("vocab_size", shape.vocab_size, "tp", tp)
    if not _is_one(ep):
        for layer in layers:
            for part in layer.all_ffns:
                if not isinstance(part, DenseFfn):
                    yield Division("num_experts", part.num_experts, "ep", ep)


def _layer_divisions(layer: Layer, tp: Ints) -> Iterator[Division]:
    for mixer in layer.mixers:
        if isinstance(mixer, (AttentionMixer, LatentAttentionMixer)):
            yield Division("num_heads", mixer.num_heads, "tp", tp)
            yield Division("num_kv_heads", mixer.num_kv_heads, "tp", tp, or_divides=True)
        elif _is_one(mixer.num_heads):
            yield Division("inner_size", mixer.inner_size, "tp", tp)
        else:  # Megatron-LM, ssm/mamba_mixer.py: whole heads; serving engines replicate groups like key/value heads
            yield Division("ssm_num_heads", mixer.num_heads, "tp", tp)
            yield Division("ssm_num_groups", mixer.num_groups, "tp", tp, or_divides=True)
    for part in layer.all_ffns:
        if isinstance(part, DenseFfn):
            yield Division("ffn_hidden_size", part.ffn_hidden_size, "tp", tp)
            continue
        yield Division("expert_ffn_hidden_size", part.expert.ffn_hidden_size, "tp", tp)
        if part.shared is not None:
            yield Division("shared_ffn_hidden_size", part.shared.ffn_hidden_size, "tp", tp)


def _is_one(degree: Ints) -> bool:
    return isinstance(degree, int) and degree == 1


def as_served(graph: OperatorGraph, workload: Workload, engine: EngineKernels) -> OperatorGraph:
    """The operators of one device's pass as a serving engine runs them.

    Residual sums and casts are fused into neighbouring kernels (vLLM's ``fused_add_rms_norm`` and its passes for norm,
    activation and quantization; TensorRT-LLM's ``AllReduceFusionOp``), latent attention's two down projections are one
    GEMM, and shared and routed experts are summed before one all-reduce.
    """
    operators: list[Operator] = []
    for op in graph.operators:
        if _is_fused(op) or (_is_reduce(op) and operators and operators[-1].role is Role.SHARED_DOWN):
            continue
        if isinstance(op, Gemm) and op.role is Role.KV_DOWN and _joined(operators, op):
            continue
        if isinstance(op, (Gemm, GroupedGemm)) and op.role and workload.stored and op.dtype is workload.dtype:
            op = replace(op, dtype=workload.stored.dtype_of(op.role))
        operators.append(_of_engine(op, workload, engine))
    return replace(graph, operators=tuple(operators))


def _joined(operators: list[Operator], down: Gemm) -> bool:
    """Merge latent attention's key/value down projection into the query one just before it; False if there is none."""
    last_gemm = max((i for i, op in enumerate(operators) if isinstance(op, Gemm)), default=-1)
    before = operators[last_gemm] if last_gemm >= 0 else None
    if not isinstance(before, Gemm) or before.role not in (Role.Q_DOWN, Role.QKV):
        return False
    operators[last_gemm] = replace(before, n=before.n + down.n)
    return True


def _is_fused(op: Operator) -> bool:
    kinds = (MemoryBoundKind.RESIDUAL, MemoryBoundKind.CAST)
    return isinstance(op, MemoryBound) and op.part is Part.LAYER and op.kind in kinds


def _is_reduce(op: Operator) -> bool:
    return isinstance(op, Collective) and op.role is Role.OUTPUT_REDUCE


def _of_engine(op: Operator, workload: Workload, engine: EngineKernels) -> Operator:
    """The operator with the cache's type, the engine's all-reduce library, and, if that moves fewer bytes, all-gather
    and reduce-scatter of the tokens instead of sending them to every chosen expert."""
    if isinstance(op, Attention) and op.role is Role.ATTENTION and workload.phase is Phase.DECODE:
        return replace(op, kv_dtype=workload.cache_dtype)
    if not isinstance(op, Collective):
        return op
    if op.kind is CollectiveKind.ALL_TO_ALL:
        moe = workload.shape.moe_ffn
        once = op.message_bytes * op.group_size / moe.experts_per_token if moe else op.message_bytes
        kind = CollectiveKind.ALL_GATHER if op.role is Role.DISPATCH else CollectiveKind.REDUCE_SCATTER
        return replace(op, kind=kind, message_bytes=once) if np.all(once < op.message_bytes) else op
    return replace(op, library=engine.all_reduce)
