"""The runtime of accelerator studies: stages advance in lockstep, nothing overlaps (PHAZE; docs/concepts/design.md)."""

from __future__ import annotations

from sartor.model.training import MemoryHabits, Trainer
from sartor.operators import DType

LOCKSTEP = Trainer(
    name="lockstep",
    ragged_rounds=False,
    fused_heads=1,
    lockstep=True,
    dp_overlap=False,
    p2p_overlap=False,
    hides_tp_backward=False,
    strided_heads=False,
    pads_experts=False,
    fuses_sharded=True,
    grad_dtype=DType.BF16,
    optional_sequence_parallel=False,
    groups_shards=False,
    memory=MemoryHabits(dummy_wgrad=False, fragmentation=1.0, steps_in_own_blocks=False),
    source="Integrated Hardware Architecture and Device Placement Search (PHAZE), sec. 4: 16-bit gradients, Adam",
)
