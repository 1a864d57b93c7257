"""End-to-end inference compared with published figures: prefill passes, decoding steps and throughput at full load.

A row is a model, a plan and one measured time or rate. Its shape is built from the row's own columns, or taken from the
zoo if the row gives only a name; rows whose shape cannot be built are counted by reason. Modes and columns:
data/end_to_end/README.md. Interpretation of each mode: ``inference_modes.ASSUMED``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sartor.bounded import read_csv
from sartor.cost.cost import Z80
from sartor.errors import InputError
from sartor.json_types import JsonDict, picked
from sartor.validate.inference_modes import ASSUMED, InferenceRow, outcome
from sartor.validate.suspicion import suspected, suspicion

REQUIRED = ("mode", "model", "gpu", "weight_dtype")
GROUPS = ("mode", "gpu", "weight_dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """The result of ``sartor validate inference``."""

    data: str
    rows: tuple[InferenceRow, ...]
    group_by: tuple[str, ...]
    worst: int = 5
    assumed: Mapping[str, str] = field(default_factory=lambda: ASSUMED)
    """How each mode is interpreted."""
    table: str = "inference"


def validate_inference(data: str | Path, *, group_by: Sequence[str] = (), worst: int = 5) -> Inference:
    """One prediction per usable row. ``data`` is a CSV file or a folder with ``inference.csv``.

    Raises ``InputError`` if the file, its columns or all of its rows cannot be used.
    """
    path, rows = read_rows(Path(data), "inference.csv", REQUIRED, group_by)
    outcomes = tuple(outcome(row) for row in rows)
    if all(row.reason for row in outcomes):
        reasons = "; ".join(sorted({row.reason for row in outcomes})[:3])
        raise InputError("data", path.name, f"none of its {len(outcomes)} rows can be predicted ({reasons})")
    return Inference(data=str(data), rows=outcomes, group_by=tuple(group_by) or GROUPS, worst=worst)


# ------------------------------------------------------------------------------------------- reading


def read_rows(
    path: Path, name: str, required: Sequence[str], group_by: Sequence[str], also: Sequence[str] = ()
) -> tuple[Path, list[dict[str, str]]]:
    """The rows of a file, or of ``name`` in a folder; ``group_by`` must be columns of it or in ``also``."""
    path = path / name if path.is_dir() else path
    rows = read_csv(path, "data", f"must be a .csv file that exists, or a folder with {name}", required)
    if not rows:
        raise InputError("data", str(path), "has no rows")
    columns = [*rows[0], *also]
    for label in group_by:
        if label not in columns:
            near = ", ".join(difflib.get_close_matches(label, columns, n=3) or columns[:5])
            raise InputError("group_by", label, "must be a column of the file", near)
    return path, [{name: value.strip() for name, value in row.items() if name} for row in rows]


# ------------------------------------------------------------------------------------------- the answer


def inference_body(answer: Inference) -> JsonDict:
    """The JSON of the contract: groups, not_expressed, and how each mode was interpreted."""
    groups: dict[tuple[str, ...], list[InferenceRow]] = {}
    for row in answer.rows:
        groups.setdefault(tuple(row.words[name] for name in answer.group_by), []).append(row)
    reasons: dict[str, int] = {}
    for row in answer.rows:
        if row.reason:
            reasons[row.reason] = reasons.get(row.reason, 0) + 1
    modes = dict.fromkeys(row.words["mode"] for row in answer.rows)
    figures = [_group(answer, key, rows) for key, rows in sorted(groups.items())]
    return {
        "data": answer.data,
        "num_rows": len(answer.rows),
        "expressed": sum(not row.reason for row in answer.rows),
        "groups": figures,
        "not_expressed": dict(sorted(reasons.items())),
        "left_out": {},
        "remarks": [
            suspicion(" ".join(key), 1 + group["bias"], "the time", -3)
            for key, group in zip(sorted(groups), figures, strict=True)
            if group["bias"] is not None and suspected(1 + group["bias"], group["expressed"])
        ],
        "assumptions": {mode: answer.assumed[mode] for mode in modes if mode in answer.assumed},
    }


def _group(answer: Inference, key: tuple[str, ...], rows: Sequence[InferenceRow]) -> JsonDict:
    good = [row for row in rows if not row.reason]
    ratio = np.asarray([row.ratio for row in good])
    error = np.abs(ratio - 1)
    inside = [abs(math.log(row.ratio)) <= Z80 * row.log_sigma for row in good]
    roofline = [abs(row.roofline_s / row.measured_s - 1) for row in good]
    worst = sorted(good, key=lambda row: -abs(math.log(row.ratio)))[: answer.worst]
    return {
        "table": answer.table,
        **dict(zip(answer.group_by, key, strict=True)),
        "rows": len(rows),
        "targets": len(rows),
        "expressed": len(good),
        "mape": float(error.mean()) if good else None,
        "median_error": float(np.median(error)) if good else None,
        "p90_error": float(np.quantile(error, 0.9)) if good else None,
        "bias": float(np.median(ratio) - 1) if good else None,
        "coverage_80": float(np.mean(inside)) if good else None,
        "kendall_tau": _tau(good),
        "roofline_mape": float(np.mean(roofline)) if good else None,
        "calibration": ", ".join(sorted({row.calibration for row in good})) or None,
        "worst": [_case(row) for row in worst],
    }


def _tau(rows: Sequence[InferenceRow]) -> float | None:
    """Rank agreement over all pairs of the group with different measured times."""
    measured = np.asarray([row.measured_s for row in rows])
    predicted = np.asarray([row.predicted_s for row in rows])
    signs = np.sign(measured[:, None] - measured) * np.sign(predicted[:, None] - predicted)
    pairs = np.count_nonzero(signs)
    return float(signs.sum() / pairs) if pairs else None


def _case(row: InferenceRow) -> JsonDict:
    spread = math.exp(Z80 * row.log_sigma)
    names = ("mode", "model", "gpu", "weight_dtype", "batch", "isl", "osl", "tp")
    return {
        **{name: row.words[name] for name in names if row.words.get(name)},
        **picked(row, "batch", "measured_s", "predicted_s"),
        "low_s": row.predicted_s / spread,
        "high_s": row.predicted_s * spread,
        "ratio": row.ratio,
        "source": row.source,
        "largest_parts": ", ".join(f"{kind} {share:.0%}" for kind, share in [*row.parts.items()][:3]),
    }


def inference_charts(answer: Inference) -> list[JsonDict]:
    """Rows for the scatter plot; the modes share no size axis."""
    rows = [
        {"gpu": row.words["gpu"], "measured_s": row.measured_s, "predicted_s": row.predicted_s}
        for row in answer.rows
        if not row.reason
    ]
    return [{"table": answer.table, "scatter": rows, "errors": []}]
