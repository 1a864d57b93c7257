"""Accuracy of operator predictions: one line of metrics per group of targets, and groups in wrong units.

``ratio`` is predicted over measured. ``mape``, ``median_error`` and ``p90_error`` are the mean, the median and the 90th
percentile of ``|ratio - 1|``; ``bias`` is the median of ``ratio - 1`` (above 0: predicted too slow); ``coverage_80`` is
the share of measurements inside the predicted 80% interval; ``kendall_tau`` is rank agreement among shapes of
near-equal work, and ``pair_accuracy`` the share of pairs of such shapes whose faster one is predicted faster
(``equal_work``). All are over targets: each shape counts once, however many rows it has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Clock
from sartor.cost.correction.calibration_file import own_calibration_of_file
from sartor.cost.cost import Z80
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.records.rows import ASSUMED
from sartor.records.tables import DERIVED, Coded, Floats64, Index, read_tables
from sartor.records.targets import Targets, combine, targets_of
from sartor.units import Floats
from sartor.validate.predictions import Predicted, explain, predict, too_fast
from sartor.validate.rankings import NEAR_WORK, faster_picked, heuristics_s, near_tau

_NAMES = {-12: "picoseconds", -9: "nanoseconds", -6: "microseconds", -3: "milliseconds", 0: "seconds"}
"""Power of ten of a second -> its name."""

LEAST_TARGETS = 5
"""Fewest targets from which a unit can be judged."""

NEAR_UNIT = 0.15
"""A median this close to a power of a thousand (in logarithm: within a factor of 2.8) counts as another unit."""


def suspected(factor: float | None, targets: int) -> bool:
    """Whether ``targets`` with median predicted over measured of ``factor`` cannot be in the expected unit."""
    return factor is not None and targets >= LEAST_TARGETS and not 0.01 < factor < 100


def _unit_of(factor: float, expected: int) -> str:
    """The unit that measured times seem to be in if predictions are ``factor`` times as long; empty if none fits.

    ``expected`` is the power of ten of a second that they should be in: -6 for microseconds.

    >>> unit_of(1010.0, -6)
    'milliseconds'
    """
    thousands = math.log10(factor) / 3
    near = abs(thousands - round(thousands)) < NEAR_UNIT
    return _NAMES.get(expected + 3 * round(thousands), "") if near else ""


def suspicion(whose: str, factor: float, column: str, expected: int) -> str:
    """The remark: the factor, the unit the times seem to be in, and the unit the column should have."""
    unit = _unit_of(factor, expected)
    off = f"{max(factor, 1 / factor):,.0f} x too {'short' if factor > 1 else 'long'}"
    as_if = f", as if they were {unit}" if unit else ""
    return f"{whose}: measured times are {off}{as_if}: is {column} in {_NAMES[expected]}?"


WORST = 5
EXPLAINED_GROUPS = 200
"""Most groups with individually explained worst targets; of more groups, those with the most targets are explained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Metrics of one group; None without a prediction."""

    keys: JsonMap
    rows: int
    """Measured rows used."""
    targets: int
    """Distinct shapes among them."""
    expressed: int
    """Rows of shapes that have a prediction."""
    mape: float | None = None
    median_error: float | None = None
    p90_error: float | None = None
    bias: float | None = None
    coverage_80: float | None = None
    kendall_tau: float | None = None
    pair_accuracy: float | None = None
    measured_spread: float | None = None
    """Over shapes with several rows, median of the rows' mean distance from their median: differences of frameworks."""
    roofline_mape: float | None = None
    roofline_median_error: float | None = None
    heuristics_mape: float | None = None
    """nvidia-matmul-heuristics on a sample of the same shapes, if it is installed and supports the device."""
    heuristics_targets: int = 0
    calibration: str = ""
    """Source of the coefficients: own, joint, borrowed from NAME, generation; several are joined by commas."""
    worst: tuple[JsonMap, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The result of ``sartor validate operators``."""

    data: str
    groups: tuple[Group, ...]
    not_expressed: Mapping[str, int]
    """Reason -> number of rows without a prediction."""
    left_out: Mapping[str, int]
    """Reason -> number of unusable rows."""
    num_rows: int
    remarks: tuple[str, ...] = ()
    assumptions: Mapping[str, str] = field(default_factory=dict)
    predicted: tuple[Predicted, ...] = ()
    """The arrays behind the metrics, one per kind of table."""

    @property
    def expressed(self) -> int:
        return sum(group.expressed for group in self.groups)


def validate_operators(
    data: str | Path,
    *,
    group_by: Sequence[str] = (),
    clock: Clock = Clock.BOOST,
    worst: int = WORST,
    calibration: str | Path | None = None,
    gpus: Sequence[str | Path] = (),
) -> Accuracy:
    """Compare predictions with the tables of a folder or file.

    ``group_by`` are columns of the tables (or ``table``, ``size``, ``calibration``); by default each kind of table has
    its own. A column that distinguishes frameworks gives each its own targets. ``calibration`` is a file from ``sartor
    calibrate``, used for targets of its device; ``gpus`` are datasheets (TOML) of devices that the tables refer to by
    ``name``. Raises ``InputError`` if nothing can be used.
    """
    label_names = tuple(dict.fromkeys(name for name in group_by if name != "table"))
    devices = {gpu.name: gpu for gpu in map(load_gpu, map(str, gpus))}
    own_calibration = own_calibration_of_file(calibration, devices)
    reading = read_tables(data, label_names)
    groups: list[Group] = []
    not_expressed: dict[str, int] = {}
    predictions: list[Predicted] = []
    for kind in dict.fromkeys(table.kind.name for table in reading.tables):
        tables = [table for table in reading.tables if table.kind.name == kind]
        targets = targets_of(tables, [name for name in label_names if name not in DERIVED])
        predicted = predict(targets, clock, own_calibration, devices)
        groups += groups_of(predicted, label_names or targets.kind.groups, worst=worst)
        for code, reason in enumerate(predicted.reasons):
            rows = int(targets.rows[predicted.reason == code].sum()) if code else 0
            if rows:
                not_expressed[reason] = not_expressed.get(reason, 0) + rows
        if predicted.too_fast:
            reason = too_fast(targets.kind)
            not_expressed[reason] = not_expressed.get(reason, 0) + predicted.too_fast
        predictions.append(predicted)
    if not any(prediction.expressed.any() for prediction in predictions):
        rows, reasons = sum(not_expressed.values()), "; ".join(sorted(not_expressed)[:3])
        raise InputError("data", Path(data).name, f"none of its {rows} rows can be predicted ({reasons})")
    left_out: dict[str, int] = {}
    for table in reading.tables:
        for reason, rows in table.left_out.items():
            left_out[f"{table.file}: {reason}"] = rows
    return Accuracy(
        data=str(data),
        groups=tuple(groups),
        not_expressed=dict(sorted(not_expressed.items())),
        left_out=left_out,
        num_rows=sum(table.num_rows for table in reading.tables),
        remarks=(
            *reading.remarks,
            *(remark for prediction in predictions for remark in prediction.remarks),
            *_suspicions(groups),
        ),
        assumptions={p.targets.kind.name: ASSUMED[p.targets.kind.name] for p in predictions},
        predicted=tuple(predictions),
    )


def _suspicions(groups: Sequence[Group]) -> list[str]:
    """One remark per table and unit that its times seem to be in."""
    by_table: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        if group.bias is not None and suspected(1 + group.bias, group.targets):
            by_table.setdefault((str(group.keys["table"]), _unit_of(1 + group.bias, -6)), []).append(group)
    return [_suspicion(table, mine) for (table, _), mine in by_table.items()]


def _suspicion(table: str, groups: Sequence[Group]) -> str:
    factor = float(np.median([1 + (group.bias or 0.0) for group in groups]))
    names = ", ".join(str(value) for key, value in groups[0].keys.items() if key != "table")
    others = f" and {len(groups) - 1} more" if len(groups) > 1 else ""
    return suspicion(f"{table} of {names}{others}", factor, "latency_us", -6)


# ------------------------------------------------------------------------------------------- groups


def groups_of(predicted: Predicted, names: Sequence[str], *, worst: int = WORST) -> list[Group]:
    """Metrics for every combination of values of the columns ``names``, in the order of those values."""
    targets = predicted.targets
    columns = {_key(name): _column(predicted, name) for name in names}
    joint = combine([column.codes for column in columns.values()]) if columns else np.zeros(len(targets), np.int64)
    _, first, group = np.unique(joint, return_index=True, return_inverse=True)
    keys = [{name: c.values[c.codes[i]] for name, c in columns.items()} for i in first]
    figures = _figures(predicted, group.astype(np.int64), len(keys))
    shown, owners = _shown(figures, len(keys)), _owners(predicted, group, len(keys))
    groups_made = []
    for g, key in enumerate(keys):
        line = {name: _finite(values[g]) for name, values in figures.items() if name in Group.__slots__}
        whole = {name: int(figures[name][g]) for name in ("rows", "targets", "expressed", "heuristics_targets")}
        members = np.flatnonzero((group == g) & predicted.expressed) if g in shown else np.empty(0, dtype=np.int64)
        groups_made.append(
            Group(
                keys={"table": targets.kind.name, **key},
                **(line | whole),
                calibration=owners[g],
                worst=_worst(predicted, members, worst),
            )
        )
    return sorted(groups_made, key=lambda group_row: tuple(_rank(value) for value in group_row.keys.values()))


def _key(name: str) -> str:
    """A column's key in the output of a group: ``by_rows`` if ``rows`` is already the name of a metric."""
    return f"by_{name}" if name in Group.__slots__ and name != "calibration" else name


def _rank(value: Floats) -> tuple[bool, float, str]:
    """Sort key: numbers by value, then words alphabetically."""
    number = isinstance(value, (int, float))
    return not number, float(value) if number else 0.0, str(value)


def _shown(figures: JsonMap, groups: int) -> set[int]:
    order = np.argsort(-figures["targets"], kind="stable")[:EXPLAINED_GROUPS]
    return set(order.tolist()) if groups > EXPLAINED_GROUPS else set(range(groups))


def _column(predicted: Predicted, name: str) -> Coded:
    """A column to group by, from the table or derived."""
    targets = predicted.targets
    if name in targets.coded:
        return targets.coded[name]
    if name == "calibration":
        return predicted.calibration
    if name == "size" and {"m", "n", "k"} <= set(targets.numbers):
        shortest = np.minimum(np.minimum(targets.numbers["m"], targets.numbers["n"]), targets.numbers["k"])
        return Coded(codes=(shortest >= 512).astype(np.int64), values=("below 512", "m, n, k >= 512"))
    if name in targets.numbers:
        values, codes = np.unique(targets.numbers[name], return_inverse=True)
        return Coded(codes=codes.astype(np.int64), values=tuple(values.tolist()))
    return Coded(codes=np.zeros(len(targets), dtype=np.int64), values=("",))


def _figures(predicted: Predicted, group: Index, groups: int) -> JsonDict:
    """Arrays with one metric per group."""
    targets, good = predicted.targets, predicted.expressed
    ratio = predicted.time_s / targets.measured_s
    error = np.abs(ratio - 1)
    roofline = np.abs(predicted.roofline_s / targets.measured_s - 1)
    inside = np.abs(np.log(ratio, where=good, out=np.zeros(len(targets)))) <= Z80 * predicted.log_sigma
    several = np.isfinite(targets.spread)
    heuristic_s = heuristics_s(predicted, group, groups)
    compared = np.isfinite(heuristic_s) & good

    def share(values: Any, where: Any) -> Any:
        count = np.bincount(group[where], minlength=groups)
        total = np.bincount(group[where], weights=values[where].astype(np.float64), minlength=groups)
        return np.divide(total, count, where=count > 0, out=np.full(groups, np.nan))

    return {
        "rows": np.bincount(group, weights=targets.rows, minlength=groups),
        "targets": np.bincount(group, minlength=groups),
        "expressed": np.bincount(group[good], weights=targets.rows[good], minlength=groups),
        "mape": share(error, good),
        "median_error": _quantile(error, group, groups, 0.5, good),
        "p90_error": _quantile(error, group, groups, 0.9, good),
        "bias": _quantile(ratio - 1, group, groups, 0.5, good),
        "coverage_80": share(inside, good),
        "kendall_tau": near_tau(predicted, group, groups),
        "pair_accuracy": faster_picked(predicted, group, groups),
        "measured_spread": _quantile(targets.spread, group, groups, 0.5, several),
        "roofline_mape": share(roofline, good),
        "roofline_median_error": _quantile(roofline, group, groups, 0.5, good),
        "heuristics_mape": share(np.abs(heuristic_s / targets.measured_s - 1), compared),
        "heuristics_targets": np.bincount(group[compared], minlength=groups),
    }


def _quantile(values: Floats64, group: Index, groups: int, q: float, where: Any) -> Floats64:
    """The ``q`` quantile (linear between neighbours) of every group's values; NaN for an empty one."""
    v, g = values[where], group[where]
    order = np.lexsort((v, g))
    v = v[order]
    counts = np.bincount(g, minlength=groups)
    starts = np.cumsum(counts) - counts
    quantiles = np.full(groups, np.nan)
    occupied = np.flatnonzero(counts)
    place = q * (counts[occupied] - 1)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, counts[occupied] - 1)
    below, above = v[starts[occupied] + low], v[starts[occupied] + high]
    quantiles[occupied] = below + (above - below) * (place - low)
    return quantiles


