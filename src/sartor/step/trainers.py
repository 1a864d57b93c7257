"""Trainers by name: what each does by default that costs or saves time, and what its releases changed.

A job asked for by a trainer's name and a published run of it are priced by the same switches. A release is said after
an @: ``nemo@26.06``, ``megatron@2021``, ``torchtitan@2025``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from sartor.model.training import Framework
from sartor.operators import DType

_FSDP = Framework(name="fsdp", grad_dtype=DType.FP32, fused_kernels=False, main_params=False)

TRAINERS: Mapping[str, Framework] = {
    "megatron": Framework(name="megatron"),
    "megatron-deepspeed": Framework(name="megatron-deepspeed", dp_overlap=False),
    "nemo": Framework(name="nemo", dispatch_once=True, ep_overlap=True),
    # gradients reduced in 16 bits (grad_reduce_in_fp32 off in its performance recipes; recalled)
    "megatron-bridge": Framework(name="nemo", dispatch_once=True, ep_overlap=True, grad_dtype=DType.BF16),
    "torchtitan": replace(_FSDP, name="torchtitan"),
    "deepspeed": Framework(name="deepspeed", fused_kernels=False, grad_dtype=DType.FP16),
    "fsdp": _FSDP,
    "llm-foundry": replace(_FSDP, name="llm-foundry"),
    # XLA decomposes a gather and its product into pieces that run beside each other (Wang et al. 2023, ASPLOS, "Overlap
    # communication with dependent computation via decomposition")
    "maxtext": Framework(name="maxtext", grad_dtype=DType.FP32, cuda_graphs=True, main_params=False, tp_overlap=True),
    # gradients reduced as they are, parameters broadcast by owner (InternEvo's hybrid_zero_optim.py)
    "internevo": Framework(name="internevo", grad_dtype=DType.BF16, broadcasts_shards=True),
    "pytorch": replace(_FSDP, name="pytorch"),
}
"""Megatron's is the default; ``megatron-bridge`` runs NeMo's kernels."""

FIRST_YEAR_COMPILED_LOSS = 2025
"""torchtitan compiles its loss with the model since the turn of 2024 to 2025 (recalled)."""

FUSED_EXPERTS = (26, 6)
"""Release (2026.06) from which NVIDIA's containers take 20 to 40% less for the same expert models on Blackwell and as
long as before on Hopper (data/end_to_end, 2026-11-21)."""

LAST_YEAR_UNFUSED = 2022
"""Megatron's products add weight gradients themselves since 2022 (its gradient_accumulation_fusion; recalled). What it
was until then (its versions 2) has constants of its own, ``megatron-v2``, which say nothing of later ones."""


def of_release(trainer: Framework, release: str, generation: str) -> Framework:
    """The trainer as of a release (``26.06``, ``2021``, any text that holds such) on a generation of devices."""
    year = re.search(r"\b(20\d\d)", release)
    container = re.search(r"\b(2\d)\.(\d\d)\b", release)
    if container and trainer.name == "nemo" and generation == "blackwell":
        trainer = replace(trainer, fused_experts=tuple(map(int, container.groups())) >= FUSED_EXPERTS)
    if year and int(year.group(1)) <= LAST_YEAR_UNFUSED:
        trainer = replace(trainer, grad_fusion=False)
        trainer = replace(trainer, name="megatron-v2") if trainer.name == "megatron" else trainer
    if year and int(year.group(1)) >= FIRST_YEAR_COMPILED_LOSS and trainer.name == "torchtitan":
        trainer = replace(trainer, fused_loss=trainer.fused_kernels)
    return trainer
