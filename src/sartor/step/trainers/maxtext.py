"""MaxText and other JAX trainers, on TPUs and GPUs: XLA compiles the whole step.

Buffers are planned ahead, without fragmentation; matrices are gathered and their gradients scattered one by one. A
gradient's buffer begins where backward computes it; only a sum over microbatches lasts (XLA's liveness; inferred). The
products with the head read and write 16 bits: casts to fp32 are fused into the loss (``logits_dot_in_fp32`` is off).
Activations between layers are sharded over the tensor axis too (base.yml, logical_axis_rules: ``activation_embed``;
recalled 2026-11-29). A gather and its GEMM are split into pieces that overlap (Wang et al. 2023, ASPLOS, "Overlap
communication with dependent computation via decomposition").
"""

from __future__ import annotations

from sartor.model.training import Accumulation, MemoryHabits, Recompute, Trainer
from sartor.model.workload import (
    ContextParallel,
    OffloadModule,
    Optimizer,
    PipelineSchedule,
    Recipe,
    RecomputeModule,
)

USUAL = (Optimizer.ADAM, Optimizer.SGD, Optimizer.MUON)
AGAIN = (RecomputeModule.LAYERNORM, RecomputeModule.MOE_ACT)

MAXTEXT = Trainer(
    name="maxtext",
    ragged_rounds=False,
    title="MaxText",
    precedence=5,
    fused_heads=1,
    words=("maxtext", "jax", "levanter", "axlearn", "praxis", "paxml", "t5x", "xla", "pathways", "gspmd", "alpa"),
    tp_overlap=True,
    cuda_graphs=True,
    accumulation=Accumulation.KEPT,
    strided_heads=False,
    hides_tp_backward=False,
    vocab_multiple=0,
    memory=MemoryHabits(
        wide_weights=True,
        narrow_inputs=False,
        narrow_weights=False,
        dummy_wgrad=False,
        splits_stream=True,
        names_kept=True,
        logit_bytes=4.0,
        kept_logit_bytes=2.0,
        layers_gathered=2 / 3,
        keeps_tables=False,
        layers_graded=1 / 3,
        fresh_grads=True,
        fragmentation=1.0,
        steps_in_own_blocks=False,
    ),
    schedules=(PipelineSchedule.GPIPE,),
    one_program=True,
    pads_experts=False,
    always_again=AGAIN,
    offloads=(OffloadModule.CORE_ATTN, OffloadModule.ATTN_PROJ, OffloadModule.LAYER, OffloadModule.LAYER_INPUT),
    offloads_layers_alone=False,
    launchable=True,
    in_files={"schedules": (PipelineSchedule.GPIPE,), "one_program": True, "always_again": AGAIN, "optimizers": USUAL},
    optional_sequence_parallel=False,
    usual_zero_stage=3,
    plain_fp8=Recipe.FP8_CURRENT,
    usual_context_parallel=ContextParallel.ALL_GATHER,
    usual_axes=(
        ("zero_stage", 3),
        ("recompute", Recompute.FULL),
    ),  # base.yml: ici_fsdp_parallelism -1, remat_policy full
    usual_on=("Google",),  # Google's own trainer for its TPUs (MaxText's README, read 2026-11)
    source="XLA's buffer assignment and collective matmul; MaxText 0.2.5 (read 2026-11-23), base.yml: one pipeline "
    "loop that is differentiated as a whole (all forward, then all backward; this is inferred), bubble "
    "(stages - 1) / (repeats x microbatches + stages - 1), every policy of remat recomputes norms and activation "
    "functions; configs/types.py: equal chunks, microbatches a multiple of stages",
)
