"""What scripts that fit networks share: weights in half precision, and a network before its intervals are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sartor.cost.correction.network import Residual


def half(values: Any) -> Any:
    """The values as files keep them, in 16 bits."""
    return values.astype(np.float16).astype(np.float32)


def bounds_of(goals: Any) -> tuple[float, float]:
    """Least and most that a network may answer: all but a thousandth of its goals at either end."""
    return float(np.quantile(goals, 0.001)), float(np.quantile(goals, 0.999))


def network(
    gpu: str,
    scaling: tuple[Any, Any],
    ends: tuple[Any, Any],
    layers: Sequence[tuple[Any, Any]],
    bounds: tuple[float, float],
    **more: Any,
) -> Residual:
    """A network from its weights and biases: mean and scale of its inputs (columns), the least and most of the scaled
    inputs that it has seen, and the bounds of its answers. ``more`` are further fields."""
    mean, scale = (each.astype(np.float32) for each in scaling)
    return Residual(
        gpu=gpu,
        mean=mean,
        scale=scale,
        low=ends[0],
        high=ends[1],
        layers=tuple((half(weight), half(bias)) for weight, bias in layers),
        least=bounds[0],
        most=bounds[1],
        formula_log_sigma=0.0,
        log_sigma=0.0,
        log_sigma_small=0.0,
        kin_log_sigma=0.0,
        kin_log_sigma_small=0.0,
        **more,
    )
