"""sartor cuts the model to the hardware, the hardware to the model, and the plan to both.

>>> import sartor
>>> answer = sartor.estimate("llama-3.1-8b", gpu="h100", phase="decode", context_len=4096)
>>> answer.estimate.time_s > 0
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sartor.api import advise, ask, design, estimate, gemm, lint, plan
    from sartor.errors import InputError

__all__ = ["InputError", "__version__", "advise", "ask", "design", "estimate", "gemm", "lint", "plan"]


def __getattr__(name: str) -> Any:
    """The journeys are loaded when first asked for, so that ``import sartor`` costs nothing."""
    if name == "InputError":
        from sartor.errors import InputError

        return InputError
    if name in __all__:
        from sartor import api

        return getattr(api, name)
    raise AttributeError(f"module 'sartor' has no attribute {name!r}")
