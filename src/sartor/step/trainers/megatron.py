"""Megatron-LM with Megatron-Core and Transformer Engine: the defaults of ``Trainer``.

Recalled from megatron/core/distributed/param_and_grad_buffer.py, tensor_parallel/cross_entropy.py and
pipeline_parallel/schedules.py (1F1B, interleaved; as of 2026-11). Megatron-FSDP, its ZeRO 2 and 3, requires
--no-gradient-accumulation-fusion (docs.nvidia.com/megatron-core, Megatron-FSDP User Guide, read 2026-11-26).
"""

from __future__ import annotations

from sartor.model.training import Release, Trainer
from sartor.model.workload import OffloadModule, Optimizer, PipelineSchedule

UNFUSED = Release(
    last=(2021,),
    changes={"grad_fusion": False},
    source="gradient_accumulation_fusion is Megatron's since version 3 of 2022 (recalled)",
)

ADAM_AND_SGD = (Optimizer.ADAM, Optimizer.SGD)
OFFLOADS = tuple(module for module in OffloadModule if module is not OffloadModule.LAYER_INPUT)

NOT_ON = ("Google",)
"""Megatron-Core calls CUDA directly and knows no XLA (NVIDIA/Megatron-LM, issue 1511, 2025-03); AMD, Intel and AWS have
ported it to their devices."""
SAVING = ("fp8_act_store", "fp8_transpose_cache")

MEGATRON = Trainer(
    name="megatron",
    title="Megatron-LM",
    precedence=2,
    aliases=("megatron-lm",),
    words=("megatron-core", "megatron", "primus", "swift", "nanotron", "colossal"),
    not_on=NOT_ON,
    launchable=True,
    releases=(
        Release(
            last=(2021,),
            changes={
                "name": "megatron-v2",
                "grad_fusion": False,
                "optional_sequence_parallel": False,
                "p2p_overlap": False,
            },
            source="version 2 has fitted constants of its own; sequence parallelism came in 2022 (arXiv 2205.05198), "
            "overlapped transfers between stages in 2023 (overlap_p2p_comm; year recalled)",
        ),
    ),
    offloads=OFFLOADS,
    offloads_states_of=ADAM_AND_SGD,
    most_zero_with_muon=1,
    narrow_moments=(1,),
    in_files={  # --recompute-num-layers is of every chunk
        "schedules": (PipelineSchedule.ONE_F_ONE_B,),
        "overlaps_recomputed": False,
        "recomputes_by_chunk": True,
        "optimizers": (Optimizer.ADAM, Optimizer.SGD, Optimizer.MUON),
        "saving": (),
    },
    drops_out=True,
    varies=(
        "tp_overlap",
        "dp_overlap",
        "ep_overlap",
        "deepep",
        "grad_dtype",
        "fused_loss",
        "fp8_param_gather",
        "split_experts",
    ),
    saving=SAVING,
    source="Megatron-LM arguments.py and optimizer_config.py: Muon under ZeRO 1 at most, moments in 16 bits where it "
    "shards, dropout of 0.1, vocabulary divisible by 128 x tp; expert_tensor_parallel_size is tp's own unless set "
    "(megatron/core/parallel_state.py, 0.16.1, read 2026-11-29); Transformer Engine 2.14 logs "
    '"Supported: head_dim_qk %8 = 0" of FlashAttention and runs others unfused (its issue 3006, 2026-05)',
)
