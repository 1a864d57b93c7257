"""What is run on a model: phase, lengths, batch, degrees of parallelism, and the choices of a training run.

A model as read: its shape, and everything that is not from the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from math import isfinite

import numpy as np

from sartor.errors import InputError
from sartor.model.counts import ParamCounts, count_params
from sartor.model.shape import TransformerShape
from sartor.operators import DType, Role
from sartor.units import Floats, Ints

ATTENTION_ROLES = (Role.QKV, Role.Q_DOWN, Role.Q_UP, Role.KV_DOWN, Role.KV_UP, Role.ATTENTION_OUTPUT)
"""Linear layers of attention."""
WIDE_BYTES = 2.0
"""Of an element that was not quantized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTypes:
    """What a checkpoint stores otherwise than its type says."""

    dtype: DType
    """Type of most weights."""
    element_bytes: tuple[tuple[Role, float], ...] = ()
    """Bytes of an element by role, scales included, on average over the layers; other roles are of ``dtype``."""
    cache: DType | None = None
    """Type of keys and values, if the checkpoint states one."""
    scale_group: int | None = None
    """Weights of a row that share a scale, if the checkpoint states it."""

    def bytes_of(self, role: Role) -> float:
        """Bytes of an element of a role's weights; routers, the head and tables are never narrow unless stated."""
        usual = max(self.dtype.bytes, WIDE_BYTES) if role in (Role.ROUTER, Role.LOGITS) else self.dtype.bytes
        return dict(self.element_bytes).get(role, usual)

    def dtype_of(self, role: Role) -> DType:
        """The type in which most of a role's weights are multiplied."""
        stored = self.bytes_of(role)
        if abs(stored - self.dtype.bytes) < 0.25 * self.dtype.bytes:
            return self.dtype
        return DType.BF16 if stored > 1.5 else DType.FP8 if stored > 0.75 else self.dtype


def with_wide_attention(dtype: DType) -> StoredTypes:
    """A checkpoint whose attention projections stay in 16 bits."""
    return StoredTypes(dtype=dtype, element_bytes=tuple((role, WIDE_BYTES) for role in ATTENTION_ROLES))


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

    In ``Phase.DECODE`` every sequence adds one token to ``context_len`` earlier ones (``seq_len`` is then what
    an encoder passed, if there is one).
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
    stored: StoredTypes | None = None
    """Types of single roles' weights, as engines serve checkpoints that are quantized in part."""

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
        return self.context_len + self.new_tokens


class Recompute(IntEnum):
    """The part of a layer that is recomputed in backward. Values are numbers, so that arrays of plans can hold them."""

    NONE = 0
    SELECTIVE = 1
    """Only the job's ``recompute_modules``, by default the attention core (Korthikanti et al. 2022, sec. 5), which
    saves nothing with a flash kernel."""
    FULL = 2
    """Whole layers: only their inputs are kept."""

    @property
    def word(self) -> str:
        return self.name.lower()


class RecomputeModule(Enum):
    """Parts of a layer that selective recomputation may run again, as Megatron-Core's ``--recompute-modules`` names
    them (transformer_config.py, as of 2026-11)."""

    LAYERNORM = "layernorm"
    """Norms before attention and feed-forward part: their outputs are not kept."""
    MOE_ACT = "moe_act"
    """Activation function of the experts: the input of their last product is not kept."""
    MLA_UP_PROJ = "mla_up_proj"
    """Queries, keys and values of latent attention, from their latents."""
    SHARED_EXPERTS = "shared_experts"
    MLP = "mlp"
    """Dense feed-forward parts, with their tensor-parallel communication."""
    CORE_ATTN = "core_attn"
    MOE = "moe"
    """Whole layers of experts, with the exchange of tokens."""


class OffloadModule(Enum):
    """Parts of a layer whose saved input can be offloaded to host memory between forward and backward, as in
    Megatron-Core's ``--offload-modules`` (transformer_config.py of 0.16.1, read 2026-11-23), and two more. A search
    adds them in this order, the largest inputs first."""

    EXPERT_FC1 = "expert_fc1"
    MOE_ACT = "moe_act"
    CORE_ATTN = "core_attn"
    """Queries, keys and values."""
    ATTN_PROJ = "attn_proj"
    """The output of attention."""
    QKV_LINEAR = "qkv_linear"
    MLP_NORM = "mlp_norm"
    ATTN_NORM = "attn_norm"
    LAYER = "layer"
    """Everything that a layer saves (``--cpu-offloading-num-layers``)."""
    LAYER_INPUT = "layer_input"
    """The saved input of a fully recomputed layer (MaxText's ``decoder_layer_input: offload``)."""


