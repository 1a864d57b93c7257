"""The one description of an answer: a table of fields beside its record, and what every answer does with it.

A `Field` says a value's JSON key, kind, unit, words, help, and how prominent it is. Three renderers loop over the
tables: `to_json` (the contract's JSON) and `schema_of` (its JSON schema) here, ``report`` for terminal and pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from enum import Enum, IntEnum
from html import escape
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, TypedDict, Unpack

from sartor.errors import InputError, visible
from sartor.json_types import JsonDict, plain
from sartor.units import format_bytes, format_count, format_rate, format_seconds, format_share

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Scalar(Enum):
    """A single JSON value; the value of the member is its schema. Whether it may be null is the field's to say."""

    NUMBER = "number"
    INTEGER = "integer"
    TEXT = "string"
    FLAG = "boolean"
    ANY = ""
    """Whatever the input held."""


class Level(IntEnum):
    """Where a field is shown, besides the JSON: column level also holds those above it."""

    HEADLINE = 0
    """In the one-line summary."""
    TABLE = 1
    """In the terminal's tables."""
    PAGE = 2
    """Only in tables of pages, which have more room."""
    DATA = 3
    """Nowhere else."""


@dataclass(frozen=True, slots=True)
class ListOf:
    """A JSON array."""

    item: Kind


@dataclass(frozen=True, slots=True)
class MapOf:
    """A JSON object whose keys are names of the data: of models, devices, fields, reasons."""

    item: Kind
    null: bool = False
    """Whether its values may be null."""


Reader: TypeAlias = Callable[[Any], Any]
"""Takes a value out of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One value of a record: its key in JSON, and how people read it.

    A field without a ``name`` is a mapping whose entries stand in the object beside the other fields.
    """

    name: str
    kind: Kind
    read: Reader
    words: str = ""
    """Its name in tables and sentences; empty: not shown."""
    unit: str = ""
    form: Reader = str
    """The value as text."""
    help: str = ""
    level: Level = Level.DATA
    null: bool = False
    """Whether it may be null."""
    when: Reader | None = None
    """Records that have the field; None: all."""
    shown: Reader | None = None
    """What people see, from the whole record; None: the value in its ``form``."""

    def text(self, record: object) -> str:
        """The value for people; empty if there is none. A word with markup stays one."""
        if self.when is not None and not self.when(record):
            return ""
        value = self.read(record) if self.shown is None else self.shown(record)
        if isinstance(value, Enum) and self.form is str:
            value = value.value
        words = value if self.shown is not None or value is None else self.form(value)
        return "" if words is None else words if isinstance(words, str) else str(words)


Fields: TypeAlias = tuple[Field, ...]
Kind: TypeAlias = Scalar | ListOf | MapOf | Fields

UNITS = {
    "_s": "s",
    "_bytes": "bytes",
    "_bytes_per_s": "bytes/s",
    "_flops_per_s": "FLOP/s",
    "tokens_per_s": "tokens/s",
    "_per_s": "1/s",
    "_mm2": "mm2",
    "_w": "W",
    "_j": "J",
    "_kg": "kg",
    "_hours": "h",
    "_usd": "USD",
    "_hz": "Hz",
    "_share": "share",
    "_fraction": "share",
}
"""Units by the end of a key (style: the unit is in the key); the longest end that fits counts."""

FORMS: Mapping[str, Reader] = {
    "s": lambda value: format_seconds(float(value)),
    "bytes": lambda value: format_bytes(float(value)),
    "bytes/s": lambda value: format_rate(float(value)),
    "tokens/s": lambda value: format_count(float(value)),
    "share": lambda value: format_share(float(value)),
}


class _FieldOptions(TypedDict, total=False):
    """What a field can say besides its name, kind and words."""

    path: Any
    """Where in the record: a dotted path, or a function; usual: the name of the field."""
    unit: str
    form: Reader
    help: str
    level: Level
    null: bool
    when: Reader
    shown: Reader | None


def field(name: str, kind: Kind, words: str = "", **options: Unpack[_FieldOptions]) -> Field:
    """A field that reads the attribute (or key) at ``path``, dotted, or by a function; usual: its own name."""
    end = next((end for end in sorted(UNITS, key=len, reverse=True) if name.endswith(end)), "")
    unit = options.get("unit") or UNITS.get(end, "")
    return Field(
        name=name,
        kind=kind,
        read=_reader(options.get("path", name)),
        words=words,
        unit=unit,
        form=options.get("form", FORMS.get(unit, str)),
        help=options.get("help", ""),
        level=options.get("level", Level.TABLE if words else Level.DATA),
        null=options.get("null", False),
        when=options.get("when"),
        shown=options.get("shown"),
    )


def number(name: str, words: str = "", **options: Unpack[_FieldOptions]) -> Field:
    """A number in SI units."""
    return field(name, Scalar.NUMBER, words, **options)


def integer(name: str, words: str = "", **options: Unpack[_FieldOptions]) -> Field:
    """A whole number."""
    return field(name, Scalar.INTEGER, words, **options)


def text(name: str, words: str = "", **options: Unpack[_FieldOptions]) -> Field:
    """A word or sentence."""
    return field(name, Scalar.TEXT, words, **options)


def flag(name: str, words: str = "", **options: Unpack[_FieldOptions]) -> Field:
    """True or false."""
    return field(name, Scalar.FLAG, words, **options)


