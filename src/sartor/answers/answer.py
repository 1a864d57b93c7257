"""What every answer can do, from its table of fields: a short repr, JSON, a data frame, a table in a notebook."""

from __future__ import annotations

from dataclasses import fields as fields_of
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sartor.answers.field import Fields, Level, ListOf, columns_of, flat, main_rows, to_json
from sartor.errors import InputError, visible
from sartor.json_types import JsonDict

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST_ROWS = 20
"""Rows that a notebook shows of an answer's table; `Answer.to_frame` has all."""


class Answer:
    """Base of the answers of the Python API. Each class names its table: ``fields``."""

    __slots__ = ()
    fields: ClassVar[Fields]
    subject: ClassVar[Fields] = ()
    """What a repr says before the table's own headline: of what, and how fast."""

    @classmethod
    def holding(cls, record: DataclassInstance, **more: Any) -> Self:
        """An answer that extends the class of a solver's or reader's ``record``, with the record's values."""
        return cls(**{item.name: getattr(record, item.name) for item in fields_of(record)}, **more)

    @property
    def record(self) -> Any:
        """What the table reads."""
        return self

    def to_dict(self) -> JsonDict:
        """The body of the command's ``--json``: SI units, glossary names, plain Python values."""
        return dict(to_json(self.record, self.fields))

    def to_frame(self) -> Any:
        """The answer's table (operators, plans, candidates, loads, ...) as a ``pandas.DataFrame``, a column per field;
        one row if it has no table. Raises ``InputError`` if pandas is not installed."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise InputError("to_frame", "pandas", "needs the package pandas", "pip install pandas") from None
        return pandas.DataFrame(self._rows())

    def _rows(self) -> list[JsonDict]:
        table = main_rows(self.fields)
        if table is None or not isinstance(table.kind, ListOf) or not isinstance(table.kind.item, tuple):
            return [flat(self.fields, self.record)]
        return [flat(table.kind.item, row) for row in table.read(self.record)]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(f'{words} {value}' for words, value in self._headline())}>"

    def _headline(self) -> list[tuple[str, str]]:
        shown = (*self.subject, *columns_of(self.fields, Level.HEADLINE))
        record = self.record
        return [(column.words, visible(value)) for column in shown if (value := column.text(record))]

    def _repr_html_(self) -> str:
        """The headline, and the first rows of the table, for notebooks."""
        head = "; ".join(f"{escape(words)} <b>{escape(value)}</b>" for words, value in self._headline())
        return f"<p>{escape(type(self).__name__)}: {head}</p>{self._html_table()}"

    def _html_table(self) -> str:
        table = main_rows(self.fields)
        if table is None or not isinstance(table.kind, ListOf) or not isinstance(table.kind.item, tuple):
            return ""
        columns, records = columns_of(table.kind.item), list(table.read(self.record))
        if not columns or not records:
            return ""
        head = "".join(f'<th title="{escape(column.help)}">{escape(column.words)}</th>' for column in columns)
        cells = (
            "".join(f"<td>{escape(visible(column.text(record)))}</td>" for column in columns)
            for record in records[:MOST_ROWS]
        )
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        rest = f"<p>and {len(records) - MOST_ROWS:,} more</p>" if len(records) > MOST_ROWS else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"
