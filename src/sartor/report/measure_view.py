"""Measurements and calibrations for the terminal, from the JSON bodies."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table

from sartor.json_types import JsonMap
from sartor.report.words import printable
from sartor.units import format_seconds

MOST_ROWS = 40


def measured_view(body: JsonMap) -> Group:
    """Device, counts, skipped cases, and comparisons if the suite has them."""
    device = body["device"]
    software = f"torch {device['torch']}, driver {device['driver'] or 'unknown'}"
    lines: list[Any] = [
        f"{printable(device['device'])} as {device['gpu']} ({device['backend']}, {software})",
        f"suite {body['suite']}: {body['measured']} of {body['cases']} cases timed in {body['spent_s']:.0f} s"
        + (f", {body['kept']} already in the file" if body["kept"] else "")
        + (f", {body['again']} repeated" if body["again"] else "")
        + f"; {body['stopped']}"
        + (f", {body['left']} left (continue with --resume)" if body["left"] else ""),
    ]
    for skipped in body["skipped"]:
        lines.append(f"skipped {skipped['count']}: {printable(skipped['reason'])} ({printable(skipped['cases'][0])})")
    if body["compared"]:
        lines.append(compared_table(body))
    rows = ", ".join(f"{count} {table}" for table, count in body["rows"].items())
    lines.append(f"{body['file']} holds {rows or 'no row yet'}")
    return Group(*lines)


def compared_table(body: JsonMap) -> Table:
    """Predicted and measured times, longest first."""
    every = body["errors"]["all"]
    title = f"Mean error of predictions: {every['mape']:.0%} over {every['cases']} cases"
    table = Table(title=title, title_justify="left")
    for name in ("case", "pass", "predicted", "80%", "measured", "ratio"):
        table.add_column(name, justify="left" if name in ("case", "pass") else "right")
    ordered = sorted(body["compared"], key=lambda row: -row["measured_s"])
    for row in ordered[:MOST_ROWS]:
        span = f"{format_seconds(row['low_s'])} - {format_seconds(row['high_s'])}"
        table.add_row(
            printable(label(row)),
            str(row.get("pass", row.get("phase", ""))),
            format_seconds(row["predicted_s"]),
            span,
            format_seconds(row["measured_s"]),
            f"{row['ratio']:.2f}",
        )
    if len(ordered) > MOST_ROWS:
        table.caption = f"and {len(ordered) - MOST_ROWS} shorter ones"
    return table


def label(row: JsonMap) -> str:
    """A short label of a case: its name, or table and sizes."""
    first = str(row.get("name") or row.get("model") or row.get("op") or row["table"])
    sizes = [str(row[name]) for name in ("m", "n", "k", "rows", "cols", "heads", "seq_q", "seq_kv") if name in row]
    return f"{first} {' x '.join(sizes)} {row.get('layout', '')}".strip()


def study_view(body: JsonMap) -> Group:
    """A case study: predicted and measured times of its arms."""
    study = body["study"]
    table = Table(title=printable(study["question"]), title_justify="left")
    columns = ("group", "arm", "predicted", "measured", "speedup predicted", "measured", "points apart")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < 2 else "right")
    for arm in study["arms"]:
        table.add_row(
            printable(arm["group"]),
            printable(arm["arm"]) + (" (baseline)" if arm["is_baseline"] else ""),
            *(_or_dash(arm[name], format_seconds) for name in ("predicted_s", "measured_s")),
            *(_or_dash(arm[name], "{:.3f}".format) for name in ("predicted_speedup", "measured_speedup")),
            _or_dash(arm["points_apart"], "{:+.1f}".format),
        )
    lines: list[Any] = [f"{printable(body['device']['device'])}: study {study['name']}, {study['size']} sizes", table]
    if study["median_points_apart"] is not None:
        lines.append(
            f"predicted and measured speedups differ by {study['median_points_apart']:.1f} points (median), at most "
            f"{study['most_points_apart']:.1f}; {study['within_5_points']} of {study['compared']} within 5 points"
        )
    for skipped in body["skipped"]:
        lines.append(f"skipped {skipped['count']}: {printable(skipped['reason'])} ({printable(skipped['cases'][0])})")
    return Group(*lines)


def parity_view(body: JsonMap) -> Group:
    """Loss of two shapes by seed, the difference with its interval, and the difference at equal time."""
    parity = body["parity"]
    table = Table(title="Loss on held-out text [nats per byte]", title_justify="left")
    for name in ("shape", "parameters", "step", *(f"seed {seed}" for seed in parity["seeds"]), "mean"):
        table.add_column(name, justify="left" if name == "shape" else "right")
    for shape in parity["shapes"]:
        final = [losses[-1] for losses in shape["losses"]]
        table.add_row(
            shape["name"],
            f"{shape['num_params']:,}",
            format_seconds(shape["step_s"]),
            *(f"{loss:.4f}" for loss in final),
            f"{sum(final) / len(final):.4f}",
        )
    verdict = "significant" if parity["differs"] else "not significant"
    return Group(
        table,
        f"second minus first: {parity['loss_difference']:+.4f} (95%: {parity['low']:+.4f} to {parity['high']:+.4f}), "
        f"{verdict} with {len(parity['seeds'])} seeds of {parity['tokens_per_run']:,} tokens",
        f"a step of the second is {parity['speedup']:.2f}x as fast; at equal time the loss difference is "
        f"{parity['equal_time_difference']:+.4f} (doubling the steps gains {parity['loss_per_doubling']:.4f})",
    )


def _or_dash(value: Any, form: Any) -> str:
    return "-" if value is None else str(form(value))


def calibration_view(body: JsonMap) -> Group:
    """The fit and its errors on fitted and held-out shapes."""
    table = Table(title=f"{body['gpu']} {body['dtype']}: {body['source']}", title_justify="left")
    for name in ("errors of", "shapes", "mean", "median", "p90", "bias"):
        table.add_column(name, justify="left" if name == "errors of" else "right")
    start = "catalogue" if body["start"] == body["gpu"] else body["start"]
    kinds = {
        "catalogue": "without this file",
        "before": f"start ({start})",
        "fit": "shapes fitted on",
        "held_out": "held-out regions",
    }
    for key, words in kinds.items():
        e = body[key]
        table.add_row(
            words, f"{e['rows']:,}", *(f"{e[name]:.1%}" for name in ("mape", "median", "p90")), f"{e['bias']:.3f}"
        )
    lines = [
        f"{each['section']}: {each['before']:.0%} before, {each['fit']:.0%} fitted on {each['rows']} rows"
        for each in body.get("streams", ())
    ]
    lines += [f"{body['rows']:,} rows, {body['shapes']:,} shapes, {body['samples']:,} fitted on"]
    base = "the package's own" if body["over"] == "package" else "fitted coefficients"
    lines += [f"predictions: {base}" + (" times a factor from these measurements" if body["own_rows"] else "")]
    lines += [f"80% intervals cover {body['coverage_80']:.0%} of held-out shapes"]
    lines += [f"left out {each['rows']:,} rows: {each['reason']}" for each in body["left_out"]]
    lines += [*body["remarks"], *([f"wrote {body['file']}"] if body["file"] else [])]
    return Group(table, "\n".join(lines))


def change_view(change: JsonMap) -> Group:
    """Ratio of predicted times after over before, by region; changed coefficients."""
    table = Table(title=f"{change['after']} against {change['before']}", title_justify="left")
    for name in ("rows (m)", "weights", "GEMMs", "time ratio", "p10", "p90"):
        table.add_column(name, justify="left" if name in ("rows (m)", "weights") else "right")
    for each in change["regions"]:
        ratios = (f"{each[name]:.3f}" for name in ("ratio", "least", "greatest"))
        table.add_row(each["rows"], each["weights"], f"{each['products']:,}", *ratios)
    upgraded = [f"{each['name']}: {each['before'] or '-'} -> {each['after'] or '-'}" for each in change["made_with"]]
    moved = [f"{each['name']}: {each['before']:.4g} -> {each['after']:.4g}" for each in change["coefficients"]]
    return Group(*upgraded, table, "\n".join(moved) if moved else "no coefficient changed by more than 2%")
