"""Choices of a training run as enums: recomputation, pipeline schedule, precision, context parallelism."""

from __future__ import annotations

from enum import Enum, IntEnum

from sartor.operators import DType


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
