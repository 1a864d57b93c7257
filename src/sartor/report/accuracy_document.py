"""Measurements for people: ``validate``, ``measure`` and ``calibrate`` from their JSON bodies, with their figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import takewhile
from typing import TYPE_CHECKING

from sartor.answers.field import Fields, integer, text
from sartor.answers.measured import ARM, CHOICES, ERRORS, FIT_ERRORS, PAIR, REGION
from sartor.errors import install_command
from sartor.json_types import JsonDict, JsonMap
from sartor.report import document as d
from sartor.report.document import PageBlock, document_text, grid_block, section
from sartor.report.frame import FILE, Chart, Frame, Sheet, to_svg
from sartor.report.grid import Markup, element, field_grid, grid_of
from sartor.report.words import count_text, owner_words, printable
from sartor.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_WORDS = 4
"""Sizes of one of the worst targets on one screen."""
MOST_LINES = 12
"""Rows of all tables on one screen."""
FEW = 3
"""Lines of a list on one screen."""
WORST_GROUPS = 6
"""With more groups than this, the worst targets are listed per table."""

LEGEND = (
    "MAPE, median, p90: of |predicted / measured - 1|; a target per device, dtype and shape, the median of its rows. "
    "bias: median of predicted / measured - 1. in 80%: measurements inside the predicted interval. "
    "noise: spread of the rows of one shape. "
    "roofline: MAPE of max(FLOPs / peak, bytes / bandwidth). "
    "pairs: of shapes within 2% in work and more than 5% apart in time, how often the faster is predicted so."
)
HEURISTICS = " nvMMH: MAPE of nvidia-matmul-heuristics on a sample of the same GEMMs."
NO_HEURISTICS = " For a column of nvidia-matmul-heuristics on 16-bit GEMMs: {}."

SHORT_LEGEND = (
    "MAPE, median, p90: of |predicted / measured - 1|; bias above 0: predicted too much. in 80%: inside the interval. "
    "Every table, case and assumption: --verbose"
)
TRAINING_LEGEND = (
    "MAPE, median, p90: of |predicted / measured - 1| of step times, every row once; bias: median of predicted / "
    "measured - 1. in 80%: runs inside the predicted interval. tau: rank agreement of throughput per device. naive: "
    "MAPE of model FLOPs (a third more with full recomputation) over half of the dense peak. after shots: errors of "
    "other runs after a few of the same source, device and precision were used to calibrate. "
    "memory: MAPE of peak memory. fits right: share of rows whose fit in memory was predicted correctly. pairs: "
    "share of plan pairs (same model, cluster and batch, more than 2% apart) in measured order. regret: "
    "measured time of the plan predicted fastest over the fastest, minus 1."
)
MEMORY_LEGEND = (
    "MAPE, median, p90: of |predicted / measured - 1| of peak memory, as the run's tool counts it; bias: median of "
    "predicted / measured - 1. in 80%: runs inside the predicted interval. OOM found: of runs that ran out of memory, "
    "the share said not to fit. OOM right: of runs said not to fit, the share that ran out. calibration: the largest "
    "difference between a predicted probability (0.1 to 0.9) and the share of peaks below it."
)


def _legend(body: JsonMap) -> str:
    """The meaning of the columns."""
    groups = body["groups"]
    if any(group["table"] == "memory" for group in groups):
        return MEMORY_LEGEND
    if any(group["table"] == "training" for group in groups):
        return TRAINING_LEGEND
    if any(group.get("heuristics_mape") is not None for group in groups):
        return LEGEND + HEURISTICS
    sixteen_bit = any(group["table"] == "gemm" and "16" in str(group.get("dtype", "16")) for group in groups)
    return LEGEND + NO_HEURISTICS.format(install_command("heuristics")) * (
        sixteen_bit and find_spec("nvMatmulHeuristics") is None
    )


def accuracy_view(body: JsonMap, *, verbose: bool = False) -> RenderableType:
    """How far off over how many rows, what is worst, and errors per group; on one screen unless ``verbose``, then with
    reasons and the rows that could not be compared."""
    return d.document_text([d.opening(_headline(body)), *_blocks(body)], verbose=verbose)


def _headline(body: JsonMap) -> Iterator[str]:
    """How far off over how many rows, how many the intervals hold, and what is worst."""
    groups = [group for group in body["groups"] if group["mape"] is not None]
    if any(group["table"] == "memory" for group in body["groups"]):
        yield from _memory_lines(body["overall"], _heading(body))
        return
    whole = body.get("overall") or (groups[0] if len(groups) == 1 else {})
    if not groups:
        yield f"Nothing to compare: no row has a measured time and a prediction. {_heading(body)}."
        return
    detail = f" (median {whole['median_error']:.1%}, bias {whole['bias']:+.1%})" if whole else ""
    over = sum(group["targets"] for group in groups)
    yield f"Off by {_mean_of(groups, 'mape'):.1%} on average{detail} over {over:,} targets. {_heading(body)}."
    memory = whole.get("memory_mape")
    weighed = "" if memory is None else f" Peak memory is off by {memory:.1%}."
    yield f"The 80% intervals hold {_mean_of(groups, 'coverage_80'):.0%} of them.{weighed}"
    if levels := whole.get("by_source"):
        yield (
            f"Errors deviate by {levels['between_sigma']:.1%} between the {levels['sources']} sources and by "
            f"{levels['within_sigma']:.1%} within one; {levels['evenly_covered']:.0%} of them have 65 to 95% of their "
            "runs in their intervals."
        )
    if cases := sorted((case for group in groups for case in group["worst"]), key=_factor, reverse=True):
        yield f"Worst: {_short_case(cases[0])}."


def _memory_lines(whole: JsonMap, heading: str) -> Iterator[str]:
    """How far off peaks are, whether running out of memory is foreseen, and how true the probability of fit is."""
    if whole["mape"] is not None:
        detail = f"median {whole['median_error']:.1%}, bias {whole['bias']:+.1%}"
        yield f"Peaks are off by {whole['mape']:.1%} on average ({detail}) over {whole['targets']:,} runs. {heading}."
        yield (
            f"On sources left out of their fit 80% intervals hold {whole['coverage_80']:.0%}; the probability of fit "
            f"is off by up to {100 * whole['fit_calibration']:.0f} points (each source counted once)."
        )
    if whole["oom_rows"]:
        found = f"Of {count_text(whole['oom_rows'], 'run')} that ran out of memory, {whole['oom_recall']:.0%}"
        precision = whole["oom_precision"]
        right = "" if precision is None else f"; of all those said not to, {precision:.0%} ran out"
        yield f"{found} are said not to fit{right}."
    if may_fit := whole["may_fit"]:
        switches = "; ".join(f"{words} ({count})" for words, count in may_fit.items())
        yield f"{count_text(sum(may_fit.values()), 'run')} may fit with what the row does not state: {switches}."


def _mean_of(groups: Sequence[JsonMap], figure: str) -> float:
    total = sum(group["targets"] for group in groups)
    return float(sum(group[figure] * group["targets"] for group in groups) / total) if total else math.nan


def _short_case(case: JsonMap) -> str:
    """``model=GPT-3 gpu=A100: measured 2 s, predicted 1 s (0.5x)``"""
    what = [f"{key}={value}" for key, value in case.items() if key not in _NOT_WHAT and value not in ("", None)]
    return f"{' '.join(what[:MOST_WORDS])}: {_both(case)} ({case['ratio']:.3g}x)"


def _both(case: JsonMap) -> str:
    """``measured 2 s, predicted 1 s``, or both peaks."""
    form, unit = (format_bytes, "bytes") if "measured_bytes" in case else (format_seconds, "s")
    return f"measured {form(case[f'measured_{unit}'])}, predicted {form(case[f'predicted_{unit}'])}"


def accuracy_page(body: JsonMap, charts: Sequence[JsonMap]) -> str:
    """The offline page (UTF-8). ``charts`` has an entry per kind of table: ``table``, ``scatter`` and ``errors`` rows.

    Raises ``MissingExtraError`` without the extra ``report``.
    """
    blocks = _blocks(body, {chart["table"]: chart for chart in charts})
    title = "Predicted against measured"
    return d.document_page(d.Document(title=title, question=_heading(body), command="validate", blocks=blocks))


def _heading(body: JsonMap) -> str:
    rows = sum(group["rows"] for group in body["groups"])
    return f"{body['expressed']:,} of {rows:,} measured rows have a prediction ({printable(str(body['data']))})"


def _blocks(body: JsonMap, charts: Mapping[str, JsonMap] | None = None) -> list[d.PageBlock]:
    groups = [g for g in body["groups"] if g["table"] != "memory" or g["targets"] or g["oom_rows"]]
    return [
        d.bullets_block("Remarks", body["remarks"]),
        *(block for name in dict.fromkeys(group["table"] for group in groups)
          for block in _table_blocks(name, groups, (charts or {}).get(name))),
        *d.cut_bullets("Calibration", _origins(groups), FEW),
        *d.cut_bullets("Not predicted", _counted(body["not_expressed"]), FEW),
        d.bullets_block("Left out", _counted(body["left_out"]), d.Place.REST),
        d.bullets_block("Assumed", [f"{name}: {words}" for name, words in body["assumptions"].items()], d.Place.REST),
        d.PageBlock(words=_legend(body), style="dim", place=d.Place.REST),
        d.PageBlock(words=SHORT_LEGEND, style="dim", place=d.Place.SHORT),
    ]  # fmt: skip


def _counted(reasons: Mapping[str, int]) -> list[str]:
    """One line per reason, with its number of rows."""
    return [f"{count_text(count, 'row')}: {reason}" for reason, count in reasons.items()]


def _table_blocks(name: str, groups: Sequence[JsonMap], chart: JsonMap | None) -> list[d.PageBlock]:
    """A table's figures, its errors and its worst targets."""
    mine = [group for group in groups if group["table"] == name]
    blocks = [d.section(name, f"table-{name}", name)]
    if chart is not None and chart["scatter"]:
        blocks += [d.PageBlock(markup=lambda: _drawn(name, chart), place=d.Place.PAGE)]
    first = replace(GROUP_NAME, words=" ".join(_keys(mine[0])) or "group")
    rows = max(1, MOST_LINES // len({group["table"] for group in groups}))
    blocks += [
        replace(d.cut_blocks(field_grid(name, (first, TARGETS, *ERRORS[:SHORT]), mine), rows)[0], place=d.Place.SHORT)
    ]
    if len(mine) > rows:
        blocks.append(d.PageBlock(words=f"and {len(mine) - rows} more", place=d.Place.SHORT))
    for caption, fields in _tables(name):
        shown = [column for column in fields if any(column.text(group) for group in mine)]
        if any(column.name == "pair_accuracy" for column in shown):
            shown = [column for column in shown if column.name != "kendall_tau"]  # pairs say it more plainly
        if shown:
            grid = field_grid(f"{name}: {caption}", (first, TARGETS, *shown), mine)
            blocks.append(d.grid_block(grid, d.Place.REST))
    if len(groups) <= WORST_GROUPS:
        lists = {f"Worst of {_name(group)}": group["worst"] for group in mine}
    else:
        ranked = sorted((case for group in mine for case in group["worst"]), key=_factor, reverse=True)
        lists = {"Worst": ranked[: len(mine[0]["worst"]) or 5]}
    return [*blocks, *(d.bullets_block(title, map(_case_text, cases), d.Place.REST) for title, cases in lists.items())]


def _tables(name: str) -> Sequence[tuple[str, Fields]]:
    """Captions and fields; of training two tables, because one would be too wide for a terminal."""
    if name == "training":
        return (("error per group", ERRORS), ("choices, memory and calibration", CHOICES))
    return (("error per group", (*ERRORS, *CHOICES)),)


def _drawn(name: str, chart: JsonMap) -> Markup:
    scatter = _draw_scatter(f"{name}: predicted against measured", chart["scatter"])
    errors = _draw_error_by_size(f"{name}: error by size", chart["errors"])
    return element(
        "div", *(element("figure", Markup(to_svg(drawing)), class_="drawn") for drawing in (scatter, errors))
    )


def _keys(group: JsonMap) -> JsonDict:
    """The keys of a group: everything before its figures."""
    keys = dict(takewhile(lambda entry: entry[0] != "rows", group.items()))
    return {key: value for key, value in keys.items() if key != "table"}


def _name(group: JsonMap) -> str:
    """A group's keys as text, without its table."""
    return printable(" ".join(str(value) for value in _keys(group).values() if value != "") or "all")


SHORT = 6
"""Errors of a group on one screen."""
GROUP_NAME = text("group", "group", path=_name)
TARGETS = integer("targets", "targets", form="{:,}".format)


def _factor(case: JsonMap) -> float:
    return float(max(case["ratio"], 1 / case["ratio"]))


def _case_text(case: JsonMap) -> str:
    """One target in words: sizes, measured and predicted time, the predicted terms, and the error of similar shapes."""
    what = [f"{key}={value}" for key, value in case.items() if key not in _NOT_WHAT and value not in ("", None)]
    reasons = "".join(f"; {reason}" for reason in (_bound(case), _alike(case)) if reason)
    return f"{' '.join(what)}: {_both(case)} ({case['ratio']:.3g}x){reasons}"


_TIMES = ("measured_s", "predicted_s", "low_s", "high_s", "ratio", "num_rows")
_WORDS = {"compute_s": "compute", "memory_s": "memory", "network_s": "network", "overhead_s": "overhead"}
_NOT_WHAT = {
    *_TIMES, *_WORDS, "bound_by", "largest", "residual", "source", "tile_m", "tile_n", "split_k", "waves",
    "measured_bytes", "predicted_bytes", "measured_spread", "near_targets", "near_median_error", "calibration",
    "largest_parts",
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
    suffix = f" ({', '.join(terms)})" if terms else ""
    return f"bound by {case['bound_by']}{suffix}{tile}{split}"


def _alike(case: JsonMap) -> str:
    """The spread of its rows, and the error at shapes of similar work."""
    sentences = []
    if case.get("measured_spread") is not None:
        sentences.append(
            f"its {count_text(case['num_rows'], 'row')} spread {100 * case['measured_spread']:.0f}% around their median"
        )
    if near := case.get("near_targets"):
        alone = ", so this row may be an outlier" if _alone(case) else ""
        off = f"median error {100 * case['near_median_error']:.0f}%"
        sentences.append(f"{count_text(near, 'shape')} of similar work: {off}{alone}")
    return ", ".join(sentences)


def _alone(case: JsonMap) -> bool:
    """Whether the row may be an outlier: similar shapes do not share its error."""
    return bool(case["near_targets"] >= 5 and case["near_median_error"] < abs(case["ratio"] - 1) / 4)


def _origins(groups: Sequence[JsonMap]) -> list[str]:
    """Which calibrations the devices use, if any uses another device's."""
    origins: dict[str, dict[str, dict[str, None]]] = {}
    for group in groups:
        what = f"gemm {group['dtype']}" if group["table"] == "gemm" and "dtype" in group else str(group["table"])
        for owner in str(group.get("calibration") or "").split(", "):
            origins.setdefault(owner, {}).setdefault(str(group.get("gpu", "")), {})[what] = None
    others = sorted(origins.keys() - {"own", ""})
    if not others:
        return []
    lines = [printable(f"{owner_words(owner)}: {', '.join(_holders(origins[owner]))}") for owner in others]
    return lines + [f"{owner_words('own')}: all others"] * ("own" in origins)


def _holders(by_gpu: Mapping[str, Mapping[str, None]]) -> Iterator[str]:
    for gpu, what in by_gpu.items():
        yield f"{gpu} ({', '.join(what)})" if gpu else ", ".join(what)


MOST_ROWS = 40


def measured_view(body: JsonMap) -> RenderableType:
    """Device, counts, skipped cases, and comparisons if the suite has them."""
    device = body["device"]
    software = f"torch {device['torch']}, driver {device['driver'] or 'unknown'}"
    counts = (
        f"suite {body['suite']}: {body['measured']} of {body['cases']} cases timed in {body['spent_s']:.0f} s"
        + (f", {body['kept']} already in the file" if body["kept"] else "")
        + (f", {body['again']} repeated" if body["again"] else "")
        + f"; {body['stopped']}"
        + (f", {body['left']} left (continue with --resume)" if body["left"] else "")
    )
    rows = ", ".join(f"{count} {table}" for table, count in body["rows"].items())
    blocks = [PageBlock(words=counts), *_skipped(body), *_compared(body)]
    blocks += [PageBlock(words=f"{body['file']} holds {rows or 'no row yet'}")]
    return document_text(blocks, f"{device['device']} as {device['gpu']} ({device['backend']}, {software})")


def _skipped(body: JsonMap) -> Iterator[PageBlock]:
    for skipped in body["skipped"]:
        yield PageBlock(words=f"skipped {skipped['count']}: {skipped['reason']} ({skipped['cases'][0]})")


def _compared(body: JsonMap) -> Iterator[PageBlock]:
    """Predicted and measured times, longest first."""
    if not body["compared"]:
        return
    errors = body["errors"]["all"]
    yield section(f"Mean error of predictions: {errors['mape']:.0%} over {errors['cases']} cases")
    ordered = sorted(body["compared"], key=lambda row: -row["measured_s"])
    yield grid_block(field_grid("Predicted and measured", (CASE, PASS, *PAIR), ordered[:MOST_ROWS]))
    if len(ordered) > MOST_ROWS:
        yield PageBlock(words=f"and {len(ordered) - MOST_ROWS} shorter ones")


def _label(row: JsonMap) -> str:
    """A short label of a case: its name, or table and sizes."""
    first = str(row.get("name") or row.get("model") or row.get("op") or row["table"])
    sizes = [str(row[name]) for name in ("m", "n", "k", "rows", "cols", "heads", "seq_q", "seq_kv") if name in row]
    return f"{first} {' x '.join(sizes)} {row.get('layout', '')}".strip()


CASE = text("case", "case", path=_label)
PASS = text("pass", "pass", path=lambda row: row.get("pass", row.get("phase")))


def study_view(body: JsonMap) -> RenderableType:
    """A case study: predicted and measured times of its arms."""
    study = body["study"]
    blocks = [section(study["question"]), grid_block(field_grid(study["question"], ARM, study["arms"]))]
    if study["median_points_apart"] is not None:
        difference = (
            f"predicted and measured speedups differ by {study['median_points_apart']:.1f} points (median), at most "
            f"{study['most_points_apart']:.1f}; {study['within_5_points']} of {study['compared']} within 5 points"
        )
        blocks.append(PageBlock(words=difference))
    heading = f"{body['device']['device']}: study {study['name']}, {study['size']} sizes"
    return document_text([*blocks, *_skipped(body)], heading)


def parity_view(body: JsonMap) -> RenderableType:
    """Loss of two shapes by seed, the difference with its interval, and the difference at equal time."""
    parity = body["parity"]
    columns = ("shape", "parameters", "step", *(f"seed {seed}" for seed in parity["seeds"]), "mean")
    rows = []
    for shape in parity["shapes"]:
        final = [losses[-1] for losses in shape["losses"]]
        losses = (f"{loss:.4f}" for loss in [*final, sum(final) / len(final)])
        rows.append((shape["name"], f"{shape['num_params']:,}", format_seconds(shape["step_s"]), *losses))
    verdict = "significant" if parity["differs"] else "not significant"
    difference = (
        f"second minus first: {parity['loss_difference']:+.4f} (95%: {parity['low']:+.4f} to {parity['high']:+.4f}), "
        f"{verdict} with {len(parity['seeds'])} seeds of {parity['tokens_per_run']:,} tokens"
    )
    at_equal_time = (
        f"a step of the second is {parity['speedup']:.2f}x as fast; at equal time the loss difference is "
        f"{parity['equal_time_difference']:+.4f} (doubling the steps gains {parity['loss_per_doubling']:.4f})"
    )
    title = "Loss on held-out text [nats per byte]"
    table = grid_block(grid_of(title, columns, rows))
    return document_text([table, PageBlock(words=difference), PageBlock(words=at_equal_time)], title)


def calibration_view(body: JsonMap) -> RenderableType:
    """The fit and its errors on fitted and held-out shapes."""
    start = "catalogue" if body["start"] == body["gpu"] else body["start"]
    kinds = {
        "catalogue": "without this file",
        "before": f"start ({start})",
        "fit": "shapes fitted on",
        "held_out": "held-out regions",
    }
    records = [{**body[key], "of": words} for key, words in kinds.items()]
    grid = field_grid("Errors of the fit", (text("of", "errors of"), *FIT_ERRORS), records)
    lines = [
        f"{stream['section']}: {stream['before']:.0%} before, {stream['fit']:.0%} fitted on {stream['rows']} rows"
        for stream in body.get("streams", ())
    ]
    lines += [f"{body['rows']:,} rows, {body['shapes']:,} shapes, {body['samples']:,} fitted on"]
    base = "the package's own" if body["over"] == "package" else "fitted coefficients"
    lines += [f"predictions: {base}" + (" times a factor from these measurements" if body["own_rows"] else "")]
    lines += [f"80% intervals cover {body['coverage_80']:.0%} of held-out shapes"]
    lines += [f"left out {omitted['rows']:,} rows: {omitted['reason']}" for omitted in body["left_out"]]
    lines += [*body["remarks"], *([f"wrote {body['file']}"] if body["file"] else [])]
    heading = f"{body['gpu']} {body['dtype']}: {body['source']}"
    return document_text([grid_block(grid), *(PageBlock(words=line) for line in lines)], heading)


def change_view(change: JsonMap) -> RenderableType:
    """Ratio of predicted times after over before, by region; changed coefficients."""
    grid = field_grid("Ratio of predicted times", REGION, change["regions"])
    upgraded = [f"{made['name']}: {made['before'] or '-'} -> {made['after'] or '-'}" for made in change["made_with"]]
    moved = [f"{entry['name']}: {entry['before']:.4g} -> {entry['after']:.4g}" for entry in change["coefficients"]]
    moved = moved or ["no coefficient changed by more than 2%"]
    blocks = [
        *(PageBlock(words=line) for line in upgraded),
        grid_block(grid),
        *(PageBlock(words=line) for line in moved),
    ]
    return document_text(blocks, f"{change['after']} against {change['before']}")


def _draw_scatter(title: str, rows: Sequence[JsonMap], frame: Frame = FILE) -> Chart:
    """Predicted over measured time, log-log; the line is where both agree. Rows: gpu, measured_s, predicted_s."""
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    scale_s, unit = (1.0, "s") if max((r["measured_s"] for r in rows), default=0.0) > 1 else (1e6, "us")
    points = [
        {"gpu": r["gpu"], "measured": r["measured_s"] * scale_s, "predicted": r["predicted_s"] * scale_s} for r in rows
    ]
    seen = [value for point in points for value in (point["measured"], point["predicted"])] or [1.0, 10.0]
    domain = [min(seen) / 1.2, max(seen) * 1.2]
    scale = {"type": "log", "domain": domain, "nice": False}
    x = sheet.x("measured:Q", f"measured [{unit}]", 6, "~s", **scale)
    y = sheet.y("predicted:Q", f"predicted [{unit}]", 6, "~s", **scale)
    agree = sheet.rows([{"measured": v, "predicted": v} for v in domain]).mark_line(color=theme.muted)
    names = sorted({point["gpu"] for point in points})
    colours = [theme.series[i % len(theme.series)] for i in range(len(names))]
    tips = sheet.hover(
        "gpu:N", ("measured:Q", f"measured [{unit}]", ",.4g"), ("predicted:Q", f"predicted [{unit}]", ",.4g")
    )
    colour = sheet.colour("gpu", names, colours)
    dots = sheet.rows(points).mark_point(filled=True, size=9, opacity=0.45)
    chart = alt.layer(agree.encode(x=x, y=y), dots.encode(x=x, y=y, color=colour, tooltip=tips))
    return sheet.finish(chart, title, height=420)


def _draw_error_by_size(title: str, rows: Sequence[JsonMap], frame: Frame = FILE) -> Chart:
    """Median and 90th percentile of the error against each size, a line per size (m, n, k, ...).

    Rows: axis, size, targets, median_error, p90_error, bias.
    """
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    axes = list(dict.fromkeys(row["axis"] for row in rows))
    data = [
        {**row, "error": row[key], "which": word}
        for row in rows
        for key, word in (("median_error", "median"), ("p90_error", "90th percentile"))
    ]
    colours = [theme.series[i % len(theme.series)] for i in range(len(axes))]
    tips = sheet.hover(
        ("axis:N", "size"),
        ("size:Q", "from", ",d"),
        ("targets:Q", "shapes", ",d"),
        ("median_error:Q", "median error", ".1%"),
        ("p90_error:Q", "90th percentile", ".1%"),
        ("bias:Q", "bias", "+.1%"),
    )
    chart = (
        sheet.rows(data)
        .mark_line(point=alt.OverlayMarkDef(size=22))
        .encode(
            x=sheet.x("size:Q", "size, from", 8, ",d", type="log", base=2),
            y=alt.Y("error:Q", title="|predicted / measured - 1|", axis=alt.Axis(format=".0%")),
            color=sheet.colour("axis", axes, colours),
            strokeDash=alt.StrokeDash(
                "which:N",
                scale=alt.Scale(domain=["median", "90th percentile"], range=[[1, 0], [4, 3]]),
                legend=alt.Legend(
                    orient="top",
                    title=None,
                    symbolType="stroke",
                    symbolSize=200,
                    symbolStrokeWidth=2,
                    symbolFillColor="transparent",
                    symbolStrokeColor=theme.ink,
                ),
            ),
            tooltip=tips,
        )
    )
    return sheet.finish(chart, title, height=300)


WORDS = ("measured", "predicted")


def draw_study(body: JsonMap, device: str, frame: Frame = FILE) -> Chart:
    """Speedups of a study's arms; ``body`` is the ``study`` object of the JSON. Arms on a size axis are joined by
    lines, named arms are points; groups are stacked vertically."""
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    rows = study_rows(body)
    named = body["axis"] in ("model", "parameters")
    field = "arm:N" if named else "x:Q"
    names = list(dict.fromkeys(row["arm"] for row in rows))
    x = (
        alt.X(field, title=None, sort=names)
        if named
        else alt.X(field, title=body["axis"], scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(format=",d"))
    )
    tips = sheet.hover("arm:N", "which:N", ("speedup:Q", None, ".3f"), ("seconds:Q", "time [s]", ".4g"))
    colour = alt.Color(
        "which:N",
        scale=alt.Scale(domain=list(WORDS), range=[theme.series[0], theme.series[1]]),
        legend=alt.Legend(orient="top", title=None),
    )
    y = alt.Y("speedup:Q", title="speedup", scale=alt.Scale(zero=False), axis=alt.Axis(format=".2f", tickCount=5))
    groups = list(dict.fromkeys(row["group"] for row in rows))
    base = sheet.rows(rows)
    marks = base.mark_point(size=60, filled=True) if named else base.mark_line(point=alt.OverlayMarkDef(size=34))
    chart = marks.encode(x=x, y=y, color=colour, tooltip=tips)
    if len(groups) > 1:
        header = alt.Header(title=None, labelOrient="top", labelAnchor="start", labelColor=theme.ink)
        chart = chart.encode(row=alt.Row("group:N", sort=groups, header=header)).resolve_scale(y="independent")
    title = f"{_study_finding(body)} ({printable(device)})"
    return sheet.finish(chart, title, height=300 if len(groups) == 1 else 130)


def _study_finding(body: JsonMap) -> str:
    """The fastest arm, measured beside predicted; the question where nothing was timed."""
    timed = [arm for arm in body["arms"] if not arm["is_baseline"] and arm["measured_speedup"] is not None]
    if not timed:
        return printable(body["question"])
    best = max(timed, key=lambda arm: float(arm["measured_speedup"]))
    group = f" ({best['group']})" if len({arm["group"] for arm in timed}) > 1 else ""
    predicted = "" if best["predicted_speedup"] is None else f", predicted {best['predicted_speedup']:.2f}x"
    return printable(f"{best['arm']}{group} is the fastest: measured {best['measured_speedup']:.2f}x{predicted}")


def study_rows(body: JsonMap) -> list[JsonDict]:
    """Two rows per arm, predicted and measured; without arms that were not timed and groups of a baseline alone."""
    compared = {arm["group"] for arm in body["arms"] if not arm["is_baseline"] and arm["measured_speedup"] is not None}
    return [
        {"arm": arm["arm"], "group": arm["group"], "x": arm["x"], "which": which, "speedup": speedup,
         "seconds": arm[f"{which}_s"]}
        for arm in body["arms"]
        for which in WORDS
        if (speedup := arm[f"{which}_speedup"]) is not None and (arm["group"] in compared or not compared)
    ]  # fmt: skip
