"""Placements experts take for known models: the baselines of the published comparison, and published launches."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sartor.search.joint_question import ExpertPlan

PUBLISHED_DEVICES = 1024

_PUBLISHED: Mapping[str, ExpertPlan] = {
    "opt350m": ExpertPlan(pp=12, dp=85, tp=1),
    "bertlarge": ExpertPlan(pp=8, dp=128, tp=1),
    "gpt2xl": ExpertPlan(pp=32, dp=32, tp=1),
    "megatrongpt254": ExpertPlan(pp=8, dp=32, tp=4),
    "megatrongpt272": ExpertPlan(pp=8, dp=16, tp=8),
    "gpt3175b": ExpertPlan(pp=32, dp=8, tp=4),
    "llama27b": ExpertPlan(pp=8, dp=128, tp=1),
}
"""By squeezed name, on 1,024 devices (PHAZE, Solver/baseline_configs.py of its public code, version 1.0, June 2024;
reference/phaze.md sec. 8)."""


def expert_plan(name: str, num_devices: int) -> ExpertPlan | None:
    """The published expert's placement of a model by name on that many devices; None where none is known.

    Fewer or more devices change the copies: they share what is left by pipeline and width, rounded down.
    """
    plan = _PUBLISHED.get(re.sub(r"[^a-z0-9]+", "", name.lower()))
    if plan is None:
        return None
    copies = plan.dp if num_devices == PUBLISHED_DEVICES else num_devices // (plan.pp * plan.tp)
    return ExpertPlan(pp=plan.pp, dp=copies, tp=plan.tp) if copies else None
