"""Accuracy of predicted training steps against published runs: time, memory, and the choice among plans.

``mape``, ``median_error``, ``p90_error`` are of ``|predicted / measured - 1|``, ``bias`` is the median of ``predicted /
measured - 1``; ``coverage_80`` the share of runs inside the predicted 80% interval. Every row counts once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sartor.cost.correction.calibration_file import read_training_table
from sartor.cost.cost import Z80
from sartor.errors import InputError
from sartor.json_types import JsonDict, picked
from sartor.step.coefficients import check_constants
from sartor.step.footprint import PEAK_SCALE, peak_quantile
from sartor.units import FloatArray
from sartor.validate.accuracy import suspected, suspicion
from sartor.validate.answer import (
    check_any_predicted,
    errors_of,
    mean_or_none,
    rank_agreement,
)
from sartor.validate.row_shapes import whole
from sartor.validate.training_predictions import (
    DRAWS,
    Shots,
    TrainingOutcome,
    drawn,
    planned,
    predict_training,
    ranking,
)
from sartor.validate.training_rows import DERIVED, TrainingCase, read_training

WORST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainingAccuracy:
    """The result of ``sartor validate training`` and ``finetune``."""

    data: str
    table: str
    """``training``, ``finetune`` or ``memory``."""
    outcomes: tuple[TrainingOutcome, ...]
    group_by: tuple[str, ...]
    shots: int = 0
    worst: int = WORST
    after: Shots = field(default_factory=lambda: Shots(index=np.empty(0, np.int64), ratio=np.empty(0)))
    """Predictions after calibration on the ``shots`` runs that are most informative about the others."""
    after_any: Shots = field(default_factory=lambda: Shots(index=np.empty(0, np.int64), ratio=np.empty(0)))
    """The same with runs drawn at random."""


def validate_training(
    data: str | Path,
    *,
    table: str = "training",
    group_by: Sequence[str] = (),
    shots: int = 0,
    worst: int = WORST,
    calibration: str | Path | None = None,
) -> _TrainingAccuracy:
    """One prediction per usable row. ``data`` is a CSV file, or a folder with ``training.csv`` (``table``: or
    ``finetune.csv``).

    ``shots`` K > 0: also calibrate on K configurations of every source, device and precision and predict the rest.
    ``calibration`` is a table of step constants (the format of cost/correction/data/training.toml). Raises
    ``InputError`` if the file, its columns or all of its rows cannot be used.
    """
    if not 0 <= shots <= 1000:
        raise InputError("shots", shots, "must be from 0 to 1000", "3")
    cases = read_training(data, table, group_by)
    constants = read_training_table(calibration) if calibration else None
    if constants is not None:
        check_constants(constants, str(calibration))
    outcomes = predict_training(cases, constants)
    check_any_predicted([outcome.reason for outcome in outcomes], str(data))
    after = {"after": planned(outcomes, shots), "after_any": drawn(outcomes, shots)} if shots else {}
    return _TrainingAccuracy(
        data=str(data), table=table, outcomes=outcomes, group_by=tuple(group_by), shots=shots, worst=worst, **after
    )


def validate_memory(
    data: str | Path, *, group_by: Sequence[str] = ("source",), worst: int = WORST
) -> _TrainingAccuracy:
    """One prediction per row that says its peak memory, or that it ran or ran out. ``data`` is a CSV file, or a
    folder with ``training.csv``, ``finetune.csv`` or both. Raises ``InputError`` as `validate_training`."""
    folder = Path(data)
    tables = [table for table in ("training", "finetune") if (folder / f"{table}.csv").is_file()] or ["training"]
    cases = [case for table in tables for case in read_training(data, table, group_by)]
    if not any(map(_says_memory, cases)):
        must = "has no row with peak_mem_gb, or that ran out of memory (run_kind or mem_kind with oom)"
        raise InputError("data", str(data), must)
    judged = [case for case in cases if _says_memory(case) or (case.memory_known and math.isfinite(case.measured_s))]
    outcomes = predict_training(judged, intervals=False)
    check_any_predicted([outcome.reason for outcome in outcomes], str(data))
    return _TrainingAccuracy(data=str(data), table="memory", outcomes=outcomes, group_by=tuple(group_by), worst=worst)


def _says_memory(case: TrainingCase) -> bool:
    return case.out_of_memory or bool(case.memory_kind and math.isfinite(case.measured_bytes))


def training_body(accuracy: _TrainingAccuracy) -> JsonDict:
    """The JSON of the contract: metrics per group and overall, rows without a prediction, and assumptions."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, outcome in enumerate(accuracy.outcomes):
        groups.setdefault(tuple(_column(outcome, name) for name in accuracy.group_by), []).append(i)
    everything = _group_figures(accuracy, range(len(accuracy.outcomes)))
    if accuracy.table == "memory":
        everything |= {"pair_accuracy": None, "top1_regret": None}
    else:
        everything |= {"by_source": by_source([outcome for outcome in accuracy.outcomes if outcome.timed])}
    return {
        "data": accuracy.data,
        "num_rows": len(accuracy.outcomes),
        "expressed": sum(not outcome.reason for outcome in accuracy.outcomes),
        "groups": [
            {
                "table": accuracy.table,
                **dict(zip(accuracy.group_by, key, strict=True)),
                **_group_figures(accuracy, members),
            }
            for key, members in sorted(groups.items())
        ],
        "overall": {name: value for name, value in everything.items() if name != "worst"},
        **{name: everything[name] for name in ("memory_mape", "oom_correct", "pair_accuracy", "top1_regret")},
        "shots": accuracy.shots,
        "not_expressed": _row_counts(outcome.reason for outcome in accuracy.outcomes if outcome.reason),
        "left_out": _row_counts(reason for outcome in accuracy.outcomes for reason in _unusable(outcome)),
        "remarks": [*_suspicions(everything), *_remarks(accuracy)],
        "assumptions": _assumptions(accuracy),
    }


