"""A calibration in the terminal: errors, and changes against another one, from the JSON body."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table

from sartor.units import JsonMap


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
    """Ratio of predicted times after and before, by region; changed coefficients."""
    table = Table(title=f"{change['after']} against {change['before']}", title_justify="left")
    for name in ("rows (m)", "weights", "GEMMs", "time ratio", "p10", "p90"):
        table.add_column(name, justify="left" if name in ("rows (m)", "weights") else "right")
    for each in change["regions"]:
        ratios = (f"{each[name]:.3f}" for name in ("ratio", "least", "greatest"))
        table.add_row(each["rows"], each["weights"], f"{each['products']:,}", *ratios)
    upgraded = [f"{each['name']}: {each['before'] or '-'} -> {each['after'] or '-'}" for each in change["made_with"]]
    moved = [f"{each['name']}: {each['before']:.4g} -> {each['after']:.4g}" for each in change["coefficients"]]
    return Group(*upgraded, table, "\n".join(moved) if moved else "no coefficient changed by more than 2%")
