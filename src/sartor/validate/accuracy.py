"""Accuracy of operator predictions: one line of metrics per group of targets, groups in wrong units, and how
well shapes of equal work are ranked, beside NVIDIA's matmul heuristics.

``ratio`` is predicted over measured. ``mape``, ``median_error`` and ``p90_error`` are the mean, the median and the 90th
percentile of ``|ratio - 1|``; ``bias`` is the median of ``ratio - 1`` (above 0: predicted too slow); ``coverage_80`` is
the share of measurements inside the predicted 80% interval; ``kendall_tau`` is rank agreement among shapes of
near-equal work, and ``pair_accuracy`` the share of pairs of such shapes whose faster one is predicted faster
(``equal_work``). All are over targets: each shape counts once, however many rows it has.

nvidia-matmul-heuristics is a second prediction of GEMMs, if it is installed (extra ``heuristics``). It takes 0.1 to
0.7 ms per GEMM, so only a sample of each group is used. Proprietary licence: optional, never shipped.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Clock
from sartor.cost.correction.calibration_file import own_calibration_of_file
from sartor.cost.cost import Z80
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.interrupts import counted
from sartor.json_types import JsonDict, JsonMap
from sartor.records.rows import ASSUMED
from sartor.records.tables import DERIVED, Coded, Floats64, Index, read_tables
from sartor.records.targets import Targets, combine, targets_of
from sartor.units import Floats
from sartor.validate.predictions import Predicted, explain, predict, too_fast

NEAR_WORK = 1.1
"""For rank agreement, shapes are compared if their work is in the same step of this factor."""

EQUAL_WORK = 1.02
"""For the share of pairs in order, shapes are compared if their work differs by at most this factor."""

FAR_TIME = 1.05
"""Such pairs count if their measured times differ by more than this factor: less is the noise of measurements."""

PAIRS = 64
"""Most other shapes that each shape is compared with."""


def _near_tau(predicted: Predicted, group: Index, groups: int) -> Floats64:
    """Kendall's tau among shapes of near-equal work, pooled per group.

    Work (FLOPs; bytes if there are none) is cut into steps of a factor ``NEAR_WORK``. Within a step, pairs with
    different measured times are concordant if the predictions order them the same way, discordant otherwise: tau = (C -
    D) / (C + D). In a step of more than ``PAIRS`` + 1 shapes each is paired with ``PAIRS`` others, drawn by a fixed
    shuffle.
    """
    step = np.floor(_log_work(predicted) / np.log(NEAR_WORK)).astype(np.int64)
    order = np.lexsort((_shuffle(step.size), step, _groups(predicted, group)))
    agree, pairs = np.zeros(groups), np.zeros(groups)
    for pair_group, apart, measured, guessed in _pairs(predicted, group, step, order):
        alike = np.sign(measured) * np.sign(guessed) * (apart == 0)
        agree += np.bincount(pair_group, weights=alike, minlength=groups)
        pairs += np.bincount(pair_group, weights=np.abs(alike), minlength=groups)
    return _ratio(agree, pairs)


def _faster_picked(predicted: Predicted, group: Index, groups: int) -> Floats64:
    """Share of the pairs of shapes within ``EQUAL_WORK`` of each other and more than ``FAR_TIME`` apart in measured
    time whose faster one is predicted to be faster, pooled per group. Each shape is paired with at most ``PAIRS``
    others, the nearest in work above its own (of equal ones, those of a fixed shuffle)."""
    work = _log_work(predicted)
    order = np.lexsort((_shuffle(work.size), work, _groups(predicted, group)))
    right, pairs = np.zeros(groups), np.zeros(groups)
    for pair_group, apart, measured, guessed in _pairs(predicted, group, work, order):
        counted = (apart <= np.log(EQUAL_WORK)) & (np.abs(measured) > np.log(FAR_TIME))
        right += np.bincount(pair_group, weights=counted & (np.sign(measured) == np.sign(guessed)), minlength=groups)
        pairs += np.bincount(pair_group, weights=counted, minlength=groups)
    return _ratio(right, pairs)


def _pairs(predicted: Predicted, group: Index, place: Any, order: Index) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Every shape with the next, the one after that and so on in ``order``: their group, how far apart their ``place``
    is, and the logarithms of one's measured and predicted time over the other's. Pairs across groups are left out."""
    expressed = np.flatnonzero(predicted.expressed)[order]
    g, place = group[expressed], place[order]
    measured, guessed = np.log(predicted.targets.measured_s[expressed]), np.log(predicted.time_s[expressed])
    for shift in range(1, min(PAIRS, expressed.size - 1) + 1):
        same = g[shift:] == g[:-shift]
        far, longer, thought = ((column[shift:] - column[:-shift])[same] for column in (place, measured, guessed))
        yield g[shift:][same], far, longer, thought


def _groups(predicted: Predicted, group: Index) -> Index:
    return group[np.flatnonzero(predicted.expressed)]