def _unusable(outcome: TrainingOutcome) -> list[str]:
    """Measurements of a predicted row that cannot be compared."""
    case = outcome.case
    if outcome.reason:
        return []
    figures = {"iter_time_s": case.measured_s, "peak_mem_gb": case.measured_bytes}
    blank = [name for name in figures if not case.words.get(name, "")]
    if len(blank) == len(figures) and not case.out_of_memory:
        return ["neither iter_time_s nor peak_mem_gb is given"]
    bad = (name for name, value in figures.items() if name not in blank and not math.isfinite(value))
    return [f"{name} is not a number above 0" for name in bad]


def _suspicions(everything: JsonDict) -> list[str]:
    factor = None if everything["bias"] is None else 1 + everything["bias"]
    if factor is None or not suspected(factor, everything["targets"]):
        return []
    return [suspicion("training", factor, "iter_time_s", 0)]


def _column(outcome: TrainingOutcome, name: str) -> str:
    """A row's value of a column, or of a derived column."""
    if name in DERIVED:
        return str(getattr(outcome.case, DERIVED[name]))
    return outcome.case.words.get(name, "")


def _group_figures(accuracy: _TrainingAccuracy, members: Sequence[int]) -> JsonDict:
    """All metrics of some rows; None if there is no data for one."""
    rows = [accuracy.outcomes[i] for i in members]
    if accuracy.table == "memory":
        return _memory_figures(rows, _scales(accuracy.outcomes), accuracy.worst)
    timed = [outcome for outcome in rows if outcome.timed]
    ratio = np.asarray([outcome.ratio for outcome in timed])
    inside = [outcome.covered for outcome in timed]
    choice = ranking(timed)
    return {
        "rows": len(rows),
        "targets": len(timed),
        "expressed": sum(not outcome.reason for outcome in rows),
        **errors_of(ratio),
        "coverage_80": mean_or_none(inside),
        "kendall_tau": _tau(timed),
        "naive_mape": mean_or_none(abs(outcome.naive_s / outcome.case.measured_s - 1) for outcome in timed),
        **_memory(rows),
        "pairs": choice.pairs,
        "pair_accuracy": choice.pair_accuracy,
        "top1_regret": choice.regret,
        **_after(accuracy, members),
        "worst": [_case(outcome) for outcome in _worst(timed)[: accuracy.worst]],
    }


