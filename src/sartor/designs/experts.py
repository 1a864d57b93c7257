"""Experts' placements of known models: the baselines of the published comparison, and published launches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from sartor.designs.question import ExpertPlan

PUBLISHED_DEVICES = 1024

_PUBLISHED: Mapping[str, ExpertPlan] = {
    "opt350m": ExpertPlan(pp=12, dp=85, tp=1),
    "bertlarge": ExpertPlan(pp=8, dp=128, tp=1),
    "megatronbert": ExpertPlan(pp=8, dp=128, tp=1),
    "gpt2xl": ExpertPlan(pp=32, dp=32, tp=1),
    "megatrongpt2xl": ExpertPlan(pp=8, dp=128, tp=1),
    "megatrongpt254": ExpertPlan(pp=8, dp=32, tp=4),
    "megatrongpt272": ExpertPlan(pp=8, dp=16, tp=8),
    "gpt3175b": ExpertPlan(pp=32, dp=8, tp=4),
    "llama27b": ExpertPlan(pp=8, dp=128, tp=1),
}
"""By squeezed name, on 1,024 devices (PHAZE, Solver/baseline_configs.py of its public code, version 1.0, June 2024;
reference/phaze.md sec. 8)."""


_LAUNCHED: Mapping[str, ExpertPlan] = {"deepseekv3": ExpertPlan(pp=16, dp=64, tp=1, ep=64)}
"""Launches by the models' authors: DeepSeek-V3 on 2,048 H800 with 16 stages and experts over 64 devices
(DeepSeek-AI 2024, arXiv 2412.19437, sec. 3.2), here with half the copies and without its ZeRO-1."""


def expert_plan(name: str, num_devices: int) -> ExpertPlan | None:
    """The published expert's placement of a model by name on ``num_devices``; None if none is known.

    Another number of devices changes the number of copies, rounded down; stages and width stay.
    """
    plan = {**_PUBLISHED, **_LAUNCHED}.get(re.sub(r"[^a-z0-9]+", "", name.lower()))
    if plan is None:
        return None
    copies = plan.dp if num_devices == PUBLISHED_DEVICES else num_devices // (plan.pp * plan.tp)
    return replace(plan, dp=copies // plan.ep * plan.ep) if copies >= plan.ep else None
