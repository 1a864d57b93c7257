"""The unpublished trainer of Llama 3 (The Llama 3 Herd of Models, arXiv 2407.21783, sec. 3.3.2).

FSDP shards optimizer states and gradients, and does not gather parameters again after forward; gradients are summed and
reduced in fp32; the pipeline interleaves chunks of one layer, with embedding and head in their own chunks; context
parallelism gathers keys and values. Recalled from the paper, 2026-11-23. Two things that the paper leaves open are
assumed: when a gradient is reduced (after each round of microbatches), and memory habits (Megatron-LM's).
"""

from __future__ import annotations

from sartor.model.choices import ContextParallel
from sartor.model.trainer import MemoryHabits, Trainer

LLAMA_3 = Trainer(
    name="llama-3",
    fused_heads=1,
    reduces_rounds=True,
    shards_fully=True,
    memory=MemoryHabits(wide_weights=True),
    usual_zero_stage=2,
    usual_context_parallel=ContextParallel.ALL_GATHER,
    source="arXiv 2407.21783, sec. 3.3.2 and table 4",
)
