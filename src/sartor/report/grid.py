"""Tables described once, for the terminal and as HTML, where all text is escaped."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sartor.answers.field import Field, Level, Scalar, columns_of, texts_of
from sartor.report.words import printable
from sartor.units import format_share

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

BAR = 24
"""Characters in the longest bar; a bar has at least one, unless its share is zero."""
GAP = 2
"""Characters between columns, where there is room."""


class Cell(str):
    """A cell with more to it on a page: ``markup`` is HTML, or other words."""

    markup: str

    def __new__(cls, words: str, markup: str) -> Cell:
        cell = super().__new__(cls, words)
        cell.markup = markup
        return cell


@dataclass(frozen=True, slots=True, kw_only=True)
class GridColumn:
    """A column: its head, a tooltip, whether it holds numbers, whether only pages or wide terminals have room."""

    head: str
    explains: str | None = None
    number: bool = True
    page_only: bool = False
    wide_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table: columns, rows of text, optional bars (shares of the longest) and a marked row."""

    caption: str
    columns: tuple[GridColumn, ...]
    rows: tuple[tuple[object, ...], ...]
    bars: tuple[float, ...] = ()
    marked: int = -1


def grid_of(
    caption: str, columns: Iterable[str | GridColumn], rows: Iterable[tuple[object, ...]], **options: Any
) -> Grid:
    """A grid whose first column given as a word holds names and the others numbers."""
    heads = [c if isinstance(c, GridColumn) else GridColumn(head=c, number=i > 0) for i, c in enumerate(columns)]
    return Grid(caption=caption, columns=tuple(heads), rows=tuple(rows), **options)


def field_grid(caption: str, columns: Iterable[Field], records: Iterable[object], **options: Any) -> Grid:
    """A grid with a column for each field that has words, and a row for each record."""
    columns = columns_of(columns, Level.PAGE)
    heads = [
        GridColumn(
            head=column.words,
            explains=column.help or None,
            number=column.kind in (Scalar.NUMBER, Scalar.INTEGER),
            page_only=column.level is Level.PAGE,
        )
        for column in columns
    ]
    rows = tuple(tuple(texts_of(columns, record)) for record in records)
    return Grid(caption=caption, columns=tuple(heads), rows=rows, **options)


def shares_grid(
    caption: str, unit: str, parts: Sequence[tuple[str, float]], total: float, form: Callable[[float], str]
) -> Grid:
    """The parts of a whole: each with its amount, its share and a bar."""
    largest = max((amount for _, amount in parts), default=1.0)
    rows = ((words, form(amount), format_share(amount / total)) for words, amount in parts)
    bars = tuple(amount / largest for _, amount in parts)
    return grid_of(caption, ("part", unit, "share"), rows, bars=bars)


def words_column(head: str) -> GridColumn:
    """A column of words."""
    return GridColumn(head=head, number=False)


def page_column(head: str) -> GridColumn:
    """A column of numbers that only pages show."""
    return GridColumn(head=head, page_only=True)


def wide_column(head: str, explains: str | None = None) -> GridColumn:
    """A column of numbers that narrow terminals leave out."""
    return GridColumn(head=head, explains=explains, wide_only=True)


@dataclass(frozen=True, slots=True)
class grid_view:
    """A grid for the terminal: words on the left (folded if long), numbers on the right (never wrapped). Where it is
    too wide, heads take several lines, and bars and `wide_column` are left out."""

    grid: Grid

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[Table]:
        columns = self.grid.columns
        shown = [i for i, column in enumerate(columns) if not column.page_only]
        cells = {i: max((len(printable(str(row[i]))) for row in self.grid.rows), default=0) for i in shown}
        bar = (BAR + GAP) * bool(self.grid.bars)
        folded = {i: max(cells[i], *map(len, columns[i].head.split()), 0) for i in shown}
        if sum(max(cells[i], len(columns[i].head)) + GAP for i in shown) + bar <= options.max_width:
            yield self._table(shown, {}, GAP)
            return
        if sum(folded[i] + 1 for i in shown) > options.max_width:
            shown = [i for i in shown if not columns[i].wide_only]
        yield self._table(shown, {i: folded[i] for i in shown if columns[i].number}, 1)

    def _table(self, shown: Sequence[int], widths: Mapping[int, int], gap: int) -> Table:
        """The shown columns; numbers with a width fold their heads, and then there are no bars."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, gap, 0, 0), show_edge=False, header_style="bold")
        for i in shown:
            head, numbers = Text(self.grid.columns[i].head, no_wrap=False), self.grid.columns[i].number
            side: Literal["left", "right"] = "right" if numbers else "left"
            table.add_column(head, justify=side, no_wrap=numbers, overflow="fold", max_width=widths.get(i))
        bars = self.grid.bars if gap == GAP else ()
        if bars:
            table.add_column("", no_wrap=True)
        for index, row in enumerate(self.grid.rows):
            bar = [Text("#" * max(round(BAR * bars[index]), int(bars[index] > 0)), style="blue")] if bars else []
            table.add_row(*(Text(printable(str(row[i]))) for i in shown), *bar)
        return table


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
