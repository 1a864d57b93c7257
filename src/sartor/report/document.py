"""An answer as blocks in reading order, for people: one renderer prints them, another makes an offline page of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from sartor.report.grid import Grid, Markup, grid_view
from sartor.report.words import printable

if TYPE_CHECKING:
    from rich.console import RenderableType


class Place(Enum):
    """Where a block is shown. The terminal shows one screen, and the whole answer with ``--verbose``."""

    BOTH = "both"
    TEXT = "text"
    PAGE = "page"
    SHORT = "the one screen alone"
    LONG = "the whole answer in the terminal alone"
    REST = "all but the one screen"


IN_TERMINAL = {
    False: (Place.BOTH, Place.TEXT, Place.SHORT),
    True: (Place.BOTH, Place.TEXT, Place.LONG, Place.REST),
}
"""Places that the terminal shows, by ``verbose``."""
ON_PAGE = (Place.BOTH, Place.PAGE, Place.REST)
IN_THE_FIRST_LINE = ("plan: ", "from the zoo")
"""Starts of assumptions that the first line of an answer has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageBlock:
    """A piece of a document; each kind has a field of its own."""

    place: Place = Place.BOTH
    heading: str = ""
    anchor: str = ""
    """Of a heading: its id on the page; with ``link``, the page's list of sections has it."""
    link: str = ""
    words: str = ""
    style: str = ""
    """Of words, and of the first of a verdict's lines: their style in the terminal."""
    verdict: bool = False
    """Of words and of lines: the answer in short, which the page frames."""
    title: str = ""
    lines: Sequence[str] = ()
    """A titled list, or the paragraphs of a verdict; nothing if it is empty."""
    grid: Grid | None = None
    figure: str = ""
    """Name of a figure's record; nothing if there is none."""
    note: str = ""
    cards: Sequence[tuple[str, str, str]] = ()
    """Key figures: name, value, and a line below it."""
    view: Callable[[], RenderableType] | None = None
    """Makes what only the terminal shows."""
    markup: Callable[[], Markup] | None = None
    """Makes what only the page shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole answer."""

    title: str
    question: str
    command: str
    blocks: Sequence[PageBlock]
    records: Mapping[str, Any] = field(default_factory=dict)
    """The figures' records by name."""
    glossary: bool = False
    """Whether the page ends with the command's glossary."""
    after: Sequence[PageBlock] = ()
    """What the page has below the glossary."""


def section(heading: str, anchor: str = "", link: str = "", place: Place = Place.BOTH) -> PageBlock:
    """The heading of a section."""
    return PageBlock(heading=heading, anchor=anchor, link=link, place=place)


def opening(lines: Iterable[str], *, bad: bool = False) -> PageBlock:
    """The first lines of an answer in the terminal: whether it fits (red if not), how fast, what to change."""
    return PageBlock(lines=tuple(lines), verdict=True, style="bold red" if bad else "", place=Place.TEXT)


def grid_block(grid: Grid, place: Place = Place.BOTH) -> PageBlock:
    """A table."""
    return PageBlock(grid=grid, place=place)


def cut_blocks(grid: Grid, rows: int) -> list[PageBlock]:
    """A table of which one screen shows the first rows, the marked one among them."""
    first = list(range(len(grid.rows)))[:rows]
    if grid.marked >= rows:
        first[-1] = grid.marked
    short = replace(
        grid,
        rows=tuple(grid.rows[i] for i in first),
        bars=tuple(grid.bars[i] for i in first if grid.bars),
        marked=min(grid.marked, rows - 1),
    )
    return [grid_block(short, Place.SHORT), grid_block(grid, Place.REST)]


def cut_bullets(title: str, lines: Sequence[str], limit: int) -> list[PageBlock]:
    """A titled list of which one screen shows the first lines."""
    if len(lines) <= limit:
        return [bullets_block(title, lines)]
    few = [*lines[:limit], f"and {len(lines) - limit} more (--json and --html have all)"]
    return [bullets_block(title, few, Place.SHORT), bullets_block(title, lines, Place.REST)]


def in_full(blocks: Iterable[PageBlock]) -> list[PageBlock]:
    """Blocks that one screen leaves out."""
    longer = {Place.BOTH: Place.REST, Place.TEXT: Place.LONG}
    blocks = (block for block in blocks if block.place is not Place.SHORT)
    return [replace(block, place=longer.get(block.place, block.place)) for block in blocks]


def assumed_blocks(assumptions: Iterable[str], extra: Iterable[str] = ()) -> list[PageBlock]:
    """What an answer assumed: on one screen a sentence without what its first line says and without ``more``."""
    assumptions = tuple(assumptions)
    rest = "; ".join(words for words in assumptions if not words.startswith(IN_THE_FIRST_LINE))
    words = f"{f'Assumed: {rest}. ' if rest else ''}More: --verbose"
    return [
        PageBlock(lines=("",), verdict=True, place=Place.SHORT),
        PageBlock(words=words, style="dim", place=Place.SHORT),
        bullets_block("Assumed", (*assumptions, *extra), Place.REST),
    ]


def figure_block(name: str, note: str = "") -> PageBlock:
    """A figure of the page."""
    return PageBlock(figure=name, note=note, place=Place.PAGE)


def bullets_block(title: str, lines: Iterable[str], place: Place = Place.BOTH) -> PageBlock:
    """A titled list."""
    return PageBlock(title=title, lines=tuple(lines), place=place)


def document_text(blocks: Iterable[PageBlock], heading: str = "", *, verbose: bool = False) -> RenderableType:
    """The blocks for the terminal, below a heading: on one screen unless ``verbose``."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(printable(heading), style="bold")] if heading else []
    shown = (block for block in blocks if block.place in IN_TERMINAL[verbose])
    return Group(*parts, *(part for block in shown for part in _printed(block)))


def _printed(block: PageBlock) -> Iterator[RenderableType]:
    """A block's parts in the terminal; titles with an empty line above them."""
    from rich.padding import Padding
    from rich.text import Text

    if block.heading:
        yield Padding(Text(printable(block.heading), style="bold underline"), (1, 0, 0, 0), expand=False)
    if block.words:
        yield Text(printable(block.words), style=block.style)
    if block.grid:
        yield grid_view(block.grid)
    if block.verdict:
        yield from (Text(printable(line), style="" if i else block.style) for i, line in enumerate(block.lines))
    elif block.lines:
        yield Padding(Text(f"{block.title}:", style="bold"), (1, 0, 0, 0), expand=False)
        yield from (_bullet(line) for line in block.lines)
    if block.view:
        yield block.view()


def _bullet(line: str) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    bullet = Table.grid(padding=(0, 1, 0, 0))
    bullet.add_column(width=1)
    bullet.add_column(overflow="fold")
    bullet.add_row(Text("-", style="dim"), Text(printable(line)))
    return bullet


def document_page(document: Document, date: str = "") -> str:
    """The whole offline page (UTF-8). ``date`` is printed as given. Raises ``MissingExtraError`` without the extra
    ``report``."""
    from sartor.report.page import page_of

    return page_of(document, date)
