"""What a study file holds: its tables, the question and records in them as JSON that restores the same numbers to the
last bit, opening it, and the lock of its one writer.

``application_id`` identifies the program and ``user_version`` the format, for `file` and SQLite tools.
docs/howto/long-studies.md describes the tables.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from sartor.designs.candidates import Baseline, Ranked
from sartor.designs.parts import CopySplit
from sartor.designs.point import Evaluation, LayerTime, ModelOutcome, Option, Point
from sartor.designs.question import DesignQuestion
from sartor.designs.space import AcceleratorSpace
from sartor.errors import InputError
from sartor.hardware.accelerator import ARRAY_FIELDS, Accelerator, Dataflow, Memory
from sartor.json_types import JsonDict, JsonMap
from sartor.model.training import Recompute
from sartor.operators import DType
from sartor.placement.problem import Plan, Stage

MOST_VALUES = 24
"""Longest axis that is listed in full; longer ones are summarized by their number and ends."""


def dumps(value: object) -> str:
    """Canonical JSON: sorted keys, no spaces, floats as Python writes them (they are read back unchanged)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


# ------------------------------------------------------------------------------------------------------- the question


def question_dict(question: DesignQuestion, space: AcceleratorSpace, tolerance: float) -> JsonDict:
    """Everything that a result depends on except the version of sartor, as plain values."""
    plain = _plain(question)
    return {**plain, "space": _space(space), "tolerance": tolerance}


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        kind = {"is": type(value).__name__}
        return kind | {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, np.ndarray):
        return _axis(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, frozenset | set):
        return sorted(map(str, map(_plain, value)))
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    return value


def _axis(values: Any) -> JsonDict:
    distinct = np.unique(values)
    shown = distinct if len(distinct) <= MOST_VALUES else distinct[[0, -1]]
    digest = hashlib.blake2b(np.ascontiguousarray(values, dtype="<f8").tobytes(), digest_size=12).hexdigest()
    return {"size": values.size, "distinct": len(distinct), "values": shown.tolist(), "digest": digest}


def _space(space: AcceleratorSpace) -> JsonDict:
    return {
        "name": space.name,
        "num_points": space.num_points,
        "hbm_bytes": list(space.hbm_bytes),
        "area_limit_mm2": space.area_limit_mm2,
        "groups": [_plain(group) for group in space.groups],
    }


# ---------------------------------------------------------------------------------------------------- what is reached


def architecture_dict(accelerator: Accelerator, hbm_bytes: float) -> JsonDict:
    """One accelerator with its memory size."""
    numbers = {name: _plain(np.asarray(getattr(accelerator, name))[()]) for name in ARRAY_FIELDS}
    words = {"memory": accelerator.memory.value, "dataflow": accelerator.dataflow.value}
    words |= {"packed_dtype": accelerator.packed_dtype.value} if accelerator.packed_dtype else {}
    return {**numbers, **words, "node_nm": int(accelerator.node_nm), "hbm_bytes": hbm_bytes}


# ------------------------------------------------------------------------------------------------------------ records

RECORDS = (Accelerator, Baseline, Evaluation, LayerTime, ModelOutcome, Option, Plan, Point, Ranked, Stage)
WORDS = (Dataflow, DType, Memory, Recompute)
_BY_NAME: JsonMap = {kind.__name__: kind for kind in (*RECORDS, *WORDS)} | {"Split": CopySplit}


def to_text(value: object) -> str:
    """Canonical JSON of a value made of `RECORDS`, `WORDS`, tuples, mappings by text, numbers, texts and None."""
    return dumps(_encoded(value))


def from_text(text: str) -> Any:
    """The value that `to_text` wrote; raises ``ValueError`` or ``KeyError`` for other text."""
    return _decoded(json.loads(text))


