"""``sartor plan --launch`` and ``--write``: read, price and write launch files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.errors import InputError
from sartor.json_types import JsonMap

if TYPE_CHECKING:
    from sartor.answers.plan import PlanAnswer
    from sartor.hardware.cluster import Cluster
    from sartor.model.training import TrainingJob, TrainingPlan
    from sartor.plans.result import PricedPlan
    from sartor.run.fields import TrainingOptions


def trainer_of(kind: str | None) -> str | None:
    """The trainer for launch files of this kind; None for an unknown kind, which is checked when writing."""
    from sartor.launch.plan import WRITTEN

    return kind if kind in {each.value for each in WRITTEN} else None


def write_plan(answer: PlanAnswer, kind: str, folder: Path, *, version: str = "", overwrite: bool) -> PricedPlan:
    """Write the best plan's launch files, and print on stderr which plan they contain and what they cannot express."""
    from sartor import api
    from sartor.launch.files import save_files

    made = api.launch(answer, kind, version)
    for path in save_files(made, folder, overwrite=overwrite):
        c.say(f"wrote {path}")
    for note in made.notes:
        c.say(f"note: {note}")
    return made.priced


def write_files(answer: PlanAnswer, options: JsonMap) -> None:
    """Write the files of the best plan that the options of ``sartor plan`` ask for."""
    trace, chakra, html, png = (options[name] for name in ("trace", "chakra", "html", "png"))
    if options["write"] is not None:
        write_plan(answer, *options["write"], version=options["trainer_version"], overwrite=options["overwrite"])
    if trace is not None:
        from sartor.report.trace import plan_trace

        write_trace(plan_trace(answer), trace)
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
    from sartor.report.chakra import chakra_files

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


def lint_launch(options: JsonMap, num_devices: list[int] | None, run: TrainingOptions) -> None:
    """Price and lint the launch that the options of ``sartor plan`` name, with what ``run`` states instead of it; exit
    with 3 if it does not run, or does not fit whatever its switches without a price save, with 1 for findings at or
    above ``fail_on``."""
    from sartor import api
    from sartor.report.launch_view import launch_view

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

        write_trace(launch_trace(found), options["trace"])
    c.answer("plan", found.to_dict(), as_json=options["json"], out=options["out"])
    if not options["json"]:
        c.show(launch_view(found))
    if found.status == "infeasible":
        raise c.Exit(3)
    worst = found.findings[0].grade.value if found.findings else None
    if o.fails(worst, options["fail_on"]):
        raise c.Exit(1)


def write_trace(data: bytes, path: Path) -> None:
    """Write one step of a plan as a trace for https://ui.perfetto.dev."""
    from sartor.files import write_atomic

    write_atomic(path, data)
    c.say(f"wrote {path}: open it at https://ui.perfetto.dev")
