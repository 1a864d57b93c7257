"""NVIDIA Megatron Bridge: NeMo's kernels and constants, gradients reduced in 16 bits."""

from __future__ import annotations

from dataclasses import replace

from sartor.step.trainers.megatron import MEGATRON
from sartor.step.trainers.nemo import NEMO

MEGATRON_BRIDGE = replace(
    NEMO,
    words=("bridge",),
    in_files=MEGATRON.in_files,
    source="grad_reduce_in_fp32 is off in its performance recipes (recalled)",
)