def by_source(timed: Sequence[TrainingOutcome]) -> JsonDict | None:
    """Errors of two levels: runs of one source share some of theirs (its system, its software, what it counted).

    Standard deviations of ln(predicted / measured) between and within the sources of at least two runs (by moments;
    Searle, Casella and McCulloch 1992, Variance Components, sec. 4.2), the share of these sources' means that their 80%
    intervals hold, the mean of the sources' coverage, and the share of sources whose coverage is `EVEN`."""
    groups: dict[str, list[TrainingOutcome]] = {}
    for outcome in timed:
        groups.setdefault(outcome.case.words.get("source", ""), []).append(outcome)
    several = [np.log([run.ratio for run in runs]) for runs in groups.values() if len(runs) > 1]
    if len(several) < 2:
        return None
    sizes, means = np.array([len(off) for off in several]), np.array([off.mean() for off in several])
    within = sum(len(off) * off.var() for off in several) / (sizes.sum() - len(several))
    between = max(float(np.mean(means**2 - within / sizes)), 0.0)
    covered = np.array([np.mean([run.covered for run in runs]) for runs in groups.values() if len(runs) > 1])
    return {
        "sources": len(several),
        "between_sigma": math.sqrt(between),
        "within_sigma": math.sqrt(within),
        "means_covered_80": float(np.mean(np.abs(means) <= Z80 * np.sqrt(between + within / sizes))),
        "coverage_80": float(covered.mean()),
        "evenly_covered": float(np.mean((covered >= EVEN[0]) & (covered <= EVEN[1]))),
    }


EVEN = (0.65, 0.95)
"""Coverage of a source's runs by 80% intervals that is neither far too narrow nor far too wide."""


def _after(accuracy: _TrainingAccuracy, members: Sequence[int]) -> JsonDict:
    """Errors after calibration, for rows in classes with more than ``shots`` configurations."""
    if not accuracy.shots:
        return {}
    mine = np.isin(accuracy.after.index, np.asarray(list(members), dtype=np.int64))
    figures = errors_of(accuracy.after.ratio[mine])
    of_any = np.isin(accuracy.after_any.index, np.asarray(list(members), dtype=np.int64))
    return {
        "shots_rows": int(np.unique(accuracy.after.index[mine]).size),
        **{f"shots_{name}": value for name, value in figures.items()},
        "shots_any_mape": errors_of(accuracy.after_any.ratio[of_any])["mape"],
    }


def _memory_figures(rows: Sequence[TrainingOutcome], scales: Mapping[str, float], worst: int) -> JsonDict:
    """Errors of peaks, whether running out of memory is predicted, and how true the probability of fit is on sources
    that its scale was not fitted on, each counted once."""
    weighed = sorted((row for row in rows if row.weighed), key=lambda row: -abs(math.log(_peak_ratio(row))))
    ratio = np.asarray([_peak_ratio(row) for row in weighed])
    below = [
        [np.mean(1 / each <= peak_quantile(share, scales[source])) for share in SHARES]
        for source, each in _by_source(weighed).items()
    ]
    held = np.mean(below, axis=0) if below else np.array([])
    return {
        "rows": len(rows),
        "targets": len(weighed),
        "expressed": sum(not row.reason for row in rows),
        **errors_of(ratio),
        "coverage_80": float(held[-1] - held[0]) if below else None,
        "kendall_tau": None,
        **_memory(rows),
        "fit_calibration": float(np.abs(held - SHARES).max()) if below else None,
        "worst": [_memory_case(row) for row in weighed[:worst]],
    }