def _finite(value: Any) -> Any:
    return float(value) if np.isfinite(value) else None


def _owners(predicted: Predicted, group: Index, groups: int) -> list[str]:
    """For every group, the sources of the coefficients used for its targets."""
    column, good = predicted.calibration, predicted.expressed
    owners: list[set[str]] = [set() for _ in range(groups)]
    for g, code in {*zip(group[good].tolist(), column.codes[good].tolist(), strict=True)}:
        owners[g].add(str(column.values[code]))
    return [", ".join(sorted(names)) for names in owners]


# ------------------------------------------------------------------------------------------- the worst


def _worst(predicted: Predicted, members: Index, count: int) -> tuple[JsonMap, ...]:
    """The targets with the largest factor between prediction and measurement, with the term that bounds them."""
    if not members.size:
        return ()
    off = np.abs(np.log(predicted.time_s[members] / predicted.targets.measured_s[members]))
    return tuple(_case(predicted, int(i), members) for i in members[np.argsort(-off, kind="stable")[:count]])


def _case(predicted: Predicted, i: int, members: Index) -> JsonDict:
    targets: Targets = predicted.targets
    time_s, spread = float(predicted.time_s[i]), np.exp(Z80 * predicted.log_sigma[i])
    words = {name: value for name, value in targets.words(i).items() if value != ""}
    return {
        **words,
        **targets.sizes(i),
        "num_rows": int(targets.rows[i]),
        "measured_s": float(targets.measured_s[i]),
        "predicted_s": time_s,
        "low_s": float(time_s / spread),
        "high_s": float(time_s * spread),
        "ratio": time_s / float(targets.measured_s[i]),
        "measured_spread": _finite(targets.spread[i]),
        **_near(predicted, i, members),
        **explain(predicted, i),
    }


def _near(predicted: Predicted, i: int, members: Index) -> JsonDict:
    """Error of the other targets of the group with near-equal work: does the model miss a region, or only this row?"""
    step = np.abs(np.log(predicted.work[members] / predicted.work[i])) <= np.log(NEAR_WORK)
    others = members[step & (members != i)]
    error = np.abs(predicted.time_s[others] / predicted.targets.measured_s[others] - 1)
    return {"near_targets": int(others.size), "near_median_error": float(np.median(error)) if others.size else None}
