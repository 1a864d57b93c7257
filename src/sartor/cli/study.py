"""``sartor study``: show a study file, and export its points as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.errors import InputError
from sartor.json_types import JsonDict

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sartor.engine.study import StudyRecord


def study(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A study that `sartor design --study` wrote.")],
    export: o.Export = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Show a study file: its question, best point and proof so far, also while it is being written.

    Example: `sartor study gpt3.db --export points.csv`
    """
    tell_study(file, export=export, json=json, out=out)


def export_points(study: Path, to: Path) -> None:
    """Export the study's points as a table, and print their number on stderr."""
    from sartor.engine.study import export_study

    c.say(f"{to}: {export_study(study, to)} points")


def tell_study(file: Path, *, export: Path | None, json: bool, out: Path | None) -> None:
    """Show the study, and export its points if requested."""
    from sartor.engine.study import read_study

    record = read_study(file)
    if export is not None:
        export_points(file, export)
    c.answer("study", _study_body(record), as_json=json, out=out)
    if not json:
        c.show(_view(record))


def _study_body(record: StudyRecord) -> JsonDict:
    """The JSON of a study as the page shows it, plus its fingerprint and whether it is complete."""
    from sartor.web.study_view import study_body as as_watched

    whole = {"fingerprint": record.fingerprint, "complete": record.complete}
    seconds = sum(session.seconds for session in record.sessions)
    names = ("name", "evaluations", "seconds", "note")
    ways = [
        {name: getattr(way, name) for name in names} | {"objective": way.ranked.objective if way.ranked else None}
        for way in record.ways
    ]
    beside = {"baselines": ways, "searches": list(record.scopes)}
    return {**as_watched(record), **whole, **beside, "seconds": seconds}


def _view(record: StudyRecord) -> RenderableType:
    from sartor.model.workload import Phase
    from sartor.report.design_words import job_text
    from sartor.report.document import document_text, opening
    from sartor.report.words import count_text

    best, seconds = record.incumbent, sum(session.seconds for session in record.sessions)
    jobs = [(m["name"], Phase(m["phase"]), m["seq_len"], m["context_len"]) for m in record.question["models"]]
    models = ", ".join(job_text(*job) for job in jobs)
    question = f"{models} on {count_text(record.question['num_devices'], 'device')}"
    if any(phase is Phase.TRAIN for _, phase, *_ in jobs):
        question += f", global batch {record.question['global_batch_size']:,}"
    done = f"{count_text(len(record.points), 'point')} in {count_text(len(record.sessions), 'session')}"
    rows = [
        ("question", f"{question}, space {record.question['space']['name']}"),
        ("evaluated", f"{done}, {seconds:.1f} s"),
        ("best so far", "none" if best is None else f"{best.objective:,.6g} (candidate {best.candidate})"),
        ("none above", "not known" if record.bound is None else f"{record.bound:,.6g}"),
        ("state", "complete" if record.complete else f"to be continued ({record.sessions[-1].ending})"),
    ]
    others = (
        (len(record.ways), "other ways to choose"),
        (sum(key.startswith("front, candidate") for key, _ in record.stored), "points looked at for a front"),
        (len(record.scopes) - 1, "searches under budgets and of shapes"),
    )
    if any(number for number, _ in others):
        rows.append(("beside it", ", ".join(f"{number} {words}" for number, words in others if number)))
    if best is not None:
        names = ("num_tensor_cores", "array_rows", "array_cols", "num_vector_cores", "vector_lanes", "hbm_bytes")
        shown = ", ".join(f"{name} {best.architecture[name]:,.6g}" for name in names)
        rows.insert(3, ("", f"{shown}; {best.area_mm2:,.1f} mm2, {best.power_w:,.0f} W"))
    return document_text([opening(f"{name:12}{words}" for name, words in rows)])


def check_export_needs(study: Path | None, export: Path | None) -> None:
    """Raise ``InputError``, before anything is computed, if points cannot be exported."""
    if export is None:
        return
    if study is None:
        raise InputError("--export", str(export), "needs a study to export", "--study FILE")
    from sartor.engine.study import check_export

    check_export(export)
