"""``sartor plan``: how to spread a model's training over a cluster, and launch files: read, priced and written.

``sartor place`` and ``sartor schedule`` solve instances from files: which layers form which stage, with how many copies
and what tensor-parallel width; when each operator of a layer runs, and on which cores.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.cli.run_options import takes_run
from sartor.errors import InputError
from sartor.interrupts import asked, patient
from sartor.json_types import JsonMap
from sartor.run.fields import OF_ENGINES, TrainingOptions, parse_size
from sartor.units import parse_count

if TYPE_CHECKING:
    from sartor.answers.plan import PlanAnswer
    from sartor.api.plans import WrittenLaunch
    from sartor.hardware.cluster import Cluster
    from sartor.model.training import TrainingJob, TrainingPlan

Simple = Annotated[bool, typer.Option("--simple", help="Only data and tensor parallelism: pp=1, cp=1, ep=1.")]
Write = Annotated[
    tuple[str, Path] | None,
    o.WRITE(
        metavar="TRAINER DIR",
        help="Write the best plan's launch files: megatron, megatron-bridge, torchtitan, deepspeed "
        "or accelerate, and a folder.",
    ),
]
TrainerVersion = Annotated[
    str,
    typer.Option(
        "--trainer-version",
        metavar="VERSION",
        help="With --write: the trainer's version (default: its newest). torchtitan before 0.3 gets a TOML.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Let --write overwrite different files.")]
LAUNCH = partial(typer.Option, "--launch", metavar="FILE")
Launch = Annotated[
    Path | None, LAUNCH(help="Price and lint an existing launch instead: Megatron script, torchtitan TOML.")
]
LaunchOfRun = Annotated[
    Path | None,
    LAUNCH(help="Launch file of the run, if its log does not contain the plan: Megatron script, torchtitan TOML."),
]


@takes_run(without=("phase", "cluster", "num_devices", "context_len", "eager", "kernels", "launch", *OF_ENGINES))
def plan(
    model: o.ModelOrLaunch = None,
    cluster: o.ClusterOfPlan = None,
    num_devices: o.DeviceCounts = None,
    simple: Simple = False,
    why_not: o.WhyNot = None,
    tokens: Annotated[str, o.BUDGET(help="Token budget for the cost: 1T, 300B, 1.5e12.")] = "1T",
    top: o.Top = 10,
    write: Write = None,
    trainer_version: TrainerVersion = "",
    overwrite: Overwrite = False,
    html: o.HtmlFile = None,
    png: o.PngFolder = None,
    trace: o.TraceFile = None,
    chakra: o.Chakra = None,
    launch: Launch = None,
    allow: o.Allow = None,
    fail_on: o.FailOn = "never",
    verbose: o.Verbose = False,
    json: o.AsJson = False,
    out: o.OutFile = None,
    **options: Unpack[TrainingOptions],
) -> None:
    """Find the parallel plan with the shortest predicted step that fits in memory, out of all valid plans.

    Exits with 3 if nothing fits, naming the fullest stage, by how many bytes it is over, and what would fit.

    Example: `sartor plan llama-3-8b --cluster dgx-h100 --num-devices 64 --global-batch-size 512 --seq-len 8192`
    """
    from sartor import api

    files = {"write": write, "trainer_version": trainer_version, "overwrite": overwrite, "html": html, "png": png}
    files |= {"trace": trace, "chakra": chakra}
    if launch is not None:
        checks = {"launch": launch, "cluster": cluster, "model": model, "allow": allow, "fail_on": fail_on}
        searches = {"simple": simple, "why_not": why_not}
        _only_with_a_search(searches | files)
        _lint_launch({**checks, "trace": trace, "json": json, "out": out}, parse_counts(num_devices), options)
        return
    if write is not None and cluster is not None:
        _refuse_launch(write[0], cluster)
    if model is None:
        raise InputError("MODEL", "not given", "name the model to plan, or use --launch FILE", "llama-3-8b")
    if trainer := options.get("framework") or trainer_of(write[0] if write else None):
        options["framework"] = trainer
    found = api.plan(
        model,
        cluster,
        num_devices=parse_counts(num_devices),
        top=top,
        tokens=parse_count("--tokens", tokens),
        why_not=c.parse_fix(why_not, option="--why-not") or None,
        simple=simple,
        write=write[0] if write else None,
        **options,
    )
    if found.best is not None and not found.cannot_run:
        _write_files(found, files)
    elif any(files[name] for name in ("write", "html", "png", "trace", "chakra")):
        c.say(f"sartor: no file is written: {'as stated it cannot run' if found.cannot_run else 'no plan fits'}")
    _show(found, verbose=verbose, json=json, out=out)


def _refuse_launch(kind: str, cluster: str) -> None:
    """Reject ``--write`` before the search, if no launch file of that kind starts on the cluster's devices."""
    from sartor.api.plans import refuse_launch
    from sartor.api.words import cluster_or_usual

    refuse_launch(cluster_or_usual(cluster)[0].gpu, "--write", kind)


