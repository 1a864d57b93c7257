"""A training job and a plan to run it: what is trained, and how it is spread over devices.

A field of ``TrainingPlan`` is one number or an array; arrays broadcast, one entry per candidate plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from sartor.model.parallel import ParallelDims
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel
from sartor.operators import DType
from sartor.units import Bools, Ints


class Recompute(IntEnum):
    """What of a layer is computed again in backward instead of kept. Numbers, so that arrays of plans can hold them."""

    NONE = 0
    SELECTIVE = 1
    """The attention core alone (Korthikanti et al. 2022, sec. 5); with a flash kernel nothing is left to save."""
    FULL = 2
    """Whole layers: only their inputs are kept."""

    @property
    def word(self) -> str:
        return self.name.lower()


class PipelineSchedule(IntEnum):
    """Order of microbatches in a pipeline."""

    ONE_F_ONE_B = 0
    """1F1B (Narayanan et al. 2021); interleaved where ``virtual_stages`` > 1."""
    ZERO_BUBBLE = 1
    """ZB-H1 (Qi et al. 2023): weight gradients fill the bubble; memory as 1F1B."""
    GPIPE = 2
    """All forward, then all backward: every microbatch is kept."""

    @property
    def word(self) -> str:
        return {0: "1f1b", 1: "zero_bubble", 2: "gpipe"}[int(self)]


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
    """Per-tensor scales from the history of maxima (Transformer Engine's first recipe)."""
    FP8_CURRENT = "fp8_current"
    """Per-tensor scales from the tensor itself: one more pass over it."""
    FP8_ROWWISE = "fp8_rowwise"
    FP8_BLOCK = "fp8_block"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"

    @property
    def dtype(self) -> DType:
        """Operand type of the linear layers' products."""
        names = {"fp8_delayed": "fp8", "fp8_current": "fp8", "fp8_rowwise": "fp8"}
        return DType(names.get(self.value, self.value))


class ContextParallel(Enum):
    """How the sequence is split for attention: ``RING`` passes keys and values round, ``ALL_TO_ALL`` swaps sequence for
    heads and back (DeepSpeed Ulysses), ``ALL_GATHER`` gathers keys and values first (Llama 3)."""

    RING = "ring"
    ALL_TO_ALL = "all_to_all"
    ALL_GATHER = "all_gather"


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Switches of the trainer that cost or save time and memory, whatever the plan."""

    name: str = "megatron"
    """megatron (until 2022: megatron-v2), nemo, torchtitan, llm-foundry, deepspeed, fsdp, maxtext, internevo, pytorch,
    or other (of Megatron's kind): how eager its launches are and what its allocator keeps."""
    tp_overlap: bool = False
    """Tensor-parallel collectives run in pieces beside the products they feed (Transformer Engine userbuffers)."""
    dp_overlap: bool = True
    """Gradient reduction and parameter gathering run beside compute."""
    p2p_overlap: bool = True
    """Transfers between pipeline stages run beside compute (only interleaving leaves anything to hide behind)."""
    fused_kernels: bool = True
    """Norms, activation, rotary and loss fused (Apex, Transformer Engine or torch.compile); else eager PyTorch."""
    grad_fusion: bool = True
    """Weight gradients are added to earlier microbatches' by their product, where the trainer can (Megatron, NeMo);
    else by a kernel of its own, as Megatron did until 2022."""
    cuda_graphs: bool = False
    grad_dtype: DType = DType.FP32
    """Of the gradient buffer that is reduced."""
    splits_experts: bool = False
    """Tensor parallelism divides every expert (Megatron before ``expert_tensor_parallel_size``); else experts stay
    whole, and the tensor ranks take part in expert parallelism: an expert's copies lie on tp x cp x dp / ep devices."""
    dispatch_once: bool = False
    """A token that several experts of one node want goes there once and is copied there (DeepEP, HybridEP); else once
    for each of its experts (NCCL's all-to-all)."""
    broadcasts_shards: bool = False
    """ZeRO 1 and 2 divide parameters by whole tensors: after its update every owner broadcasts its own in turn
    (InternEvo, FairScale's OSS, PyTorch's ZeroRedundancyOptimizer); else equal shards are gathered at once."""
    ep_overlap: bool = False
    """Where chunks interleave, experts' exchange of one microbatch runs beside the compute of another (Megatron's
    ``overlap_moe_expert_parallel_comm``)."""
    fused_loss: bool = False
    """The loss reads 16-bit logits and writes their gradients as such, with no fp32 copy (torch.compile over the
    loss; Transformer Engine's cross-entropy)."""
    checkpoints_operators: bool = False
    """Layers recomputed in part (``recompute_layers`` said) are so by operator: every second product's output and
    attention's are kept of all layers (torchtitan's ``selective_ac_option = "op"``); else so many layers are whole."""
    fused_experts: bool = False
    """Expert layers run without waiting for the host (token counts stay on the device, launches come from a graph) and
    narrow operands inside their products: NVIDIA's trainers on Blackwell since the middle of 2026."""
    main_params: bool = True
    """fp32 main copies of 16-bit weights beside the optimizer's states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """What every plan of a search shares. ``global_batch_size`` counts sequences, ``seq_len`` tokens."""

    shape: TransformerShape
    seq_len: int
    global_batch_size: int
    recipe: Recipe = Recipe.BF16
    optimizer: Optimizer = Optimizer.ADAM
    attention_kernel: AttentionKernel = AttentionKernel.FLASH
    context_parallel: ContextParallel = ContextParallel.RING
    routing_skew: float = 1.0
    """Largest expert's token rows over the mean."""
    dropout: bool = False
    framework: Framework = field(default_factory=Framework)
    trains_weights: bool = True
    """False: adapters alone are trained (LoRA): no weight gradients, optimizer or gradient reduction of the base."""

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.seq_len


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How a job is spread: one plan, or many as arrays that broadcast.

    ``dims`` holds tp, pp, dp, cp, ep (tp x pp x dp x cp devices; ep within dp x cp, within tp x dp x cp where experts
    stay whole) and sequence parallelism. Ranks are numbered as Megatron does: tp innermost, then cp, then dp (ep the
    inner part of cp x dp), pp outermost.
    """

    dims: ParallelDims = field(default_factory=ParallelDims)
    microbatch_size: Ints = 1
    num_microbatches: Ints = 1
    """Of one pipeline in one step: global_batch_size / (dp x microbatch_size)."""
    virtual_stages: Ints = 1
    """Chunks of layers per device (interleaving)."""
    schedule: Ints = PipelineSchedule.ONE_F_ONE_B
    zero_stage: Ints = 0
    """0 plain data parallelism, 1 optimizer states sharded (Megatron's distributed optimizer), 2 and gradients, 3 and
    parameters (FSDP)."""
    shard_group: Ints = 0
    """Devices the ZeRO shards are spread over; 0: all of dp x cp (hybrid sharding when smaller)."""
    recompute: Ints = Recompute.NONE
    recompute_layers: Ints = -1
    """With ``Recompute.FULL``: layers per stage that are recomputed; -1 all."""
    optimizer_offload: Bools = False
    stage_layers: tuple[int, ...] | None = None
    """Layers of each chunk in model order (pp x virtual_stages of them), of a single plan; None: as even as can be,
    embedding and head not counted, the first chunks taking the rest."""

    @property
    def num_devices(self) -> Ints:
        d = self.dims
        return d.tp * d.pp * d.dp * d.cp