class PipelineSchedule(IntEnum):
    """Order of microbatches in a pipeline."""

    ONE_F_ONE_B = 0
    """1F1B (Narayanan et al. 2021); interleaved where ``virtual_stages`` > 1."""
    ZERO_BUBBLE = 1
    """ZB-H1 (Qi et al. 2023): weight gradients fill the bubble; memory as 1F1B. With several chunks per device, the
    same for interleaved 1F1B."""
    GPIPE = 2
    """All forward, then all backward: every microbatch is kept."""
    ZERO_BUBBLE_V = 3
    """ZB-V (Qi et al. 2024, arXiv 2405.15362): two chunks per device, device d holding parts d and 2p - 1 - d."""
    DUAL_PIPE_V = 4
    """DualPipeV (DeepSeek, github.com/deepseek-ai/DualPipe): the same placement, forward beside backward."""

    @property
    def word(self) -> str:
        return {0: "1f1b", 1: "zero_bubble", 2: "gpipe", 3: "zero_bubble_v", 4: "dual_pipe_v"}[int(self)]

    @property
    def is_v(self) -> bool:
        """Whether a device's second chunk is the mirror image of its first."""
        return self >= PipelineSchedule.ZERO_BUBBLE_V

    @property
    def splits(self) -> bool:
        """Whether weight gradients are separate tasks."""
        return self not in (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.GPIPE)


COMMON_SCHEDULES = (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.GPIPE)
"""Schedules that need no special placement."""


class Optimizer(Enum):
    ADAM = "adam"
    SGD = "sgd"
    """With momentum."""
    MUON = "muon"
    """Momentum orthogonalised by Newton-Schulz on matrices, Adam on the rest (Jordan et al. 2024)."""
    LION = "lion"
    """One moment (Chen et al. 2023, arXiv 2302.06675)."""
    ADAFACTOR = "adafactor"
    """Sums of rows and columns instead of the second moment, no first one (Shazeer and Stern 2018, arXiv 1804.04235;
    the default of Hugging Face and PyTorch)."""
    ADAM_8BIT = "adam8bit"
    """Adam with 8-bit moments (Dettmers et al. 2022, arXiv 2110.02861; bitsandbytes, torchao)."""
    ADAM_4BIT = "adam4bit"
    """Adam with 4-bit moments (torchao)."""
    PAGED_ADAM = "paged_adam"
    """Adam whose states the driver moves to host memory where the device is full (bitsandbytes)."""
    PAGED_ADAM_8BIT = "paged_adam8bit"
    NONE = "none"
    """No update: a run of forward and backward passes alone."""

    @property
    def is_paged(self) -> bool:
        """Whether states are in managed memory: the framework's allocator does not hold them, and what the device lacks
        is in the host's (bitsandbytes' PagedAdamW)."""
        return self.unpaged is not self

    @property
    def unpaged(self) -> Optimizer:
        """The same with its states on the device."""
        return {Optimizer.PAGED_ADAM: Optimizer.ADAM, Optimizer.PAGED_ADAM_8BIT: Optimizer.ADAM_8BIT}.get(self, self)

    @property
    def narrow_moment_bytes(self) -> float:
        """Bytes of a moment in an 8- or 4-bit optimizer with the fp32 scale of its block; 0: moments have a type.

        Blocks of 256 elements in 8 bits (bitsandbytes from 0.44, before 2048; torchao), of 128 in 4 bits (torchao;
        recalled, 2026-11-29)."""
        eight = self in (Optimizer.ADAM_8BIT, Optimizer.PAGED_ADAM_8BIT)
        return 1 + 4 / 256 if eight else 0.5 + 4 / 128 if self is Optimizer.ADAM_4BIT else 0.0

    def moments(self, *, of_matrices: bool = True) -> int:
        """Moments per parameter, of matrices in layers or of the rest; Adafactor's sums are not counted."""
        if self in (Optimizer.NONE, Optimizer.ADAFACTOR):
            return 0
        single = self in (Optimizer.SGD, Optimizer.LION) or (self is Optimizer.MUON and of_matrices)
        return 1 if single else 2


COMMON_OPTIMIZERS = (Optimizer.ADAM, Optimizer.SGD, Optimizer.MUON, Optimizer.NONE)


