"""Fit streaming kernels and attention from a user's records.

If a file of ``sartor measure`` holds such rows and the package has no fit of the device, ``sartor calibrate`` writes
them beside the GEMMs: the share of bandwidth and the start-up time of each kernel (least absolute log error over a
grid), and one factor each on attention's forward and backward rates and on decode's bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration, Clock
from sartor.cost.correction.coefficients import AttentionCoefficients, MemoryBoundCoefficients
from sartor.cost.cost import Z80
from sartor.cost.gpu.attention import attention_cost
from sartor.cost.gpu.memory_bound import memory_bound_cost
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.operators import Attention, MemoryBound, Pass
from sartor.records.rows import RowWork, Unexpressed, work_of
from sartor.records.tables import read_table
from sartor.records.targets import Targets, targets_of
from sartor.units import FloatArray

LEAST_ROWS = 4
"""Fewer rows are not enough to fit a section."""

SHARES = np.geomspace(0.005, 1.5, 120)
STARTS_S = np.concatenate([[0.0], np.geomspace(5e-7, 2e-4, 30)])
FEW_SIGMA = 1.5
"""With so few rows, intervals are wider than the scatter of the rows by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFit:
    """One section's coefficients, and mean |predicted / measured - 1| before and after the fit."""

    coefficients: Any
    rows: int
    before: float
    after: float


def fit_streams(path: str | Path, gpu: Gpu, calibration: Calibration) -> dict[str, StreamFit]:
    """Fits of the sections (``memory_bound``, ``attention``) that a file has enough unflagged rows of ``gpu`` for and
    the package has no fit of; empty where there are none."""
    fit_by_section: dict[str, StreamFit] = {}
    fits: Mapping[str, Callable[[Any, Gpu, Calibration], StreamFit]] = {
        "memory_bound": _memory,
        "attention": _attention,
    }
    for section, fit in fits.items():
        if _is_known(section, calibration):
            continue
        timed = _timed(path, section, gpu)
        if len(timed) >= LEAST_ROWS:
            fit_by_section[section] = fit(timed, gpu, calibration)
    return fit_by_section


def passed_over(path: str | Path, gpu: Gpu, calibration: Calibration) -> tuple[str, ...]:
    """A sentence for each section that the file has rows of ``gpu`` for and that stays as the package fitted it."""
    remarks = []
    for section, words in (("memory_bound", "memory-bound kernels"), ("attention", "attention")):
        rows = _rows(path, section, gpu) if _is_known(section, calibration) else 0
        if rows:
            stays = f"the package's own fit of {words} on {gpu.name} stays"
            remarks.append(f"{rows} rows are not used: {stays} (sartor validate operators compares these rows with it)")
    return tuple(remarks)


def _is_known(section: str, calibration: Calibration) -> bool:
    """Whether the package has a fit of the device itself."""
    return section in calibration.calibrated or (
        section == "memory_bound" and "torch_streams" in calibration.calibrated
    )


def _rows(path: str | Path, table: str, gpu: Gpu) -> int:
    targets = _targets(path, table)
    return 0 if targets is None else sum(targets.words(i)["gpu"] == gpu.name for i in range(len(targets)))


Timed = list[tuple[Any, float, bool]]
"""Per row: operator, measured seconds, and whether the host waited for the kernel (eager launch)."""


def _targets(path: str | Path, table: str) -> Targets | None:
    """The file's rows of that kind of table; None for a table of GEMMs alone, or without a usable row."""
    try:
        targets = targets_of([read_table(Path(path), kind_name=table)])
    except InputError:
        return None
    return targets if targets.kind.name == table else None


def _timed(path: str | Path, table: str, gpu: Gpu) -> Timed:
    targets = _targets(path, table)
    if targets is None:
        return []
    rows = [(_work(targets, i, gpu), float(targets.measured_s[i])) for i in range(len(targets))]
    return [(work.operators[0], seconds, work.eager) for work, seconds in rows if work is not None]


def _work(targets: Targets, i: int, gpu: Gpu) -> RowWork | None:
    words = targets.words(i)
    try:
        return work_of(targets.kind.name, words, targets.sizes(i), gpu) if words["gpu"] == gpu.name else None
    except Unexpressed:
        return None


# ------------------------------------------------------------------------------------------- streaming kernels


def _memory(timed: Timed, gpu: Gpu, calibration: Calibration) -> StreamFit:
    """A bandwidth share per kernel name and per kind; kinds without rows get that of the element-wise kernel."""
    forward = [row for row in timed if row[0].pass_ is not Pass.BACKWARD]
    base = calibration.memory_bound
    groups: dict[str, Timed] = {}
    for row in forward:
        for name in dict.fromkeys((row[0].kernel or row[0].kind.value, row[0].kind.value)):
            groups.setdefault(name, []).append(row)
    kinds = {row[0]: row for row in base.kinds}
    kinds |= {name: (name, *_kind(rows, gpu, base)) for name, rows in groups.items()}
    plain = kinds.get("add") or kinds.get("residual")
    others = tuple(row for row in base.host_kinds if row[0] not in groups)
    share = plain[1] if plain else base.hbm_share
    fitted = replace(base, kinds=tuple(kinds.values()), host_kinds=others, hbm_share=share)
    refitted = replace(calibration, memory_bound=fitted, torch_streams=None)
    return StreamFit(
        coefficients=fitted,
        rows=len(forward),
        before=_mean_error(forward, lambda row: _streamed(row, gpu, calibration)),
        after=_mean_error(forward, lambda row: _streamed(row, gpu, refitted)),
    )


