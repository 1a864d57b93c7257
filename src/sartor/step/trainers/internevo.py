"""InternEvo: layers like Megatron's; its ZeRO assigns whole tensors to ranks."""

from __future__ import annotations

from sartor.model.choices import COMMON_SCHEDULES
from sartor.model.trainer import Accumulation, MemoryHabits, Trainer
from sartor.operators import DType

INTERNEVO = Trainer(
    name="internevo",
    fused_heads=1,
    words=("internevo", "internlm"),
    grad_dtype=DType.BF16,
    accumulation=Accumulation.ADDED,
    strided_heads=False,
    hides_tp_backward=False,
    broadcasts_shards=True,
    vocab_multiple=0,
    memory=MemoryHabits(grad_bytes=2.0, dummy_wgrad=False),
    schedules=COMMON_SCHEDULES,
    optional_sequence_parallel=False,
    usual_zero_stage=1,
    source="hybrid_zero_optim.py: gradients reduced as they are, parameters broadcast by their owner",
)
