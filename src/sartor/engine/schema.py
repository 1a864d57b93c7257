"""The tables of a study file, and how one is opened: SQLite with a write-ahead log, readable while it is written.

``application_id`` says whose file it is and ``user_version`` the format, so `file` and every SQLite tool can tell.
docs/howto/long-studies.md describes the tables.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sartor.errors import InputError

APPLICATION_ID = 0x53415254
"""The letters SART."""
FORMAT = 3
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
"""A search is one question within a study (scope ``main``: the one that was asked). A point is unique by what its
evaluation depended on; ``kept`` has what else was worked out for a search (`records`), by what it is; ``bound`` and
``left_s`` are NULL where nothing is known yet."""


def connect(path: Path, *, for_reading: bool) -> sqlite3.Connection:
    """A connection to a study, checked to be one; for writing it is made where it is not there.

    Raises ``InputError`` for what is no study, is damaged, or cannot be opened.
    """
    try:
        fresh = _is_fresh(path)
        if for_reading and fresh:
            raise InputError("--study", str(path), "there is no such study" if not path.exists() else "is empty")
        connection = _open(path, for_reading=for_reading)
        if not for_reading and (fresh or _has_no_tables(connection)):
            _create(connection)
        _check(path, connection, thorough=not for_reading)
    except (sqlite3.Error, OSError) as error:
        raise cannot(path, error) from None
    return connection


def cannot(path: Path, error: Exception) -> InputError:
    """What went wrong with the file, as a sentence."""
    words = str(error).lower()
    if any(word in words for word in ("full", "no space", "too large", "disk i/o")):
        must = "cannot grow, the disk is full or a limit is reached; its content is kept: free some space and run again"
    elif any(word in words for word in ("malformed", "not a database", "corrupt")):
        must = f"is damaged ({error}); take another file, or restore this one from a copy"
    elif "locked" in words or "busy" in words:
        must = "is in use by another program"
    else:
        must = f"cannot be opened or written ({error})"
    return InputError("--study", str(path), must)


def _is_fresh(path: Path) -> bool:
    """Whether nothing is there yet; raises for what is there and is no SQLite file."""
    if path.is_dir():
        raise InputError("--study", str(path), "is a folder; name a file in it", str(path / "study.db"))
    if not path.exists():
        if not path.parent.is_dir():
            raise InputError("--study", str(path), f"there is no folder {path.parent} to write it in")
        return True
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
    if head and head != MAGIC:
        raise InputError("--study", str(path), "is not a study (not an SQLite file); it was not changed", "a new name")
    return not head


def _open(path: Path, *, for_reading: bool) -> sqlite3.Connection:
    if not for_reading:
        connection = sqlite3.connect(path, timeout=30.0, isolation_level=None)
        connection.execute("PRAGMA synchronous=FULL")
        return connection
    uri = path.resolve().as_uri()
    connection = sqlite3.connect(f"{uri}?mode=rw", uri=True, timeout=30.0, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only=ON")
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.OperationalError:  # a folder that cannot be written has no room for the log's index
        connection.close()
        connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, isolation_level=None)
    return connection


def _has_no_tables(connection: sqlite3.Connection) -> bool:
    """Killed before the tables stood: nothing is lost by beginning anew. Another program's file has tables."""
    return not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    script = f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT};"
    connection.executescript(f"BEGIN IMMEDIATE;{script}{TABLES}COMMIT;")


def _check(path: Path, connection: sqlite3.Connection, *, thorough: bool) -> None:
    whose, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if whose != APPLICATION_ID:
        raise InputError("--study", str(path), "is an SQLite file of another program; it was not changed", "a new name")
    if version != FORMAT:
        must = f"has format {version}, and this sartor knows {FORMAT}"
        raise InputError("--study", str(path), must, "a new name")
    fault = connection.execute("PRAGMA quick_check(1)").fetchone()[0] if thorough else "ok"
    if fault != "ok":
        raise InputError("--study", str(path), f"is damaged ({fault}); take another file, or restore this one")
