"""Shapes that nobody timed: a file, or one shape in words, in the columns of tables of measurements.

A file is read as ``tables.py`` reads measurements, without their measured column. Columns that it lacks may be given
for all rows (the device, the element type). Rows that cannot be used are kept with the reason.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sartor.errors import InputError, Stated
from sartor.files import pyarrow
from sartor.records.tables import (
    KINDS,
    SUFFIXES,
    TOGETHER,
    Index,
    Table,
    TableKind,
    a_table,
    column_names,
    kind_of,
    load,
    unreadable,
    usable,
)

OPERATORS = tuple(kind for kind in KINDS if kind.name not in ("layer_and_model", "max_matmul"))
"""The kinds whose rows are operators: a whole model's are a question to ``estimate``."""

LABELS = ("framework", "kernel")
"""Columns that name the software of a row, which is part of what it asks for."""

ARGUMENT = "shapes"
"""The name of a file of shapes in errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Rows of operators, by kind, and those that cannot be used."""

    file: str
    """Path of the file; empty for one shape in words."""
    num_rows: int
    tables: tuple[Table, ...]
    rows: tuple[Index, ...]
    """Of each table: the position of each row among all."""
    refused: Mapping[str, Index]
    """Positions of unusable rows, by reason."""
    words: Mapping[str, str]
    """Of one shape: its columns as they were written."""
    own: tuple[str, ...]
    """Columns that the file or the words have themselves."""
    gpus: tuple[str, ...] = ()
    """Distinct devices among them."""


def read_shapes(path: str | Path, stated: Mapping[str, str], defaults: Mapping[str, str]) -> Shapes:
    """The shapes of a Parquet or CSV file. Columns in ``stated`` hold for all rows, those in ``defaults`` where the
    file has no such column. Raises ``InputError``; ``MissingExtraError`` without pyarrow."""
    path = Path(path)
    pa, _ = pyarrow("reading a file of shapes")
    try:
        names = column_names(_file(path))
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise InputError(ARGUMENT, path.name, f"must have only one column called {twice[0]}")
        if any(names) and "gpu" not in {*names, *stated}:
            raise InputError(ARGUMENT, path.name, "must have a gpu column, or --gpu must name one", "--gpu h100_sxm")
        data = _load(path, names)
        gpus = tuple(str(gpu or "") for gpu in data["gpu"].unique().to_pylist()) if "gpu" in names else ()
        for name, value in {**{k: v for k, v in defaults.items() if k not in names}, **stated}.items():
            data = _with_column(data, name, value)
        return _shapes(data, path, tuple(names), gpus)
    except pa.ArrowException as error:
        raise _about_shapes(unreadable(path, error)) from None
    except InputError as error:
        raise _about_shapes(error) from None


def one_shape(kind: str, words: Mapping[str, str], stated: Mapping[str, str], defaults: Mapping[str, str]) -> Shapes:
    """One operator in words: values of the columns of its kind. Raises ``InputError``."""
    pa, _ = pyarrow("pricing one operator by its columns")
    operator = next(operator_kind for operator_kind in OPERATORS if operator_kind.name == kind)
    columns = (*operator.described, *operator.optional, *LABELS)
    for name in words:
        if name not in columns:
            near = difflib.get_close_matches(name, columns, n=3, cutoff=0.4)
            raise InputError(name, words[name], f"is not a column of {a_table(operator)}", ", ".join(near or columns))
    row = {**defaults, **words, **stated}
    missing = [name for name in operator.described if name not in row]
    if missing:
        raise InputError(
            kind, Stated(f"lacks {', '.join(missing)}"), f"add {' '.join(f'{name}=...' for name in missing)}"
        )
    table = usable(operator, kind, pa.table({name: [value] for name, value in row.items()}), LABELS, timed=False)
    return Shapes(
        file="",
        num_rows=1,
        tables=(table,) if table.rows.size else (),
        rows=(table.rows,) if table.rows.size else (),
        refused=table.unusable,
        words=row,
        own=tuple(words),
    )


def _file(path: Path) -> Path:
    """The path, if it names a file of a known format. Raises ``InputError``."""
    if path.suffix.lower() not in SUFFIXES:
        names = ", ".join(kind.name for kind in OPERATORS)
        must = f"must be a .csv or .parquet file, or the kind of one operator ({names})"
        raise InputError(ARGUMENT, str(path), must, _nearest(str(path)))
    if not path.is_file():
        raise InputError(ARGUMENT, str(path), "must be a .csv or .parquet file that exists")
    return path


def _nearest(word: str) -> str:
    return ", ".join(difflib.get_close_matches(word.lower(), [kind.name for kind in OPERATORS], n=1, cutoff=0.4))