def _log_work(predicted: Predicted) -> Floats64:
    log_work: Floats64 = np.log(np.maximum(predicted.work[np.flatnonzero(predicted.expressed)], 1.0))
    return log_work


def _shuffle(size: int) -> Any:
    return (np.arange(size, dtype=np.uint64) * np.uint64(11400714819323198485)) >> np.uint64(20)


def _ratio(part: Floats64, whole: Floats64) -> Floats64:
    ratio: Floats64 = np.divide(part, whole, where=whole > 0, out=np.full(whole.size, np.nan))
    return ratio


SAMPLE = 300
"""GEMMs sampled in each group, evenly spaced, so that the same ones are used each time."""

_GPUS = {
    "a100_sxm": "A100_SXM_80GB",
    "a100_pcie_80gb": "A100_PCIE_80GB",
    "a30": "A30_PCIE",
    "a10": "A10_PCIE",
    "a40": "A40_PCIE",
    "rtx_3090": "RTX_3090",
    "l40s": "L40S",
    "l4": "L4",
    "rtx_4090": "RTX_4090",
    "rtx_6000_ada": "RTX_6000_ADA",
    "h100_sxm": "H100_SXM",
    "h100_pcie": "H100_PCIE",
    "h100_nvl": "H100_NVL",
    "h200_sxm": "H200_SXM",
    "h20": "H20_SXM",
    "b200_sxm": "B200",
    "gb200": "GB200_NVL",
    "gb300": "GB300_NVL",
    "rtx_5090": "RTX_5090",
    "rtx_pro_6000_server": "RTX_PRO_6000",
}
"""Catalogue name -> the package's predefined device, version 0.1.0.27."""

_PRECISIONS = {"bfloat16": "TST", "bf16": "TST", "float16": "HSH", "fp16": "HSH", "half": "HSH"}
"""The package's letters for 16-bit operands, fp32 sums and a 16-bit result."""


def _heuristics_s(predicted: Predicted, group: Index, groups: int) -> Floats64:
    """The package's time [s] for a sample of every group's GEMMs; NaN elsewhere, and everywhere if not installed."""
    targets = predicted.targets
    out = np.full(len(targets), np.nan)
    if targets.kind.name != "gemm":
        return out
    try:
        package: Any = import_module("nvMatmulHeuristics")
    except ImportError:
        return out
    handles: dict[tuple[str, str], Any] = {}  # opening one takes longer than a thousand predictions
    with contextlib.redirect_stdout(io.StringIO()):  # it prints warnings
        for members in _sample(predicted, group, groups):
            words, sizes = targets.words(int(members)), targets.sizes(int(members))
            key = _GPUS.get(str(words["gpu"]), ""), _PRECISIONS.get(str(words["dtype"]), "")
            if not all(key) or sizes["batch"] != 1 or words.get("op") == "bmm":
                continue
            if key not in handles:
                handles[key] = _interface(package, *key)
            out[members] = _one(package, handles[key], sizes)
    for interface, _ in handles.values():
        interface.handle = None  # freeing it crashes the process (0.1.0.27), so it is never freed
    return out


def _sample(predicted: Predicted, group: Index, groups: int) -> Index:
    chosen = []
    order = np.argsort(group, kind="stable")
    order = order[predicted.expressed[order]]
    ends = np.cumsum(np.bincount(group[order], minlength=groups))
    for start, stop in zip(np.append(0, ends[:-1]), ends, strict=True):
        count = min(SAMPLE, int(stop - start))
        chosen.append(order[start:stop][np.linspace(0, stop - start - 1, count).astype(np.int64)])
    return np.concatenate(chosen) if chosen else np.empty(0, dtype=np.int64)


def _one(package: Any, handle: Any, sizes: JsonDict) -> float:
    interface, descriptor = handle
    layout = package.NvMatmulHeuristicsMatmulLayout.NT_ROW_MAJOR  # x[m,k] times w[n,k] transposed, rows contiguous
    choices = interface.get_with_mnk(sizes["m"], sizes["n"], sizes["k"], layout, 1, descriptor)
    return float(choices[0]["runtime"]) if choices else float("nan")


def _interface(package: Any, gpu: str, precision: str) -> Any:
    interface = package.NvMatmulHeuristicsInterface(
        package.NvMatmulHeuristicsTarget.GENERIC,
        precision=precision,
        flags=package.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
    )
    descriptor = interface.createHardwareDescriptor()
    interface.setHardwarePredefinedGpu(descriptor, package.NvMatmulHeuristicsNvidiaGpu[gpu])
    interface.loadInternalDiscoverySet(package.NvMatmulHeuristicsMatmulLayout.NT_ROW_MAJOR, descriptor)
    return interface, descriptor


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
    for kind in counted(list(dict.fromkeys(table.kind.name for table in reading.tables)), "predicting tables"):
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
    heuristic_s = _heuristics_s(predicted, group, groups)
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
        "kendall_tau": _near_tau(predicted, group, groups),
        "pair_accuracy": _faster_picked(predicted, group, groups),
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
