"""Plain PyTorch (Hugging Face transformers, hand-written loops): eager, with the gradient that autograd accumulates."""

from __future__ import annotations

from dataclasses import replace

from sartor.model.training import Accumulation
from sartor.operators import DType
from sartor.step.trainers.fsdp import FSDP

PYTORCH = replace(
    FSDP,
    name="pytorch",
    title="plain PyTorch",
    precedence=0,
    aliases=(),
    words=("pytorch", "transformers", "hugging", "accelerate", "torch"),
    grad_dtype=DType.FP32,
    accumulation=Accumulation.KEPT,
    pipelines=True,
    expert_parallel=True,
    shards_fully=False,
    launchable=False,
    usual_zero_stage=0,
    drops_out=True,
    source="Hugging Face's configurations of GPT-2 have dropout of 0.1; schedules not looked up: any",
)
