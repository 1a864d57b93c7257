"""Read a study: its points, its bounds and incumbent over time, and its question.

`read_study` may be called while a search is writing. `export_study` writes the points as CSV or Parquet.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sartor.designs.point import ModelOutcome
from sartor.designs.result import Baseline
from sartor.engine.codec import from_text
from sartor.engine.lock import is_locked
from sartor.engine.schema import cannot, connect, sound_rows
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap

MAIN = "main"
"""Name of the main search; other searches of a study are named by their purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPoint:
    """The last evaluation of a point: ``architecture`` by field, ``outcomes`` by model (None: no plan above the
    incumbent).

    ``objective`` is in the question's unit, 0 if the point did not beat the incumbent at the time; ``bound`` is an
    upper bound on it.
    """

    candidate: int
    hbm_bytes: float
    objective: float
    bound: float
    area_mm2: float
    power_w: float
    die_usd: float
    architecture: JsonMap
    outcomes: tuple[ModelOutcome | None, ...]
    schedule_limit_s: float
    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStep:
    """The search after a step; ``seconds`` counts all sessions. ``bound`` and ``left_s`` are None while unknown."""

    step: int
    seconds: float
    phase: str
    evaluated: int
    waiting: int
    pruned: int
    bound: float | None
    incumbent: float
    left_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySession:
    """One run of the program on the study; ``ending`` is running, complete, interrupted (or killed), time or disk."""

    started: str
    executor: str
    version: str
    seconds: float
    evaluated: int
    ending: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """One search of a study; the ``fingerprint`` is that of ``question`` as canonical JSON."""

    path: Path
    version: str
    scope: str
    scopes: tuple[str, ...]
    fingerprint: str
    question: JsonMap
    points: tuple[StudyPoint, ...]
    history: tuple[StudyStep, ...]
    sessions: tuple[StudySession, ...]
    stored: tuple[tuple[str, Any], ...] = ()
    """Other stored results by key (`designs.result`), in the order of the keys."""

    @property
    def incumbent(self) -> StudyPoint | None:
        """The best point so far, the first of equals."""
        best = max(self.points, key=lambda point: point.objective, default=None)
        return best if best is not None and best.objective > 0 else None

    @property
    def ways(self) -> tuple[Baseline, ...]:
        """The baselines that are priced so far."""
        values = [entry for _, value in self.stored for entry in (value if isinstance(value, tuple) else (value,))]
        return tuple(entry for entry in values if isinstance(entry, Baseline))

    @property
    def bound(self) -> float | None:
        """The proved upper bound on all points of the space; None before anything is known."""
        return self.history[-1].bound if self.history else None

    @property
    def complete(self) -> bool:
        """Whether the last session completed the search."""
        return bool(self.sessions) and self.sessions[-1].ending == "complete"


def read_study(path: str | Path, scope: str = MAIN) -> StudyRecord:
    """The study in a file. Raises ``InputError`` if it is missing or damaged, or has no such ``scope``."""
    path = Path(path)
    try:
        with closing(connect(path, for_reading=True)) as connection:
            return _read(path, connection, scope)
    except sqlite3.Error as error:
        raise cannot(path, error) from None
    except (KeyError, TypeError, ValueError) as slip:
        if isinstance(slip, InputError):
            raise
        raise InputError("study", str(path), f"has invalid content ({type(slip).__name__})") from None


def _read(path: Path, connection: sqlite3.Connection, scope: str) -> StudyRecord:
    connection.execute("BEGIN")
    rows = partial(sound_rows, path, connection)
    searches = rows("searches")
    search = next((row for row in searches if row["scope"] == scope), None)
    scopes = tuple(row["scope"] for row in searches)
    if search is None and len(searches) < connection.execute("SELECT count(*) FROM searches").fetchone()[0]:
        must = "is damaged where it says what was asked (searches); `sartor design` with the same question mends it"
        raise InputError("study", str(path), must)
    if search is None:
        raise InputError("scope", scope, "is not a search of this study", ", ".join(scopes))
    mine, last = search["id"], dict[tuple[int, float], JsonDict]()
    for row in rows("points", mine):
        before = last.get((row["candidate"], row["hbm_bytes"]), row)
        last[row["candidate"], row["hbm_bytes"]] = max(
            before, row, key=lambda stored_row: stored_row["schedule_limit_s"]
        )
    meta = {row["key"]: row["value"] for row in rows("meta")}
    if "version" not in meta:
        raise InputError("study", str(path), "is damaged (meta: which version made it); restore it from a copy")
    return StudyRecord(
        path=path,
        version=meta["version"],
        scope=scope,
        scopes=scopes,
        fingerprint=search["fingerprint"],
        question=json.loads(search["question"]),
        points=tuple(_point(last.pop(key)) for key in list(last)),  # frees each row once its point is made
        history=tuple(
            StudyStep(**{key: value for key, value in row.items() if key != "search"}) for row in rows("history", mine)
        ),
        sessions=_sessions(path, rows("sessions")),
        stored=tuple((row["key"], from_text(row["value"])) for row in rows("kept", mine)),
    )


def _point(row: JsonDict) -> StudyPoint:
    same = ("candidate", "hbm_bytes", "objective", "bound", "area_mm2", "power_w", "die_usd")
    return StudyPoint(
        **{name: row[name] for name in same},
        architecture=json.loads(row["architecture"]),
        outcomes=from_text(row["outcomes"]),
        schedule_limit_s=row["schedule_limit_s"],
        session=row["session"],
    )


def _sessions(path: Path, rows: list[JsonDict]) -> tuple[StudySession, ...]:
    """The sessions in their order. A session that was killed could not say how it ended: it is interrupted."""
    names = ("started", "executor", "version", "seconds", "evaluated", "ending")
    sessions = [StudySession(**{name: row[name] for name in names}) for row in rows]
    return tuple(
        replace(session, ending="interrupted")
        if session.ending == "running" and not (session is sessions[-1] and is_locked(Path(os.path.realpath(path))))
        else session
        for session in sessions
    )
