"""A study open for writing: results of tasks are stored at once, and stored ones are not computed again."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sartor import interrupts
from sartor.designs.candidates import Progress, priced
from sartor.designs.point import Evaluation, Point
from sartor.designs.question import DesignQuestion
from sartor.designs.space import AcceleratorSpace
from sartor.designs.tasks import EvaluatedPoints, PointTask, Result, ShapeTask, Task
from sartor.engine.schema import (
    architecture_dict,
    cannot,
    connect,
    dumps,
    from_text,
    question_dict,
    study_lock,
    to_text,
)
from sartor.engine.study import MAIN
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.version import __version__

T = TypeVar("T")
HISTORY = "search, step, seconds, phase, evaluated, waiting, pruned, bound, incumbent, left_s"


class _StudyFullError(InputError):
    """The study could not be written: the search ends with its results so far and can be resumed later."""


@contextmanager
def open_study(path: str | Path, executor: str) -> Iterator[Store]:
    """Open a study for writing, locked for this process, created if missing, and always closed.

    Raises ``InputError`` for a file that is not a study, is damaged, of another version, or locked by another process.
    """
    path = Path(os.path.realpath(path))  # the same lock for all links to the file
    if path.is_dir() or not path.parent.is_dir():
        connect(path, for_reading=False)  # raises the error
    with study_lock(path), closing(connect(path, for_reading=False)) as connection:
        store = Store(path, connection, executor)
        try:
            yield store
        finally:
            store.close()


@dataclass
class Store:
    """An open study; `scoped` gives one search of it."""

    path: Path
    connection: sqlite3.Connection
    executor: str
    session: int = 0
    ending: str = "interrupted"
    start: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        made_by = self.connection.execute("SELECT value FROM meta WHERE key='version'").fetchone()
        if made_by and made_by[0] != __version__:
            self.connection.close()
            must = f"was made by sartor {made_by[0]}, this is {__version__}: their predictions may differ"
            raise InputError("study", str(self.path), must, "a new name")
        if not made_by:
            with self.writing() as connection:
                connection.execute("INSERT INTO meta (key, value) VALUES ('version', ?)", (__version__,))

    def _begin(self) -> None:
        """Record the session, once a question is accepted: a refused command must leave the file as it was."""
        if self.session:
            return
        with self.writing() as connection:
            row = (datetime.now(UTC).isoformat(timespec="seconds"), self.executor, __version__)
            insert = "INSERT INTO sessions (started, executor, version, seconds, evaluated, ending)"
            self.session = int(connection.execute(f"{insert} VALUES (?, ?, ?, 0, 0, 'running')", row).lastrowid or 0)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is stored, or nothing."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            yield self.connection
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._undo()
            self.ending = "disk"
            raise _StudyFullError(*_parts(cannot(self.path, error))) from None
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def scoped(
        self, question: DesignQuestion, space: AcceleratorSpace, tolerance: float, scope: str | None = MAIN
    ) -> SearchStore:
        """The part of the study for this question: the main one, or another with a name that ends in the question's
        fingerprint.

        Raises ``InputError`` if the part with that name is for another question.
        """
        current = question_dict(question, space, tolerance)
        if scope != MAIN:
            scope = f"{scope or 'also'} #{_fingerprint(current)[:12]}"
        row = self.connection.execute(
            "SELECT id, question, fingerprint FROM searches WHERE scope=?", (scope,)
        ).fetchone()
        if row is None:
            self._begin()
            insert = "INSERT INTO searches (scope, fingerprint, question) VALUES (?, ?, ?)"
            with self.writing() as connection:
                cursor = connection.execute(insert, (scope, _fingerprint(current), dumps(current)))
            return SearchStore(store=self, question=question, search=int(cursor.lastrowid or 0))
        if not row[1] and row[2] == _fingerprint(current):  # the damaged row was for the same question: repair it
            self._begin()
            with self.writing() as connection:
                connection.execute("UPDATE searches SET question=? WHERE id=?", (dumps(current), row[0]))
            row = (row[0], dumps(current))
        if not row[1]:
            raise InputError("study", str(self.path), "is damaged (searches: which question it is of)", "a new name")
        stored = json.loads(row[1])
        if dumps(stored) != dumps(current):
            name, old, new, others = _first_difference(stored, current)
            count = f" (and {others} more)" if others else ""
            must = f"was made for another question: {name} is {old} there and {new} here{count}"
            raise InputError("study", str(self.path), must, "a new name")
        self._begin()
        return SearchStore(store=self, question=question, search=int(row[0]))

    def close(self) -> None:
        """Record how the session ended, if the disk has room."""
        update = "UPDATE sessions SET seconds=?, ending=? WHERE id=?"
        try:
            if self.session:
                self.connection.execute(update, (time.perf_counter() - self.start, self.ending, self.session))
        except sqlite3.Error:
            pass  # a full disk: results stay stored, and the session looks killed
        finally:
            self.connection.close()


def _first_difference(stored: JsonMap, current: JsonMap) -> tuple[str, str, str, int]:
    """The first field that differs, its value there and here, and how many others differ."""
    old, new = dict(_flat(stored)), dict(_flat(current))
    differ = [name for name in {**old, **new} if old.get(name, _ABSENT) != new.get(name, _ABSENT)]
    derived = ("digest", "distinct", "size")
    name = min(differ, key=lambda field: (field.startswith(("space", "models")), field.endswith(derived), field))
    return name, str(old.get(name, _ABSENT)), str(new.get(name, _ABSENT)), len(differ) - 1


_ABSENT = "absent"


def _flat(value: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        yield f"number of {prefix}", len(value)
        for i, item in enumerate(value):
            yield from _flat(item, f"{prefix}[{i}]")
    else:
        yield prefix, value


def _fingerprint(question: JsonMap) -> str:
    """A hash of the canonical JSON."""
    return hashlib.sha256(dumps(question).encode()).hexdigest()[:32]


@dataclass
class SearchStore:
    """Results of one search by task."""

    store: Store
    question: DesignQuestion
    search: int
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    evaluated: int = 0
    """Points evaluated since it was opened, not counting stored ones."""

    def get(self, task: Task) -> Result | None:
        """The stored result of a task, or None."""
        if isinstance(task, PointTask):
            return self._points(task)
        assert not isinstance(task, ShapeTask)
        where = "SELECT value FROM bounds WHERE search=? AND key=?"
        row = self.store.connection.execute(where, (self.search, task.key)).fetchone()
        return None if row is None else np.asarray(np.load(BytesIO(zlib.decompress(row[0])), allow_pickle=False))

    def _points(self, task: PointTask) -> EvaluatedPoints | None:
        """All points of the task as evaluated before; None unless all are stored."""
        where = "SELECT outcomes, bounds, schedules FROM points WHERE search=? AND candidate=? AND hbm_bytes=?"
        where += " AND schedule_limit_s=? AND floor=?"
        evaluations, schedules = [], {}
        for point in task.points:
            row = self.store.connection.execute(where, (self.search, *_key(point))).fetchone()
            if row is None:
                return None
            outcomes = self._value(row[0])
            evaluations.append(Evaluation(point=point, outcomes=outcomes, bounds=tuple(json.loads(row[1]))))
            schedules.update({name: (lower, reached) for name, lower, reached in json.loads(row[2])})
        return EvaluatedPoints(evaluations=tuple(evaluations), schedules=tuple(schedules.items()))

    def put(self, task: Task, result: Result) -> None:
        """Store the result of a task, completely or not at all. Raises ``InputError`` if the disk is full."""
        with self.store.writing() as connection:
            if isinstance(result, EvaluatedPoints):
                self._put_points(connection, result)
            else:
                assert not isinstance(task, PointTask | ShapeTask)
                file = BytesIO()
                np.save(file, result, allow_pickle=False)
                row = (self.search, task.key, zlib.compress(file.getvalue(), 1))
                connection.execute("INSERT OR REPLACE INTO bounds (search, key, value) VALUES (?, ?, ?)", row)
            self._put_steps(connection)

    def _put_points(self, connection: sqlite3.Connection, result: EvaluatedPoints) -> None:
        schedules = [[name, *interval] for name, interval in result.schedules]
        rows = []
        for evaluation in result.evaluations:
            ranked = priced(self.question, evaluation)
            price = (ranked.objective, ranked.bound, ranked.area_mm2, ranked.power_w, ranked.die_usd)
            what = architecture_dict(evaluation.point.accelerator, evaluation.point.hbm_bytes)
            texts = (dumps(what), to_text(evaluation.outcomes), dumps(list(evaluation.bounds)), dumps(schedules))
            rows.append((self.search, *_key(evaluation.point), *price, *texts, self.store.session))
            schedules = []
        names = "search, candidate, hbm_bytes, schedule_limit_s, floor, objective, bound, area_mm2, power_w, die_usd"
        names += ", architecture, outcomes, bounds, schedules, session"
        connection.executemany(f"INSERT INTO points ({names}) VALUES ({','.join('?' * 15)})", rows)
        self.evaluated += len(rows)
        update = "UPDATE sessions SET evaluated=evaluated+?, seconds=? WHERE id=?"
        seconds = time.perf_counter() - self.store.start
        connection.execute(update, (len(rows), seconds, self.store.session))

    def keep(self, key: str, make: Callable[[], T]) -> T:
        """`designs.result.Keep`: the value under ``key``, computed and written once. Raises ``InputError`` if the
        disk is full."""
        where = "SELECT value FROM kept WHERE search=? AND key=?"
        row = self.store.connection.execute(where, (self.search, key)).fetchone()
        if row is not None:
            stored: T = self._value(row[0])
            return stored
        interrupts.point()
        value = make()
        with self.store.writing() as connection:
            row = (self.search, key, to_text(value))
            connection.execute("INSERT INTO kept (search, key, value) VALUES (?, ?, ?)", row)
        return value

    def _value(self, text: str) -> Any:
        try:
            return from_text(text)
        except (KeyError, TypeError, ValueError) as slip:
            must = f"has invalid content ({type(slip).__name__}); take another file, or restore this one"
            raise InputError("study", str(self.store.path), must) from None

    def spent_s(self) -> float:
        """Seconds of this search in all earlier sessions, up to their last recorded step."""
        row = self.store.connection.execute("SELECT max(seconds) FROM history WHERE search=?", (self.search,))
        return float(row.fetchone()[0] or 0.0)

    def step(self, number: int, progress: Progress) -> None:
        """Record a step; it is written with the next result, or at the end."""
        bound = progress.bound if np.isfinite(progress.bound) else None
        counts = (progress.evaluated, progress.waiting, progress.pruned)
        row = (self.search, number, progress.seconds, progress.phase, *counts, bound, progress.incumbent)
        self.steps.append((*row, progress.left_s))

    def _put_steps(self, connection: sqlite3.Connection) -> None:
        connection.executemany(f"INSERT OR IGNORE INTO history ({HISTORY}) VALUES ({','.join('?' * 10)})", self.steps)
        self.steps.clear()

    def history(self) -> tuple[Progress, ...]:
        """All steps, including those of earlier sessions with their seconds."""
        with self.store.writing() as connection:
            self._put_steps(connection)
        names = "seconds, evaluated, bound, incumbent, waiting, phase, pruned, left_s"
        where = f"SELECT {names} FROM history WHERE search=? ORDER BY step"
        rows = self.store.connection.execute(where, (self.search,)).fetchall()
        keys = names.split(", ")
        tables: Sequence[JsonDict] = [dict(zip(keys, row, strict=True)) for row in rows]
        return tuple(
            Progress(**{**row, "bound": float("inf") if row["bound"] is None else row["bound"]}) for row in tables
        )


def _key(point: Point) -> tuple[int, float, float, str]:
    """Everything that an evaluation depends on besides the question."""
    return point.index, point.hbm_bytes, point.schedule_limit_s, dumps(list(point.floor))


def _parts(error: InputError) -> tuple[str, Any, str, str]:
    return error.field, error.value, error.must, error.nearest
