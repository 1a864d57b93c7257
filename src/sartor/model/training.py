"""A training job, and a plan that spreads it over devices.

A field of ``TrainingPlan`` is one number or an array; arrays broadcast, one entry per candidate plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from sartor.model.blocks import blocks
from sartor.model.layer import AttentionMixer, LatentAttentionMixer, Layer, MoeFfn
from sartor.model.shape import TransformerShape
from sartor.model.trainer import Trainer
from sartor.model.workload import (
    AttentionKernel,
    ContextParallel,
    OffloadModule,
    Optimizer,
    ParallelDims,
    PipelineSchedule,
    Recipe,
    Recompute,
    RecomputeModule,
)
from sartor.operators import DType
from sartor.units import Bools, Ints

__all__ = [
    "ContextParallel",
    "OffloadModule",
    "Optimizer",
    "PipelineSchedule",
    "Recipe",
    "Recompute",
    "RecomputeModule",
    "Trainer",
    "TrainingJob",
    "TrainingPlan",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A training job: everything that the plans of a search share."""

    shape: TransformerShape
    seq_len: int
    global_batch_size: int
    recipe: Recipe = Recipe.BF16
    optimizer: Optimizer = Optimizer.ADAM
    moments_dtype: DType = DType.FP32
    """Type of the optimizer's moments between steps (Megatron's precision-aware optimizer; DeepSeek-V3 kept bf16, arXiv
    2412.19437, sec. 3.3.2); they are updated in fp32."""
    attention_kernel: AttentionKernel = AttentionKernel.FLASH
    context_parallel: ContextParallel = ContextParallel.RING
    routing_skew: float = 1.0
    """Token rows of the most loaded expert over the mean."""
    dropout: bool = False
    trainer: Trainer = field(default_factory=Trainer)
    recompute_modules: frozenset[RecomputeModule] = frozenset({RecomputeModule.CORE_ATTN})
    """Modules that ``Recompute.SELECTIVE`` recomputes."""
    offload_modules: frozenset[OffloadModule] = frozenset()
    """Activations of a layer that are in host memory between forward and backward."""
    offload_layers: int = 0
    """Layers per device that are offloaded; 0: all."""
    document_len: int = 0
    """Tokens of each document packed into a sequence: attention stays within it. 0: a sequence is one document."""
    trains_weights: bool = True
    """False: only adapters are trained (LoRA), without weight gradients, optimizer or gradient reduction of the base
    model."""
    frozen_bits: int = 16
    """Bits per weight of frozen layers; 4: NormalFloat in blocks of 64, converted to 16 bits in every pass (QLoRA,
    Dettmers et al. 2023, arXiv 2305.14314, sec. 3)."""

    @property
    def recomputes_nothing(self) -> bool:
        """Whether selective recomputation saves nothing: only the attention core, with a flash kernel."""
        flash = self.attention_kernel is AttentionKernel.FLASH
        return flash and self.recompute_modules <= {RecomputeModule.CORE_ATTN}

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.seq_len

    @property
    def recomputable(self) -> list[RecomputeModule]:
        """Modules that exist in the model's layers."""
        ffns = [part for layer in self._layers for part in layer.all_ffns]
        moe = [part for part in ffns if isinstance(part, MoeFfn)]
        latent = any(isinstance(mixer, LatentAttentionMixer) for layer in self._layers for mixer in layer.mixers)
        parts = {
            RecomputeModule.LAYERNORM: True,
            RecomputeModule.CORE_ATTN: True,
            RecomputeModule.MLA_UP_PROJ: latent,
            RecomputeModule.MOE_ACT: bool(moe),
            RecomputeModule.MOE: bool(moe),
            RecomputeModule.SHARED_EXPERTS: any(part.shared is not None for part in moe),
            RecomputeModule.MLP: len(moe) < len(ffns),
        }
        return [module for module in RecomputeModule if parts[module]]

    @property
    def offloadable(self) -> list[OffloadModule]:
        """Modules of the model that the trainer can offload."""
        parts = [part for layer in self._layers for part in (*layer.mixers, *layer.all_ffns)]
        experts = any(isinstance(part, MoeFfn) for part in parts)
        attends = any(isinstance(part, AttentionMixer | LatentAttentionMixer) for part in parts)
        of_experts = (OffloadModule.EXPERT_FC1, OffloadModule.MOE_ACT)
        of_attention = (OffloadModule.CORE_ATTN, OffloadModule.ATTN_PROJ)
        absent = {*(() if experts else of_experts), *(() if attends else of_attention)}
        return [module for module in self.trainer.offloads if module not in absent]

    @property
    def _layers(self) -> list[Layer]:
        return [block.layer for block in blocks(self.shape) if block.layer is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """A plan for a job, or many as arrays that broadcast.

    ``dims`` holds tp, pp, dp, cp, ep (tp x pp x dp x cp devices; ep is within dp x cp, or tp x dp x cp if experts stay
    whole) and sequence parallelism. Ranks are numbered as Megatron does: tp innermost, then cp, then dp (ep the inner
    part of cp x dp), pp outermost.
    """

    dims: ParallelDims = field(default_factory=ParallelDims)
    microbatch_size: Ints = 1
    num_microbatches: Ints = 1
    """Microbatches per pipeline and step: global_batch_size / (dp x microbatch_size)."""
    virtual_stages: Ints = 1
    """Chunks of layers per device (interleaving)."""
    schedule: Ints = PipelineSchedule.ONE_F_ONE_B
    zero_stage: Ints = 0
    """0 plain data parallelism, 1 optimizer states sharded (Megatron's distributed optimizer), 2 and gradients, 3 and
    parameters (FSDP)."""
    shard_group: Ints = 0
    """Devices per set of ZeRO shards; 0: all of dp x cp (smaller: hybrid sharding)."""
    recompute: Ints = Recompute.NONE
    recompute_layers: Ints = -1
    """With ``Recompute.FULL``: layers per stage that are recomputed; -1 all."""
    optimizer_offload: Bools = False
    stage_layers: tuple[int, ...] | None = None
    """For a single plan, layers of each chunk in model order (pp x virtual_stages chunks); None: as even as possible
    without counting embedding and head, the first chunks taking the rest."""

    @property
    def num_devices(self) -> Ints:
        d = self.dims
        return d.tp * d.pp * d.dp * d.cp

    @property
    def columns(self) -> dict[str, Any]:
        """Every degree and field by name, but ``stage_layers``."""
        holders = {f.name: holder for holder in (self.dims, self) for f in fields(holder)}
        return {name: getattr(holders[name], name) for name in holders if name not in ("dims", "stage_layers")}

    def with_columns(self, **values: Any) -> TrainingPlan:
        """The plan with some degrees and fields changed."""
        degrees = {f.name: values.pop(f.name) for f in fields(self.dims) if f.name in values}
        return replace(self, dims=replace(self.dims, **degrees), **values)
