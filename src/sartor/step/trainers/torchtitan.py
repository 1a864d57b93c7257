"""torchtitan: PyTorch's FSDP2, tensor, pipeline and expert parallelism; 8-bit layers are torchao's.

Experts' outputs are weighed in fp32 (models/common/token_dispatcher.py, ``combine``; read 2026-11-30).
"""

from __future__ import annotations

from dataclasses import replace

from sartor.model.training import Recompute, Release
from sartor.model.workload import ContextParallel, Loss, Optimizer, PipelineSchedule, Recipe
from sartor.operators import DType
from sartor.step.trainers.fsdp import FSDP, HABITS

PIPELINED = replace(HABITS, keeps_outputs=True, buffers_each_microbatch=True, most_chunks_gathered=3, score_bytes=4.0)
"""torch/distributed/pipelining of 2.13 (read 2026-11-29): stage.py makes a receive buffer for every microbatch and
keeps outputs in ``fwd_cache`` until their backward; schedules.py (``_add_unshard_reshard``) has three chunks gathered
at once."""

TORCHTITAN = replace(
    FSDP,
    name="torchtitan",
    title="",
    precedence=5,
    aliases=("titan",),
    words=("torchtitan",),
    grad_dtype=DType.FP32,
    pipelines=True,
    schedules=tuple(PipelineSchedule),
    zero_bubble_chunks=2,
    expert_parallel=True,
    splits_lone_experts=True,
    replicates_kv_heads=False,
    ties_over_stages=False,
    in_files={  # 0.3.0
        "ragged_rounds": False,
        "shards_fully": True,
        "recomputes_parts": False,
        "experts_fill_groups": True,
        "spreads_mtp": False,
        "optimizers": (Optimizer.ADAM,),
        "narrow_moments": (),
    },
    memory=PIPELINED,
    releases=(
        Release(
            last=(2025,),
            changes={"memory": replace(PIPELINED, returns_logits=True)},
            source="torchtitan passes return_outputs=False to the schedule in 0.3.0; before, PyTorch's last stage kept "
            "and joined its outputs (stage.py, output_chunks; the year is recalled)",
        ),
        Release(
            first=(2025,),
            compiled=True,
            changes={"fused_loss": Loss.FUSED},
            source="compiles its loss with the model since the turn of 2024 to 2025 (recalled)",
        ),
    ),
    plain_fp8=Recipe.FP8_CURRENT,
    usual_context_parallel=ContextParallel.ALL_GATHER,
    usual_axes=(
        ("zero_stage", 3),
        ("recompute", Recompute.SELECTIVE),
    ),  # data_parallel_shard_degree -1, mode "selective"
    varies=("tp_overlap", "fused_loss"),
    source="pipeline_parallel_schedule takes PyTorch's 1F1B, Interleaved1F1B, GPipe, "
    "InterleavedZeroBubble, ZBVZeroBubble and DualPipeV; under a "
    "pipeline parameters stay gathered unless fsdp_reshard_after_forward says otherwise; as of 2026-11. tp splits "
    "experts only where ep is 1 (models/common/moe_sharding.py and distributed/parallel_dims.py of 0.3.0, read "
    "2026-11-29); tp divides n_kv_heads, tied weights go with no pipeline (models/common/decoder.py)",
)
