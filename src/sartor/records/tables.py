"""Tables of measured latencies: the kinds, the columns that identify each, and how files are read.

A file is one table, Parquet or CSV; a folder is all its tables. Rows and files that cannot be used (bad numbers,
missing columns) are counted with the reason and the rest is kept. Columns and units: docs/howto/validate.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.bounded import packaged_toml
from sartor.errors import InputError
from sartor.files import pyarrow
from sartor.json_types import JsonDict, JsonMap

Floats64 = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """One kind of table: the columns that identify a row, and the measured one."""

    name: str
    measured: str
    texts: tuple[str, ...]
    """Columns that hold words."""
    sizes: tuple[str, ...]
    """Columns that hold whole numbers of at least 1."""
    amounts: tuple[str, ...] = ()
    """Columns that hold numbers above 0."""
    optional: JsonMap = field(default_factory=dict)
    """Columns that may be absent, with the default for each."""
    work: tuple[str, ...] = ()
    """Columns whose product is at most ``MOST_WORK``."""
    groups: tuple[str, ...] = ("gpu", "dtype")
    """Default grouping of rows."""
    unit_s: float = 1e-6
    """Seconds in a unit of ``measured``."""

    @property
    def described(self) -> tuple[str, ...]:
        """The columns that say what ran."""
        return (*self.texts, *self.sizes, *self.amounts)

    @property
    def required(self) -> tuple[str, ...]:
        return (*self.described, self.measured)


def _kind(name: str, table: JsonMap) -> TableKind:
    lists = {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
    return TableKind(**{**table, **lists, "name": name})


KINDS = tuple(_kind(name, table) for name, table in packaged_toml("records", "kinds.toml").items())
"""Every kind; data/measured/README.md describes the columns."""

SUFFIXES = (".parquet", ".csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """A column as integer codes into its distinct values."""

    codes: Index
    values: tuple[Any, ...]

    def take(self, rows: Any) -> Coded:
        return Coded(codes=self.codes[rows], values=self.values)

    def plain(self) -> list[Any]:
        return [self.values[code] for code in self.codes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The usable rows of one file. ``coded`` holds columns of words (and those grouped by), ``numbers`` the rest."""

    kind: TableKind
    file: str
    num_rows: int
    """Rows of the file, used or not."""
    columns: tuple[str, ...]
    """Every column of the file, read or not."""
    coded: Mapping[str, Coded]
    numbers: JsonMap
    measured: Floats64
    """In the unit of ``kind.measured``; NaN in a table of shapes that nobody timed (``shapes.py``)."""
    left_out: Mapping[str, int]
    """Number of unused rows by reason."""
    rows: Index
    """Position of each usable row among those read."""
    unusable: Mapping[str, Index]
    """The same of the others, by reason."""
    untimed: str = ""
    """Which rows have no time, and what stands in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TablesRead:
    """The tables at a path, and a sentence for every file that is not one."""

    tables: tuple[Table, ...]
    remarks: tuple[str, ...] = ()


def read_tables(path: str | Path, group_by: Sequence[str] = ()) -> _TablesRead:
    """Tables of a folder or of one Parquet or CSV file, with the columns in ``group_by`` kept.

    Raises ``InputError`` when nothing can be used, or when no table has a column to group by; ``MissingExtraError``
    without pyarrow.
    """
    files = _files(Path(path))
    pyarrow("reading tables of measurements")
    tables: list[Table] = []
    refused: list[InputError] = []
    for file in files:
        try:
            tables += _tables_of(file, group_by)
        except InputError as error:
            refused.append(error)
    if not tables:
        raise refused[0] if len(refused) == 1 else _nothing(path, refused)
    _check_groups(tables, group_by)
    return _TablesRead(tables=tuple(tables), remarks=tuple(f"left out: {error}" for error in refused))


def _tables_of(path: Path, group_by: Sequence[str]) -> list[Table]:
    """The tables of one file: one, or several if ``sartor measure`` wrote them together."""
    names = column_names(path)
    if TOGETHER not in names:
        return [read_table(path, group_by)]
    kinds = sorted(_words_of(path, TOGETHER) & {kind.name for kind in KINDS})
    if not kinds:
        return [read_table(path, group_by)]
    tables: list[Table] = []
    refused: list[InputError] = []
    for kind in kinds:
        try:
            tables.append(read_table(path, group_by, kind_name=kind))
        except InputError as error:
            refused.append(error)
    if not tables:
        raise refused[0]
    return tables


TOGETHER = "table"
"""The column that names each row's kind in a file of several kinds, as ``sartor measure`` writes it."""