class Loss(Enum):
    """What cross-entropy keeps of the logits."""

    UNFUSED = "off"
    """16-bit logits, their fp32 copy, probabilities, and gradients."""
    FUSED = "on"
    """The loss reads 16-bit logits and writes 16-bit gradients, with no fp32 copy (torch.compile over the loss;
    Transformer Engine's cross-entropy)."""
    CHUNKED = "chunked"
    """16-bit logits as a whole; fp32 copies of one chunk of tokens at a time (torchtune's CEWithChunkedOutputLoss,
    LitGPT's chunked_cross_entropy)."""
    LINEAR = "linear"
    """Head and loss together, chunk by chunk, so that no more than a chunk of logits exists (Liger's
    LigerFusedLinearCrossEntropy, torchtune's LinearCrossEntropyLoss, torchtitan's ChunkedCELoss)."""
    CUT = "cut"
    """The same in on-chip memory: no logits at all (Cut Cross-Entropy, Wijmans et al. 2024, arXiv 2411.09009)."""

    def __bool__(self) -> bool:
        """Whether it is anything but the eager one."""
        return self is not Loss.UNFUSED

    @property
    def keeps_logits(self) -> bool:
        return self not in (Loss.LINEAR, Loss.CUT)


class LoraTargets(Enum):
    """Linear layers with a low-rank adapter (LoRA, Hu et al. 2021, arXiv 2106.09685)."""

    ALL = "all"
    """Every linear layer of the blocks."""
    ATTENTION = "attention"
    """Those of attention."""
    QUERY_VALUE = "qv"
    """The projections to queries and values."""


class Recipe(Enum):
    """Precision of the linear layers; attention, norms and logits stay in 16 bits, main weights in fp32."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8_DELAYED = "fp8_delayed"
    """Per-tensor scales from a history of maxima (Transformer Engine's first recipe)."""
    FP8_CURRENT = "fp8_current"
    """Per-tensor scales from the tensor itself: one more pass over it."""
    FP8_ROWWISE = "fp8_rowwise"
    FP8_BLOCK = "fp8_block"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"

    @property
    def dtype(self) -> DType:
        """Operand type of the linear layers' GEMMs."""
        names = {"fp8_delayed": "fp8", "fp8_current": "fp8", "fp8_rowwise": "fp8"}
        return DType(names.get(self.value, self.value))


class ContextParallel(Enum):
    """How attention splits the sequence: ``RING`` passes keys and values around, ``ALL_TO_ALL`` exchanges sequence for
    heads and back (DeepSpeed Ulysses), ``ALL_GATHER`` gathers keys and values first (Llama 3)."""

    RING = "ring"
    ALL_TO_ALL = "all_to_all"
    ALL_GATHER = "all_gather"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReading:
    """A model as read: its shape, and notes on everything that is not from the file."""

    shape: TransformerShape
    assumptions: tuple[str, ...] = ()
    """Defaults and guesses behind the shape, one sentence each."""
    notes: tuple[str, ...] = ()
    """Ignored entries (``auto_map``, quantization), one sentence each."""
    exact: bool = True
    """Whether the counts equal those of the published class exactly."""
    inexact_because: tuple[str, ...] = ()
    unread_sizes: tuple[str, ...] = ()
    """Sizes of the file that no reader knows, as ``field=value``: with any, the parameter count is unknown."""
    interval_factor: float = 1.0
    """Factor on the log-interval of every prediction (1: the model type is known)."""
    architecture: str = ""
    weights: str = ""
    """Type in which the weights were released, if it has fewer than 16 bits."""
    stored: StoredTypes | None = None
    """Which weights have that type, if the file says it."""
    asked: tuple[str, ...] = ("MODEL",)
    """The model as a user names it on a command line, with the options that change it."""

    @property
    def unread(self) -> str:
        """The sizes that were not read and what that means; "" if all were."""
        return unread_words(self.unread_sizes) if self.unread_sizes else ""

    def known(self, fits: bool) -> bool | None:
        """Whether the model fits, where without the sizes that were not read it does or does not: with any, a model
        that would fit without them may not."""
        return None if fits and self.unread_sizes else fits

    @property
    def params(self) -> ParamCounts:
        return count_params(self.shape)

    @property
    def num_params(self) -> Ints:
        return self.params.total

    @property
    def num_active_params(self) -> Ints:
        return self.params.active

    @property
    def text_params(self) -> Floats:
        return self.params.text


def unread_words(sizes: Sequence[str]) -> str:
    """``moe_latent_size=1024 is not read: the parameter count is unknown``."""
    return f"{not_read(sizes)}: the parameter count is unknown"


def not_read(sizes: Sequence[str]) -> str:
    """``moe_latent_size=1024 is not read``."""
    shown = ", ".join(sizes[:5]) + (f" and {len(sizes) - 5} more" if len(sizes) > 5 else "")
    return f"{shown} {'is' if len(sizes) == 1 else 'are'} not read"
