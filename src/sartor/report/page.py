"""A document as an offline HTML page.

A page contains everything it needs (the Vega libraries once, for all figures), and a content security policy keeps the
browser from fetching anything. The same answer gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from sartor.bounded import packaged_toml
from sartor.json_types import JsonMap
from sartor.report.charts import PAGE, draw
from sartor.report.document import ON_PAGE, Document, PageBlock
from sartor.report.frame import vl_convert
from sartor.report.grid import Markup, element, grid_table, join, json_block
from sartor.report.palette import DARK, LIGHT, css_variables
from sartor.report.words import arrows

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The browser may run the file's own scripts and styles, but fetch nothing."""


def page_of(document: Document, date: str = "") -> str:
    """The document as an offline page; ``date`` is printed as given."""
    shown = [block for block in document.blocks if block.place in ON_PAGE]
    links = [(block.anchor, block.link) for block in shown if block.link]
    links += [("reading", "How to read this")] if document.glossary else []
    links += [(block.anchor, block.link) for block in document.after if block.link]
    header = element(
        "header",
        element("h1", document.title),
        element("p", document.question, class_="question"),
        *([element("nav", *(element("a", word, href=f"#{anchor}") for anchor, word in links), aria_label="Sections")]
          if links else []),
    )  # fmt: skip
    parts = [part for block in shown for part in _markup(block, document.records)]
    glossary = [_how_to_read(document.command)] if document.glossary else []
    after = [part for block in document.after for part in _markup(block, document.records)]
    main = element("main", *parts, *glossary, *after)
    title = f"{document.title}: sartor {document.command}"
    return _whole_page(title, (header, main, _footer(date)), document.records)


def _markup(block: PageBlock, records: Mapping[str, Any]) -> list[Markup]:
    parts: list[Markup] = []
    parts += [element("h2" if block.anchor else "h3", block.heading, id=block.anchor or None)] if block.heading else []
    words = element("p", arrows(block.words))
    parts += [element("div", words, class_="verdict") if block.verdict else words] if block.words else []
    parts += [_cards_list(list(block.cards))] if block.cards else []
    parts += [_figure(records, block.figure, block.note)] if block.figure else []
    parts += [grid_table(block.grid)] if block.grid else []
    framed = [element("div", *(element("p", arrows(line)) for line in block.lines), class_="verdict")]
    parts += [] if not block.lines else framed if block.verdict else [_bullets(block.title, block.lines)]
    parts += [block.markup()] if block.markup else []
    return parts


def _whole_page(title: str, body: tuple[Markup, ...], records: JsonMap) -> str:
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


def _cards_list(cards: list[tuple[str, str, str]]) -> Markup:
    """Key figures: name, value, and a line below it."""
    items = (element("div", element("dt", n), element("dd", v, element("small", d))) for n, v, d in cards)
    return element("dl", *items, class_="numbers")


def _footer(date: str) -> Markup:
    """Version and date."""
    from sartor import __version__

    made = f"sartor {__version__}" + (f", {date}" if date else "")
    return element(
        "footer",
        element("p", f"Made by {made}. Numbers are predictions unless marked as measured."),
        element("p", "Figures are drawn by Vega, Vega-Lite and vega-embed (BSD-3-Clause), included in this file."),
    )


def _figure(records: JsonMap, name: str, note: str = "") -> Markup:
    if name not in records:
        return Markup("")
    caption = element("figcaption", arrows(records[name].title), element("small", note) if note else "")
    words = "The figures need JavaScript; the tables show the same numbers."
    fallback = element("noscript", element("p", words, class_="note"))
    return element("figure", caption, element("div", id=f"figure-{name}", class_="plot"), fallback)


def _bullets(title: str, lines: Sequence[str]) -> Markup:
    if not lines:
        return Markup("")
    return join([element("h3", title), element("ul", *(element("li", line) for line in dict.fromkeys(lines)))])


def _how_to_read(command: str) -> Markup:
    """The glossary at the end of a command's page."""
    terms = packaged_toml("report", "glossary.toml")[command]
    items = [item for term, words in terms.items() for item in (element("dt", term), element("dd", words))]
    return join([element("h2", "How to read this", id="reading"), element("dl", *items, class_="reading")])