def _kind(rows: Timed, gpu: Gpu, base: MemoryBoundCoefficients) -> tuple[float, float, float]:
    """Share of bandwidth, start-up time [s] and sigma that fit these rows best."""
    moved = np.asarray([float(op.bytes_moved) for op, _, _ in rows])
    seconds = np.asarray([s for _, s, _ in rows])
    launch = np.asarray([(base.eager_launch_s if eager else base.launch_s) for *_, eager in rows])
    near = np.minimum(moved, base.l2_part * gpu.l2_bytes)
    at_full = (near / base.l2_speedup + moved - near) / gpu.hbm_bytes_per_s
    starts = STARTS_S if len(rows) > 2 else STARTS_S[:1]
    tried = at_full / SHARES[:, None, None] + starts[None, :, None] + launch
    error = np.abs(np.log(tried / seconds)).mean(axis=-1)
    i, j = np.unravel_index(int(error.argmin()), error.shape)
    return float(SHARES[i]), float(starts[j]), _sigma(np.log(tried[i, j] / seconds))


def _streamed(row: tuple[MemoryBound, float, bool], gpu: Gpu, calibration: Calibration) -> float:
    return float(memory_bound_cost(row[0], gpu, calibration, eager=row[2]).time_s)


# ------------------------------------------------------------------------------------------- attention


def _attention(timed: Timed, gpu: Gpu, calibration: Calibration) -> StreamFit:
    """Forward, then backward (its rate is stated as a share of forward's), then decode."""
    fitted = calibration.attention
    forward = [row for row in timed if not _decodes(row[0]) and row[0].pass_ is Pass.FORWARD]
    backward = [row for row in timed if row[0].pass_ is Pass.BACKWARD]
    decode = [row for row in timed if _decodes(row[0])]
    for rows, field in ((forward, "efficiency"), (backward, "backward"), (decode, "decode_hbm_share")):
        fitted = _scaled(rows, field, fitted, gpu, calibration) if len(rows) >= LEAST_ROWS else fitted
        fitted = _by_width(rows, fitted, gpu, calibration) if field == "efficiency" else fitted
    return StreamFit(
        coefficients=fitted,
        rows=len(timed),
        before=_mean_error(timed, lambda row: _attended(row, gpu, calibration)),
        after=_mean_error(timed, lambda row: _attended(row, gpu, replace(calibration, attention=fitted))),
    )


def _scaled(
    rows: Timed, field: str, start: AttentionCoefficients, gpu: Gpu, calibration: Calibration
) -> AttentionCoefficients:
    """``start`` with one rate scaled so that the median of predicted / measured is 1."""
    scaled, factor = start, 1.0
    for _ in range(12):
        ratio = [_attended(row, gpu, replace(calibration, attention=scaled)) / row[1] for row in rows]
        factor = float(np.clip(factor * np.median(ratio), 0.02, 50.0))
        scaled = _with_factor(start, field, factor)
    sigma = _sigma(np.log([_attended(row, gpu, replace(calibration, attention=scaled)) / row[1] for row in rows]))
    return replace(scaled, decode_log_sigma=sigma) if field == "decode_hbm_share" else replace(scaled, log_sigma=sigma)


HALF_TOLD = 2
"""With this many rows at a head dimension, its rate moves half of the way to what the rows suggest."""


def _by_width(rows: Timed, start: AttentionCoefficients, gpu: Gpu, calibration: Calibration) -> AttentionCoefficients:
    """Move the rate at each head dimension towards the rows nearest to it."""
    if len(rows) < LEAST_ROWS:
        return start
    widths = np.log([float(d) for d, _ in start.efficiency])
    nearest = np.abs(np.log([float(op.head_dim) for op, _, _ in rows])[:, None] - widths).argmin(axis=1)
    calibration = replace(calibration, attention=start)
    error = np.log([_attended(row, gpu, calibration) / row[1] for row in rows])

    def moved(i: int, share: float) -> float:
        errors = error[nearest == i]
        return (
            share * float(np.exp(np.median(errors) * errors.size / (errors.size + HALF_TOLD))) if errors.size else share
        )

    return replace(start, efficiency=tuple((d, moved(i, share)) for i, (d, share) in enumerate(start.efficiency)))


def _with_factor(start: AttentionCoefficients, field: str, factor: float) -> AttentionCoefficients:
    if field == "efficiency":
        return replace(start, efficiency=tuple((d, share * factor) for d, share in start.efficiency))
    if field == "backward":
        return replace(start, backward=start.backward * factor, backward_fitted=True)
    return replace(start, **{field: getattr(start, field) * factor})


def _decodes(op: Attention) -> bool:
    return int(op.seq_q) <= 8 and int(op.seq_kv) > int(op.seq_q)


def _attended(row: tuple[Attention, float, bool], gpu: Gpu, calibration: Calibration) -> float:
    return float(attention_cost(row[0], gpu, calibration, clock=Clock.BOOST).time_s)


def _sigma(log_errors: FloatArray) -> float:
    """Standard deviation whose 80% interval covers 80% of these errors, widened because rows are few."""
    error = np.sort(np.abs(log_errors))
    rank = min(error.size, int(np.ceil(0.8 * (error.size + 1))))
    return max(FEW_SIGMA * float(error[rank - 1]) / Z80, 0.1)


def _mean_error(rows: Timed, predict: Callable[[Any], float]) -> float:
    return float(np.mean([abs(predict(row) / row[1] - 1) for row in rows])) if rows else float("nan")
