"""The Python API, one readable function per question: estimate, lint, advise, plan, design, and their building blocks.

>>> import sartor
>>> advice = sartor.advise("examples/pythia-2.8b/config.json", gpu="a100")
>>> dict(advice.search.best_per_gpu["a100_sxm"].changed)["num_heads"]
(32, 20)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sartor.api.collectives import collective
    from sartor.api.designs import design
    from sartor.api.diagnoses import diagnose
    from sartor.api.instances import place, schedule
    from sartor.api.logs import compare, diagnose_log
    from sartor.api.models import Model, read
    from sartor.api.plans import launch, lint_launch, plan
    from sartor.api.questions import ask
    from sartor.api.rows import operators
    from sartor.api.servers import serving
    from sartor.api.shapes import advise, answer_question, estimate, gemm, lint, lint_question
    from sartor.api.words import ClusterLike, GpuLike

__all__ = [
    "ClusterLike",
    "GpuLike",
    "Model",
    "advise",
    "answer_question",
    "ask",
    "collective",
    "compare",
    "design",
    "diagnose",
    "diagnose_log",
    "estimate",
    "gemm",
    "launch",
    "lint",
    "lint_launch",
    "lint_question",
    "operators",
    "place",
    "plan",
    "read",
    "schedule",
    "serving",
]

_MODULES = {
    "collectives": ("collective",),
    "designs": ("design",),
    "diagnoses": ("diagnose",),
    "instances": ("place", "schedule"),
    "logs": ("compare", "diagnose_log"),
    "models": ("Model", "read"),
    "plans": ("launch", "lint_launch", "plan"),
    "questions": ("ask",),
    "rows": ("operators",),
    "servers": ("serving",),
    "shapes": ("advise", "answer_question", "estimate", "gemm", "lint", "lint_question"),
    "words": ("ClusterLike", "GpuLike"),
}
"""Where each name is; only the module of the question that is asked is loaded."""


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"sartor.api.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
