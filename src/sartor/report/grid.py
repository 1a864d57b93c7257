"""Tables described once: the terminal and the HTML pages show the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sartor.answers.field import Field, Level, Scalar, columns_of, texts_of
from sartor.report.words import printable
from sartor.units import format_share

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

BAR = 24
"""Characters in the longest bar."""


class Cell(str):
    """A cell with more to it on a page: ``markup`` is HTML, or other words."""

    markup: str

    def __new__(cls, words: str, markup: str) -> Cell:
        cell = super().__new__(cls, words)
        cell.markup = markup
        return cell


@dataclass(frozen=True, slots=True, kw_only=True)
class GridColumn:
    """A column: its head, a tooltip, whether it holds numbers, whether only pages have room for it."""

    head: str
    explains: str | None = None
    number: bool = True
    page_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table: columns, rows of text, optional bars (shares of the longest) and a marked row."""

    caption: str
    columns: tuple[GridColumn, ...]
    rows: tuple[tuple[object, ...], ...]
    bars: tuple[float, ...] = ()
    marked: int = -1


def grid_of(caption: str, columns: Iterable[str | GridColumn], rows: Iterable[tuple[object, ...]], **more: Any) -> Grid:
    """A grid whose first column given as a word holds names and the others numbers."""
    made = [c if isinstance(c, GridColumn) else GridColumn(head=c, number=i > 0) for i, c in enumerate(columns)]
    return Grid(caption=caption, columns=tuple(made), rows=tuple(rows), **more)


def field_grid(caption: str, columns: Iterable[Field], records: Iterable[object], **more: Any) -> Grid:
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
    return Grid(caption=caption, columns=tuple(heads), rows=rows, **more)


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


def grid_view(grid: Grid) -> Table:
    """A grid for the terminal: words on the left (folded if long), numbers on the right (never wrapped)."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    shown = [i for i, column in enumerate(grid.columns) if not column.page_only]
    for column in (grid.columns[i] for i in shown):
        table.add_column(
            column.head, justify="right" if column.number else "left", no_wrap=column.number, overflow="fold"
        )
    if grid.bars:
        table.add_column("", no_wrap=True)
    for at, row in enumerate(grid.rows):
        bar = [share_bar(grid.bars[at])] if grid.bars else []
        table.add_row(*(Text(printable(str(row[i]))) for i in shown), *bar)
    return table


def share_bar(share: float) -> Text:
    """``share`` of a whole bar, at least one character unless it is zero."""
    from rich.text import Text

    return Text("#" * max(round(BAR * share), int(share > 0)), style="blue")