def _by_source(weighed: Iterable[TrainingOutcome]) -> dict[str, FloatArray]:
    """Predicted over measured peaks of each source."""
    groups: dict[str, list[float]] = {}
    for row in weighed:
        groups.setdefault(row.case.words.get("source", ""), []).append(_peak_ratio(row))
    return {source: np.asarray(ratios) for source, ratios in groups.items()}


def _scales(outcomes: Iterable[TrainingOutcome]) -> dict[str, float]:
    """For each source the scale of the peaks' errors that the other sources have; the packaged one where they are
    fewer than `LEAST_OTHERS`."""
    errors = {source: -np.log(ratio) for source, ratio in _by_source(row for row in outcomes if row.weighed).items()}
    if len(errors) <= LEAST_OTHERS:
        return dict.fromkeys(errors, PEAK_SCALE)
    return {left: _peak_scale([each for source, each in errors.items() if source != left]) for left in errors}


def _peak_scale(errors: Sequence[FloatArray]) -> float:
    """The scale that makes ln(measured / predicted) of some sources' peaks likeliest, each source counted once."""
    scales = np.geomspace(1e-3, 1, 500)
    likely = sum(np.mean(-1.5 * np.log1p((each[:, None] / scales) ** 2 / 2), axis=0) for each in errors)
    return float(scales[np.argmax(likely - len(errors) * np.log(scales))])


LEAST_OTHERS = 3
"""Sources that a scale is fitted on at least."""

SHARES = np.arange(1, 10) / 10
"""Probabilities at which the share of measured peaks below the predicted quantile is compared."""


def _peak_ratio(outcome: TrainingOutcome) -> float:
    return outcome.predicted_bytes / outcome.case.measured_bytes


def _memory_case(outcome: TrainingOutcome) -> JsonDict:
    """One row: its configuration, and both peaks."""
    return {
        **_shown(outcome),
        "measured_bytes": outcome.case.measured_bytes,
        "predicted_bytes": outcome.predicted_bytes,
        "ratio": _peak_ratio(outcome),
        "kind": outcome.case.memory_kind,
        "may_fit": ", ".join(outcome.would_fit),
    }


def _memory(rows: Sequence[TrainingOutcome]) -> JsonDict:
    """Memory against measurements; whether fit or out-of-memory was predicted correctly; the share of out-of-memory
    runs predicted so (recall), and of those predicted so, the share that ran out (precision). Runs that fit with a
    switch that their rows leave open are not said to run out."""
    weighed = [outcome.predicted_bytes / outcome.case.measured_bytes for outcome in rows if outcome.weighed]
    judged = [outcome for outcome in rows if not outcome.reason and outcome.case.memory_known]
    right = [outcome.refused == outcome.case.out_of_memory for outcome in judged]
    caught = [outcome.refused for outcome in judged if outcome.case.out_of_memory]
    refused = [outcome.case.out_of_memory for outcome in judged if outcome.refused]
    return {
        "memory_rows": len(weighed),
        "memory_mape": mean_or_none(abs(ratio - 1) for ratio in weighed),
        "memory_bias": mean_or_none(ratio - 1 for ratio in weighed),
        "oom_correct": mean_or_none(right),
        "oom_rows": len(caught),
        "oom_recall": mean_or_none(caught),
        "oom_precision": mean_or_none(refused),
        "may_fit": dict(Counter(", ".join(outcome.would_fit) for outcome in judged if outcome.would_fit)),
    }


def _tau(rows: Sequence[TrainingOutcome]) -> float | None:
    """Rank agreement of tokens per second per device over all pairs of the group."""
    work = [_tokens(outcome) for outcome in rows]
    measured = [outcome.case.measured_s / tokens for outcome, tokens in zip(rows, work, strict=True)]
    predicted = [outcome.predicted_s / tokens for outcome, tokens in zip(rows, work, strict=True)]
    return rank_agreement(measured, predicted)


