"""Read a study: its points, its bounds and incumbent over time, its question, and its points as a table.

`read_study` may be called while a search is writing. `export_study` writes the points as CSV or Parquet.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sartor.designs.candidates import Baseline, Ranked, best_of
from sartor.designs.point import ModelOutcome
from sartor.designs.search import AHEAD
from sartor.engine.schema import EMPTY, architecture_dict, cannot, connect, from_text, is_locked, sound_rows
from sartor.errors import InputError
from sartor.files import check_writable, pyarrow, write_atomic
from sartor.json_types import JsonDict, JsonMap, picked

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
class _StudyStep:
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
class _StudySession:
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
    history: tuple[_StudyStep, ...]
    sessions: tuple[_StudySession, ...]
    stored: tuple[tuple[str, Any], ...] = ()
    """Other stored results by key (`designs.result`), in the order of the keys."""

    @property
    def incumbent(self) -> StudyPoint | None:
        """The best point so far (`best_of`)."""
        return best_of((point.objective, point.area_mm2, point.candidate, point) for point in self.points)

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
    def ending(self) -> str:
        """How the last session ended; ``unknown`` if no session's row is readable."""
        return self.sessions[-1].ending if self.sessions else "unknown"

    @property
    def complete(self) -> bool:
        """Whether the last session completed the search."""
        return self.ending == "complete"


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
    if not scopes:
        raise InputError("study", str(path), EMPTY)
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
    stored = tuple((row["key"], from_text(row["value"])) for row in rows("kept", mine))
    ahead = (_as_point(value) for key, value in stored if key.startswith(AHEAD))
    points = [_point(last.pop(key)) for key in list(last)]  # frees each row once its point is made
    evaluated = {(point.candidate, point.hbm_bytes) for point in points}
    points += [point for point in ahead if (point.candidate, point.hbm_bytes) not in evaluated]
    return StudyRecord(
        path=path,
        version=meta["version"],
        scope=scope,
        scopes=scopes,
        fingerprint=search["fingerprint"],
        question=json.loads(search["question"]),
        points=tuple(points),
        history=tuple(
            _StudyStep(**{key: value for key, value in row.items() if key != "search"}) for row in rows("history", mine)
        ),
        sessions=_sessions(path, rows("sessions")),
        stored=stored,
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


def _sessions(path: Path, rows: list[JsonDict]) -> tuple[_StudySession, ...]:
    """The sessions in their order. A session that was killed could not say how it ended: it is interrupted."""
    names = ("started", "executor", "version", "seconds", "evaluated", "ending")
    sessions = [_StudySession(**{name: row[name] for name in names}) for row in rows]
    return tuple(
        replace(session, ending="interrupted")
        if session.ending == "running" and not (session is sessions[-1] and is_locked(Path(os.path.realpath(path))))
        else session
        for session in sessions
    )


SUFFIXES = (".csv", ".parquet")


def export_study(study: str | Path, to: str | Path) -> int:
    """Write every evaluated point as a row and return their number: points of the search itself (``part`` is ``main``),
    of further searches (a budget of a front, a shape), and of other evaluations (a baseline).

    Columns: part, candidate, objective, bound, prices, one per architecture field, and per model (``model1_``, ...) its
    name, seconds, tokens per second and plan; empty if no plan was found.
    Raises ``InputError`` for a study that cannot be read or a file that cannot be written.
    """
    to = Path(to)
    check_export(to)
    record = read_study(study)
    others = [(scope, read_study(study, scope)) for scope in record.scopes if scope != MAIN]
    rows = [*_point_rows(record), *_kept_rows(record)]
    rows += [row for scope, scoped_record in others for row in _point_rows(scoped_record, scope.partition(" #")[0])]
    names = list(dict.fromkeys(name for row in rows for name in row)) or ["part", "candidate", "objective", "bound"]
    encode = _csv if to.suffix.lower() == ".csv" else _parquet
    write_atomic(to, encode(names, rows), field="export")
    return len(rows)


def check_export(to: Path) -> None:
    """Raise ``InputError`` if no table can be written to this file, before anything is computed."""
    if to.suffix.lower() not in SUFFIXES:
        raise InputError("export", str(to), "must end in .csv or .parquet", f"{to.stem or 'points'}.csv")
    check_writable(to, field="export")
    if to.suffix.lower() == ".parquet":
        pyarrow("export to .parquet")


def _point_rows(record: StudyRecord, part: str = MAIN) -> list[JsonDict]:
    """One flat row per point, in the order of evaluation."""
    return [_row(part, point) for point in record.points]


def _kept_rows(record: StudyRecord) -> list[JsonDict]:
    """One flat row per baseline, by its name, then one per point of ``front``."""
    ranked_parts = [(way.name, way.ranked) for way in record.ways if way.ranked is not None]
    ranked_parts += [("front", value) for key, value in record.stored if key.startswith("front, candidate")]
    return [_ranked_row(part, ranked) for part, ranked in ranked_parts]


def _as_point(ranked: Ranked) -> StudyPoint:
    """A stored value as a point of the study."""
    point = ranked.evaluation.point
    return StudyPoint(
        **{name: getattr(ranked, name) for name in ("objective", "bound", "area_mm2", "power_w", "die_usd")},
        candidate=point.index,
        hbm_bytes=point.hbm_bytes,
        architecture=architecture_dict(point.accelerator, point.hbm_bytes),
        outcomes=ranked.evaluation.outcomes,
        schedule_limit_s=point.schedule_limit_s,
        session=0,
    )


def _ranked_row(part: str, ranked: Ranked) -> JsonDict:
    point = _as_point(ranked)
    return _row(part, point) | ({"candidate": None} if point.candidate < 0 else {})


def _row(part: str, point: StudyPoint) -> JsonDict:
    row: JsonDict = {
        "part": part,
        **picked(point, "candidate", "objective", "bound", "area_mm2", "power_w", "die_usd"),
        **point.architecture,
    }
    for i, outcome in enumerate(point.outcomes, 1):
        row |= {f"model{i}_{name}": value for name, value in _outcome(outcome).items()}
    return row


def _outcome(outcome: ModelOutcome | None) -> JsonDict:
    names = (
        "name",
        "step_s",
        "tokens_per_s",
        "sequences_per_s",
        "recompute",
        "microbatch_size",
        "tp",
        "cp",
        "ep",
        "dtype",
        "pp",
        "dp",
        "virtual_stages",
        "zero_stage",
    )
    if outcome is None:
        return dict.fromkeys(names)
    option, plan = outcome.option, outcome.plan
    totals = (outcome.name, outcome.step_s, outcome.tokens_per_s, outcome.sequences_per_s, outcome.recompute.word)
    split = option.split
    layers = (split.microbatch_size, split.width, split.context_parallel, split.expert_parallel, split.dtype.value)
    pipeline = (plan.num_stages, plan.data_parallel, plan.virtual_stages, plan.zero_stage)
    return dict(zip(names, (*totals, *layers, *pipeline), strict=True))


def _csv(names: Sequence[str], rows: Sequence[JsonMap]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _parquet(names: Sequence[str], rows: Sequence[JsonMap]) -> bytes:
    arrow, parquet = pyarrow("export to .parquet")
    table = arrow.table({name: [row.get(name) for row in rows] for name in names})
    whole = io.BytesIO()
    parquet.write_table(table, whole)
    return whole.getvalue()
