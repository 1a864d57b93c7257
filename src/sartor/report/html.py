"""Small pieces of HTML. All text is escaped here and nowhere else, so nothing from a file can become markup."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable

from sartor.report.grid import Cell, Grid, GridColumn
from sartor.report.words import printable


class Markup(str):
    """A string that is HTML already; every other string is escaped when it is placed."""

    __slots__ = ()


def text(value: object) -> Markup:
    """A value as safe HTML: escaped, without control or invisible characters."""
    return value if isinstance(value, Markup) else Markup(html.escape(printable(str(value)), quote=True))


def element(name: str, *children: object, **attributes: object) -> Markup:
    """``element("p", "a < b", class_="note")`` -> ``<p class="note">a &lt; b</p>``."""
    attributes_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{attributes_text}>{''.join(text(child) for child in children)}</{name}>")


def join(parts: Iterable[object], between: str = "") -> Markup:
    """Pieces one after the other; strings among them are escaped."""
    return Markup(text(between).join(text(part) for part in parts))


def grid_table(grid: Grid) -> Markup:
    """A table whose header stays visible, in a box that scrolls if it is wider than the page."""
    heads = (
        element("th", c.head, scope="col", title=c.explains, class_="number" if c.number else None)
        for c in grid.columns
    )
    body = join(
        element("tr", *(_cell(c, value, i) for i, (c, value) in enumerate(zip(grid.columns, row, strict=True))),
                class_="marked" if index == grid.marked else None)
        for index, row in enumerate(grid.rows)
    )  # fmt: skip
    head, body = element("thead", element("tr", *heads)), element("tbody", body)
    inner = element("table", element("caption", grid.caption), head, body)
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=grid.caption)


def _cell(column: GridColumn, value: object, position: int) -> Markup:
    rich = isinstance(value, Cell)
    kind = "number" if column.number and not rich else None
    value = value.markup if isinstance(value, Cell) else value
    return element("th", value, scope="row") if position == 0 else element("td", value, class_=kind)


def json_block(identifier: str, value: object) -> Markup:
    """Data embedded in a page: JSON that cannot close its own element."""
    body = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    safe = body.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(f'<script type="application/json" id="{text(identifier)}">{safe}</script>')


def markdown(source: str, *, level: int = 4) -> Markup:
    """Convert the Markdown of rule pages to HTML: ``##`` headings, paragraphs, lists, `code` and **strong**.

    ``level`` is the heading level that ``##`` becomes; a page's first line, its title, is left to the caller.
    """
    blocks = re.split(r"\n\s*\n", source.strip())
    return join(_block(block.strip(), level) for block in blocks)


def _block(block: str, level: int) -> Markup:
    if block.startswith("#"):
        return element(f"h{level}", _inline(block.lstrip("#").strip()))
    lines = block.splitlines()
    if all(line.lstrip().startswith(("- ", "* ")) or line.startswith("  ") for line in lines):
        items = re.split(r"\n(?=\s*[-*] )", block)
        return element("ul", *(element("li", _inline(" ".join(i.strip()[2:].split()))) for i in items))
    if block.startswith("```"):
        return element("pre", element("code", join(block.strip("`").split("\n")[1:], Markup("\n"))))
    return element("p", _inline(" ".join(block.split())))


def _inline(line: str) -> Markup:
    pieces = re.split(r"(`[^`]+`|\*\*[^*]+\*\*)", line)
    return join(
        element("code", piece[1:-1])
        if piece.startswith("`") and len(piece) > 2
        else element("strong", piece[2:-2])
        if piece.startswith("**") and len(piece) > 4
        else piece
        for piece in pieces
    )