def read_table(path: Path, group_by: Sequence[str] = (), *, kind_name: str = "") -> Table:
    """One file; if it holds several kinds of rows, only those of kind ``kind_name``. Raises ``InputError`` when it is
    unreadable, lacks columns, or has no usable row."""
    names = column_names(path)
    together = TOGETHER in names and kind_name != ""
    kind = (
        next(table_kind for table_kind in KINDS if table_kind.name == kind_name)
        if together
        else kind_of(names, path.name)
    )
    wanted_columns = [*kind.required, *kind.optional, "flag", *group_by, *((TOGETHER,) if together else ())]
    data, broken = load(path, [name for name in dict.fromkeys(wanted_columns) if name in names])
    import pyarrow as pa
    import pyarrow.compute as pc

    if together:
        data = data.filter(pc.equal(data[TOGETHER], kind_name)).drop_columns([TOGETHER])
    missing = [name for name in kind.required if name not in data.column_names]
    if missing:
        raise InputError("data", path.name, f"{a_table(kind)} must have {', '.join(missing)}")
    if data.num_rows == 0:
        raise InputError("data", path.name, f"{a_table(kind)} must have a row")

    try:
        table = usable(kind, path.name, data, group_by)
    except pa.ArrowException as error:  # a column of lists, or of a type that holds neither words nor numbers
        raise unreadable(path, error) from None
    if not table.rows.size:
        raise InputError("data", path.name, f"{a_table(kind)} must have a usable row ({_why(table)})")
    left_out = {**table.left_out, **({"not as many fields as the header": broken} if broken else {})}
    return replace(table, columns=tuple(names), num_rows=table.num_rows + broken, left_out=left_out)


def kind_of(columns: Iterable[str], file: str, kinds: Sequence[TableKind] = KINDS, *, timed: bool = True) -> TableKind:
    """The kind of table with these columns, the measured one included if it is ``timed``. Raises ``InputError`` naming
    what the nearest kind needs."""
    have = set(columns)
    needs = {kind.name: kind.required if timed else kind.described for kind in kinds}
    complete = [kind for kind in kinds if have.issuperset(needs[kind.name])]
    if complete:
        return max(complete, key=lambda kind: len(needs[kind.name]))
    share = {name: len(have.intersection(needed)) / len(needed) for name, needed in needs.items()}
    nearest = max(kinds, key=lambda kind: share[kind.name])
    missing = [name for name in needs[nearest.name] if name not in have]
    if share[nearest.name] < 0.5:
        raise InputError("data", file, _no_table(list(columns)))
    hints = [match for name in missing for match in difflib.get_close_matches(name, have, n=1)]
    raise InputError("data", file, f"{a_table(nearest)} must have {', '.join(missing)}", ", ".join(hints))


def a_table(kind: TableKind) -> str:
    """The kind's name with its article: ``an attention table``."""
    return f"{'an' if kind.name[0] in 'aeiou' else 'a'} {kind.name} table"


def _no_table(columns: Sequence[str]) -> str:
    """Error text for columns that match no kind of table."""
    if not any(columns):
        return "must have a first line with the names of its columns (it is empty)"
    lower = {name.lower() for name in columns}
    if any(lower.issuperset(kind.required) for kind in KINDS):
        return f"its columns must be in lower case ({', '.join(columns)[:80]})"
    if len(columns) == 1 and any(mark in columns[0] for mark in ";\t|"):
        return "its columns must be separated by commas"
    return f"its columns match no kind of table of measurements ({', '.join(kind.name for kind in KINDS)})"


# ------------------------------------------------------------------------------------------- files


