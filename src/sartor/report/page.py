"""What every offline HTML page is made of, and its sections that explain.

A page contains everything it needs (the Vega libraries once, for all figures), and a content security policy keeps the
browser from fetching anything. The same answer gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from sartor.bounded import packaged_toml
from sartor.cost.correction.calibration import load_calibration
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.report.charts import PAGE, draw
from sartor.report.frame import vl_convert
from sartor.report.grid import GridColumn, Markup, element, grid_of, grid_table, join, json_block, words_column
from sartor.report.palette import DARK, LIGHT, css_variables
from sartor.report.words import arrows
from sartor.units import format_share

if TYPE_CHECKING:
    from sartor.answers.advice import Advice

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The browser may run the file's own scripts and styles, but fetch nothing."""


def whole_page(title: str, body: tuple[Markup, ...], records: JsonMap) -> str:
    """One offline page: ``body``, the specifications of its figures, the libraries that draw them, and styles."""
    specs = {f"figure-{name}": draw(points, PAGE).to_dict() for name, points in records.items()}
    drawing = [json_block("figures", specs), _script(_bundle()), _script(_asset("page.js"))] if specs else []
    inner = join([*body, *drawing], Markup("\n"))
    head = join(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
            Markup('<meta name="viewport" content="width=device-width,initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            element("title", title),
            Markup(f"<style>{_style()}</style>"),
        ],
        Markup("\n"),
    )
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{inner}\n</body>\n</html>\n'


def _style() -> str:
    light = css_variables(LIGHT) + "--orange-text:#9a6700;"
    dark = css_variables(DARK) + f"--orange-text:{DARK.orange};"
    return (
        f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        f"@media print{{:root{{color-scheme:light}}}}\n{_asset('page.css')}"
    )


def _asset(name: str) -> str:
    return (resources.files("sartor.report") / "assets" / name).read_text(encoding="utf-8")


def _script(source: str) -> Markup:
    """Inline JavaScript, escaped so that it cannot end the element early."""
    return Markup("<script>" + source.replace("</script", "<\\/script").replace("<!--", "<\\!--") + "</script>")


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and vega-embed (BSD-3-Clause) as one script."""
    return str(vl_convert().javascript_bundle("window.vegaEmbed=vegaEmbed;"))


def cards_list(cards: list[tuple[str, str, str]]) -> Markup:
    """Key figures: name, value, and a line below it."""
    items = (element("div", element("dt", n), element("dd", v, element("small", d))) for n, v, d in cards)
    return element("dl", *items, class_="numbers")


def footer(date: str) -> Markup:
    """Version and date."""
    from sartor import __version__

    made = f"sartor {__version__}" + (f", {date}" if date else "")
    return element(
        "footer",
        element("p", f"Made by {made}. Numbers are predictions unless marked as measured."),
        element("p", "Figures are drawn by Vega, Vega-Lite and vega-embed (BSD-3-Clause), included in this file."),
    )


def figure(records: JsonMap, name: str, note: str = "") -> Markup:
    if name not in records:
        return Markup("")
    caption = element("figcaption", arrows(records[name].title), element("small", note) if note else "")
    words = "The figures need JavaScript; the tables show the same numbers."
    fallback = element("noscript", element("p", words, class_="note"))
    return element("figure", caption, element("div", id=f"figure-{name}", class_="plot"), fallback)


def bullets(title: str, lines: Sequence[str]) -> Markup:
    if not lines:
        return Markup("")
    return join([element("h3", title), element("ul", *(element("li", line) for line in dict.fromkeys(lines)))])


def how_to_read(command: str) -> Markup:
    """The glossary at the end of a command's page."""
    terms = packaged_toml("report", "glossary.toml")[command]
    items = [item for term, words in terms.items() for item in (element("dt", term), element("dd", words))]
    return join([element("h2", "How to read this", id="reading"), element("dl", *items, class_="reading")])


def sources_section(advice: Advice) -> Markup:
    """Per device: its datasheet field by field, and which measurements its calibration is fitted to."""
    parts = [element("h2", "Sources", id="sources")]
    for gpu in advice.gpus:
        parts += [element("h3", gpu.name), _datasheet(gpu), _calibration(gpu)]
        parts += [element("p", line, class_="note") for line in _gpu_lines(gpu)]
    return join(parts)


def _datasheet(gpu: Gpu) -> Markup:
    fields: dict[str, list[str]] = {}
    for name, document in gpu.sources.items():
        fields.setdefault(str(document), []).append("everything else" if name == "all" else str(name))
    columns = [words_column("field"), words_column("document")]
    rows = [(", ".join(sorted(names)), document) for document, names in fields.items()]
    return grid_table(grid_of(f"Datasheet of {gpu.name}", columns, rows))


def _calibration(gpu: Gpu) -> Markup:
    """Fitted parts, one row per source: measurements, rows, and errors on held-out rows."""
    fits: dict[str, tuple[list[str], JsonMap]] = {}
    known, with_units = load_calibration(gpu), {f"gemm.{dtype.value}" for dtype in gpu.peak_flops_per_s}
    for section, entry in sorted(known.provenance.items()):
        if entry and (section in with_units | known.calibrated or not section.startswith("gemm.")):
            fits.setdefault(str(entry.get("source", section)), ([], entry))[0].append(section)
    if not fits:
        return Markup("")
    columns = [
        words_column("part"),
        GridColumn(head="mean error", explains="mean relative error on held-out rows"),
        GridColumn(head="median", explains="median relative error on held-out rows"),
        GridColumn(head="p90", explains="90th percentile of the relative error on held-out rows"),
        GridColumn(head="rows", explains="held-out rows"),
        GridColumn(head="date"),
        words_column("measurements"),
    ]
    rows = [_fit_row(", ".join(names), entry) for names, entry in fits.values()]
    return grid_table(grid_of(f"Calibration of {gpu.name}, with errors on rows the fit never saw", columns, rows))


def _fit_row(names: str, entry: JsonMap) -> tuple[str, ...]:
    nested = {key: value for key, value in entry.items() if isinstance(value, Mapping)}
    errors = nested.get("held_out", next(iter(nested.values()), {}))
    shares = (format_share(errors[key]) if key in errors else "" for key in ("mape", "median", "p90"))
    rows = f"{errors['rows']:,.0f}" if "rows" in errors else ""
    words = (str(entry[key]) for key in ("source", "lender", "note") if key in entry)
    return names, *shares, rows, str(entry.get("date", "")), "; ".join(words)


def _gpu_lines(gpu: Gpu) -> list[str]:
    """Where the calibration and the price come from."""
    lines, known = [], load_calibration(gpu)
    if any(entry.get("lender") == "joint" for name, entry in known.provenance.items() if name.startswith("gemm")):
        lines.append("GEMM calibration: joint fit of several generations, applied to this device's datasheet")
    elif known.relative:
        lines.append(f"GEMM calibration borrowed from {known.relative}")
    if not known.provenance:
        lines.append(f"not calibrated: typical efficiencies of the {gpu.generation} generation")
    if gpu.price_usd_per_hour is not None:
        lines.append(f"price {gpu.price_usd_per_hour} USD per hour: {gpu.price_source} ({gpu.price_date})")
    return lines
