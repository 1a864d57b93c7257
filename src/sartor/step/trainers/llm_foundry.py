"""MosaicML's LLM Foundry and Composer on PyTorch FSDP, with the fused loss of flash-attention."""

from __future__ import annotations

from dataclasses import replace

from sartor.step.trainers.fsdp import FSDP, HABITS

LLM_FOUNDRY = replace(
    FSDP,
    name="llm-foundry",
    aliases=(),
    words=("llm-foundry", "composer", "mosaic"),
    narrows_each_microbatch=False,
    memory=replace(HABITS, logit_bytes=4.0, split_logit_bytes=0.0, kept_logit_bytes=2.0),
    launchable=False,
    source="loss_fn: fused_crossentropy writes gradients over 16-bit logits (recalled); its configuration has no "
    "degree for pipelines or experts; as of 2026-11",
)
