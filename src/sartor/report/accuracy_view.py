"""Errors of predictions for the terminal, from the JSON body of ``sartor validate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import takewhile

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sartor.json_types import JsonDict, JsonMap
from sartor.report.table_estimate import notes
from sartor.report.words import count_text, owner_words, printable
from sartor.units import format_seconds

WORST_GROUPS = 6
"""With more groups than this, the worst targets are listed per table."""

_FIGURES = {
    "mape": "MAPE",
    "median_error": "median",
    "p90_error": "p90",
    "bias": "bias",
    "coverage_80": "in 80%",
    "kendall_tau": "tau",
    "measured_spread": "noise",
    "roofline_mape": "roofline",
    "heuristics_mape": "nvMMH",
    "naive_mape": "naive",
    "shots_mape": "after shots",
    "shots_p90_error": "p90 after",
    "memory_mape": "memory",
    "oom_correct": "fits right",
    "oom_recall": "OOM found",
    "oom_precision": "OOM right",
    "pair_accuracy": "pairs",
    "top1_regret": "regret",
}
_OF_RUNS = {
    "shots_mape", "shots_p90_error", "memory_mape", "oom_correct", "oom_recall", "oom_precision", "pair_accuracy",
    "top1_regret",
}  # fmt: skip
"""Shown in a second table, because one would be too wide for a terminal."""

_TIMES = ("measured_s", "predicted_s", "low_s", "high_s", "ratio", "num_rows")

LEGEND = (
    "MAPE, median, p90: of |predicted / measured - 1|; a target per device, dtype and shape, the median of its rows. "
    "bias: median of predicted / measured - 1. in 80%: measurements inside the predicted interval. "
    "noise: spread of the rows of one shape. "
    "roofline: MAPE of max(FLOPs / peak, bytes / bandwidth). "
    "pairs: of shapes within 2% in work and more than 5% apart in time, how often the faster is predicted so."
)
HEURISTICS = " nvMMH: MAPE of nvidia-matmul-heuristics on a sample of the same GEMMs."
NO_HEURISTICS = " For a column of nvidia-matmul-heuristics on 16-bit GEMMs: pip install 'sartor[heuristics]'."

TRAINING_LEGEND = (
    "MAPE, median, p90: of |predicted / measured - 1| of step times, every row once; bias: median of predicted / "
    "measured - 1. in 80%: runs inside the predicted interval. tau: rank agreement of throughput per device. naive: "
    "MAPE of model FLOPs (a third more with full recomputation) over half of the dense peak. after shots: errors of "
    "other runs after a few of the same source, device and precision were used to calibrate. "
    "memory: MAPE of peak memory. fits right: share of rows whose fit in memory was predicted correctly. pairs: "
    "share of plan pairs (same model, cluster and batch, more than 2% apart) in measured order. regret: "
    "measured time of the plan predicted fastest over the fastest, minus 1."
)


def legend_of(body: JsonMap) -> str:
    """The meaning of the columns."""
    groups = body["groups"]
    if any(group["table"] == "training" for group in groups):
        return TRAINING_LEGEND
    if any(group.get("heuristics_mape") is not None for group in groups):
        return LEGEND + HEURISTICS
    sixteen_bit = any(group["table"] == "gemm" and "16" in str(group.get("dtype", "16")) for group in groups)
    return LEGEND + NO_HEURISTICS * (sixteen_bit and find_spec("nvMatmulHeuristics") is None)


def accuracy_view(body: JsonMap) -> RenderableType:
    """Errors per group, the worst targets with reasons, and the rows that could not be compared."""
    groups = body["groups"]
    rows = sum(group["rows"] for group in groups)
    head = f"{body['expressed']:,} of {rows:,} measured rows have a prediction"
    return Group(
        Text(head + f" ({printable(str(body['data']))})", style="bold"),
        *notes("Remarks", list(body["remarks"])),
        *(each for table in dict.fromkeys(g["table"] for g in groups) for each in _table_view(table, groups)),
        *notes("Calibration", origins(groups)),
        *notes("Not predicted", counted(body["not_expressed"])),
        *notes("Left out", counted(body["left_out"])),
        *notes("Assumed", [f"{name}: {words}" for name, words in body["assumptions"].items()]),
        Padding(Text(legend_of(body), style="dim"), (1, 0, 0, 0), expand=False),
    )


def counted(reasons: Mapping[str, int]) -> list[str]:
    """One line per reason, with its number of rows."""
    return [f"{count_text(count, 'row')}: {reason}" for reason, count in reasons.items()]


def _table_view(name: str, groups: Sequence[JsonMap]) -> list[RenderableType]:
    mine = [group for group in groups if group["table"] == name]
    return [
        Padding(Text(printable(name), style="bold"), (1, 0, 0, 0)),
        *_figures(mine),
        *_worst_views(mine, len(groups)),
    ]


def _figures(groups: Sequence[JsonMap]) -> Iterator[Table]:
    """Errors of single predictions; of runs, those of choices, memory and calibration in a second table. Operators have
    their pairs in order in place of the rank agreement, which says the same less plainly."""
    shown = {key: word for key, word in _FIGURES.items() if any(g.get(key) is not None for g in groups)}
    second = _OF_RUNS if groups[0]["table"] == "training" else set()
    if not second and "pair_accuracy" in shown:
        del shown["kendall_tau"]
    for part in (shown.keys() - second, shown.keys() & second):
        if words := {key: word for key, word in shown.items() if key in part}:
            yield _figures_of(groups, words)


def _figures_of(groups: Sequence[JsonMap], words: Mapping[str, str]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    table.add_column(" ".join(_keys(groups[0])) or "group", overflow="fold", min_width=8)
    for word in ("targets", *words.values()):
        table.add_column(word, justify="right", no_wrap=True)
    for group in groups:
        table.add_row(Text(name_of(group)), f"{group['targets']:,}", *(_figure(key, group.get(key)) for key in words))
    return table


def name_of(group: JsonMap) -> str:
    """A group's keys as text, without its table."""
    return printable(" ".join(str(value) for value in _keys(group).values() if value != "") or "all")


