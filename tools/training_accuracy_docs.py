"""The training part of docs/accuracy.md: ``python tools/training_accuracy_docs.py [DATA]`` rewrites that section alone.

DATA is a folder with ``end_to_end`` (default: ../shared/data). `accuracy_docs` writes the same section with the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sartor.errors import InputError
from sartor.hardware.training_calibration import packaged_training_table
from sartor.measure.training_accuracy import training_body, validate_training

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
DATA = ROOT.parent / "shared" / "data"

TITLE = "## End to end: training"
HELD_OUT = (
    "rows of", "rows", "seen in the fit", "source held out", "device held out", "model held out", "generation held out",
)  # fmt: skip
WIDTHS = ("rows of", "seen in the fit", "source", "device", "model", "generation")
BY_SOURCE = (
    "source", "rows", "MAPE", "p90", "bias", "in 80%", "naive", "after 3 runs", "pairs", "right", "memory rows",
    "memory",
)  # fmt: skip
BY_CLASS = ("precision", "layers", "rows", "MAPE", "p90", "bias", "in 80%", "tau", "naive")
SHOTS = 3

WAYS = ("in_sample", "source_held_out", "device_held_out", "model_held_out", "generation_held_out")

INTRO = """The two tables of held-out rows are the honest ones: constants of a training step were fitted again without
every source (device, model, generation of devices) in turn, and judged on it alone ([how, and on
what](concepts/training-accuracy.md)). Each cell: MAPE, 90th percentile of the error, bias.
"""

SHIPPED = """With the constants that ship, which have seen these rows. *naive*: MAPE of model FLOPs over half of peak.
*after 3 runs*: MAPE on the other runs of a source, device and precision once those three were looked at that tell most
of them (`--shots 3`). *pairs*, *right*: plans of one model on one cluster more than 2% apart, and how many are ordered
as measured.
"""


def section(data: Path) -> str:
    """Headings, tables and remarks; one sentence where the rows are not there."""
    try:
        by_source = training_body(validate_training(data / "end_to_end", group_by=["source"], shots=SHOTS, worst=0))
        names = ["precision", "experts_kind"]
        by_class = training_body(validate_training(data / "end_to_end", group_by=names, worst=0))
    except InputError as error:
        return f"{TITLE}\n\n{error}\n"
    recorded: Mapping[str, Any] = packaged_training_table()["provenance"]
    reasons = "\n".join(f"- {count:,} rows: {reason}" for reason, count in by_source["not_expressed"].items())
    parts = [f"{TITLE}\n", INTRO, _table(HELD_OUT, _held_out(recorded)), "Inside the predicted 80% interval:\n"]
    parts += [_table(WIDTHS, _widths(recorded)), SHIPPED, _table(BY_SOURCE, _sources(by_source))]
    parts += [_table(BY_CLASS, _classes(by_class)), _totals(by_source["overall"]), f"Not expressed:\n\n{reasons}\n"]
    return "\n".join(parts)


def _held_out(recorded: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for name, first in recorded[WAYS[0]].items():
        cells = (_errors(recorded[way].get(name)) for way in WAYS)
        yield (name, str(int(first["rows"])), *cells)


def _errors(figures: Mapping[str, float] | None) -> str:
    if figures is None:
        return ""
    return f"{figures['mape']:.1%}, {figures['p90']:.1%}, {figures['bias']:+.1%}"


def _widths(recorded: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for name in recorded[WAYS[0]]:
        yield (name, *(_share(recorded[way].get(name, {}).get("coverage_80")) for way in WAYS))


def _sources(body: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for group in (each for each in body["groups"] if each["targets"]):
        yield (
            group["source"],
            str(group["targets"]),
            *_figures(group),
            _share(group["naive_mape"]),
            _share(group["shots_mape"]),
            str(group["pairs"] or ""),
            _share(group["pair_accuracy"]),
            str(group["memory_rows"] or ""),
            _share(group["memory_mape"]),
        )


def _classes(body: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for group in (each for each in body["groups"] if each["targets"]):
        tau = "" if group["kendall_tau"] is None else f"{group['kendall_tau']:.2f}"
        names = (group["precision"], group["experts_kind"], str(group["targets"]))
        yield (*names, *_figures(group), tau, _share(group["naive_mape"]))


def _figures(group: Mapping[str, Any]) -> tuple[str, str, str, str]:
    errors = (_share(group["mape"]), _share(group["p90_error"]))
    return (*errors, _share(group["bias"], sign=True), _share(group["coverage_80"]))


def _totals(overall: Mapping[str, Any]) -> str:
    told = {
        "rows expressed": f"{overall['expressed']} of {overall['rows']}",
        "MAPE": _share(overall["mape"]),
        "after 3 runs": _share(overall["shots_mape"]),
        "memory": _share(overall["memory_mape"]),
        "said to fit or not as it was": _share(overall["oom_correct"]),
        "pairs ordered right": _share(overall["pair_accuracy"]),
        "time lost by the first choice": _share(overall["top1_regret"]),
    }
    return "All together: " + "; ".join(f"{name} {value}" for name, value in told.items()) + ".\n"


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def _share(value: float | None, *, sign: bool = False) -> str:
    return "" if value is None else f"{100 * value:{'+' if sign else ''}.1f}%"


def replaced(page: str, new: str) -> str:
    """The page with its training section (put before the last section where it has none) replaced."""
    start = page.find(TITLE)
    rest = page.find("\n## ", start + 1) + 1 if start >= 0 else page.rfind("\n## ") + 1
    return f"{page[: start if start >= 0 else rest]}{new}\n{page[rest:]}"


def main() -> int:
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    if not (data / "end_to_end").is_dir():
        print(f"docs/accuracy.md is left as it is: {data}/end_to_end is not there")
        return 0
    PAGE.write_text(replaced(PAGE.read_text("utf-8"), section(data)), "utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
