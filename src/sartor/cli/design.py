"""``sartor design``: the best accelerator and plan together."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sartor.cli import common as c
from sartor.cli import design_options as d
from sartor.cli import options as o
from sartor.cli.launch import write_chakra, write_folder
from sartor.cli.study import check_export_needs, export_points, tell_study
from sartor.errors import InputError
from sartor.interrupts import asked, patient
from sartor.json_types import JsonMap

if TYPE_CHECKING:
    from sartor.answers import DesignAnswer
    from sartor.designs.point import Evaluation
    from sartor.designs.result import Progress


def design(
    model: o.ModelsToTrain = None,
    num_devices: o.EqualDevices = None,
    global_batch_size: o.GlobalBatch = None,
    seq_len: o.SeqLens = None,
    context_len: o.ContextLen = None,
    ttft_ms: d.TtftMs = None,
    tpot_ms: d.TpotMs = None,
    space: d.Space = "published",
    objective: o.DesignObjective = "throughput",
    mean: d.Mean = "geometric",
    weights: d.Weights = None,
    area_mm2: d.AreaMm2 = None,
    power_w: d.PowerW = None,
    hbm_gib: d.HbmGib = None,
    energy_j_per_token: d.EnergyJPerToken = None,
    microbatch_size: o.MicrobatchSizes = "1,2,4,8",
    tp: o.TpChoices = "1,2,4,8",
    recompute: o.RecomputeChoices = "none,full",
    optimizer: o.DesignOptimizer = "adam",
    zero_stage: o.ZeroStages = "0,1,2,3",
    cp: o.CpChoices = "1,2",
    virtual_stages: o.VirtualChoices = "1,2,4",
    area_model: d.AreaModel = None,
    wafer_usd: d.WaferUsd = None,
    hbm_usd_per_gb: d.HbmUsdPerGb = None,
    years: d.Years = None,
    usd_per_kwh: d.UsdPerKwh = None,
    plausibility: d.Plausibility = True,
    sensitivity: d.Sensitivity = False,
    time_limit: o.OpenTimeLimit = None,
    tolerance: d.Tolerance = 0.0,
    baselines: d.Baselines = True,
    shapes: d.Shapes = None,
    params_tolerance: o.ParamsTolerance = 0.01,
    evidence: o.Evidence = 1.0,
    fleet: d.Fleet = None,
    against: d.Against = None,
    pareto: d.Pareto = None,
    set_: o.SetField = None,
    study: o.StudyFile = None,
    executor: d.Executor = "local",
    workers: o.Workers = None,
    export: o.Export = None,
    html: o.HtmlFile = None,
    png: o.PngFolder = None,
    zigzag: d.Zigzag = None,
    timeloop: d.Timeloop = None,
    chakra: o.Chakra = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Find the accelerator of a design space and the plan with the highest throughput, with proof.

    Ctrl-C prints the best so far and how much better the optimum can be (exit 130); exit 3: nothing fits, or
    nothing found in time.

    Example: `sartor design --model gpt3-175b --num-devices 1024 --global-batch-size 4096 --against h100_sxm`
    """
    options = c.asked(locals(), "export", "html", "png", "zigzag", "timeloop", "chakra")
    from sartor import api

    check_export_needs(study, export)
    if not model and study is not None and study.exists():
        tell_study(study, export=export, json=json, out=out)
        return
    check_given({"--model": model, "--num-devices": num_devices})
    with patient(), progress_line(time_limit) as progress:
        as_numbers = {
            "model": model or [],
            "num_devices": num_devices or 0,
            "seq_len": None if seq_len is None else numbers("--seq-len", seq_len, int),
            "weights": () if weights is None else numbers("--weights", weights, float),
            "microbatch_size": numbers("--microbatch-size", microbatch_size, int),
            "tp": numbers("--tp", tp, int),
            "recompute": c.words_of(recompute),
            "zero_stage": numbers("--zero-stage", zero_stage, int),
            "cp": numbers("--cp", cp, int),
            "virtual_stages": numbers("--virtual-stages", virtual_stages, int),
            "shapes": shapes_asked(shapes, fleet, model or []),
            "fleet": fleet_of(fleet),
            "against": against or None,
            "pareto": c.words_of(pareto),
        }
        found = api.design(**options | as_numbers, progress=progress)
    write_files(found, html, png)
    write_tools(found, zigzag=zigzag, timeloop=timeloop, chakra=chakra)
    if export is not None and study is not None:
        export_points(study, export)
    tell(found, json=json, out=out)


GIVEN = {
    "--model": ("name the models to train", "--model gpt3-175b"),
    "--num-devices": ("must be said", "--num-devices 1024"),
}
"""Options that a search requires, each with its error message and an example."""


