"""``sartor design``, the best accelerator and plan together, and ``sartor study``, what a search has written."""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.cli.plan import write_chakra, write_folder
from sartor.cli.run_options import numbers, read_flags, with_flags
from sartor.designs.options import DesignOptions
from sartor.errors import InputError
from sartor.interrupts import asked, patient, report
from sartor.json_types import JsonDict, JsonMap

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sartor.answers.design import DesignAnswer
    from sartor.designs.candidates import Progress
    from sartor.designs.point import Evaluation
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
    _tell_study(file, export=export, json=json, out=out)


def _export_points(study: Path, to: Path) -> None:
    """Export the study's points as a table, and print their number on stderr."""
    from sartor.engine.study import export_study

    c.say(f"{to}: {export_study(study, to)} points")


def _tell_study(file: Path, *, export: Path | None, json: bool, out: Path | None) -> None:
    """Show the study, and export its points if requested."""
    from sartor.engine.study import read_study

    record = read_study(file)
    if export is not None:
        _export_points(file, export)
    c.answer("study", _study_body(record), as_json=json, out=out)
    if not json:
        c.show(_study_view(record))


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


def _study_view(record: StudyRecord) -> RenderableType:
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
        ("state", "complete" if record.complete else f"to be continued ({record.ending})"),
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


def _check_export_needs(study: Path | None, export: Path | None) -> None:
    """Raise ``InputError``, before anything is computed, if points cannot be exported."""
    if export is None:
        return
    if study is None:
        raise InputError("--export", str(export), "needs a study to export", "--study FILE")
    from sartor.engine.study import check_export

    check_export(export)


Zigzag = Annotated[
    Path | None,
    typer.Option("--zigzag", metavar="DIR", help="Write the best chip as accelerator and mapping of ZigZag."),
]
Timeloop = Annotated[
    Path | None,
    typer.Option("--timeloop", metavar="DIR", help="Write the best chip as architecture of Timeloop/Accelergy."),
]


@with_flags(DesignOptions)
def design(
    model: o.ModelsToTrain = None,
    num_devices: o.EqualDevices = None,
    *,
    export: o.Export = None,
    html: o.HtmlFile = None,
    png: o.PngFolder = None,
    zigzag: Zigzag = None,
    timeloop: Timeloop = None,
    chakra: o.Chakra = None,
    verbose: o.Verbose = False,
    json: o.AsJson = False,
    out: o.OutFile = None,
    **flags: Any,
) -> None:
    """Find the accelerator of a design space and the plan with the highest throughput, with proof.

    Ctrl-C prints the best so far and how much better the optimum can be (exit 130); exit 3: nothing fits, or
    nothing found in time.

    Example: `sartor design --model gpt3-175b --num-devices 512 --global-batch-size 512 --time-limit 60 --study gpt3.db`
    """
    from sartor import api

    study = flags["study"]
    _check_export_needs(study, export)
    if not model and study is not None and study.exists():
        _tell_study(study, export=export, json=json, out=out)
        return
    _check_given({"--model": model, "--num-devices": num_devices})
    report("bounding every candidate")
    progress = partial(_report, begin=time.perf_counter(), time_limit_s=flags["time_limit"])
    with patient():
        special = {
            "shapes": _shapes_asked(flags["shapes"], flags["fleet"], model or []),
            "fleet": _fleet_of(flags["fleet"]),
            "set": c.parse_sets(flags["set"]),
        }
        options = read_flags(DesignOptions, flags) | special
        answer = api.design(model or [], num_devices=num_devices or 0, progress=progress, **options)
    _write_files(answer, html, png)
    _write_tools(answer, zigzag=zigzag, timeloop=timeloop, chakra=chakra)
    if export is not None and study is not None:
        _export_points(study, export)
    _tell(answer, verbose=verbose, json=json, out=out)


GIVEN = {
    "--model": ("name the models to train", "--model gpt3-175b"),
    "--num-devices": ("must be said", "--num-devices 1024"),
}
"""Options that a search requires, each with its error message and an example."""


def _check_given(stated: JsonMap) -> None:
    """Raise ``InputError`` for the first missing option of `GIVEN`."""
    for name, value in stated.items():
        if value is None or value == []:
            must, near = GIVEN[name]
            raise InputError(name, "not given", must, near)


