"""Microsoft DeepSpeed: ZeRO in 16 bits, a pipeline that keeps its outputs, no interleaving.

Its defaults are recalled: ``reduce_bucket_size`` and ``allgather_bucket_size`` of 5e8 elements, the first one held
twice (``contiguous_gradients``); ``stage3_max_live_parameters`` of 1e9. Gradients are summed in the model's own type
unless ``data_types.grad_accum_dtype`` says fp32: then ZeRO 2 and 3 hold the sum alone, and ZeRO 1 in bf16 one besides
the 16-bit gradients (``get_data_types`` and ``_do_optimizer_sanity_check`` of runtime/engine.py, 0.19.8, read
2026-11-29). Experts stay whole and are shared by all ranks of a stage over ep (utils/groups.py,
``_create_expert_and_data_parallel``). fp16 training casts the shard's gradients and flattens them in the step: two fp32
copies. Its pipeline engine keeps outputs as the roots of backward. ZeRO 3 gathers matrix by matrix; the largest is a
third of a layer (4 h^2 of 12 h^2 if f = 4h).
"""

from __future__ import annotations

from sartor.model.training import Accumulation, MemoryHabits, Trainer
from sartor.model.workload import ContextParallel
from sartor.operators import DType

HABITS = MemoryHabits(
    grad_bytes=2.0,
    fp16_step_bytes=8.0,
    narrow_weights=False,
    dummy_wgrad=False,
    gathers_input=False,
    keeps_outputs=True,
    layers_gathered=2 / 3,
    most_gathered=1e9,
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
    },
    usual_zero_stage=3,
    usual_context_parallel=ContextParallel.ALL_TO_ALL,
    varies=("dp_overlap", "fused_loss"),
    source="runtime/pipe/schedule.py (1F1B alone), runtime/config.py; as of 2026-11",
)
