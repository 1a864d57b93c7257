"""The offline HTML page of ``sartor validate``: figures, tables, worst targets, rows left out."""

from __future__ import annotations

from collections.abc import Sequence

from sartor.json_types import JsonMap
from sartor.report.accuracy_view import case_text, counted, legend_of, name_of, origins
from sartor.report.draw_measured import draw_error_by_size, draw_scatter
from sartor.report.frame import Chart, to_svg
from sartor.report.grid import GridColumn
from sartor.report.html import Markup, element, join, table
from sartor.report.page import _style as style

_COLUMNS = (
    ("mape", "MAPE"),
    ("median_error", "median"),
    ("p90_error", "p90"),
    ("bias", "bias"),
    ("coverage_80", "in 80%"),
    ("kendall_tau", "tau"),
    ("measured_spread", "noise"),
    ("roofline_mape", "roofline MAPE"),
    ("heuristics_mape", "nvMMH MAPE"),
    ("naive_mape", "naive MAPE"),
    ("shots_mape", "MAPE after shots"),
    ("memory_mape", "memory MAPE"),
    ("pair_accuracy", "pairs"),
    ("top1_regret", "regret"),
)


_FIGURES = (
    "figure{overflow-x:auto}figure svg{max-width:100%;height:auto}"
    "@media screen and (prefers-color-scheme:dark){figure svg{filter:invert(.92) hue-rotate(180deg)}}"
)
"""Figures no wider than the page, dark in dark mode."""


def accuracy_page(body: JsonMap, charts: Sequence[JsonMap]) -> str:
    """The page as a string. ``charts`` has one entry per kind of table: ``table``, ``scatter`` and ``errors`` rows.

    Raises ``MissingExtraError`` without the extra ``report``.
    """
    title = "Predicted against measured"
    main = [element("p", f"{body['expressed']:,} rows of {body['data']} have a prediction. {legend_of(body)}")]
    main += _bullets("Remarks", body["remarks"])
    for chart in charts:
        main += _section(chart, [group for group in body["groups"] if group["table"] == chart["table"]])
    main += _bullets("Calibration", origins(body["groups"]))
    for words, field in (("Not predicted", "not_expressed"), ("Left out", "left_out")):
        main += _bullets(words, counted(body[field]))
    main += _bullets("Assumed", [f"{name}: {words}" for name, words in body["assumptions"].items()])
    head = join(
        [
            Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'),
            element("title", f"{title}: sartor validate"),
            Markup(f"<style>{style()}{_FIGURES}</style>"),
        ]
    )
    inner = join([element("header", element("h1", title)), element("main", *main)])
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{inner}\n</body>\n</html>\n'


def _section(chart: JsonMap, groups: Sequence[JsonMap]) -> list[Markup]:
    name = chart["table"]
    parts = [element("h2", name)]
    if chart["scatter"]:
        parts.append(_svg(draw_scatter(f"{name}: predicted against measured", chart["scatter"])))
        parts.append(_svg(draw_error_by_size(f"{name}: error by size", chart["errors"])))
    shown = [(key, word) for key, word in _COLUMNS if any(group.get(key) is not None for group in groups)]
    columns = [
        GridColumn(head="group", number=False),
        GridColumn(head="targets"),
        *(GridColumn(head=w) for _, w in shown),
    ]
    rows = [
        (name_of(group), f"{group['targets']:,}", *(_figure(key, group.get(key)) for key, _ in shown))
        for group in groups
    ]
    parts.append(table(columns, rows, caption=f"{name}: error per group"))
    cases = sorted((c for g in groups for c in g["worst"]), key=lambda c: -max(c["ratio"], 1 / c["ratio"]))
    return [*parts, *_bullets("Worst", [case_text(case) for case in cases[:5]])]


def _svg(chart: Chart) -> Markup:
    return element("figure", Markup(to_svg(chart)))


def _figure(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if key == "kendall_tau" else f"{100 * value:.1f}%"


def _bullets(title: str, lines: Sequence[str]) -> list[Markup]:
    return [element("h3", title), element("ul", *(element("li", line) for line in lines))] if lines else []