def _encoded(value: object) -> Any:
    if isinstance(value, Enum):
        return {"is": type(value).__name__, "named": value.name}
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": type(value).__name__} | {item.name: _encoded(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, CopySplit):
        return {"is": "Split"} | {name: _encoded(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {"of": [[name, _encoded(item)] for name, item in value.items()]}
    if isinstance(value, tuple | list):
        return [_encoded(item) for item in value]
    if isinstance(value, np.generic):
        return _encoded(value.item())
    return {"number": str(value)} if isinstance(value, float) and not isfinite(value) else value


def _decoded(value: object) -> Any:
    if isinstance(value, list):
        return tuple(map(_decoded, value))
    if not isinstance(value, dict):
        return value
    if "number" in value:
        return float(value["number"])
    if "of" in value:
        return {name: _decoded(item) for name, item in value["of"]}
    kind = _BY_NAME[value["is"]]
    if "named" in value:
        return kind[value["named"]]
    return kind(**{name: _decoded(item) for name, item in value.items() if name != "is"})


APPLICATION_ID = 0x53415254
"""The letters SART."""
FORMAT = 4
MAGIC = b"SQLite format 3\x00"

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE searches (
    id INTEGER PRIMARY KEY, scope TEXT NOT NULL UNIQUE, fingerprint TEXT NOT NULL, question TEXT NOT NULL);
CREATE TABLE points (
    id INTEGER PRIMARY KEY, search INTEGER NOT NULL REFERENCES searches,
    candidate INTEGER NOT NULL, hbm_bytes REAL NOT NULL, schedule_limit_s REAL NOT NULL, floor TEXT NOT NULL,
    objective REAL NOT NULL, bound REAL NOT NULL, area_mm2 REAL NOT NULL, power_w REAL NOT NULL, die_usd REAL NOT NULL,
    architecture TEXT NOT NULL, outcomes TEXT NOT NULL, bounds TEXT NOT NULL, schedules TEXT NOT NULL,
    session INTEGER NOT NULL REFERENCES sessions,
    UNIQUE (search, candidate, hbm_bytes, schedule_limit_s, floor));
CREATE TABLE bounds (search INTEGER NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (search, key))
    WITHOUT ROWID;
CREATE TABLE kept (
    id INTEGER PRIMARY KEY, search INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, UNIQUE (search, key));
CREATE TABLE history (
    search INTEGER NOT NULL, step INTEGER NOT NULL, seconds REAL NOT NULL, phase TEXT NOT NULL,
    evaluated INTEGER NOT NULL, waiting INTEGER NOT NULL, pruned INTEGER NOT NULL,
    bound REAL, incumbent REAL NOT NULL, left_s REAL, PRIMARY KEY (search, step)) WITHOUT ROWID;
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, started TEXT NOT NULL, executor TEXT NOT NULL, version TEXT NOT NULL,
    seconds REAL NOT NULL, evaluated INTEGER NOT NULL, ending TEXT NOT NULL);
"""
"""A search is one question within a study (scope ``main``: the user's). A point is identified by everything that its
evaluation depends on; ``kept`` has other results of a search (`records`) by key; ``bound`` and ``left_s`` are NULL
while unknown."""

KEYS = {
    "meta": ("key",), "searches": ("id",), "points": ("id",), "bounds": ("search", "key"), "kept": ("id",),
    "history": ("search", "step"), "sessions": ("id",),
}  # fmt: skip
"""Key columns of each table. Each row has a checksum, written by triggers: a row with a flipped bit is left out and
never changes the answer."""


class StudyWarning(UserWarning):
    """Damaged rows of a study were left out."""


def _row_sum(*values: object) -> int:
    """The checksum of a row's values, in their order."""
    return zlib.crc32(repr(values).encode("utf-8", "surrogatepass"))


def sound_rows(path: Path, connection: sqlite3.Connection, table: str, search: int | None = None) -> list[JsonDict]:
    """The valid rows of a table (of one search) in their order; a `StudyWarning` names rows with a wrong checksum."""
    sound, damaged = _sorted_out(connection, table)
    if damaged:
        warnings.warn(_left_out(path, {table: damaged}), StudyWarning, stacklevel=2)
    return [row for row in sound if search is None or row["search"] == search]


def _sorted_out(connection: sqlite3.Connection, table: str) -> tuple[list[JsonDict], list[JsonDict]]:
    """Rows with a valid checksum, and the others. No index is used, since it may be damaged."""
    cursor = connection.execute(f"SELECT * FROM {table} NOT INDEXED ORDER BY {','.join(KEYS[table])}")
    names = [column[0] for column in cursor.description]
    sound, damaged = list[JsonDict](), list[JsonDict]()
    for values in cursor:
        row = dict(zip(names, values, strict=True))
        (sound if row.pop("row_sum") == _row_sum(*row.values()) else damaged).append(row)
    return sound, damaged


def _left_out(path: Path, damaged: Mapping[str, Sequence[JsonDict]]) -> str:
    named = [
        f"{table} {'/'.join(str(row[key]) for key in KEYS[table])}" for table, rows in damaged.items() for row in rows
    ]
    shown = ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
    rows = "a damaged row is" if len(named) == 1 else f"{len(named)} damaged rows are"
    return f"{path}: {rows} left out ({shown}); their results are computed again when needed"


def connect(path: Path, *, for_reading: bool) -> sqlite3.Connection:
    """A connection to a file that is checked to be a study; for writing, it is created if missing.

    Raises ``InputError`` for a file that is not a study, is damaged, or cannot be opened.
    """
    with ExitStack() as unless_it_is_a_study:
        try:
            fresh = _is_fresh(path)
            if for_reading and fresh:
                raise InputError("study", str(path), EMPTY if path.exists() else "there is no such study")
            connection = unless_it_is_a_study.enter_context(closing(_open(path, for_reading=for_reading)))
            if not for_reading:
                connection.execute("PRAGMA synchronous=FULL")
            if _has_no_tables(connection):
                if for_reading:
                    raise InputError("study", str(path), EMPTY)
                _create(connection)
            _check(path, connection)
            if not for_reading:
                _mend(path, connection)
        except (sqlite3.Error, OSError, UnicodeError) as error:
            raise cannot(path, error) from None
        unless_it_is_a_study.pop_all()
    return connection


EMPTY = "is empty: it was stopped at its start, or the disk was full; `sartor design` with its question begins it again"


def cannot(path: Path, error: Exception) -> InputError:
    """The error of the file as a sentence."""
    words = str(error).lower()
    if any(word in words for word in ("full", "no space", "too large", "disk i/o")):
        must = "cannot grow, the disk is full or a limit is reached; its content is kept: free some space and run again"
    elif any(word in words for word in ("malformed", "not a database", "corrupt", "codec")):
        must = f"is damaged ({error}); take another file, or restore this one from a copy"
    elif "locked" in words or "busy" in words:
        must = "is in use by another program"
    else:
        must = f"cannot be opened or written ({error})"
    return InputError("study", str(path), must)


def _is_fresh(path: Path) -> bool:
    """Whether the file is missing or empty; raises if it is not a SQLite file."""
    if path.is_dir():
        raise InputError("study", str(path), "is a folder; name a file in it", str(path / "study.db"))
    if not path.exists():
        if not path.parent.is_dir():
            raise InputError("study", str(path), f"there is no folder {path.parent} to write it in")
        return True
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
    if head and head != MAGIC:
        raise InputError("study", str(path), "is not a study (not an SQLite file); it was not changed", "a new name")
    return not head


def _open(path: Path, *, for_reading: bool) -> sqlite3.Connection:
    if not for_reading:
        return _ready(sqlite3.connect(path, timeout=30.0, isolation_level=None))
    uri = path.resolve().as_uri()
    connection = sqlite3.connect(f"{uri}?mode=rw", uri=True, timeout=30.0, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only=ON")
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.Error as error:
        connection.close()
        if not isinstance(error, sqlite3.OperationalError):
            raise
        # in a read-only folder the index of the write-ahead log cannot be created
        connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, isolation_level=None)
    return _ready(connection)


def _ready(connection: sqlite3.Connection) -> sqlite3.Connection:
    """The connection with the function that the triggers call, and with tolerant decoding of damaged text."""
    connection.create_function("row_sum", -1, _row_sum, deterministic=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    return connection


def _has_no_tables(connection: sqlite3.Connection) -> bool:
    """Whether the file is new, or an earlier process was stopped before it created the tables; another program's file
    would have tables."""
    return not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    script = f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT};"
    connection.executescript(f"BEGIN IMMEDIATE;{script}{_script()}COMMIT;")


def _check(path: Path, connection: sqlite3.Connection) -> None:
    whose, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if whose != APPLICATION_ID:
        raise InputError("study", str(path), "is an SQLite file of another program; it was not changed", "a new name")
    if version != FORMAT:
        must = f"has format {version}, and this sartor knows {FORMAT}"
        raise InputError("study", str(path), must, "a new name")
    if _made(connection) != _as_made():
        raise InputError("study", str(path), "is damaged (its tables are not as they were made); take another file")


def _made(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """The SQL of tables and triggers, by name."""
    return connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()


@cache
def _as_made() -> list[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(_script())
        return _made(connection)


def _script() -> str:
    """SQL for the tables, each with a column for checksums, and for the triggers that update it."""
    tables = re.sub(r"(CREATE TABLE \w+ \()", r"\1row_sum INTEGER, ", TABLES)
    names = {
        table: [column for column in columns if column != "row_sum"] for table, columns in _columns(tables).items()
    }
    for table, columns in names.items():
        values = ", ".join(f"NEW.{column}" for column in columns)
        where = " AND ".join(f"{key} = NEW.{key}" for key in KEYS[table])
        then = f"BEGIN UPDATE {table} SET row_sum = row_sum({values}) WHERE {where}; END;"
        tables += f"CREATE TRIGGER {table}_made AFTER INSERT ON {table} {then}"
        tables += f"CREATE TRIGGER {table}_changed AFTER UPDATE OF {', '.join(columns)} ON {table} {then}"
    return tables


def _columns(tables: str) -> dict[str, list[str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(tables)
        return {table: [row[1] for row in connection.execute(f"PRAGMA table_info({table})")] for table in KEYS}


def _mend(path: Path, connection: sqlite3.Connection) -> None:
    """Remove damaged rows, so that the rest can be used and extended, and rebuild damaged indexes.

    Raises ``InputError`` if the file is damaged otherwise, or its version cannot be read.
    """
    damaged = {table: rows for table in KEYS if (rows := _sorted_out(connection, table)[1])}
    if "meta" in damaged:
        must = f"is damaged (meta {damaged['meta'][0]['key']}: which version made it); take another file, or restore it"
        raise InputError("study", str(path), must)
    connection.execute("BEGIN IMMEDIATE")
    for table, rows in damaged.items():
        for row in rows:
            where = " AND ".join(f"CAST({key} AS BLOB) IS CAST(? AS BLOB)" for key in KEYS[table])
            keys = [_raw(row[key]) for key in KEYS[table]]
            if table == "searches":  # the fingerprint may still identify its question, see `Store.scoped`
                done = connection.execute("UPDATE searches SET question='' WHERE id=?", keys)
            else:
                done = connection.execute(f"DELETE FROM {table} WHERE {where}", keys)
            if not done.rowcount:
                raise sqlite3.DatabaseError(f"malformed: {table} cannot be searched")
    connection.execute("COMMIT")
    fault = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if "index" in fault:
        connection.execute("REINDEX")
        fault = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if fault != "ok":
        raise sqlite3.DatabaseError(f"malformed: {fault.splitlines()[-1]}")
    if damaged:
        warnings.warn(_left_out(path, damaged), StudyWarning, stacklevel=2)


def _raw(value: object) -> object:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


@contextmanager
def study_lock(path: Path) -> Iterator[None]:
    """Lock the study for this process. Raises ``InputError`` if another process has locked it."""
    beside = _beside(path)
    try:
        handle = _locked(beside)
    except OSError as error:
        if error.errno in _TAKEN:
            who = beside.read_text(errors="replace").strip() or "another process"
            must = f"is being written by {who}; wait for it, stop it, or name another file"
            raise InputError("study", str(path), must) from None
        raise InputError("study", str(path), f"cannot be locked ({error.strerror})") from None
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether a process is writing the study; the lock file of a killed one stays, but nobody has locked it."""
    try:
        handle = os.open(_beside(path), os.O_RDWR)
    except OSError:
        return False
    try:
        _lock(handle)
    except OSError as error:
        return error.errno in _TAKEN
    finally:
        os.close(handle)
    return False


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _locked(path: Path) -> int:
    """An open file that this process has locked, and that is still the file at ``path``."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(handle)
            if path.exists() and os.fstat(handle).st_ino == path.stat().st_ino:
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()}".encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the previous holder has removed this file: try again


try:
    import fcntl
    from errno import EACCES, EAGAIN

    _TAKEN = {EACCES, EAGAIN}

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

except ImportError:  # pragma: no cover - Windows
    import msvcrt
    from errno import EACCES, EDEADLK

    _TAKEN = {EACCES, EDEADLK}

    def _lock(handle: int) -> None:
        os.lseek(handle, 1 << 20, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