def _files(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
            if files:
                return files
            raise InputError("data", str(path), "holds no .parquet or .csv file")
        if not path.is_file():
            raise InputError("data", str(path), "must be a folder or a .parquet or .csv file that exists")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("data", str(path), f"must be readable ({error})") from None
    if path.suffix.lower() not in SUFFIXES:
        raise InputError("data", path.name, "must end in .parquet or .csv")
    return [path]


def column_names(path: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise InputError("data", str(path), f"has {size} bytes; must have at most {MAX_BYTES}")
        with path.open("rb") as file:
            first = file.readline(1 << 20)
        if (path.suffix.lower() == ".parquet") != first.startswith(PARQUET_MAGIC):
            raise _misnamed(path, first)
        if first.startswith(PARQUET_MAGIC):
            facts = pq.read_metadata(path)
            if facts.num_rows > MAX_ROWS:
                raise InputError("data", str(path), f"has {facts.num_rows} rows; must have at most {MAX_ROWS}")
            return list(facts.schema.to_arrow_schema().names)
        return [name.strip().strip('"').strip() for name in first.decode("utf-8-sig").strip().split(",")]
    except (OSError, ValueError, pa.ArrowException) as error:
        raise error if isinstance(error, InputError) else unreadable(path, error) from None


MOST_WORK = 2.0**61
"""Most multiply-adds or elements of a row: hours of a GPU in one operator, and near what 64 bits count."""
MAX_BYTES = 200_000_000
"""Largest file of measurements that is read; the largest published has 10 MB."""
MAX_ROWS = 5_000_000
"""Most rows of a Parquet file (its compressed size says little); the largest published has 1.7 million."""
PARQUET_MAGIC = b"PAR1"
"""The first bytes of every Parquet file."""


def _misnamed(path: Path, first: bytes) -> InputError:
    """Error for a file whose content does not match its suffix."""
    if first.startswith(PARQUET_MAGIC):
        return InputError("data", path.name, "is a Parquet file: its name must end in .parquet")
    if not first:
        return InputError("data", path.name, "must be readable as parquet (it is empty)")
    return InputError("data", path.name, "must begin as Parquet files do; if it is CSV, its name must end in .csv")


def load(path: Path, columns: list[str], *, as_text: bool = False) -> tuple[Any, int]:
    """The columns of a file as a pyarrow table, and the number of lines that are malformed. ``as_text``: every cell of
    a CSV file as it stands."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix.lower() == ".parquet":
            return pq.read_table(path, columns=columns), 0
        return _load_csv(path, columns, as_text)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise unreadable(path, error) from None


def _load_csv(path: Path, columns: list[str], as_text: bool) -> tuple[Any, int]:
    """Counts and skips lines with more or fewer fields than the header, such as the last of a truncated file."""
    import pyarrow as pa
    import pyarrow.csv as pc

    broken = 0
    with path.open(encoding="utf-8") as lines:  # Arrow only prints a warning for a bad byte
        while lines.read(2**20):
            pass

    def skip(row: object) -> str:
        nonlocal broken
        broken += 1
        return "skip"

    table = pc.read_csv(
        path,
        read_options=pc.ReadOptions(column_names=column_names(path), skip_rows=1),
        parse_options=pc.ParseOptions(invalid_row_handler=skip),
        convert_options=pc.ConvertOptions(
            include_columns=columns,
            strings_can_be_null=not as_text,
            column_types=dict.fromkeys(columns, pa.string()) if as_text else None,
        ),
    )
    return table, broken


def _words_of(path: Path, column: str) -> set[str]:
    import pyarrow.compute as pc

    return {str(word) for word in pc.unique(load(path, [column])[0][column]).to_pylist()}


def unreadable(path: Path, error: Exception) -> InputError:
    if isinstance(error, UnicodeDecodeError):
        with path.open("rb") as file:
            wide = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
        return InputError(
            "data", path.name, f"must be CSV in UTF-8 (it is {'UTF-16' if wide else 'in another encoding'})"
        )
    reason = " ".join(str(error).split())[:120]
    return InputError("data", path.name, f"must be readable as {path.suffix[1:].lower()} ({reason})")


def _nothing(path: str | Path, refused: Sequence[InputError]) -> InputError:
    return InputError("data", str(path), f"none of its {len(refused)} files can be used: {refused[0]}")


def _check_groups(tables: Sequence[Table], group_by: Sequence[str]) -> None:
    names = {name for table in tables for name in (*table.columns, *table.coded, *table.numbers)} | {"table", *DERIVED}
    for name in group_by:
        if name not in names:
            near = difflib.get_close_matches(name, sorted(names), n=3) or sorted(names)[:6]
            raise InputError("group_by", name, "must be a column of the tables", ", ".join(near))


DERIVED = ("size", "calibration")
"""Derived columns: ``size`` of a product (whether m, n and k all reach 512), and the ``calibration`` that was used."""


# ------------------------------------------------------------------------------------------- rows


def usable(kind: TableKind, file: str, data: Any, group_by: Sequence[str], *, timed: bool = True) -> Table:
    """Rows with only valid numbers; the others are kept apart by what is wrong with them."""
    rows = data.num_rows
    unusable: dict[str, Index] = {}
    usable_rows = np.ones(rows, dtype=bool)

    def keep(good: Any, reason: str) -> None:
        nonlocal usable_rows
        lost = np.flatnonzero(usable_rows & ~good)
        if lost.size:
            unusable[reason] = lost
        usable_rows &= good

    if "flag" in data.column_names:
        keep(_or_default(data["flag"], 0) == 0, "flag is not 0 (marked as defective by its source)")
    measured, untimed = np.full(rows, np.nan), ""
    if timed:
        measured = _numbers(data[kind.measured])
        has_time = np.isfinite(measured) & (measured > 0)
        untimed = _untimed(kind, data, np.flatnonzero(usable_rows & ~has_time))
        keep(has_time, f"{kind.measured} is {NO_TIME}")
    numbers: JsonDict = {}
    for name in kind.sizes:
        numbers[name] = _numbers(data[name])
        keep(_is_whole(numbers[name], 1), f"{name} is not a whole number from 1 to 2^40")
    for name in kind.amounts:
        numbers[name] = _numbers(data[name])
        keep(np.isfinite(numbers[name]) & (numbers[name] > 0), f"{name} is not a number above 0")
    for name, default in kind.optional.items():
        if isinstance(default, int):
            is_stated = name in data.column_names
            numbers[name] = _or_default(data[name], default) if is_stated else np.full(rows, float(default))
            keep(_is_whole(numbers[name], min(default, 1)), f"{name} is not a whole number of at least {default}")
    with np.errstate(invalid="ignore", over="ignore"):
        work = np.prod([numbers[name] for name in kind.work], axis=0) if kind.work else np.zeros(rows)
        keep(work <= MOST_WORK, f"the product of {', '.join(kind.work)} is above 2^61")
    words = [*kind.texts, *(name for name, default in kind.optional.items() if isinstance(default, str))]
    coded = {name: _coded(data, name, rows) for name in words}
    for name in kind.texts:
        blank = np.asarray([value is None or str(value).strip() == "" for value in coded[name].values] or [True])
        keep(~blank[coded[name].codes] if rows else usable_rows, f"{name} is empty")
    coded |= {name: _coded(data, name, rows) for name in group_by if name in data.column_names}
    whole = (*kind.sizes, *(name for name, default in kind.optional.items() if isinstance(default, int)))
    return Table(
        kind=kind,
        file=file,
        num_rows=rows,
        columns=tuple(data.column_names),
        coded={name: column.take(usable_rows) for name, column in coded.items()},
        numbers={n: v[usable_rows].astype(np.int64) if n in whole else v[usable_rows] for n, v in numbers.items()},
        measured=measured[usable_rows],
        left_out={reason: int(lost.size) for reason, lost in unusable.items()},
        rows=np.flatnonzero(usable_rows),
        unusable=unusable,
        untimed=untimed,
    )


def _why(table: Table) -> str:
    """Why a table has no usable row."""
    return "; ".join(f"{count:,} rows: {reason}" for reason, count in table.left_out.items())


NO_TIME, FEW = "not a number above 0", 3


def _untimed(kind: TableKind, data: Any, where: Index) -> str:
    """The first rows without a time, their sizes and what stands in its place, and how many more there are."""
    if not where.size:
        return ""
    first = [{name: data[name][i].as_py() for name in (*kind.sizes, kind.measured)} for i in where[:FEW].tolist()]
    examples = [
        f"{' x '.join(str(row[name]) for name in kind.sizes)} ({str(row[kind.measured])[:20]})" for row in first
    ]
    rest = f" and {where.size - FEW:,} more" if where.size > FEW else ""
    return f"{kind.measured} of {', '.join(examples)}{rest}: {NO_TIME}"


def _is_whole(values: Floats64, minimum: int) -> Any:
    with np.errstate(invalid="ignore"):
        return np.isfinite(values) & (values >= minimum) & (values <= 2**40) & (values == np.floor(values))


def _numbers(column: Any) -> Floats64:
    """A column as floats; anything else becomes NaN."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    return np.asarray([_number(value) for value in column.to_pylist()], dtype=np.float64)


def _or_default(column: Any, default: int) -> Floats64:
    """A column as floats, an empty cell as the value that a missing column has."""
    numbers = _numbers(column)
    if np.isfinite(numbers).all():
        return numbers
    blank = [value is None or (isinstance(value, str) and not value.strip()) for value in column.to_pylist()]
    return np.where(np.asarray(blank, dtype=bool), float(default), numbers)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _coded(data: Any, name: str, rows: int) -> Coded:
    """A column as codes; missing values and an absent column become empty words."""
    import pyarrow as pa

    if name not in data.column_names:
        return Coded(codes=np.zeros(rows, dtype=np.int64), values=("",))
    column = data[name]
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    joined = column.unify_dictionaries().combine_chunks()
    if isinstance(joined, pa.ChunkedArray):
        joined = joined.chunk(0) if joined.num_chunks else pa.DictionaryArray.from_arrays([], pa.array([], pa.string()))
    values = [*(_word(value) for value in joined.dictionary.to_pylist()), ""]
    codes = joined.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
    first = {value: i for i, value in reversed(list(enumerate(values)))}
    return Coded(codes=np.asarray([first[value] for value in values])[codes], values=tuple(values))


def _word(value: object) -> Any:
    """A value that JSON can hold; NaN and None become an empty word."""
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return ""
    return value if isinstance(value, (str, int, float, bool)) else str(value)