def check_given(given: JsonMap) -> None:
    """Raise ``InputError`` for the first missing option of `GIVEN`."""
    for name, value in given.items():
        if value is None or value == []:
            must, near = GIVEN[name]
            raise InputError(name, "not given", must, near)


def tell(found: DesignAnswer, *, json: bool, out: Path | None) -> None:
    """Print the answer and exit: 130 if interrupted, 3 if no point fits or none was found in time."""
    from sartor.report.design_body import design_body
    from sartor.report.design_words import nothing_text
    from sartor.report.table_design import design_view

    c.answer("design", design_body(found), as_json=json, out=out)
    if not json:
        c.show(design_view(found))
    if found.result.interrupted or asked():
        c.say("interrupted: nothing found yet" if found.best is None else "interrupted: this is the best result so far")
        raise c.Exit(128 + signal.SIGINT)
    if found.result.status.value in ("infeasible", "unknown"):
        if json:
            c.say(f"sartor: {nothing_text(found)}")
        raise c.Exit(3)


def write_files(found: DesignAnswer, html: Path | None, png: Path | None) -> None:
    """Write the page and the figures, if requested."""
    if html:
        from sartor.files import write_atomic
        from sartor.report.page_design import design_page

        write_atomic(html, design_page(found).encode())
    if png and found.best is not None:
        from sartor.report.design_points import design_points
        from sartor.report.figures import export_pngs

        export_pngs(design_points(found), png)


def write_tools(found: DesignAnswer, *, chakra: Path | None, **tools: Path | None) -> None:
    """Write the best chip in other tools' formats, and a step of its plans, if requested."""
    if found.best is None:
        return
    from sartor.report.chip_files import CHIP_FILES

    best = found.best.evaluation
    for tool, folder in tools.items():
        if folder is not None:
            names = write_folder(CHIP_FILES[tool](best.point.chip), folder, f"--{tool}")
            c.say(f"wrote {', '.join(str(folder / name) for name in names)}")
    if chakra is not None:
        write_steps(found, best, chakra)


def write_steps(found: DesignAnswer, best: Evaluation, folder: Path) -> None:
    """Write one step of every model on the best chip as Chakra traces; with several models, one folder each."""
    from sartor.designs.detail import training_step

    models = found.question.models
    for m, model in enumerate(models):
        if step := training_step(found.question, best, m):
            write_chakra(*step, folder if len(models) == 1 else folder / model.name.replace("/", "-"))


def shapes_asked(shapes: str | None, fleet: str | None, models: list[str]) -> int | str:
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


def fleet_of(text: str | None) -> dict[str, float]:
    """``"tpu_v4_like=3,a100_like"`` -> weights by accelerator."""
    found: dict[str, float] = {}
    for word in (text or "").split(","):
        name, _, weight = word.strip().partition("=")
        if name:
            found[name] = numbers("--fleet", weight or "1", float)[0]
    return found


def numbers(field: str, text: str, kind: Callable[[str], Any]) -> list[Any]:
    """``"1,2,4"`` -> ``[1, 2, 4]``."""
    try:
        found = [kind(word) for word in text.split(",") if word.strip()]
    except ValueError:
        found = []
    if not found:
        what = "a whole number" if kind is int else "a number"
        raise InputError(field, text, f"must be {what}, or several with commas", "1,2,4")
    return found


@contextmanager
def progress_line(time_limit_s: float | None) -> Iterator[Callable[[Progress], None] | None]:
    """A progress line on stderr if that is a terminal: bound, best so far, points evaluated, time left."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    start = time.perf_counter()
    with Live(Text("bounding every candidate"), console=Console(stderr=True), transient=True) as live:
        yield lambda progress: live.update(Text(progress_text(progress, time_limit_s, time.perf_counter() - start)))


def progress_text(progress: Progress, time_limit_s: float | None, seconds: float) -> str:
    """``best 191,231, at most 203,859 (6.6%), 38 evaluated, 280 waiting, 13 s, at most 9 s left``."""
    best = f"best {progress.incumbent:,.4g}" if progress.incumbent else "no point yet"
    gap = f" ({100 * (progress.bound / progress.incumbent - 1):.1f}% above)" if progress.incumbent else ""
    if progress.phase.startswith("baselines"):
        return f"{best}, none above {progress.bound:,.4g}; pricing {progress.phase}, {seconds:.0f} s"
    words = [best, f"none above {progress.bound:,.4g}{gap}", f"{progress.evaluated} evaluated"]
    words += [f"{progress.waiting} waiting", f"{seconds:.0f} s"]
    left = [] if time_limit_s is None else [max(time_limit_s - seconds, 0.0)]
    if progress.left_s is not None:
        left.append(progress.left_s)
    if left:
        words.append(f"at most {min(left):.0f} s left")
    return ", ".join(words)
