"""The result of ``sartor validate`` as plain data, for JSON and for charts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sartor.json_types import JsonDict, picked
from sartor.validate.accuracy import Accuracy, Group
from sartor.validate.predictions import Predicted

FIGURES = ("mape", "median_error", "p90_error", "bias", "coverage_80", "kendall_tau", "pair_accuracy")
BESIDE = ("measured_spread", "roofline_mape", "roofline_median_error", "heuristics_mape", "heuristics_targets")


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