def _show(found: PlanAnswer, *, verbose: bool, json: bool, out: Path | None) -> None:
    """Print the answer; exit with 3 if no plan fits, or has the stated degrees."""
    from sartor.report.plan_document import plan_view

    c.answer("plan", found.to_dict, as_json=json, out=out)
    if not json:
        c.show(plan_view(found, verbose=verbose))
    if found.best is None:
        tightest = found.search.tightest
        if json and tightest:
            c.say(f"sartor: {tightest.message}")
    if found.status == "infeasible":
        raise c.Exit(3)


WITH_A_LAUNCH = ("trace", "trainer_version", "overwrite")
"""Options of written files that a launch may have beside it; the others only a search uses."""


def _only_with_a_search(options: JsonMap) -> None:
    """Reject the options that no launch may have beside it."""
    for name, value in options.items():
        if value and name not in WITH_A_LAUNCH:
            said = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            raise InputError(f"--{name.replace('_', '-')}", said, "cannot be used with --launch", "leave one out")


def parse_counts(text: str | None) -> list[int] | None:
    """``"256,512"`` -> ``[256, 512]``; ``"8..64"`` -> ``[8, 16, 32, 64]``."""
    if text is None:
        return None
    try:
        counts = [count for word in text.split(",") if word.strip() for count in _doubling(word)]
    except ValueError:
        return _no_counts(text)
    return counts or _no_counts(text)


