"""The result of ``sartor validate`` as plain data, for JSON and for charts: figures that all its tables share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sartor.bounded import read_csv
from sartor.errors import InputError
from sartor.json_types import JsonDict, picked
from sartor.validate.accuracy import Accuracy, Group
from sartor.validate.predictions import Predicted

FIGURES = ("mape", "median_error", "p90_error", "bias", "coverage_80", "kendall_tau", "pair_accuracy")
BESIDE = ("measured_spread", "roofline_mape", "roofline_median_error", "heuristics_mape", "heuristics_targets")


def errors_of(ratio: npt.ArrayLike) -> dict[str, float | None]:
    """Mean, median and 90th percentile of the error, and the bias, of predicted over measured times."""
    ratio = np.asarray(ratio, dtype=np.float64)
    if not ratio.size:
        return {"mape": None, "median_error": None, "p90_error": None, "bias": None}
    error = np.abs(ratio - 1)
    return {
        "mape": float(error.mean()),
        "median_error": float(np.median(error)),
        "p90_error": float(np.quantile(error, 0.9)),
        "bias": float(np.median(ratio) - 1),
    }


def rank_agreement(measured: npt.ArrayLike, predicted: npt.ArrayLike) -> float | None:
    """Kendall's tau over all pairs with different measured times; None if there is no pair."""
    columns = (np.asarray(column, dtype=np.float64) for column in (measured, predicted))
    measured_order, predicted_order = (np.sign(column[:, None] - column) for column in columns)
    signs = measured_order * predicted_order
    pairs = np.count_nonzero(signs)
    return float(signs.sum() / pairs) if pairs else None


def mean_or_none(values: Iterable[float]) -> float | None:
    """The mean; None of nothing."""
    values = list(values)
    return float(np.mean(values)) if values else None


MOST_ROWS = 100_000


def read_rows(
    data: str | Path, table: str, required: Sequence[str], group_by: Sequence[str] = (), also: Sequence[str] = ()
) -> tuple[Path, list[dict[str, str]]]:
    """The rows of a CSV file, or of the table's in a folder; ``group_by`` must be columns of it or in ``also``. Raises
    ``InputError``."""
    path = Path(data) / f"{table}.csv" if Path(data).is_dir() else Path(data)
    rows = read_csv(path, "data", f"must be a .csv file that exists, or a folder with {table}.csv", required)
    if not rows:
        raise InputError("data", str(path), "has no rows")
    if len(rows) > MOST_ROWS:
        raise InputError("data", str(path), f"has {len(rows)} rows; at most {MOST_ROWS} are read")
    columns = [*rows[0], *also]
    for name in group_by:
        if name not in columns:
            near = ", ".join(difflib.get_close_matches(name, columns, n=3) or columns[:5])
            raise InputError("group_by", name, "must be a column of the file", near)
    return path, [{name: value.strip() for name, value in row.items() if name} for row in rows]


def check_any_predicted(reasons: Sequence[str], file: str) -> None:
    """Raise ``InputError`` if every row has a reason why it is not predicted."""
    if all(reasons):
        first = "; ".join(sorted(set(reasons))[:3])
        raise InputError("data", file, f"none of its {len(reasons)} rows can be predicted ({first})")


def accuracy_body(accuracy: Accuracy) -> JsonDict:
    """The result keys of the contract: ``groups``, ``not_expressed``, and what was left out, assumed and remarked."""
    return {
        **picked(accuracy, "data", "num_rows", "expressed"),
        "groups": [_group_body(group) for group in accuracy.groups],
        "not_expressed": dict(accuracy.not_expressed),
        "left_out": dict(accuracy.left_out),
        "remarks": list(accuracy.remarks),
        "assumptions": {name: words for name, words in accuracy.assumptions.items() if words},
    }


def _group_body(group: Group) -> JsonDict:
    """One entry of ``groups``: its keys, then its metrics."""
    return {
        **group.keys,
        **picked(group, "rows", "targets", "expressed"),
        **{name: getattr(group, name) for name in (*FIGURES, *BESIDE)},
        "calibration": group.calibration or None,
        "worst": [dict(case) for case in group.worst],
    }


# ------------------------------------------------------------------------------------------- charts

SAMPLE = 1500
"""Points of a scatter: enough to see the cloud, few enough to draw."""

AXES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention": ("batch", "heads", "seq_kv"),
    "memory_bound": ("rows", "cols", "bytes"),
    "moe": ("num_tokens", "num_experts", "moe_ep_size"),
    "collectives": ("bytes", "n_gpus"),
    "layer_and_model": ("batch", "seq"),
    "max_matmul": ("m", "n", "k"),
}
"""Sizes on the x axis of error charts."""


def scatter_rows(predicted: Predicted) -> list[JsonDict]:
    """Evenly spaced targets of one kind of table, by measured time: device, measured and predicted seconds."""
    expressed = np.flatnonzero(predicted.expressed)
    order = expressed[np.argsort(predicted.targets.measured_s[expressed], kind="stable")]
    chosen = order[np.linspace(0, order.size - 1, min(SAMPLE, order.size)).astype(np.int64)] if order.size else order
    gpu = predicted.targets.coded["gpu"]
    return [
        {
            "gpu": str(gpu.values[gpu.codes[i]]),
            "measured_s": float(predicted.targets.measured_s[i]),
            "predicted_s": float(predicted.time_s[i]),
        }
        for i in chosen
    ]


def error_rows(predicted: Predicted) -> list[JsonDict]:
    """Median, 90th percentile and bias of the error for every power of two of each size."""
    expressed = np.flatnonzero(predicted.expressed)
    ratio = predicted.time_s[expressed] / predicted.targets.measured_s[expressed]
    rows = []
    for axis in AXES[predicted.targets.kind.name]:
        octave = np.floor(np.log2(predicted.targets.numbers[axis][expressed])).astype(np.int64)
        for size in np.unique(octave):
            errors = ratio[octave == size]
            error = np.abs(errors - 1)
            rows.append(
                {
                    "axis": axis,
                    "size": float(2.0**size),
                    "targets": int(errors.size),
                    "median_error": float(np.median(error)),
                    "p90_error": float(np.quantile(error, 0.9)),
                    "bias": float(np.median(errors) - 1),
                }
            )
    return rows
