"""The offline HTML page of ``advise``: verdict, figures, findings, shapes, notes, sources.

The page contains everything it needs (the Vega libraries once, for all figures), and a content security policy keeps
the browser from fetching anything. The same answer gives the same bytes.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from sartor.json_types import JsonMap
from sartor.report.charts import PAGE, draw
from sartor.report.figures import advice_points
from sartor.report.frame import vl_convert
from sartor.report.html import Markup, element, join, json_block
from sartor.report.page_notes import how_to_read, sources_section
from sartor.report.page_sections import arrows, bullets, figure, findings_section, operators, shapes_section
from sartor.report.palette import DARK, LIGHT, css_variables
from sartor.report.verdict import verdict_parts
from sartor.report.words import speedup_text, workload_text
from sartor.units import format_count, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers import Advice

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The browser may run the file's own scripts and styles, but fetch nothing."""


def advice_page(advice: Advice, *, date: str = "") -> str:
    """The whole page as a string (UTF-8, under 1.5 MB). ``date`` is printed as given.

    Raises ``MissingExtraError`` without the extra ``report``.
    """
    records = advice_points(advice)
    question = advice.base.question
    title = f"{question.reading.shape.name or 'model'} on {question.gpu.name}"
    main = element("main", *_sections(advice, records))
    return whole_page(f"{title}: sartor advise", (_header(advice, title), main, footer(date)), records)


def whole_page(title: str, body: tuple[Markup, ...], records: JsonMap) -> str:
    """One offline page: ``body``, the specifications of its figures, the libraries that draw them, and styles."""
    specs = {f"figure-{name}": draw(points, PAGE).to_dict() for name, points in records.items()}
    inner = join(
        [*body, json_block("figures", specs), _script(_bundle()), _script(_asset("page.js"))],
        Markup("\n"),
    )
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


def _header(advice: Advice, title: str) -> Markup:
    question = advice.base.question
    links = [("time", "Time"), ("findings", "Findings"), ("shapes", "Shapes"), ("operators", "Operators")]
    links += [("reading", "How to read this"), ("sources", "Sources")]
    return element(
        "header",
        element("h1", title),
        element("p", f"{workload_text(question.workload)}; {_params(question.reading)}", class_="question"),
        element("nav", *(element("a", word, href=f"#{anchor}") for anchor, word in links), aria_label="Sections"),
    )


def _params(reading: Any) -> str:
    total, active = float(reading.num_params), float(reading.num_active_params)
    if active == total:
        return f"{format_count(total)} parameters"
    return f"{format_count(total)} parameters, {format_count(active)} active"


def _sections(advice: Advice, records: JsonMap) -> list[Markup]:
    return [
        element("div", *(element("p", arrows(part)) for part in verdict_parts(advice)), class_="verdict"),
        _numbers(advice),
        element("h2", "Where the time goes", id="time"),
        figure(records, "time_by_operator", "Bars: all executions of an operator in one step. Lines: 80% interval."),
        figure(records, "roofline", "Discs: the current shape. Open diamonds: after the recommended change."),
        findings_section(advice, records),
        shapes_section(advice, records),
        element("h2", "Every operator", id="operators"),
        operators(advice.base.estimate),
        bullets("Assumed", [*advice.base.question.assumptions, *advice.search.assumptions]),
        how_to_read(),
        sources_section(advice),
    ]


def _numbers(advice: Advice) -> Markup:
    """The four key figures."""
    base, search = advice.base, advice.search
    grades = [finding.grade.value for finding in advice.findings]
    counted = ", ".join(f"{grades.count(g)} {g}" for g in ("error", "warn", "info") if g in grades) or "none"
    step = f"80%: {format_seconds(float(base.low_s))} to {format_seconds(float(base.high_s))}"
    cards = [
        ("Step time", format_seconds(float(base.time_s)), step),
        (
            "Share of dense peak (MFU)",
            format_share(float(base.mfu)),
            f"{format_count(float(base.tokens_per_s_per_device))} tokens/s per device",
        ),
        ("Findings", str(len(grades)), counted),
    ]
    if search.candidates:
        best = search.candidates[0]
        low, high = speedup_text(best.efficiency_low), speedup_text(best.efficiency_high)
        words = f"at equal work; 80%: {low} to {high}"
        cards.append(("Best shape of this size", speedup_text(best.efficiency_gain), words))
    else:
        cards.append(("Best shape of this size", "this one", f"no sure gain in {search.evaluated:,} compared"))
    return cards_list(cards)


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
