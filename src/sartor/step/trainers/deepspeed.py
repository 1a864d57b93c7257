"""Microsoft DeepSpeed: ZeRO in 16 bits, a pipeline that keeps its outputs, no interleaving.

Its defaults are recalled: ``reduce_bucket_size`` and ``allgather_bucket_size`` of 5e8 elements, the first one held
twice (``contiguous_gradients``); ``stage3_max_live_parameters`` of 1e9. Its pipeline engine keeps outputs as the roots
of backward. ZeRO 3 gathers matrix by matrix; the largest is a third of a layer (4 h^2 of 12 h^2 if f = 4h).

Of release 0.19.8 (read 2026-11-29): gradients are summed in the model's own type unless ``data_types.grad_accum_dtype``
says fp32; then ZeRO 2 and 3 hold the sum alone, and ZeRO 1 in bf16 one besides the 16-bit gradients (``get_data_types``
and ``_do_optimizer_sanity_check`` of runtime/engine.py). The step flattens the shard's 16-bit gradients and casts them
to fp32, under ZeRO 3 for ``sub_group_size`` = 1e9 parameters at a time (``single_grad_partition`` of
runtime/zero/stage_1_and_2.py, ``_prepare_fp32_grad_for_sub_group`` of stage3.py). Experts stay whole, and all ranks of
a stage share them (``_create_expert_and_data_parallel`` of utils/groups.py).
"""

from __future__ import annotations

from sartor.model.training import Accumulation, MemoryHabits, Trainer
from sartor.model.workload import ContextParallel, Loss, Optimizer
from sartor.operators import DType

HABITS = MemoryHabits(
    grad_bytes=2.0,
    fp16_step_bytes=6.0,
    bf16_step_bytes=6.0,
    most_stepped=1e9,
    narrow_weights=False,
    dummy_wgrad=False,
    gathers_input=False,
    keeps_outputs=True,
    layers_gathered=2 / 3,
    most_gathered=1e9,
    score_bytes=2.0,
    layers_graded=1 / 3,
    buffer_bytes=3e9,
)

DEEPSPEED = Trainer(
    name="deepspeed",
    title="DeepSpeed",
    precedence=4,
    fused_heads=1,
    words=("deepspeed", "zero"),
    fused_kernels=False,
    grad_dtype=DType.FP16,
    accumulation=Accumulation.COPIED,
    splits_experts=False,
    strided_heads=False,
    hides_tp_backward=False,
    vocab_multiple=0,
    memory=HABITS,
    interleaves=False,
    optional_sequence_parallel=False,
    launchable=True,
    in_files={  # the rest is set in the model's code
        "pipelines": False,
        "contexts": False,
        "expert_parallel": False,
        "splits_sequence": False,
        "most_zero_with_tp": 2,
        "groups_shards": False,
        "recomputes_parts": False,
        "offloads_unsharded": False,
        "narrow_moments": (),
        "optimizers": (Optimizer.ADAM, Optimizer.SGD, Optimizer.MUON),
    },
    optimizers=tuple(Optimizer),
    losses=tuple(Loss),
    usual_zero_stage=3,
    usual_context_parallel=ContextParallel.ALL_TO_ALL,
    varies=("dp_overlap", "fused_loss"),
    source="runtime/pipe/schedule.py (1F1B alone), runtime/config.py; as of 2026-11",
)