def _doubling(word: str) -> list[int]:
    """One count, or the range from the first to the last by doubling."""
    first, dots, last = word.partition("..")
    low, high = (parse_size("num_devices", count) for count in (first, last if dots else first))
    if dots and not 0 < low <= high < 2**31:
        raise ValueError(word)
    return [low << k for k in range((high // low).bit_length())] if dots else [low]


def _no_counts(text: str) -> list[int]:
    raise InputError("--num-devices", text, "must be a whole number, or several", "64, 256,512 or 8..1024")


def trainer_of(kind: str | None) -> str | None:
    """The trainer for launch files of this kind; None for an unknown kind, which is checked when writing."""
    from sartor.launch.plan import WRITTEN

    return kind if kind in {each.value for each in WRITTEN} else None


def save_launch(made: WrittenLaunch, folder: Path, overwrite: bool) -> None:
    """Save launch files, and print on stderr which they are and what they cannot express."""
    from sartor.launch.files import save_files
    from sartor.report.plan_words import plan_words
    from sartor.units import format_bytes, format_seconds

    for path in save_files(made, folder, overwrite=overwrite):
        c.say(f"wrote {path}")
    plan = made.priced
    c.say(f"their plan: {plan_words(plan.plan)}; {format_seconds(plan.step_s)} a step, {format_bytes(plan.peak_bytes)}")
    for note in made.notes:
        c.say(f"note: {note}")


def _write_files(answer: PlanAnswer, options: JsonMap) -> None:
    """Write the files of the best plan that the options of ``sartor plan`` ask for."""
    trace, chakra, html, png = (options[name] for name in ("trace", "chakra", "html", "png"))
    if options["write"] is not None:
        from sartor import api

        kind, folder = options["write"]
        save_launch(api.launch(answer, kind, options["trainer_version"]), folder, options["overwrite"])
    if trace is not None:
        from sartor.report.trace import plan_trace

        _write_trace(plan_trace(answer), trace)
    if chakra is not None and answer.best is not None:
        write_chakra(answer.job, answer.best.plan, answer.search.cluster, chakra)
    if html is not None:
        from sartor.report.plan_document import plan_page

        c.write_page(html, plan_page(answer))
    if png is not None:
        from sartor.report.plan_points import plan_points

        c.write_figures(png, plan_points(answer))


def write_chakra(job: TrainingJob, plan: TrainingPlan, cluster: Cluster, folder: Path) -> None:
    """Write one step of a plan as Chakra execution traces."""
    from sartor.report.trace import chakra_files

    names = write_folder(chakra_files(job, plan, cluster), folder, "--chakra")
    c.say(f"wrote {len(names) - 1} traces, {folder}/step.RANK.et, and {folder}/comm_group.json")


def write_folder(files: Iterable[tuple[str, bytes]], folder: Path, option: str) -> list[str]:
    """Write files (name, contents) into a folder, which is created if missing; returns their names."""
    from sartor.files import write_atomic

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(option, str(folder), f"must be a folder that can be written ({error.strerror})") from None
    names = list[str]()
    for name, data in files:
        write_atomic(folder / name, data, field=option)
        names.append(name)
    return names


def _lint_launch(options: JsonMap, num_devices: list[int] | None, run: TrainingOptions) -> None:
    """Price and lint the launch that the options of ``sartor plan`` name, with what ``run`` states instead of it; exit
    with 3 if it does not run, or does not fit whatever its switches without a price save, with 1 for findings at or
    above ``fail_on``."""
    from sartor import api
    from sartor.report.diagnose_words import launch_view

    if num_devices is not None and len(num_devices) > 1:
        raise InputError("--num-devices", ",".join(map(str, num_devices)), "must be one number for a launch", "64")
    found = api.lint_launch(
        options["launch"],
        options["cluster"],
        model=options["model"],
        num_devices=None if num_devices is None else num_devices[0],
        allow=tuple(options["allow"] or ()),
        **run,
    )
    if options["trace"] is not None:
        from sartor.report.trace import launch_trace

        _write_trace(launch_trace(found), options["trace"])
    c.answer("plan", found.to_dict, as_json=options["json"], out=options["out"])
    if not options["json"]:
        c.show(launch_view(found))
    if found.status == "infeasible":
        raise c.Exit(3)
    worst = found.findings[0].grade.value if found.findings else None
    if o.fails(worst, options["fail_on"]):
        raise c.Exit(1)


def _write_trace(data: bytes, path: Path) -> None:
    """Write one step of a plan as a trace for https://ui.perfetto.dev."""
    from sartor.files import write_atomic

    write_atomic(path, data)
    c.say(f"wrote {path}: open it at https://ui.perfetto.dev")


def place(
    instance: Annotated[
        Path, typer.Argument(metavar="INSTANCE.json", help="A placement instance.", show_default=False)
    ],
    terms: Annotated[
        Path | None,
        typer.Option(
            "--terms",
            metavar="FILE.json",
            help="Add cost terms: link tiers, gradient reduction of every stage, device types, interleaving, ZeRO.",
        ),
    ] = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Find the optimal placement of an instance (layers with times and bytes) on identical devices.

    Exits with 3 if nothing fits, naming the least memory and the fewest devices that would do.

    Example: `sartor place examples/placement/encoder_decoder.json`
    """
    from sartor import api
    from sartor.report.solved import placement_view

    result = api.place(instance, terms=terms)
    c.answer("place", result.to_dict, as_json=json, out=out)
    if not json:
        c.show(placement_view(result))
    if result.plan is None:
        if json and result.tightest:
            c.say(f"sartor: {result.tightest.message}")
        raise c.Exit(3)


def schedule(
    instance: Annotated[
        Path, typer.Argument(metavar="INSTANCE.json", help="A scheduling instance.", show_default=False)
    ],
    time_limit: o.TimeLimit = 20.0,
    solver: Annotated[
        str,
        typer.Option("--solver", metavar="cp_sat|milp|greedy", help="milp: the published integer program, on HiGHS."),
    ] = "cp_sat",
    trace: o.TraceFile = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure", metavar="FILE", callback=o.writable, help="Write the Gantt chart as .svg, .png or .html."
        ),
    ] = None,
    verbose: o.Verbose = False,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Find the shortest schedule of one layer's operators on tensor and vector cores, with a lower bound.

    Ctrl-C ends the search and answers with the best schedule found so far (exit code 130).

    Example: `sartor schedule examples/schedule/decoder_backward.json --time-limit 5`
    """
    from sartor import api
    from sartor.report.solved import schedule_trace, schedule_view
    from sartor.schedules.problem import Solver

    if solver not in tuple(Solver):
        raise InputError("--solver", solver, f"must be one of {', '.join(Solver)}", "cp_sat")
    if figure:
        from sartor.report.solved import check_figure_name, write_gantt

        check_figure_name(figure)
    with patient():
        result = api.schedule(instance, time_limit=time_limit, solver=solver)
    c.answer("schedule", result.to_dict, as_json=json, out=out)
    if trace:
        from sartor.files import write_atomic

        write_atomic(trace, schedule_trace(result))
    if figure:
        write_gantt(result, figure)
    if not json:
        c.show(schedule_view(result, verbose=verbose))
    if result.interrupted or asked():
        raise c.Exit(128 + signal.SIGINT)
