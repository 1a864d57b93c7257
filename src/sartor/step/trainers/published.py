"""Trainers known from one published source each: rows of measurements name them, lists of choices leave them out."""

from __future__ import annotations

from dataclasses import replace

from sartor.model.training import Accumulation, MemoryHabits, Trainer
from sartor.model.workload import COMMON_SCHEDULES, ContextParallel, PipelineSchedule, Recipe, RecomputeModule
from sartor.operators import DType
from sartor.step.trainers.fsdp import FSDP, HABITS
from sartor.step.trainers.megatron import MEGATRON

LLAMA_3 = Trainer(
    name="llama-3",
    title="Llama 3's trainer",
    of_one_source=True,
    fused_heads=1,
    reduces_rounds=True,
    shards_fully=True,
    memory=MemoryHabits(wide_weights=True),
    usual_zero_stage=2,
    usual_context_parallel=ContextParallel.ALL_GATHER,
    source="arXiv 2407.21783, sec. 3.3.2 and table 4",
)
"""The unpublished trainer of Llama 3 (The Llama 3 Herd of Models, arXiv 2407.21783, sec. 3.3.2).

FSDP shards optimizer states and gradients, and does not gather parameters again after forward; gradients are summed and
reduced in fp32; the pipeline interleaves chunks of one layer, with embedding and head in their own chunks; context
parallelism gathers keys and values. Recalled from the paper, 2026-11-23. Two things that the paper leaves open are
assumed: when a gradient is reduced (after each round of microbatches), and memory habits (Megatron-LM's).
"""

HAI_LLM = replace(
    MEGATRON,
    ragged_rounds=False,
    name="hai-llm",
    title="HAI-LLM",
    precedence=3,
    of_one_source=True,
    aliases=(),
    words=("hai-llm",),
    splits_experts=False,
    ep_overlap=True,
    dispatch_once=True,
    pads_experts=False,
    schedules=(PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.DUAL_PIPE_V),
    always_again=(RecomputeModule.LAYERNORM, RecomputeModule.MLA_UP_PROJ, RecomputeModule.MOE_ACT),
    plain_fp8=Recipe.FP8_BLOCK,
    vocab_multiple=0,
    usual_zero_stage=1,
    drops_out=False,
    launchable=False,
    releases=(),
    offloads=(),
    source="arXiv 2412.19437, sec. 3.2.1 to 3.2.3 and 3.3",
)
"""HAI-LLM, the unpublished trainer of DeepSeek-V3 (arXiv 2412.19437, sec. 3.2 and 3.3; recalled 2026-11-24).

A bidirectional pipeline hides the experts' all-to-all; its own kernels send a token to each node only once. RMS norms,
the up-projections of latent attention and the experts' activation are recomputed, and linear layers keep their inputs
in FP8. Two differences from the paper: DualPipe is priced as DualPipeV, which overlaps the same but holds one copy of
the weights, not two; 16-bit optimizer moments must be set in the plan (``moments_dtype=bf16``).
"""

MEGASCALE = replace(
    MEGATRON,
    key="megascale",
    title="MegaScale",
    precedence=4,
    of_one_source=True,
    aliases=(),
    words=("megascale", "vescale"),
    tp_overlap=True,
    launchable=False,
    releases=(),
    usual_zero_stage=2,
    fuses_sharded=True,
    source="arXiv 2402.15627, sec. 3.2 and table 3",
)
"""ByteDance's MegaScale on Megatron-LM: tensor-parallel collectives run in pieces beside their GEMMs.

Jiang et al. 2024 (arXiv 2402.15627), sec. 3.2: all-gather and reduce-scatter of tensor and sequence parallelism are
fused with the GEMMs next to them and cut into chunks. Parallel blocks are set in the model, LAMB in the job (sec. 3.1).
"""

INTERNEVO = Trainer(
    name="internevo",
    ragged_rounds=False,
    title="InternEvo",
    precedence=5,
    of_one_source=True,
    fused_heads=1,
    words=("internevo", "internlm"),
    grad_dtype=DType.BF16,
    accumulation=Accumulation.ADDED,
    strided_heads=False,
    hides_tp_backward=False,
    broadcasts_shards=True,
    vocab_multiple=0,
    memory=MemoryHabits(
        grad_bytes=2.0, fp16_step_bytes=12.0, bf16_step_bytes=12.0, step_block_bytes=6.0, dummy_wgrad=False
    ),
    schedules=COMMON_SCHEDULES,
    optional_sequence_parallel=False,
    usual_zero_stage=1,
    source="hybrid_zero_optim.py: gradients reduced as they are, parameters broadcast by their owner; memory: below",
)
"""InternEvo: layers like Megatron's; its ZeRO assigns whole tensors to ranks.

Its step holds fp32 gradients (4 bytes) and the two temporaries of PyTorch's Adam, the root of the second moment and the
denominator (8; torch 2.0). Before, the norm reads fp32 copies of all gradients (4), and the flat optimizer of ZeRO 1
copies them into one 16-bit buffer (2): blocks that the flat fp32 tensors cannot use. ZeRO 3 is PyTorch's FSDP with an
optimizer of single tensors, which can (solver/optimizer: hybrid_zero_optim.py, fsdp_optimizer.py, compute_norm in
utils.py; read 2026-11-29).
"""

LLM_FOUNDRY = replace(
    FSDP,
    name="llm-foundry",
    title="LLM Foundry",
    precedence=5,
    of_one_source=True,
    aliases=(),
    words=("llm-foundry", "composer", "mosaic"),
    narrows_each_microbatch=False,
    memory=replace(HABITS, logit_bytes=4.0, split_logit_bytes=0.0, kept_logit_bytes=2.0),
    launchable=False,
    source="loss_fn: fused_crossentropy writes gradients over 16-bit logits (recalled); its configuration has no "
    "degree for pipelines or experts; as of 2026-11",
)
"""MosaicML's LLM Foundry and Composer on PyTorch FSDP, with the fused loss of flash-attention."""