def _keys(group: JsonMap) -> JsonDict:
    """The keys of a group: everything before its figures."""
    keys = dict(takewhile(lambda entry: entry[0] != "rows", group.items()))
    return {key: value for key, value in keys.items() if key != "table"}


def _figure(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key == "kendall_tau":
        return f"{value:.2f}"
    return f"{100 * value:+.1f}%" if key == "bias" else f"{100 * value:.1f}%"


def _worst_views(groups: Sequence[JsonMap], total: int) -> list[RenderableType]:
    if total <= WORST_GROUPS:
        return [each for group in groups for each in _worst_view(name_of(group), group["worst"])]
    cases = [case for group in groups for case in group["worst"]]
    ranked = sorted(cases, key=lambda case: -max(case["ratio"], 1 / case["ratio"]))
    return _worst_view("", ranked[: len(groups[0]["worst"]) or 5])


def _worst_view(name: str, cases: Sequence[JsonMap]) -> list[RenderableType]:
    return notes(f"Worst of {name}" if name else "Worst", [case_text(case) for case in cases])


def case_text(case: JsonMap) -> str:
    """One target in words: sizes, measured and predicted time, the predicted terms, and the error of similar shapes."""
    what = [f"{key}={value}" for key, value in case.items() if key not in _NOT_WHAT and value not in ("", None)]
    times = f"measured {format_seconds(case['measured_s'])}, predicted {format_seconds(case['predicted_s'])}"
    reasons = "".join(f"; {reason}" for reason in (_bound(case), _alike(case)) if reason)
    return f"{' '.join(what)}: {times} ({case['ratio']:.3g}x){reasons}"


_WORDS = {"compute_s": "compute", "memory_s": "memory", "network_s": "network", "overhead_s": "overhead"}
_NOT_WHAT = {
    *_TIMES, *_WORDS, "bound_by", "largest", "residual", "source", "tile_m", "tile_n", "split_k", "waves",
    "measured_spread", "near_targets", "near_median_error", "calibration", "largest_parts",
}  # fmt: skip


def _bound(case: JsonMap) -> str:
    """The terms of the prediction."""
    if "bound_by" not in case:
        return f"largest parts {case['largest_parts']}" if case.get("largest_parts") else ""
    terms = [f"{word} {format_seconds(case[key])}" for key, word in _WORDS.items() if case.get(key)]
    if "residual" in case:
        terms.append(f"residual x{case['residual']:.2f}")
    if "largest" in case:
        terms.insert(0, f"largest part {case['largest']}")
    tile = (
        f", tile {case['tile_m']:.0f}x{case['tile_n']:.0f}, {count_text(max(case['waves'], 1), 'wave')}"
        if "tile_m" in case
        else ""
    )
    split = f", k split in {case['split_k']:.0f}" if case.get("split_k", 1) > 1 else ""
    made = f" ({', '.join(terms)})" if terms else ""
    return f"bound by {case['bound_by']}{made}{tile}{split}"


def _alike(case: JsonMap) -> str:
    """The spread of its rows, and the error at shapes of similar work."""
    said = []
    if case.get("measured_spread") is not None:
        said.append(
            f"its {count_text(case['num_rows'], 'row')} spread {100 * case['measured_spread']:.0f}% around their median"
        )
    if near := case.get("near_targets"):
        alone = ", so this row may be an outlier" if _alone(case) else ""
        off = f"median error {100 * case['near_median_error']:.0f}%"
        said.append(f"{count_text(near, 'shape')} of similar work: {off}{alone}")
    return ", ".join(said)


def _alone(case: JsonMap) -> bool:
    """Whether the row may be an outlier: similar shapes do not share its error."""
    return bool(case["near_targets"] >= 5 and case["near_median_error"] < abs(case["ratio"] - 1) / 4)


def origins(groups: Sequence[JsonMap]) -> list[str]:
    """Which calibrations the devices use, if any uses another device's."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for group in groups:
        what = f"gemm {group['dtype']}" if group["table"] == "gemm" and "dtype" in group else str(group["table"])
        for owner in str(group.get("calibration") or "").split(", "):
            found.setdefault(owner, {}).setdefault(str(group.get("gpu", "")), {})[what] = None
    others = sorted(found.keys() - {"own", ""})
    if not others:
        return []
    lines = [printable(f"{owner_words(owner)}: {', '.join(_holders(found[owner]))}") for owner in others]
    return lines + [f"{owner_words('own')}: all others"] * ("own" in found)


def _holders(by_gpu: Mapping[str, Mapping[str, None]]) -> Iterator[str]:
    for gpu, what in by_gpu.items():
        yield f"{gpu} ({', '.join(what)})" if gpu else ", ".join(what)