def _tokens(outcome: TrainingOutcome) -> float:
    job, plan, _ = outcome.case.priceable
    return job.tokens_per_step / float(np.ravel(plan.num_devices)[0])


def _worst(rows: Sequence[TrainingOutcome]) -> list[TrainingOutcome]:
    return sorted(rows, key=lambda outcome: -abs(math.log(outcome.ratio)))


SHOWN = (
    "id", "model", "gpu", "n_gpu", "seq", "dtype", "tp", "pp", "vp", "dp", "cp", "ep", "zero_stage", "mbs",
    "gbs", "recompute",
)  # fmt: skip
_DEFAULTS = {"tp": "1", "pp": "1", "vp": "1", "cp": "1", "ep": "1"}


def _shown(outcome: TrainingOutcome) -> dict[str, str]:
    """The configuration of a row."""
    words = outcome.case.words
    return {name: words[name] for name in SHOWN if words.get(name) and words[name] != _DEFAULTS.get(name)}


def _case(outcome: TrainingOutcome) -> JsonDict:
    """One row: its configuration, both times, and the largest parts of the predicted step."""
    parts = sorted(outcome.parts.items(), key=lambda item: -item[1])[:3]
    return {
        **_shown(outcome),
        "measured_s": outcome.case.measured_s,
        **picked(outcome, "predicted_s", "low_s", "high_s", "ratio"),
        "source": "calibrated",
        "largest_parts": ", ".join(
            f"{name.removesuffix('_s')} {value / outcome.predicted_s:.0%}" for name, value in parts
        ),
        "assumed": "; ".join((*outcome.case.assumed, *outcome.case.settled, *outcome.still_open)),
    }


def _row_counts(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))


def _assumptions(accuracy: _TrainingAccuracy) -> dict[str, str]:
    counts = _row_counts(phrase for outcome in accuracy.outcomes for phrase in outcome.case.assumed)
    return {phrase: f"{count} rows" for phrase, count in counts.items()}


def _remarks(accuracy: _TrainingAccuracy) -> list[str]:
    if not accuracy.shots:
        return []
    return [
        f"after {accuracy.shots} runs: predictions for a source, device and precision are shifted by the error of "
        f"{accuracy.shots} of its configurations (similar ones count most) and judged on the others. The runs are "
        f"chosen by how much they say about the rest, before any is measured (shots_any_mape: drawn at random, mean of "
        f"{DRAWS} draws)"
    ]


AXES = ("n_gpu", "seq", "gbs")
"""Sizes on the x axis of error charts."""


def training_charts(accuracy: _TrainingAccuracy) -> list[JsonDict]:
    """Rows for the scatter plot of predicted against measured step times, and for the error by size."""
    timed = [outcome for outcome in accuracy.outcomes if outcome.timed]
    rows = [
        {
            "gpu": outcome.case.words.get("gpu", ""),
            "measured_s": outcome.case.measured_s,
            "predicted_s": outcome.predicted_s,
        }
        for outcome in timed
    ]
    return [
        {"table": accuracy.table, "scatter": rows, "errors": [row for axis in AXES for row in _by_size(timed, axis)]}
    ]


def _by_size(rows: Sequence[TrainingOutcome], axis: str) -> list[JsonDict]:
    """Errors for every power of two of one column."""
    sizes = np.asarray([whole(outcome.case.words, axis) or 1 for outcome in rows])
    ratio = np.asarray([outcome.ratio for outcome in rows])
    octave = np.floor(np.log2(sizes)).astype(np.int64)
    return [
        {
            "axis": axis,
            "size": float(2.0**outcome),
            "targets": int((octave == outcome).sum()),
            **errors_of(ratio[octave == outcome]),
        }
        for outcome in np.unique(octave).tolist()
    ]
