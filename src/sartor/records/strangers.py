"""Rows, or a whole file, that look measured on another device than they say, by their errors as a mixture.

They are recognized by their distance from the rest of the table: ln(measured / predicted) less its smooth trend over
sizes, over its robust scatter. Rows that are merely slow or fast are kept: each reason needs evidence of its own.

Whether a whole table was measured on another device than it says; of part of a table, `strangers` judges.

Own rows lie about a smooth trend over sizes, so that a library, clock or memory that differs from the packaged one is
no defect. Rows of another device lie about the same trend moved by the ratio of the two devices' predicted times and by
a level of their own (their machine need not be slower by the factor that this one is), and scatter by the error of that
device's prediction too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import load_calibration
from sartor.cost.cost import Z80
from sartor.hardware.catalog import GPUS, load_gpu
from sartor.hardware.gpu import Gpu
from sartor.operators import DType
from sartor.units import FloatArray

Mask = npt.NDArray[np.bool_]

SHARES, LEAST_OF_SHARE = 12, 15
"""A trend has at most as many knots along a size as the first, each the median of at least as many rows as the second.
"""

LEAST_SCATTER = 0.01
OTHER_LEVEL, OTHER_SCATTER = 0.1, 0.03
"""GEMMs of another device: standard deviation (ln) of their level about this one's, and what no trend takes out of
their scatter. Withheld bf16 GEMMs are 3% off (docs/accuracy), whole files by up to 10% (assumed). Other kernels, whose
predictions lack steps that tables have, share this device's level and scatter: else 0.4% of the published memory-bound
rows are accused (2026-11-27)."""
ROUNDS, FEW_ROUNDS = 15, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixture:
    """How likely each row is, as a logarithm; its probability to be the other device's; its distance from its own
    device's trend, and the scatter of rows, both in ln."""

    log_likelihood: FloatArray
    other: FloatArray
    off: FloatArray
    scatter: float

    @property
    def likely(self) -> float:
        return float(self.log_likelihood.sum())


