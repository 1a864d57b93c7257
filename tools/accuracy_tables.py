"""Compare predictions with the measured tables and write lab/tables/accuracy_*.

``python tools/accuracy_tables.py [DATA]``, where DATA is a folder with ``measured`` and ``end_to_end`` (default:
../shared/data). ``--training`` refreshes only the training table. ``tools/accuracy_docs.py`` makes docs/accuracy.md
from the tables.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sartor.validate.accuracy import Accuracy, Group, groups_of, validate_operators
from sartor.validate.inference import inference_body, validate_inference, validate_serving
from sartor.validate.predictions import Predicted
from sartor.validate.training_accuracy import training_body, validate_training

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "lab" / "tables"
DATA = ROOT.parent / "shared" / "data"
SHOTS = 3

SPLIT: Mapping[str, tuple[str, str]] = {
    "gemm": ("gpu", "dtype"),
    "attention": ("gpu", "phase"),
    "memory_bound": ("gpu", "dtype"),
    "moe": ("gpu", "distribution"),
    "collectives": ("gpu", "op"),
    "layer_and_model": ("gpu", "phase"),
    "max_matmul": ("gpu", "dtype"),
}
"""Table -> columns that its lines are grouped by."""
SUMMARY_SPLIT = {"gemm": ("dtype",), "attention": ("phase",)}
"""Table -> columns that its summary over all GPUs is grouped by; other tables have one summary line."""

FIGURES = {
    "mape": "mape",
    "median": "median_error",
    "p90": "p90_error",
    "bias": "bias",
    "in_80": "coverage_80",
    "tau": "kendall_tau",
    "pairs": "pair_accuracy",
    "noise": "measured_spread",
    "roofline": "roofline_mape",
}
"""Column -> field of a group."""
OPERATORS = ("table", "gpu", "split", "size", "shapes", *FIGURES, "calibration")
INFERENCE = ("mode", "gpu", "dtype", "rows", "mape", "median", "bias", "in_80", "tau", "roofline", "width")
TRAINING = {
    "runs": "targets",
    "mape": "mape",
    "median": "median_error",
    "p90": "p90_error",
    "bias": "bias",
    "in_80": "coverage_80",
    "naive": "naive_mape",
    "after_3_runs": "shots_mape",
    "pairs": "pairs",
    "pairs_right": "pair_accuracy",
    "memory_runs": "memory_rows",
    "memory": "memory_mape",
    "fits_right": "oom_correct",
    "regret": "top1_regret",
}
"""Column -> statistic of a group of training runs."""

Row = Sequence[Any]


def write_tables(data: Path, folder: Path, *, training_only: bool = False) -> None:
    """Write every table into ``folder``."""
    notes = {}
    if not training_only:
        found = validate_operators(data / "measured", worst=0)
        _write(folder / "accuracy_operators.csv", OPERATORS, operator_rows(found))
        notes["Operators"] = {**found.not_expressed, **{f"left out: {k}": n for k, n in found.left_out.items()}}
    if (data / "end_to_end").is_dir():
        if not training_only:
            notes |= write_inference(data / "end_to_end", folder)
        training = training_body(validate_training(data / "end_to_end", group_by=["source"], shots=SHOTS, worst=0))
        names = ["precision", "experts_kind"]
        by_class = training_body(validate_training(data / "end_to_end", group_by=names, worst=0))
        head = ("by", "name", *TRAINING)
        tuned = training_body(validate_training(data / "end_to_end", table="finetune", group_by=["source"], worst=0))
        training["groups"] += [{**each, "source": f"{each['source']}, LoRA"} for each in tuned["groups"]]
        _write(folder / "accuracy_training.csv", head, training_rows(training, by_class))
        notes["Training"] = training["not_expressed"]
    if not training_only:
        (folder / "accuracy_left_out.md").write_text(_notes(notes), encoding="utf-8")


def write_inference(data: Path, folder: Path) -> dict[str, Mapping[str, int]]:
    """Write the tables of inference passes and of serving; returns the reasons why rows were left out."""
    bodies = {"Inference": inference_body(validate_inference(data))}
    groups = [*bodies["Inference"]["groups"]]
    if (data / "serving.csv").is_file():
        bodies["Serving"] = inference_body(validate_serving(data, group_by=SERVING))
        groups += [
            {**each, "mode": f"{each['mode']}_{each['measure']}_{each['confidence']}"}
            for each in bodies["Serving"]["groups"]
            if each["expressed"]
        ]
    _write(folder / "accuracy_inference.csv", INFERENCE, map(_inference_row, groups))
    return {name: body["not_expressed"] for name, body in bodies.items()}


SERVING = ("mode", "measure", "confidence", "gpu", "weight_dtype")
"""Columns that serving rows are grouped by."""


def operator_rows(found: Accuracy) -> Iterator[Row]:
    """For each table, a line per GPU and split (GEMMs also by size), and lines over all GPUs."""
    for predicted in found.predicted:
        name = predicted.targets.kind.name
        yield from _rows(predicted, SUMMARY_SPLIT.get(name, ()))
        yield from _rows(predicted, SPLIT[name])
        if name == "gemm":
            yield from _rows(predicted, (*SPLIT[name], "size"))


def _rows(predicted: Predicted, names: Sequence[str]) -> Iterator[Row]:
    split = [name for name in names if name not in ("gpu", "size")]
    for group in groups_of(predicted, names, worst=0):
        if group.expressed:
            keys = (group.keys.get("gpu", "all"), *(group.keys[name] for name in split), *([""] * (not split)))
            yield (group.keys["table"], *keys, group.keys.get("size", ""), group.targets, *_figures(group))


def _figures(group: Group) -> Iterator[Any]:
    yield from (_rounded(getattr(group, name)) for name in FIGURES.values())
    yield group.calibration if "gpu" in group.keys else ""


def _inference_row(group: Mapping[str, Any]) -> Row:
    names = ("mape", "median_error", "bias", "coverage_80", "kendall_tau", "roofline_mape", "bracket_width")
    keys = (group["mode"], group["gpu"], group["weight_dtype"], group["expressed"])
    return (*keys, *(_rounded(group.get(name)) for name in names))


def training_rows(by_source: Mapping[str, Any], by_class: Mapping[str, Any]) -> Iterator[Row]:
    """A line per source, one per precision and kind of layer, and one over all runs."""
    for group in (each for each in by_source["groups"] if each["targets"]):
        yield ("source", group["source"], *_training(group))
    for group in (each for each in by_class["groups"] if each["targets"]):
        yield ("class", f"{group['precision']}, {group['experts_kind']}", *_training(group))
    overall = by_source["overall"]
    yield ("all", f"{overall['rows']} published runs", *_training({**overall, "targets": overall["expressed"]}))


def _training(group: Mapping[str, Any]) -> Iterator[Any]:
    return (_rounded(group.get(name)) for name in TRAINING.values())


def _rounded(value: Any) -> Any:
    return "" if value is None else round(value, 4) if isinstance(value, float) else value


def _notes(notes: Mapping[str, Mapping[str, int]]) -> str:
    """The numbers of rows that could not be compared, with reasons."""
    lines = ["# Measured rows that are not compared", "", "*Generated by `tools/accuracy_tables.py`.*"]
    for heading, reasons in notes.items():
        lines += ["", f"## {heading}", "", *(f"- {count:,} rows: {reason}" for reason, count in reasons.items())]
        lines += [] if reasons else ["All rows are compared."]
    return "\n".join(lines) + "\n"


def _write(path: Path, head: Sequence[str], rows: Iterator[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)


def main() -> int:
    given = [Path(word) for word in sys.argv[1:] if not word.startswith("-")]
    data = given[0] if given else DATA
    if not (data / "measured").is_dir():
        print(f"lab/tables is left as it is: {data}/measured does not exist")
        return 2
    write_tables(data, TABLES, training_only="--training" in sys.argv[1:])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
