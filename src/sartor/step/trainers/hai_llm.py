"""HAI-LLM, the unpublished trainer of DeepSeek-V3 (arXiv 2412.19437, sec. 3.2 and 3.3; recalled 2026-11-24).

A bidirectional pipeline hides the experts' all-to-all; its own kernels send a token to each node only once. RMS norms,
the up-projections of latent attention and the experts' activation are recomputed, and linear layers keep their inputs
in FP8. Two differences from the paper: DualPipe is priced as DualPipeV, which overlaps the same but holds one copy of
the weights, not two; 16-bit optimizer moments must be set in the plan (``moments_dtype=bf16``).
"""

from __future__ import annotations

from dataclasses import replace

from sartor.model.choices import PipelineSchedule, Recipe, RecomputeModule
from sartor.step.trainers.megatron import MEGATRON

HAI_LLM = replace(
    MEGATRON,
    name="hai-llm",
    aliases=(),
    words=("hai-llm",),
    ep_overlap=True,
    dispatch_once=True,
    pads_experts=False,
    schedules=(PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.DUAL_PIPE_V),
    always_again=(RecomputeModule.LAYERNORM, RecomputeModule.MLA_UP_PROJ, RecomputeModule.MOE_ACT),
    plain_fp8=Recipe.FP8_BLOCK,
    vocab_multiple=0,
    usual_zero_stage=1,
    drops_out=False,
    launchable=False,
    releases=(),
    offloads=(),
    source="arXiv 2412.19437, sec. 3.2.1 to 3.2.3 and 3.3",
)
