"""Catalogues as tables: one line per entry, or all fields of one entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sartor.answers.catalogs import ENTRIES
from sartor.json_types import JsonDict
from sartor.report.grid import field_grid, grid_of, grid_view, words_column

if TYPE_CHECKING:
    from rich.console import RenderableType


def catalog_view(what: str, entries: Sequence[JsonDict], *, whole: bool) -> RenderableType:
    """A table of a catalogue (``gpus``, ``models``, ...), or all fields of its only entry (``whole``)."""
    if not whole:
        return grid_view(field_grid(what, ENTRIES[what], entries))
    entry = entries[0]
    if what == "rules":
        from rich.markdown import Markdown

        return Markdown(f"# {entry['code']} {entry['name']}\n\n{entry['page']}")
    rows = ((name, _words(value)) for field, whole_value in entry.items() for name, value in _flat(field, whole_value))
    return grid_view(grid_of(what, ("field", words_column("value")), rows))


def _flat(field: str, value: object) -> Iterator[tuple[str, object]]:
    """A field as rows: tables by key, lists of tables by position and key."""
    if isinstance(value, dict):
        yield from ((f"{field}.{key}", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)) and any(isinstance(item, dict) for item in value):
        for position, table in enumerate(value):
            yield from ((f"{field}.{position}.{key}", item) for key, item in table.items())
    else:
        yield field, value


def _words(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:,}"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