def _tell(answer: DesignAnswer, *, verbose: bool, json: bool, out: Path | None) -> None:
    """Print the answer and exit: 130 if interrupted, 3 if no point fits or none was found in time."""
    from sartor.report.design_document import design_view
    from sartor.report.design_words import nothing_text

    c.answer("design", answer.to_dict, as_json=json, out=out)
    if not json:
        c.show(design_view(answer, verbose=verbose))
    if answer.result.interrupted or asked():
        c.say(
            "interrupted: nothing found yet" if answer.best is None else "interrupted: this is the best result so far"
        )
        raise c.Exit(128 + signal.SIGINT)
    if answer.result.status.value in ("infeasible", "unknown"):
        if json:
            c.say(f"sartor: {nothing_text(answer)}")
        raise c.Exit(3)


def _write_files(answer: DesignAnswer, html: Path | None, png: Path | None) -> None:
    """Write the page and the figures, if requested."""
    if html:
        from sartor.files import write_atomic
        from sartor.report.design_document import design_page

        write_atomic(html, design_page(answer).encode())
    if png and answer.best is not None:
        from sartor.report.design_points import design_points
        from sartor.report.figures import export_pngs

        export_pngs(design_points(answer), png)


def _write_tools(answer: DesignAnswer, *, chakra: Path | None, **tools: Path | None) -> None:
    """Write the best chip in other tools' formats, and a step of its plans, if requested."""
    if answer.best is None:
        return
    from sartor.report.chip_files import CHIP_FILES

    best = answer.best.evaluation
    for tool, folder in tools.items():
        if folder is not None:
            names = write_folder(CHIP_FILES[tool](best.point.chip), folder, f"--{tool}")
            c.say(f"wrote {', '.join(str(folder / name) for name in names)}")
    if chakra is not None:
        _write_steps(answer, best, chakra)


def _write_steps(answer: DesignAnswer, best: Evaluation, folder: Path) -> None:
    """Write one step of every model on the best chip as Chakra traces; with several models, one folder each."""
    from sartor.designs.detail import training_step

    models = answer.question.models
    for m, model in enumerate(models):
        if step := training_step(answer.question, best, m):
            write_chakra(*step, folder if len(models) == 1 else folder / model.name.replace("/", "-"))


def _shapes_asked(shapes: str | None, fleet: str | None, models: list[str]) -> int | str:
    """Number of shapes to search, or all; 0 if not requested. Raises ``InputError``."""
    if shapes is None:
        if fleet is not None:
            raise InputError("--fleet", fleet, "needs --shapes with the number of shapes to search", "--shapes 4")
        return 0
    if shapes != "all" and not (shapes.isascii() and shapes.isdigit() and int(shapes)):
        raise InputError("--shapes", shapes, "must be a whole number of at least 1, or all", "all")
    if len(models) > 1 and shapes != "all":
        raise InputError("--shapes", shapes, f"takes one model, and {len(models)} are given", "all")
    if shapes == "all" and fleet is not None:
        raise InputError("--fleet", fleet, "is compared with a number of shapes, not with all of them", "--shapes 4")
    return shapes if shapes == "all" else int(shapes)


def _fleet_of(text: str | None) -> dict[str, float]:
    """``"tpu_v4_like=3,a100_like"`` -> weights by accelerator."""
    weights: dict[str, float] = {}
    for word in (text or "").split(","):
        name, _, weight = word.strip().partition("=")
        if name:
            weights[name] = numbers("--fleet", weight or "1", float)[0]
    return weights


def _report(progress: Progress, begin: float, time_limit_s: float | None) -> None:
    """Report how far the search is: ``best 191,231, none above 203,859 (6.6% above), 38 evaluated, 280 waiting``."""
    best = f"best {progress.incumbent:,.4g}" if progress.incumbent else "no point yet"
    gap = f" ({100 * (progress.bound / progress.incumbent - 1):.1f}% above)" if progress.incumbent else ""
    if progress.phase.startswith("baselines"):
        report(f"{best}, none above {progress.bound:,.4g}; pricing {progress.phase}")
        return
    left = [] if time_limit_s is None else [max(begin + time_limit_s - time.perf_counter(), 0.0)]
    left += [] if progress.left_s is None else [progress.left_s]
    words = f"{best}, none above {progress.bound:,.4g}{gap}, {progress.evaluated} evaluated, {progress.waiting} waiting"
    report(words, left_s=min(left, default=None))
