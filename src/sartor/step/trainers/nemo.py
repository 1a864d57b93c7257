"""NVIDIA NeMo on Megatron-Core: as Megatron-LM, with the switches of its performance recipes."""

from __future__ import annotations

from dataclasses import replace

from sartor.model.training import MemoryHabits, Recompute, Release, Trainer
from sartor.operators import DType
from sartor.step.trainers.megatron import ADAM_AND_SGD, MEGATRON, NOT_ON, OFFLOADS, SAVING, UNFUSED

NEMO = Trainer(
    name="nemo",
    usual_axes=(("zero_stage", 1), ("recompute", Recompute.NONE)),  # use_distributed_optimizer in all of its recipes
    title="NeMo",
    precedence=3,
    words=("nemo", "mlperf"),
    not_on=NOT_ON,
    grad_dtype=DType.BF16,
    splits_experts=False,
    dispatch_once=True,
    ep_overlap=True,
    memory=MemoryHabits(narrow_primary=True),
    releases=(
        UNFUSED,
        Release(
            last=(23, 5),
            changes={"p2p_overlap": False, "dp_overlap": False},
            source="its GPT-3 recipes set overlap_grad_sync: False and have no overlap_p2p_comm yet (the launcher's "
            "conf/training/gpt3/175b.yaml; read 2026-11-24)",
        ),
        Release(
            first=(26, 6),
            generations=("blackwell",),
            changes={"fused_experts": True},
            source="containers of 2026.06 take 20 to 40% less for the same expert models on Blackwell and as long as "
            "before on Hopper (data/end_to_end, 2026-11-21)",
        ),
    ),
    offloads=OFFLOADS,
    offloads_states_of=ADAM_AND_SGD,
    most_zero_with_muon=1,
    narrow_moments=(1,),
    usual_zero_stage=1,
    drops_out=True,
    varies=MEGATRON.varies,
    saving=SAVING,
    source="performance recipes reduce gradients in 16 bits, gather FP8 weights and keep experts whole "
    "(grad_reduce_in_fp32, fp8_param, expert_tensor_parallel_size=1; recalled)",
)

MEGATRON_BRIDGE = replace(
    NEMO,
    key="megatron-bridge",
    title="Megatron Bridge",
    precedence=4,
    words=("bridge",),
    in_files={**MEGATRON.in_files, "saving": SAVING[:1]},
    source="grad_reduce_in_fp32 is off in its performance recipes (recalled)",
)
"""NVIDIA Megatron Bridge: NeMo's kernels and constants, gradients reduced in 16 bits."""
