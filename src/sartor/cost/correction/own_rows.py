"""A user's own measured products, as a factor on predicted times: docs/howto/calibrate.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.gemm import roofline_of
from sartor.cost.correction.own_rows_data import OwnRows
from sartor.cost.gpu.tiles import Machine, Problems
from sartor.hardware.gpu import Gpu

Array = npt.NDArray[np.float64]


def correct_by_own_rows(
    found: dict[str, Array], sigma: Array, short: Any, p: Problems, machine: Machine, gpu: Gpu, own: OwnRows
) -> tuple[dict[str, Array], Array]:
    """Times moved by what the user measured, never under the roofline, with the interval that held-out regions of those
    rows needed. The terms stay the formula's; ``own_rows`` is the factor."""
    factor = np.exp(own.log_factor(p.batch * p.m, p.n, p.k))
    time_s = np.maximum(found["time_s"] * factor, np.minimum(roofline_of(p, machine, gpu), found["time_s"]))
    out = {**found, "time_s": time_s}
    if len(found) > 1:
        out["own_rows"] = time_s / found["time_s"]
    return out, np.where(short, own.log_sigma_small, own.log_sigma)
