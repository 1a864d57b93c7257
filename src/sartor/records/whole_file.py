"""Whether a whole table was measured on another device than it says; of part of a table, `strangers` judges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sartor.cost.intervals import Z80
from sartor.hardware.gpu import Gpu
from sartor.records.strangers import LEAST_OF_DEVICE, MOST, Timed, other_devices
from sartor.units import FloatArray

LEAST_OFF, CLOSER, ALIKE = 0.05, 0.5, 0.8
"""Least median |ln(measured / predicted)| of a table that is doubted; the likelier device must have less than the
second times that, and less than the third times its scatter about its median. That last keeps a machine that is slower
by one factor from being taken for a slower device: on 86 tables of GEMMs (GPU, type, framework; 20, 60 and 300 rows)
none is doubted, nor with all times taken 0.6 to 1.7 times; with the label of another device (768 pairs) 81, 85 and 86%
are, 1 to 2% of them for a third device. At 0.1 the first misses 6 more of 223 near devices and doubts no table fewer
(lab/notebook/validation.md)."""

MOST_IMPOSSIBLE = 0.2
"""Largest share of rows faster than the datasheet allows in a table that is fitted; those 86 tables have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelier:
    """The device that a whole table fits better than its own, and the median errors of both."""

    gpu: Gpu
    error: float
    own_error: float

    def sentence(self, stated_gpu: Gpu) -> str:
        return (
            f"all rows fit {self.gpu.name} (median error {self.error:.0%}) much better than {stated_gpu.name} "
            f"({self.own_error:.0%}): were they measured on {self.gpu.name}?"
        )


def likelier(timed: Timed, log_sigma: FloatArray) -> Likelier | None:
    """The other measured device that the rows fit much better, if they lie beyond their own device's 80% interval."""
    if timed.measured_s.size < LEAST_OF_DEVICE:
        return None
    count = timed.measured_s.size
    sample = np.linspace(0, count - 1, min(MOST, count)).astype(np.int64)
    measured_s = timed.measured_s[sample]
    own_error, own_scatter = _errors(measured_s, timed.predicted_s[sample])
    if own_error < max(LEAST_OFF, Z80 * float(np.median(log_sigma))):
        return None
    errors = [(*_errors(measured_s, timed.predict(gpu, sample)), gpu) for gpu in other_devices(timed)]
    error, scatter, best = min(errors, key=lambda candidate: candidate[0], default=(np.inf, np.inf, timed.gpu))
    if error > CLOSER * own_error or scatter > ALIKE * own_scatter:
        return None
    return Likelier(gpu=best, error=float(np.expm1(error)), own_error=float(np.expm1(own_error)))


def _errors(measured_s: FloatArray, predicted_s: FloatArray) -> tuple[float, float]:
    """Medians of |ln(measured / predicted)| and of its distance from its median."""
    ratio = np.log(measured_s / predicted_s)
    return float(np.median(np.abs(ratio))), float(np.median(np.abs(ratio - np.median(ratio))))