def numbers(names: str, **options: Unpack[_FieldOptions]) -> Fields:
    """Several numbers, their names divided by spaces."""
    return tuple(number(name, **options) for name in names.split())


def integers(names: str, **options: Unpack[_FieldOptions]) -> Fields:
    """Several whole numbers."""
    return tuple(integer(name, **options) for name in names.split())


def texts(names: str, **options: Unpack[_FieldOptions]) -> Fields:
    """Several words."""
    return tuple(text(name, **options) for name in names.split())


def rows(name: str, kind: Kind, words: str = "", **options: Unpack[_FieldOptions]) -> Field:
    """A list of records, or of single values."""
    return field(name, ListOf(kind), words, **options)


def mapping(name: str, kind: Kind, words: str = "", **options: Unpack[_FieldOptions]) -> Field:
    """An object whose keys are data. Without a name its entries stand beside the record's own fields."""
    return field(name, MapOf(kind), words, **options)


def through(path: str | Reader, fields: Fields) -> Fields:
    """The fields of a record that is itself read at ``path``."""
    outer = _reader(path)
    return tuple(
        replace(
            item,
            read=_after(outer, item.read),
            when=item.when and _after(outer, item.when),
            shown=item.shown and _after(outer, item.shown),
        )
        for item in fields
    )


def _after(outer: Reader, inner: Reader) -> Reader:
    return lambda record: inner(outer(record))


def _reader(path: str | Reader) -> Reader:
    if not isinstance(path, str):
        return path
    get = attrgetter(path)
    return lambda record: record[path] if isinstance(record, Mapping) else get(record)


def to_json(value: Any, kind: Kind) -> Any:
    """A value as plain JSON: glossary names, SI units, null for what is not finite."""
    if value is None:
        return None
    if isinstance(kind, tuple):
        return dict(_entries(value, kind))
    if isinstance(kind, ListOf):
        return plain(value) if isinstance(kind.item, Scalar) else [to_json(item, kind.item) for item in value]
    if isinstance(kind, MapOf):
        return {str(key): to_json(item, kind.item) for key, item in value.items()}
    return plain(value)


def _entries(record: object, fields: Fields) -> Iterator[tuple[str, Any]]:
    for column in fields:
        if column.when is not None and not column.when(record):
            continue
        value = to_json(column.read(record), column.kind)
        if column.name:
            yield column.name, value
        else:
            yield from value.items()


def schema_of(kind: Kind) -> JsonDict:
    """The JSON schema (draft 2020-12) of what `to_json` makes of this kind."""
    if isinstance(kind, Scalar):
        return {"type": kind.value} if kind.value else {}
    if isinstance(kind, ListOf):
        return {"type": "array", "items": schema_of(kind.item)}
    if isinstance(kind, MapOf):
        return {"type": "object", "additionalProperties": _nullable(schema_of(kind.item), kind.null)}
    named: dict[str, JsonDict] = {}
    for column in kind:
        if column.name:
            schema = _schema_of_field(column)
            named[column.name] = {"anyOf": [named[column.name], schema]} if column.name in named else schema
    beside = [column.kind.item for column in kind if not column.name and isinstance(column.kind, MapOf)]
    return {
        "type": "object",
        "properties": named,
        "required": [column.name for column in kind if column.name and column.when is None],
        "additionalProperties": schema_of(beside[0]) if beside else False,
    }


def _schema_of_field(column: Field) -> JsonDict:
    schema = _nullable(schema_of(column.kind), column.null)
    notes = {"description": column.help or column.words, "unit": column.unit}
    return {**schema, **{key: note for key, note in notes.items() if note}}


def _nullable(schema: JsonDict, null: bool) -> JsonDict:
    return {**schema, "type": [schema["type"], "null"]} if null and schema else schema


def columns_of(fields: Iterable[Field], level: Level = Level.TABLE) -> Fields:
    """The fields with words that are shown at a level, in order."""
    return tuple(column for column in fields if column.words and column.level <= level)


def flat(fields: Fields, record: object, prefix: str = "") -> JsonDict:
    """A record as one row of a data frame: nested records by dotted keys, lists and mappings as they are."""
    row: JsonDict = {}
    for column in fields:
        if column.when is not None and not column.when(record):
            continue
        value = column.read(record)
        if isinstance(column.kind, tuple) and value is not None:
            row |= flat(column.kind, value, f"{prefix}{column.name}.")
        elif column.name:
            row[prefix + column.name] = to_json(value, column.kind)
        else:
            row |= {prefix + str(key): plain(item) for key, item in value.items()}
    return row


def _main_rows(fields: Fields) -> tuple[Reader, Fields] | None:
    """The records of an answer's table and its columns: the first list of records that people see, else the first."""
    lists = ((column.read, column.kind.item) for column in fields if isinstance(column.kind, ListOf))
    tables = [(read, item) for read, item in lists if isinstance(item, tuple)]
    return next((table for table in tables if columns_of(table[1])), next(iter(tables), None))


def texts_of(fields: Sequence[Field], record: object) -> list[str]:
    """The values of some fields as text."""
    return [column.text(record) for column in fields]


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
        table = _main_rows(self.fields)
        if table is None:
            return [flat(self.fields, self.record)]
        read, columns = table
        return [flat(columns, row) for row in read(self.record)]

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
        table = _main_rows(self.fields)
        if table is None:
            return ""
        columns, records = columns_of(table[1]), list(table[0](self.record))
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
