"""Rows of a file of measured GEMMs that cannot be right: in another unit, copied, or measured on another device.

They are recognized by their distance from the rest of the file: ln(measured / predicted) minus its median, over its
robust scatter. Rows that are merely slow or fast are kept: each reason needs evidence of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import load_calibration
from sartor.hardware.catalog import gpu_names, load_gpu
from sartor.hardware.gpu import Gpu
from sartor.operators import DType
from sartor.units import FloatArray

Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """GEMMs of one type on one device: measured times, and a function that predicts any of them on any device."""

    gpu: Gpu
    dtype: DType
    measured_s: FloatArray
    predicted_s: FloatArray
    predict: Callable[[Gpu, Index], FloatArray]


LEAST, LEAST_OF_DEVICE = 10, 20
"""With fewer shapes nothing is judged; with fewer than the second, no row is told to be another device's."""

UNIT, NEAR_UNIT = float(np.log(1000.0)), float(np.log(3.0))
FAR, FAR_COPY, FAR_DEVICE = 4.0, float(np.log(1.5)), float(np.log(1.25))
"""What counts as far off: robust deviations, least |ln| of copied rows, least |ln| of rows of another device."""

BY_CHANCE = 5.0
"""Copied rows must be this many times more than by chance (a coarse clock gives many shapes one time)."""

UNLIKE, TOGETHER = 0.5, 0.3
"""Rows with exchanged times: their correlation with the prediction is below the first, and the mean distance of their
sorted times from the sorted predictions is below this share of their mean error."""

NEAR_DEVICE, SHARE_OF_DEVICE = float(np.log(1.2)), 0.65
"""How close rows must be to another device's prediction, and the share of all unexplained rows that it must explain."""


def strangers(timed: Timed) -> Iterator[tuple[str, Mask]]:
    """(reason, mask) pairs, each row in one mask at most; tests check the judgement with injected defects."""
    measured_s, predicted_s = timed.measured_s, timed.predicted_s
    if measured_s.size < LEAST:
        return
    ratio = np.log(measured_s / predicted_s)
    off = ratio - np.median(ratio)
    scatter = max(float(np.median(np.abs(off))) / 0.6745, 0.01)
    far = np.abs(off) > max(FAR * scatter, FAR_COPY)
    few = far & _few_exchanged(off, np.log(predicted_s), np.abs(off) > max(FAR * scatter, FAR_COPY) / 2)
    unit = (np.abs(np.abs(off) - UNIT) < NEAR_UNIT) & ~few
    yield "a time about 1,000 times off the other rows (another unit?)", unit
    copied = few | _copied(measured_s, predicted_s, far & ~unit & ~few)
    yield COPIED, copied
    left = (np.abs(off) > max(FAR * scatter, FAR_DEVICE)) & ~unit & ~copied
    for reason, found in _of_another_device(timed, left):
        yield reason, found
        left &= ~found
    yield COPIED, _exchanged(off, np.log(predicted_s), left)


COPIED = "a time copied from another shape"


def _copied(measured_s: FloatArray, predicted_s: FloatArray, far: Mask) -> Mask:
    """Rows far off whose time is identical to that of a shape with quite another predicted time."""
    same: dict[float, list[float]] = {}
    for i in np.flatnonzero(~far):
        same.setdefault(float(measured_s[i]), []).append(float(predicted_s[i]))
    copied = np.zeros_like(far)
    for i in np.flatnonzero(far):
        others = np.asarray(same.get(float(measured_s[i]), []))
        copied[i] = bool(np.any(np.abs(np.log(others / predicted_s[i])) > FAR_COPY))
    twins = sum(len(each) for each in same.values() if len(each) > 1) / max(1, int((~far).sum()))
    return copied if copied.sum() >= max(2.0, BY_CHANCE * twins * far.sum()) else np.zeros_like(far)


def _exchanged(off: FloatArray, size: FloatArray, far: Mask) -> Mask:
    """Rows far off with exchanged times: together they match the predictions, one by one they don't correlate."""
    none = np.zeros_like(far)
    if far.sum() < 2 * _several(far):
        return none
    expected, found = size[far], size[far] + off[far]
    together = np.abs(np.sort(expected) - np.sort(found)).mean() < TOGETHER * np.abs(off[far]).mean()
    return far if together and np.corrcoef(expected, found)[0, 1] < UNLIKE else none


def _few_exchanged(off: FloatArray, size: FloatArray, far: Mask) -> Mask:
    """A few rows far off, each with a time that another of them should have: some too slow and some too fast at once,
    which honest outliers, slow ones, are not. Of many rows chance would do it (``_exchanged``)."""
    left = np.flatnonzero(far)
    found = np.zeros_like(far)
    if left.size >= 2 * _several(far):
        return found
    while left.size > 1:
        alike = np.abs((size + off)[left][:, None] - size[left]) < NEAR_DEVICE
        kept = alike.any(axis=0) & alike.any(axis=1)
        if kept.all():
            found[left] = abs(off[left].mean()) < NEAR_DEVICE
            break
        left = left[kept]
    return found


def _several(rows: Mask) -> float:
    """Number of rows that is more than the few outliers of any file."""
    return max(5.0, 0.02 * rows.size)


def _of_another_device(timed: Timed, left: Mask) -> Iterator[tuple[str, Mask]]:
    """The measured device that explains most of the remaining rows, if it explains most of them."""
    count = int(left.sum())
    if left.size < LEAST_OF_DEVICE or count < _several(left):
        return
    where, best, explained = np.flatnonzero(left), "", np.zeros(count, dtype=bool)
    for other in _measured(timed):
        near = np.abs(np.log(timed.measured_s[where] / timed.predict(other, where))) < NEAR_DEVICE
        if near.sum() > explained.sum():
            best, explained = other.name, near
    if explained.sum() >= SHARE_OF_DEVICE * count:
        found = np.zeros_like(left)
        found[where[explained]] = True
        yield f"a time that looks measured on another device ({best})", found


def _measured(timed: Timed) -> Iterator[Gpu]:
    """Other devices with measured GEMMs of this data type."""
    for name in gpu_names():
        gpu = load_gpu(name)
        typed = gpu.name != timed.gpu.name and timed.dtype in gpu.peak_flops_per_s
        if typed and f"gemm.{timed.dtype.value}" in load_calibration(gpu).calibrated:
            yield gpu