def _trend(ratio: FloatArray, sizes: FloatArray, use: Mask) -> FloatArray:
    """Smooth trend of ln ratios at each row, from the rows in ``use``: a sum of functions of one size each (the rows of
    ``sizes``), interpolated between medians of equal shares."""
    where = np.flatnonzero(use)
    level = np.full(ratio.size, np.median(ratio[where]))
    shares = min(SHARES, where.size // LEAST_OF_SHARE)
    if shares < 2:
        return level
    length = where.size // shares
    for x in (*sizes, *sizes):
        parts = where[np.argsort(x[where], kind="stable")][: shares * length].reshape(shares, length)
        left = np.median((ratio - level)[parts], axis=1)
        knots, which = np.unique(np.median(x[parts], axis=1), return_inverse=True)
        level = level + np.interp(x, knots, np.bincount(which, left) / np.bincount(which))
    return level


def _own_alone(ratio: FloatArray, sizes: FloatArray) -> _Mixture:
    """The mixture of own and stray rows."""
    return _mixed(ratio - _trend(ratio, sizes, np.ones(ratio.size, dtype=bool)), None)


def _with_other(ratio: FloatArray, sizes: FloatArray, apart: FloatArray, *, loose: bool) -> _Mixture:
    """The mixture with rows of a device whose predicted times are ``apart`` (ln) from the own ones; ``loose``: with a
    level and a scatter of their own."""
    all_rows = np.ones(ratio.size, dtype=bool)
    mixture = _mixed(ratio - np.median(ratio), apart, loose=loose)
    for _ in range(2):
        moved = ratio - np.where(mixture.other > 0.5, apart, 0.0)
        mixture = _mixed(ratio - _trend(moved, sizes, all_rows), apart, loose=loose)
    return mixture


def _mixed(off: FloatArray, apart: FloatArray | None, rounds: int = ROUNDS, *, loose: bool = False) -> _Mixture:
    """Expectation maximization: normal distributions of one scatter about 0 and ``apart``, a wide one of stray rows."""
    scatter = max(float(np.median(np.abs(off))) / 0.6745, LEAST_SCATTER)
    wide, level = max(5 * scatter, 0.5), 0.0
    spread = np.hypot(scatter, OTHER_LEVEL if loose else 0.0)
    shares = np.asarray([0.97, 0.03] if apart is None else [0.87, 0.1, 0.03])
    for _ in range(rounds):
        moved = [] if apart is None else [off - apart - level]
        log_weights = np.stack(
            [_log_normal(off, scatter), *(_log_normal(x, spread) for x in moved), _log_normal(off, wide)]
        )
        log_weights += np.log(shares)[:, None]
        total = np.logaddexp.reduce(log_weights, axis=0)
        weight = np.exp(log_weights - total)
        own_weight, stray = weight[0], weight[-1]
        near, squares = own_weight.sum(), (own_weight * off**2).sum()
        if apart is not None and not loose:
            near, squares = near + weight[1].sum(), squares + (weight[1] * (off - apart) ** 2).sum()
        scatter = max(float(np.sqrt(squares / near)), LEAST_SCATTER)
        wide = max(float(np.sqrt((stray * off**2).sum() / max(float(stray.sum()), 1e-9))), 4 * scatter, 0.2)
        spread = np.hypot(scatter, OTHER_SCATTER if loose else 0.0)
        if apart is not None and loose:
            level = float(weight[1] @ (off - apart)) / (float(weight[1].sum()) + (spread / OTHER_LEVEL) ** 2)
        shares = np.maximum(weight.mean(axis=1), 0.003)
        shares = shares / shares.sum()
    other_weight = np.zeros(off.size) if apart is None else weight[1]
    return _Mixture(log_likelihood=total, other=other_weight, off=off, scatter=scatter)


def _log_normal(x: FloatArray, scatter: float) -> FloatArray:
    log_density: FloatArray = -0.5 * (x / scatter) ** 2 - np.log(scatter * np.sqrt(2 * np.pi))
    return log_density


Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Operators of one kind and type on one device: measured times, and a function that predicts any on any device."""

    gpu: Gpu
    dtype: DType
    section: str
    """The calibration's section that prices them."""
    sizes: FloatArray
    """Logarithms of their sizes, a row for each size."""
    measured_s: FloatArray
    predicted_s: FloatArray
    predict: Callable[[Gpu, Index], FloatArray]


LEAST, LEAST_OF_DEVICE = 10, 20
"""With fewer shapes nothing is judged; with fewer than the second, no row is told to be another device's."""

UNIT, NEAR_UNIT = float(np.log(1000.0)), float(np.log(3.0))
FAR, FAR_COPY, FAR_TWIN, FAR_SWAP = 4.0, float(np.log(1.5)), float(np.log(1.2)), float(np.log(1.25))
"""What counts as far off: robust deviations; least |ln| of a few rows with exchanged times, of rows with the very time
of another, and of many rows with exchanged times."""

UNLIKE, TOGETHER = 0.5, 0.3
"""Rows with exchanged times: their correlation with the prediction is below the first, and the mean distance of their
sorted times from the sorted predictions is below this share of their mean error."""

NEAR, MOST_EXCHANGED = float(np.log(1.2)), 200
"""How close a time must be to the one that another shape should have; among more rows, chance has one for each."""


def strangers(timed: Timed) -> Iterator[tuple[str, Mask]]:
    """(reason, mask) pairs, each row in one mask at most; tests check the judgement with injected defects."""
    measured_s, predicted_s = timed.measured_s, timed.predicted_s
    if measured_s.size < LEAST:
        return
    ratio, size = np.log(measured_s / predicted_s), np.log(predicted_s)
    sizes = np.vstack([size, timed.sizes])
    thousandth = _near_unit(ratio - np.median(ratio))
    alone = _alone(measured_s) & ~thousandth  # many of them would bend the trend
    off = ratio - _trend(ratio, sizes, alone)
    scatter = max(float(np.median(np.abs(off[alone]))) / 0.6745, 0.01)
    far = max(FAR * scatter, FAR_COPY)
    few = _few_exchanged(off, size, far)
    copied = few | _copied(measured_s, off, max(FAR * scatter, FAR_TWIN))
    unit = (_near_unit(off) | thousandth) & ~copied
    yield OTHER_UNIT, unit
    yield COPIED, copied
    rest = ~unit & ~copied
    for reason, mask in _of_another_device(timed, ratio, sizes, np.flatnonzero(rest)):
        yield reason, mask
        rest &= ~mask
    yield COPIED, _exchanged(off, size, rest & (np.abs(off) > max(FAR * scatter, FAR_SWAP)))


def of_another_unit(measured_s: FloatArray, predicted_s: FloatArray) -> Mask:
    """Rows about a thousand times off the middle one, which no prediction is, not even a borrowed one."""
    ratio = np.log(measured_s / predicted_s)
    return _near_unit(ratio - np.median(ratio)) & (ratio.size >= LEAST)


def _near_unit(off: FloatArray) -> Mask:
    near: Mask = np.abs(np.abs(off) - UNIT) < NEAR_UNIT
    return near


OTHER_UNIT = "a time about 1,000 times off the other rows (another unit?)"
COPIED = "a time copied from another shape"


def _alone(measured_s: FloatArray) -> Mask:
    """Rows whose time no other has, from which to learn the scatter; all rows where these are few (a coarse clock)."""
    _, which, counts = np.unique(measured_s, return_inverse=True, return_counts=True)
    alone: Mask = counts[which] == 1
    return alone if alone.sum() >= max(LEAST, 0.3 * alone.size) else np.ones_like(alone)


def _copied(measured_s: FloatArray, off: FloatArray, far: float) -> Mask:
    """Rows far off whose time is identical to that of another shape that it fits better. Where as many rows share a
    time that fits them, times are equal by chance: a coarse clock."""
    _, which = np.unique(measured_s, return_inverse=True)
    order = np.lexsort((np.abs(off), which))
    best = order[np.concatenate([[True], np.diff(which[order]) > 0])][which]
    copied: Mask = (np.abs(off) > far) & (np.abs(off - off[best]) > far)
    by_chance = (np.abs(off - off[best]) > 1e-9) & ~copied  # the same row twice is no chance
    return copied if copied.sum() >= max(2, by_chance.sum()) else np.zeros_like(copied)


def _exchanged(off: FloatArray, size: FloatArray, far: Mask) -> Mask:
    """Rows far off with exchanged times: together they match the predictions, one by one they don't correlate."""
    none = np.zeros_like(far)
    if far.sum() < 2 * _several(far):
        return none
    expected, apparent = size[far], size[far] + off[far]
    together = np.abs(np.sort(expected) - np.sort(apparent)).mean() < TOGETHER * np.abs(off[far]).mean()
    return far if together and np.corrcoef(expected, apparent)[0, 1] < UNLIKE else none


def _few_exchanged(off: FloatArray, size: FloatArray, far: float) -> Mask:
    """A few rows far off, each with a time that another of them should have: some too slow and some too fast at once,
    which honest outliers, slow ones, are not. Of many rows chance would do it (``_exchanged``)."""
    left = np.flatnonzero(np.abs(off) > far / 2)
    exchanged = np.zeros(off.size, dtype=bool)
    if left.size >= min(2 * _several(exchanged), MOST_EXCHANGED):
        return exchanged
    while left.size > 1:
        alike = np.abs((size + off)[left][:, None] - size[left]) < NEAR
        isolated = alike.any(axis=0) & alike.any(axis=1)
        if isolated.all():
            exchanged[left] = abs(off[left].mean()) < NEAR
            break
        left = left[isolated]
    return exchanged & (np.abs(off) > far)


def _several(rows: Mask) -> float:
    """Number of rows that is more than the few outliers of any file."""
    return max(5.0, 0.02 * rows.size)


# ------------------------------------------------------------------------------------------- another device

MOST, TRIED = 1000, 3
"""Rows that choose the device, and devices that are tried in earnest."""

EVIDENCE, EVIDENCE_PER_ROW, OVER_CHANCE, LEAST_SHARE = (8.0, 6.0), (0.06, 0.03), (2.0, 1.5), (0.03, 0.01)
"""Of other kernels and of GEMMs. A device must raise the log-likelihood by so much, by so much more a row (no
prediction is exact, and those of other kernels than GEMMs lack steps that tables have), and by so many times what it
would with its predictions dealt to other rows or, of a device far off, moved; and have such a share of the rows that
can be told. Chosen on 97 tables of GEMMs and 63 others (lab/notebook/validation.md)."""

LEAST_CLEAR, MOST_SHARE, LEAST_TOLD = 0.1, 0.5, 3
"""Least share of rows where the device can be told (fewer are one corner, whose kernel may be odd); share of these that
may be the device's (rows mixed in are the fewer), and their least number."""

APART, LEAST_APART, SURE, NEARER = 3.5, 0.13, 0.8, 0.3
"""A row can be told where predictions for the two devices are so many scatters, and so much (ln), apart, and is if its
probability to be the other device's is above the third, or it is nearer to that device by the fourth."""


def _of_another_device(timed: Timed, ratio: FloatArray, sizes: FloatArray, rest: Index) -> Iterator[tuple[str, Mask]]:
    """The rows of ``rest`` of the device that explains rows off best, where the evidence is clear."""
    if rest.size < LEAST_OF_DEVICE:
        return
    sample = rest[np.linspace(0, rest.size - 1, min(MOST, rest.size)).astype(np.int64)]
    chosen = _likeliest(timed, ratio[sample], sizes[:, sample], sample)
    if chosen is None:
        return
    apart = np.log(timed.predict(chosen, rest) / timed.predicted_s[rest])
    mixture = _with_other(ratio[rest], sizes[:, rest], apart, loose=timed.section.startswith("gemm"))
    clear = _clear(apart, mixture)
    certain = clear & ((mixture.other > SURE) | (np.abs(mixture.off - apart) < NEARER * np.abs(mixture.off)))
    untold = rest.size * mixture.other[clear].mean() - certain.sum()
    detail = (
        f"; about {untold:.0f} more of its rows can't be identified and stay in"
        if untold > 0.2 * certain.sum() + 1
        else ""
    )
    mask = np.zeros(ratio.size, dtype=bool)
    mask[rest[certain]] = True
    yield f"a time that looks measured on another device ({chosen.name}{detail})", mask


def _likeliest(timed: Timed, ratio: FloatArray, sizes: FloatArray, rows: Index) -> Gpu | None:
    """The device that some of these rows were measured on; None without clear evidence."""
    others = [(gpu, np.log(timed.predict(gpu, rows) / timed.predicted_s[rows])) for gpu in _other_devices(timed)]
    level, gemms = ratio - np.median(ratio), timed.section.startswith("gemm")
    ranked = sorted(others, key=lambda candidate: -_mixed(level, candidate[1], FEW_ROUNDS, loose=gemms).likely)
    tried = [(_with_other(ratio, sizes, apart, loose=gemms), apart, gpu) for gpu, apart in ranked[:TRIED]]
    if not tried:
        return None
    mixture, apart, best = max(tried, key=lambda candidate: candidate[0].likely)
    alone = _own_alone(ratio, sizes).likely
    gain, evidence = mixture.likely - alone, EVIDENCE[gemms] + EVIDENCE_PER_ROW[gemms] * ratio.size
    clear = _clear(apart, mixture)
    other_weight = mixture.other[clear]
    if gain < evidence or clear.mean() < LEAST_CLEAR or (other_weight > SURE).sum() < LEAST_TOLD:
        return None
    if not LEAST_SHARE[gemms] < other_weight.mean() < MOST_SHARE:
        return None
    draw = np.random.default_rng(0)
    wrong = [[draw.permutation(apart) for _ in range(2)]]
    if np.median(np.abs(apart)) > FAR_COPY:  # all rows as far apart: dealt out they are the same
        wrong.append([0.7 * apart, 1.4 * apart])
    dealt = (
        [_with_other(ratio, sizes, exchanged, loose=gemms).likely - alone for exchanged in deals] for deals in wrong
    )
    chance = min(float(np.mean(gains)) for gains in dealt)
    return best if gain >= evidence + OVER_CHANCE[gemms] * max(0.0, chance) else None


def _clear(apart: FloatArray, mixture: _Mixture) -> Mask:
    """Rows where predictions for the two devices are far enough apart to tell which one was measured."""
    clear: Mask = np.abs(apart) > max(APART * mixture.scatter, LEAST_APART)
    return clear


def _other_devices(timed: Timed) -> Iterator[Gpu]:
    """Other devices with measured operators of this kind and type, but for those that no row can tell from this one."""
    for name in GPUS.names():
        gpu = load_gpu(name)
        typed = gpu.name != timed.gpu.name and timed.dtype in gpu.peak_flops_per_s and not _twins(gpu, timed.gpu)
        if typed and timed.section in load_calibration(gpu).calibrated:
            yield gpu


def _twins(gpu: Gpu, twin: Gpu) -> bool:
    """Whether two devices have the same dies and memory (B200, B300 and their Grace versions): they differ by less than
    their tables scatter."""
    same = abs(gpu.num_sms / twin.num_sms - 1) < 0.05 and abs(gpu.hbm_bytes_per_s / twin.hbm_bytes_per_s - 1) < 0.05
    return gpu.generation == twin.generation and same


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
class _Likelier:
    """The device that a whole table fits better than its own, and the median errors of both."""

    gpu: Gpu
    error: float
    own_error: float

    def sentence(self, stated_gpu: Gpu) -> str:
        return (
            f"all rows fit {self.gpu.name} (median error {self.error:.0%}) much better than {stated_gpu.name} "
            f"({self.own_error:.0%}): were they measured on {self.gpu.name}?"
        )


def likelier(timed: Timed, log_sigma: FloatArray) -> _Likelier | None:
    """The other measured device that the rows fit much better, if they lie beyond their own device's 80% interval."""
    if timed.measured_s.size < LEAST_OF_DEVICE:
        return None
    count = timed.measured_s.size
    sample = np.linspace(0, count - 1, min(MOST, count)).astype(np.int64)
    measured_s = timed.measured_s[sample]
    own_error, own_scatter = _errors(measured_s, timed.predicted_s[sample])
    if own_error < max(LEAST_OFF, Z80 * float(np.median(log_sigma))):
        return None
    errors = [(*_errors(measured_s, timed.predict(gpu, sample)), gpu) for gpu in _other_devices(timed)]
    error, scatter, best = min(errors, key=lambda candidate: candidate[0], default=(np.inf, np.inf, timed.gpu))
    if error > CLOSER * own_error or scatter > ALIKE * own_scatter:
        return None
    return _Likelier(gpu=best, error=float(np.expm1(error)), own_error=float(np.expm1(own_error)))


def _errors(measured_s: FloatArray, predicted_s: FloatArray) -> tuple[float, float]:
    """Medians of |ln(measured / predicted)| and of its distance from its median."""
    ratio = np.log(measured_s / predicted_s)
    return float(np.median(np.abs(ratio))), float(np.median(np.abs(ratio - np.median(ratio))))