def _load(path: Path, names: Sequence[str]) -> Any:
    columns = {name for kind in OPERATORS for name in (*kind.described, *kind.optional)}
    wanted_columns = [name for name in dict.fromkeys(names) if name in columns | {*LABELS, TOGETHER, "flag"}]
    if not wanted_columns:
        kind_of(names, path.name, OPERATORS, timed=False)  # which says what is missing
    data, broken = load(path, wanted_columns)
    if broken:
        raise InputError(ARGUMENT, path.name, f"{broken} of its lines must have as many fields as the header")
    return data


def _with_column(data: Any, name: str, value: str) -> Any:
    import pyarrow as pa

    column = pa.array([value] * data.num_rows, pa.string())
    if name in data.column_names:
        return data.set_column(data.column_names.index(name), name, column)
    return data.append_column(name, column)


def _shapes(data: Any, path: Path, own_columns: tuple[str, ...], gpus: tuple[str, ...]) -> Shapes:
    name = path.name
    if data.num_rows == 0:
        raise InputError(ARGUMENT, name, "must have a row below its header")
    refused: dict[str, Index] = {}
    tables: list[Table] = []
    rows: list[Index] = []
    for kind, indices in _by_kind(data, name, refused):
        missing = [column for column in kind.described if column not in data.column_names]
        if missing:
            refused[f"{a_table(kind)} must have {', '.join(missing)}"] = indices
            continue
        table = usable(kind, name, data.take(indices), LABELS, timed=False)
        for reason, lost in table.unusable.items():
            refused[reason] = np.union1d(refused.get(reason, indices[:0]), indices[lost])
        if table.rows.size:
            tables.append(table)
            rows.append(indices[table.rows])
    return Shapes(
        file=str(path),
        num_rows=data.num_rows,
        tables=tuple(tables),
        rows=tuple(rows),
        refused=refused,
        words={},
        own=own_columns,
        gpus=gpus,
    )


def _by_kind(data: Any, name: str, refused: dict[str, Index]) -> list[tuple[TableKind, Index]]:
    """Positions of the rows of every kind: as a column of kinds says, else all of the kind that their columns show."""
    kinds = {kind.name: kind for kind in OPERATORS}
    if TOGETHER in data.column_names:
        words, codes = np.unique(np.asarray([str(each) for each in data[TOGETHER].to_pylist()]), return_inverse=True)
        if not kinds.keys().isdisjoint(words.tolist()):
            groups = []
            for code, word in enumerate(words.tolist()):
                indices = np.flatnonzero(codes == code)
                if word in kinds:
                    groups.append((kinds[word], indices))
                else:
                    refused[f"{TOGETHER} {word[:40]}: {_no_operator(word)}"] = indices
            return groups
    return [(kind_of(data.column_names, name, OPERATORS, timed=False), np.arange(data.num_rows))]


def _no_operator(word: str) -> str:
    if word == "layer_and_model":
        return "whole models are priced by `sartor estimate`"
    near = _nearest(word)
    return f"must be {', '.join(kind.name for kind in OPERATORS)}" + (f"; nearest: {near}" if near else "")


def _about_shapes(error: InputError) -> InputError:
    """The error with the argument's name, where the reader of measurements calls it ``data``."""
    if type(error) is InputError and error.field == "data":
        return InputError(ARGUMENT, error.value, error.must, error.nearest)
    return error


# ------------------------------------------------------------------------------------------- written


def check_table(to: Path) -> None:
    """Raise ``InputError`` if no table can be written under this name."""
    if to.suffix.lower() not in SUFFIXES:
        raise InputError("--write", str(to), "must end in .csv or .parquet", f"{to.stem or 'predicted'}.csv")


def table_with(shapes: Shapes, columns: Mapping[str, Sequence[Any]], to: Path) -> bytes:
    """The shapes' own columns, every cell as it stands, and further ones, as a file named like ``to``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = Path(shapes.file)
    if not shapes.file:
        own_table = pa.table({name: [value] for name, value in shapes.words.items()})
    elif file.suffix.lower() == ".parquet":
        own_table = pq.read_table(file)
    else:
        own_table, _ = load(file, column_names(file), as_text=True)
    own_table = own_table.drop_columns([name for name in columns if name in own_table.column_names])
    out = io.BytesIO()
    if to.suffix.lower() == ".parquet":
        for name, values in columns.items():
            own_table = own_table.append_column(name, pa.array(values))
        pq.write_table(own_table, out)
        return out.getvalue()
    text = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*own_table.column_names, *columns])
    writer.writerows(zip(*(column.to_pylist() for column in own_table.columns), *columns.values(), strict=True))
    return out.getvalue()
