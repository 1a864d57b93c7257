"""The points of a study as a table for other tools: CSV always, Parquet with the extra ``data``."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from sartor.designs.point import ModelOutcome
from sartor.designs.result import Ranked
from sartor.engine.codec import architecture_dict
from sartor.engine.study import MAIN, StudyPoint, StudyRecord, read_study
from sartor.errors import InputError
from sartor.files import check_writable, pyarrow, write_atomic
from sartor.json_types import JsonDict, JsonMap

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


def _ranked_row(part: str, ranked: Ranked) -> JsonDict:
    point = ranked.evaluation.point
    like = StudyPoint(
        **{name: getattr(ranked, name) for name in ("objective", "bound", "area_mm2", "power_w", "die_usd")},
        candidate=point.index,
        hbm_bytes=point.hbm_bytes,
        architecture=architecture_dict(point.accelerator, point.hbm_bytes),
        outcomes=ranked.evaluation.outcomes,
        schedule_limit_s=point.schedule_limit_s,
        session=0,
    )
    row = _row(part, like)
    return row if point.index >= 0 else row | {"candidate": None}


def _row(part: str, point: StudyPoint) -> JsonDict:
    row: JsonDict = {
        "part": part,
        "candidate": point.candidate,
        "objective": point.objective,
        "bound": point.bound,
        "area_mm2": point.area_mm2,
        "power_w": point.power_w,
        "die_usd": point.die_usd,
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
