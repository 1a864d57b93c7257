"""sartor finds model shapes, parallel plans and accelerators that fit each other, by predicting their time.

>>> import sartor
>>> answer = sartor.estimate("llama-3.1-8b", gpu="h100", phase="decode", context_len=4096)
>>> answer.time_s > 0
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sartor.version import __version__

if TYPE_CHECKING:
    from sartor.api import (
        advise,
        ask,
        collective,
        compare,
        deploy,
        design,
        diagnose,
        estimate,
        gemm,
        lint,
        lint_launch,
        place,
        plan,
        schedule,
        serving,
    )
    from sartor.errors import InputError

__all__ = [
    "InputError",
    "__version__",
    "advise",
    "ask",
    "collective",
    "compare",
    "deploy",
    "design",
    "diagnose",
    "estimate",
    "gemm",
    "lint",
    "lint_launch",
    "place",
    "plan",
    "schedule",
    "serving",
]


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def __getattr__(name: str) -> object:
    """Load the API on first use, so that ``import sartor`` stays fast. Functions that share a subpackage's name
    (launch, read) are called from ``sartor.api``."""
    if name == "InputError":
        from sartor.errors import InputError

        return InputError
    if name in __all__:
        from sartor import api

        return getattr(api, name)
    raise AttributeError(f"module 'sartor' has no attribute {name!r}")
