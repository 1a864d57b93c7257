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
    from sartor.api.deployments import deploy as deploy
    from sartor.api.designs import design as design
    from sartor.api.diagnoses import diagnose as diagnose
    from sartor.api.instances import place as place
    from sartor.api.instances import schedule as schedule
    from sartor.api.logs import compare as compare
    from sartor.api.logs import diagnose_log as diagnose_log
    from sartor.api.models import Model as Model
    from sartor.api.models import read as read
    from sartor.api.plans import advised_launch as advised_launch
    from sartor.api.plans import launch as launch
    from sartor.api.plans import lint_launch as lint_launch
    from sartor.api.plans import plan as plan
    from sartor.api.questions import ask as ask
    from sartor.api.servers import serving as serving
    from sartor.api.shapes import advise as advise
    from sartor.api.shapes import answer_question as answer_question
    from sartor.api.shapes import estimate as estimate
    from sartor.api.shapes import gemm as gemm
    from sartor.api.shapes import lint as lint
    from sartor.api.shapes import lint_question as lint_question
    from sartor.api.single_operators import collective as collective
    from sartor.api.single_operators import operators as operators
    from sartor.api.words import ClusterLike as ClusterLike
    from sartor.api.words import GpuLike as GpuLike

_MODULES = {
    "deployments": ("deploy",),
    "designs": ("design",),
    "diagnoses": ("diagnose",),
    "instances": ("place", "schedule"),
    "logs": ("compare", "diagnose_log"),
    "models": ("Model", "read"),
    "plans": ("advised_launch", "launch", "lint_launch", "plan"),
    "questions": ("ask",),
    "servers": ("serving",),
    "shapes": ("advise", "answer_question", "estimate", "gemm", "lint", "lint_question"),
    "single_operators": ("collective", "operators"),
    "words": ("ClusterLike", "GpuLike"),
}
"""Where each name is; only the module of the question that is asked is loaded."""
__all__ = sorted(name for names in _MODULES.values() for name in names)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"sartor.api.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
