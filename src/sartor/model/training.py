"""A training job, and its trainer as a record: what it overlaps, pads, keeps in memory, and supports."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from sartor.json_types import JsonMap
from sartor.model.layer import AttentionMixer, LatentAttentionMixer, Layer, MoeFfn
from sartor.model.plan import TrainingPlan
from sartor.model.shape import TransformerShape, blocks
from sartor.model.workload import (
    COMMON_OPTIMIZERS,
    VOCAB_MULTIPLE,
    AttentionKernel,
    ContextParallel,
    LoraTargets,
    Loss,
    OffloadModule,
    Optimizer,
    PipelineSchedule,
    Recipe,
    Recompute,
    RecomputeModule,
)
from sartor.operators import DType
from sartor.units import Ints


class Accumulation(Enum):
    """How a microbatch's weight gradient reaches the step's gradient buffer."""

    FUSED = "fused"
    """The GEMM accumulates into it."""
    ADDED = "added"
    """A separate kernel reads gradient and sum, and writes the sum."""
    COPIED = "copied"
    """Copied into the buffer that is reduced (FSDP's shards)."""
    KEPT = "kept"
    """It stays where autograd or the compiler puts it: no extra traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHabits:
    """How a trainer uses memory. Bytes are per parameter or per logit unless the name says otherwise."""

    wide_weights: bool = False
    """Weights are stored in fp32 only, and gathered or cast to 16 bits when used (FSDP, autocast, JAX); else 16-bit
    weights are held, with fp32 main copies beside the optimizer."""
    grad_bytes: float = 0.0
    """Per parameter before sharding, overriding ``Trainer.grad_dtype``; 0: by that type."""
    bf16_grad_bytes: float = 0.0
    """The same for bf16 training, if it differs."""
    fp16_step_bytes: float = 0.0
    """Per parameter of the shard during the optimizer step of fp16 training: copies of its gradients."""
    bf16_step_bytes: float = 0.0
    """The same in bf16 training."""
    step_block_bytes: float = 0.0
    """The same below ZeRO 3, in blocks of the allocator that are free again when the step peaks: reserved, not
    allocated."""
    most_stepped: float = math.inf
    """Parameters that have such copies at once under ZeRO 3."""
    flat_grad_bytes: float = 0.0
    """Per unsharded parameter during the optimizer step: a flat copy of all gradients for the reduction."""
    narrow_inputs: bool = True
    """FP8 and FP4 recipes save the inputs of linear layers in 8 or 4 bits for backward; else in 16 bits."""
    narrow_act: bool = False
    """The input of a gated feed-forward part's activation function is kept in 8 bits
    (``activation_func_fp8_input_store``)."""
    keeps_transposes: bool = True
    """FP8 weights are held in both layouts where the device's GEMMs need both; else the second is made in every pass
    (``keep_fp8_weight_transpose_cache``, of Transformer Engine for ROCm)."""
    narrow_weights: bool = True
    """8- or 4-bit copies of the weights, one row-wise and one column-wise, are kept from the first microbatch on."""
    casts_weights: bool = False
    """Where nothing shards fp32 weights, 16-bit copies of them are cast in forward and kept until backward
    (torch.autocast's cache of weights; torch/amp/autocast_mode.py; recalled, 2026-11-29)."""
    main_remainders: bool = True
    """With narrow moments the fp32 main weights hold only the 16 bits that the bf16 weights lack
    (``store_param_remainders`` of Megatron's precision-aware optimizer, megatron/core/optimizer/optimizer_config.py, on
    by default; recalled, 2026-11-29)."""
    wide_table_moments: bool = False
    """8- and 4-bit optimizers keep the embedding's moments in fp32 (Hugging Face's Trainer registers every nn.Embedding
    with ``optim_bits=32``; transformers/trainer.py, ``create_optimizer``)."""
    dummy_wgrad: bool = True
    """Weight gradients go directly to the main gradient, with a 16-bit placeholder for one layer's weights
    (``gradient_accumulation_fusion``)."""
    gathers_input: bool = True
    """Sequence parallelism gathers an input again for backward instead of keeping it whole."""
    splits_stream: bool = False
    """Tensor parallelism divides activations between layers without sequence parallelism too."""
    score_bytes: float = 0.0
    """Bytes per element of an expert's output row that eager kernels keep to weigh it by its score; fused ones weigh
    inside another kernel."""
    names_kept: bool = False
    """A layer keeps its input and named outputs of GEMMs and of attention; sums and norms between them are always
    computed again (JAX's checkpoint policies)."""
    logit_bytes: float = 6.0
    """Per logit at the peak of the loss: 16-bit logits and their fp32 copy, turned into probabilities in place."""
    split_logit_bytes: float = 0.0
    """The same if tensor parallelism splits the vocabulary and it differs."""
    fused_logit_bytes: float = 4.0
    """The same with `Loss.FUSED`: 16-bit logits and their gradients; the logits are kept."""
    chunked_logit_bytes: float = 4.0
    """The same with `Loss.CHUNKED`: 16-bit logits and their gradients."""
    kept_logit_bytes: float = 4.0
    """Per logit kept from forward to backward."""
    layers_gathered: float = 2.0
    """Layers of gathered weights held at once under ZeRO 3: the running one and the prefetched one."""
    most_gathered: float = math.inf
    """Gathered parameters above which nothing is prefetched."""
    fresh_grads: bool = False
    """Gradients are freed after every step (``zero_grad(set_to_none=True)``, PyTorch's default since 2.0; buffers of
    XLA): those of a single microbatch appear in backward while its activations go. Else their buffer stays."""
    saved_4_bit_inputs: float = 0.0
    """Microbatches whose inputs frozen 4-bit layers hold: 1 if they are saved for backward; 2 if they go with the graph
    (bitsandbytes' MatMul4Bit before about 0.43 had them in ``ctx.tensors``), which the loop's loss holds until the next
    forward pass is over."""
    frozen_4_bits: float = 4.127
    """Bits of a frozen 4-bit weight with its scales: quantized too (arXiv 2305.14314, sec. 3: 0.127), or an fp32 one
    for each 64 weights (4.5)."""
    drops_adapter_inputs: bool = False
    """Adapters drop out of their inputs (``lora_dropout``): each keeps its own copy and a mask of bytes."""
    whole_grads: bool = False
    """Under ZeRO 3 gradients of several microbatches are summed whole, those of frozen weights too (FSDP's ``no_sync``
    with flat parameters); else every microbatch reduces its own."""
    keeps_tables: bool = True
    """The tables of embedding and head stay gathered under ZeRO 3 (FSDP's outermost unit); else each is only while it
    is used."""
    own_streams: bool = False
    """Weights are gathered and gradients reduced in streams of their own, whose free blocks no kernel gets (FSDP)."""
    layers_graded: float = 1.0
    """Layers of full gradients held at once under ZeRO 3."""
    narrow_primary: bool = False
    """FP8 recipes keep no 16-bit weights in addition to the 8-bit ones (``fp8_param_gather``)."""
    buffer_bytes: float = 0.0
    """Buckets of gradients and parameters outside the gradient buffer, in bytes of the device."""
    keeps_outputs: bool = False
    """A pipeline rank keeps its sent activations until the gradient comes back; else they are freed when sent
    (``deallocate_pipeline_outputs``)."""
    buffers_each_microbatch: bool = False
    """A pipeline rank receives every microbatch's activation and gradient into a buffer of its own, held all along;
    else into one that is in use."""
    returns_logits: bool = False
    """The last pipeline rank keeps 16-bit logits of all microbatches, and joins them at the end of the step."""
    most_chunks_gathered: float = math.inf
    """Chunks of a pipeline rank whose weights ZeRO 2 holds gathered at once."""
    fragmentation: float = 1.11
    """Ratio of allocator memory for activations and temporaries to their peak, from blocks that do not fit the next
    tensor. States are allocated once and leave no gaps. *Fitted* on 58 rows of Megatron-DeepSpeed runs of 2022 in
    data/end_to_end/training.csv (2026-11-21), with the contexts and buckets of these records."""
    steps_in_own_blocks: bool = True
    """Temporaries of the optimizer step do not fit blocks freed by activations and are allocated in addition (PyTorch's
    native allocator never joins blocks of different requests to the driver)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A change between releases: by year (``2021``) or container (``26.06``), on some GPU generations or all."""

    first: tuple[int, ...] = (0,)
    last: tuple[int, ...] = (9999,)
    generations: tuple[str, ...] = ()
    compiled: bool = False
    """Applies only if its kernels are compiled."""
    changes: JsonMap
    source: str

    def holds(self, version: tuple[int, ...], generation: str) -> bool:
        """Whether a version, (year,) or (year, month), is in this range."""
        alike = len(version) == max(len(self.first), len(self.last))
        return alike and self.first <= version <= self.last and generation in (self.generations or (generation,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """What a training framework does, keeps in memory and supports, for any plan."""

    name: str = "megatron"
    """Name of the fitted constants that apply (``[framework.NAME]`` of the table of training constants)."""
    key: str = ""
    """What users call it, if it shares another trainer's constants; else ``name``."""
    title: str = ""
    """What sentences call it, if its makers spell it otherwise than users."""
    aliases: tuple[str, ...] = ()
    """Other names users may give it."""
    words: tuple[str, ...] = ()
    """Parts of the names that published tables use for it and similar software."""
    precedence: int = 0
    """Of trainers that have a word of one table's name, the highest counts: it is built on the others."""
    of_one_source: bool = False
    """Known from one published source: rows of measurements name it, lists of choices leave it out."""
    source: str = ""

    # switches: a launch file or a table's row may set them differently
    tp_overlap: bool = False
    """Tensor-parallel collectives overlap in pieces with the GEMMs they feed (Transformer Engine userbuffers)."""
    dp_overlap: bool = True
    """Gradient reduction and parameter gathering overlap with compute."""
    p2p_overlap: bool = True
    """Transfers between pipeline stages overlap with compute (matters only with interleaving)."""
    ep_overlap: bool = False
    """With interleaving, the expert all-to-all of one microbatch overlaps with the compute of another (Megatron's
    ``overlap_moe_expert_parallel_comm``)."""
    fused_kernels: bool = True
    """Norms, activation, rotary and loss fused (Apex, Transformer Engine or torch.compile); else eager PyTorch."""
    fused_loss: Loss = Loss.UNFUSED
    """What the loss keeps of the logits."""
    fused_experts: bool = False
    """Expert layers run without waiting for the host (token counts stay on the device, launches come from a graph) and
    quantize inside their GEMMs: NVIDIA's trainers on Blackwell since mid-2026."""
    pads_experts: bool = True
    """Separate kernels copy rows of 8- and 4-bit experts to padded buffers and back."""
    grad_fusion: bool = True
    """``Accumulation.FUSED`` is switched on; else ``ADDED``."""
    cuda_graphs: bool = False
    grad_dtype: DType = DType.FP32
    """Data type of the gradient buffer that is reduced."""
    main_dtype: DType = DType.FP32
    """Type of the weights that the optimizer updates. In 16 bits, trainers that hold weights once (PyTorch, JAX) also
    hold gradients and moments so, as they are created in the parameter's type: 8 bytes per parameter (``torchtune``'s
    ``dtype: bf16``, LitGPT's ``bf16-true``, torchtitan's ``training.dtype``)."""
    splits_experts: bool = True
    """Tensor parallelism divides every expert (Megatron unless ``expert_tensor_parallel_size`` is 1); else experts stay
    whole, and the tensor ranks take part in expert parallelism: an expert has copies on tp x cp x dp / ep devices."""
    splits_lone_experts: bool = False
    """With whole experts: without expert parallelism (ep 1) tensor parallelism divides them all the same."""
    dispatch_once: bool = False
    """A token for several experts of one node is sent there once and copied there (DeepEP, HybridEP); else once per
    expert (NCCL's all-to-all)."""
    checkpoints_operators: bool = False
    """With ``recompute_layers``, recomputation is per operator: outputs of every second GEMM and of attention are kept
    in all layers (torchtitan's ``selective_ac_option = "op"``); else whole layers are recomputed."""

    # habits: how its code works
    accumulation: Accumulation = Accumulation.FUSED
    fuses_sharded: bool = False
    """GEMMs also add gradients that are sharded (ZeRO 2 and 3)."""
    strided_heads: bool = True
    """Unfused attention reads heads at a stride."""
    fused_heads: int = 8
    """Its fused attention takes head dimensions that are multiples of this."""
    hides_tp_backward: bool = True
    """Backward tensor-parallel communication that no GEMM waits for always overlaps with another GEMM."""
    narrows_each_microbatch: bool = False
    """8-bit linear layers quantize their weights in every microbatch (torchao); else once per step."""
    broadcasts_shards: bool = False
    """ZeRO 1 and 2 split parameters by whole tensors: after its update every owner broadcasts its own in turn
    (InternEvo, FairScale's OSS, PyTorch's ZeroRedundancyOptimizer); else equal shards are gathered at once."""
    vocab_multiple: int = VOCAB_MULTIPLE
    """The vocabulary is padded to a multiple of this times tp (``--make-vocab-size-divisible-by``); 0: not padded."""
    memory: MemoryHabits = field(default_factory=MemoryHabits)

    lockstep: bool = False
    """All stages of a pipeline advance together, at the pace of the slowest, and nothing overlaps (step.pipelined)."""

    # limits: which devices and plans it can run
    not_on: tuple[str, ...] = ()
    """Vendors on whose devices it does not run."""
    attention_factor: float = 1.0
    """Seconds of its release's fused attention over those of the kernel that its fitted constants are of."""
    pipelines: bool = True
    ragged_rounds: bool = True
    """Interleaved microbatches come in rounds of any size from pp, the last one of at least pp (Megatron-Core's
    ``microbatch_group_size_per_vp_stage``); else in rounds of pp."""
    interleaves: bool = True
    schedules: tuple[PipelineSchedule, ...] = (PipelineSchedule.ONE_F_ONE_B,)
    expert_parallel: bool = True
    zero_bubble_chunks: int = 1
    """Chunks per device that its zero-bubble schedule needs: one, or at least two."""
    shards_fully: bool = False
    """Gradients are sharded with the optimizer state (ZeRO 2, 3) or nothing is, even with a pipeline."""
    reduces_rounds: bool = False
    """ZeRO 2 in an interleaved pipeline: a chunk's gradients are reduced and freed after each run of pp microbatches
    through it; else they stay unsharded until the last microbatch."""
    offloads: tuple[OffloadModule, ...] = ()
    """Activations that it can move to host memory."""
    optimizers: tuple[Optimizer, ...] = COMMON_OPTIMIZERS
    offloads_states_of: tuple[Optimizer, ...] = tuple(Optimizer)
    """Optimizers whose states it can keep in host memory."""
    losses: tuple[Loss, ...] = (Loss.UNFUSED, Loss.FUSED)
    offloads_unsharded: bool = True
    """States can be in host memory where no ZeRO shards them."""
    most_zero_with_muon: int = 3
    narrow_moments: tuple[int, ...] = (0, 1, 2, 3)
    """ZeRO stages under which Adam's moments may be narrower than fp32."""
    offloads_layers_alone: bool = True
    """Whole layers are offloaded only without recomputation, pipeline and CUDA graphs; modules in all layers, the input
    of attention's projection only with that of its core (Megatron-Core's transformer_config.py, 0.16.1)."""
    always_again: tuple[RecomputeModule, ...] = ()
    """Modules that it always recomputes in backward."""
    one_program: bool = False
    """All devices run one program: stages and chunks have equal numbers of layers, microbatches come in rounds of pp,
    and schedules other than 1F1B may interleave."""
    optional_sequence_parallel: bool = True
    """Sequence parallelism is a separate switch that a plan with tp may turn off."""
    splits_sequence: bool = True
    """Supports sequence parallelism with tensor parallelism."""
    contexts: bool = True
    """Supports context parallelism."""
    most_zero_with_tp: int = 3
    """Highest ZeRO stage supported with tensor parallelism."""
    groups_shards: bool = True
    """Supports sharding over fewer devices than hold replicas (HSDP)."""
    recomputes_parts: bool = True
    """Supports recomputing parts of a layer or some of the layers; else all layers or none."""
    recomputes_by_chunk: bool = False
    """Recomputed layers are counted per chunk: a stage recomputes a multiple of its chunks."""
    overlaps_recomputed: bool = True
    """``ep_overlap`` is supported with fully recomputed layers."""
    replicates_kv_heads: bool = True
    """tp may exceed the key/value heads: ranks then share one."""
    ties_over_stages: bool = True
    """An embedding tied to the head may be on another pipeline stage."""
    experts_fill_groups: bool = False
    """Expert ranks fill tp and cp first, and completely: ep is a multiple of tp x cp."""
    spreads_mtp: bool = True
    """Supports multi-token prediction with pipelines and context parallelism."""
    launchable: bool = False
    """Sartor can write its launch files."""
    in_files: JsonMap = field(default_factory=dict)
    """Limits (fields of this record) that apply to the launch files sartor writes for it."""
    releases: tuple[Release, ...] = ()

    saving: tuple[str, ...] = ()
    """Switches (likewise) that save memory, in the order in which users reach for them: a published run that fits no
    other way may have them."""

    # open: what a run that does not state it may have
    varies: tuple[str, ...] = ()
    """Switches that its users set either way, by their names in ``sartor plan --fix``."""

    # usual: assumed for a run that does not say
    usual_on: tuple[str, ...] = ()
    """Vendors on whose devices it is the usual trainer."""
    usual_zero_stage: int = 0
    plain_fp8: Recipe = Recipe.FP8_DELAYED
    """What ``fp8`` means."""
    usual_context_parallel: ContextParallel = ContextParallel.RING
    usual_axes: tuple[tuple[str, int], ...] = ()
    """Axes of the plan as its own defaults have them, beside degrees of 1."""
    drops_out: bool = False
    """Dropout defaults to 0.1 for models like GPT-3."""

    @property
    def names(self) -> tuple[str, ...]:
        """What users may call it, the usual name first."""
        return (self.key or self.name, *self.aliases)

    @property
    def called(self) -> str:
        """Its name in a sentence."""
        return self.title or self.names[0]

    def expert_tp(self, tp: Ints, ep: Ints) -> Ints:
        """Tensor-parallel devices that share an expert."""
        if self.splits_experts:
            return tp
        return np.where(np.equal(ep, 1), tp, 1) if self.splits_lone_experts else np.ones_like(tp)

    @property
    def recomputes_some_layers(self) -> bool:
        """Whether a stage may recompute some of its layers; else all or none."""
        return self.recomputes_parts and not (self.lockstep or self.one_program)

    @property
    def adds_gradients(self) -> Accumulation:
        """``accumulation``, after the switch ``grad_fusion``."""
        off = self.accumulation is Accumulation.FUSED and not self.grad_fusion
        return Accumulation.ADDED if off else self.accumulation

    @property
    def sharding_gradients(self) -> Trainer:
        """This trainer at ZeRO 2 or 3: gradients that no GEMM adds are copied into the buffer that is reduced."""
        copies = self.accumulation is Accumulation.FUSED and not self.fuses_sharded
        return replace(self, accumulation=Accumulation.COPIED) if copies else self

    @property
    def habits(self) -> MemoryHabits:
        """``memory``, after the switch ``fused_loss``."""
        memory_habits = self.memory
        if self.fused_loss is Loss.UNFUSED:
            return memory_habits
        chunked = self.fused_loss is Loss.CHUNKED
        at_peak = memory_habits.chunked_logit_bytes if chunked else memory_habits.fused_logit_bytes
        kept = 2.0 if self.fused_loss.keeps_logits else 0.0
        return replace(memory_habits, logit_bytes=at_peak, split_logit_bytes=0.0, kept_logit_bytes=kept)


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


DOCUMENT = 1024
"""Tokens of a document in a pack of full fine-tuning that does not say it: chats and instructions have some 200 to
2,000 (recalled), and from 512 to 2,048 a step of 8,192 tokens moves by 4%."""


def packed_document(seq_len: int) -> int:
    """Tokens of a document in a pack, about `DOCUMENT`: trainers hide a pack's documents from each other (torchtune's
    packed datasets, ms-swift's ``packing``, TRL's with flash attention: their documentation, 2026-11-30)."""
    return next(seq_len // n for n in range(math.ceil(seq_len / DOCUMENT), seq_len + 1) if seq_len % n == 0)


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
    lora_rank: int = 0
    """Rank of the adapters; 0: all weights are trained, or the adapters are too small to count."""
    lora_targets: LoraTargets = LoraTargets.ALL
    frozen_bits: int = 16
    """Bits per weight of frozen layers; 8, or 4 (NormalFloat in blocks of 64), are converted to 16 bits in every pass
    (QLoRA, Dettmers et al. 2023, arXiv 2305.14314, sec. 3)."""

    def __post_init__(self) -> None:
        if self.lora_rank:  # adapters are trained instead of the weights
            object.__setattr__(self, "trains_weights", False)

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
