"""Diagnosis of a training log: the run compared with the prediction for its plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from sartor.answers.diagnosis import LogDiagnosis
from sartor.api.logged_plan import SIZES, AskedPlan, LoggedOptions, LoggedPlan, conventions_of
from sartor.api.logged_plan import best_plan as searched_best
from sartor.api.words import cluster_of, device_counts, device_of, own_calibration_of
from sartor.errors import NOT_GIVEN, InputError
from sartor.hardware.catalog import gpu_names
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import usual_cluster
from sartor.run.fields import check_names
from sartor.step.results import step_source
from sartor.units import format_share

if TYPE_CHECKING:
    from sartor.traces.logs.run_log import RunLog


def diagnose_log(log: str | Path, *, run: int | None = None, **options: Unpack[LoggedOptions]) -> LogDiagnosis:
    """Compare a training log with the prediction for its plan: step time, memory, how its TFLOP/s are counted, and
    which single fact, if different, would bring the prediction nearest; or which plans would give its figures.

    ``options`` (`LoggedOptions`) say what the log does not contain; ``run`` selects one of several runs in a log, from
    1 (default: the last). Raises ``InputError``.
    """
    from sartor.traces.logs.read import read_log

    check_names(options, LoggedOptions)
    own = chosen_run(read_log(log), run)
    asked = AskedPlan.of(own, log, measured_on(own.facts.get("gpu"), "the log", options), options)
    found = asked.launched() if asked.has_launch else asked.assembled()
    warnings = [*asked.contradictions, *_counted_otherwise(found, asked)]
    return _held_against(found, asked, warnings, options.get("calibration"), best=options.get("best_plan", True))


def _counted_otherwise(found: LoggedPlan, asked: AskedPlan) -> Iterator[str]:
    """A warning if the log's own rates make another number of tokens per step than the job has.

    Raises ``InputError`` if sizes were given by option or launch file, since then one of them must be wrong.
    """
    job, devices = found.job, int(found.plan.num_devices)
    given = {name: asked.stated.get(name) for name in SIZES if name in asked.stated}
    run = asked.run.knowing(num_devices=devices)
    sequences = run.sequences_per_step(job.seq_len)
    batch = int(job.global_batch_size)
    if sequences is None or abs(sequences / batch - 1) <= TOKENS_APART:
        return
    must = (
        f"{batch:,} sequences of {job.seq_len:,} tokens on {devices:,} GPUs are {batch * job.seq_len:,} tokens per "
        f"step, but the log's rate times its step time makes {sequences * job.seq_len:,.0f}; batch, length or number "
        "of GPUs must be another"
    )
    if not given and asked.launch is None:
        yield must
        return
    name = next(iter(given), "launch")
    nearest = {"global_batch_size": sequences, "seq_len": sequences * job.seq_len / batch}.get(name)
    raise InputError(
        name, given.get(name, str(asked.launch)), must, "" if nearest is None else str(max(round(nearest), 1))
    )


TOKENS_APART = 0.05
"""Largest relative difference between the log's own tokens per step and the job's: rates are printed with three digits,
and a line's time holds some logging."""


def chosen_run(runs: tuple[RunLog, ...], number: int | None, name: str = "run") -> RunLog:
    """Run ``number`` of a log, from 1; the last one by default. Raises ``InputError`` for field ``name``."""
    if number is None:
        return runs[-1]
    if not 1 <= number <= len(runs):
        holds = "one run" if len(runs) == 1 else f"{len(runs)} runs"
        raise InputError(name, number, f"must be from 1 to {len(runs)}: the log holds {holds}", str(len(runs)))
    return runs[number - 1]


def measured_on(named: int | str | None, what: str, options: LoggedOptions) -> Cluster:
    """The given cluster, else the usual cluster of the GPU given here or ``named`` by ``what`` (the log, the trace).

    Raises ``InputError`` if there is none, or if the device given is of another family than the named one.
    """
    cluster, gpu = options.get("cluster"), options.get("gpu")
    if cluster is not None:
        found = cluster_of(cluster)
    elif gpu is not None or named in gpu_names():
        found = usual_cluster(device_of(gpu or str(named)))
    else:
        said = f"{what}'s {named} is not in the catalogue" if named else f"{what} does not name its GPU"
        near = "--cluster dgx-h100"
        with suppress(InputError):
            near = f"--gpu {device_of(str(named)).name}" if named else near
            said = f"{what}'s {named} has several versions" if named else said
        raise InputError("cluster", NOT_GIVEN, f"{said}; name a cluster or a GPU", near)
    same = [name for name in gpu_names() if named and _family(name) == _family(str(named))]
    names = [each.name for each in found.gpus]
    if same and not any(name in same or name not in gpu_names() for name in names):
        option, value = ("gpu", names[0]) if cluster is None else ("cluster", found.name)
        must = f"{what} is from {named}, not from {' and '.join(names)}; must be the device of the run"
        raise InputError(option, value, must, f"--gpu {device_of(str(named)).name}")
    return found


def _family(name: str) -> str:
    """``h100`` of every H100 in the catalogue."""
    return name if name.startswith("rtx") else name.split("_")[0]


def _held_against(
    found: LoggedPlan, asked: AskedPlan, warnings: list[str], calibration: str | Path | None, *, best: bool
) -> LogDiagnosis:
    from sartor.launch.megatron_dialects import settled
    from sartor.plans.explain import explanations, open_plan
    from sartor.step.question import check_recipe

    job, devices = found.job, int(found.plan.num_devices)
    device_counts(devices, asked.cluster)
    where = asked.cluster.reached(devices)
    for each in where.gpus:
        check_recipe(job.recipe, each)
    run = asked.run.knowing(num_devices=devices, seq_len=job.seq_len, global_batch_size=job.global_batch_size)
    measured = run.measured
    if not measured.step_s > 0:
        raise InputError("LOG", asked.path, "has no step time, and none follows from its rates; must say one")
    stall_free = replace(measured, step_s=measured.stall_free_s, stall_s=0.0)
    own = own_calibration_of(calibration, where)
    said = found.stated | settled(run.arguments)
    unstated = open_plan(job, found.plan, where, stall_free, stated=said, calibration=own)
    answer = LogDiagnosis(
        path=asked.path,
        trainer=run.title,
        run=run.index + 1,
        num_runs=run.num_runs,
        measured=measured,
        job=job,
        cluster=where,
        explanations=explanations(
            job, found.plan, where, stall_free, stated=said, calibration=own, alone=bool(unstated.fields)
        ),
        open_plan=unstated,
        conventions=conventions_of(run, job.shape, job.seq_len, devices),
        said=found.said,
        best=searched_best(found, where, own) if best else None,
        units=run.units,
        warnings=(*warnings, *_several(run)),
        assumptions=found.assumptions,
        source=step_source(where, job.recipe.dtype, own),
        stalls=run.stalls,
    )
    return replace(answer, warnings=(*_impossible(answer), *answer.warnings))


def _impossible(answer: LogDiagnosis) -> Iterator[str]:
    if answer.mfu > 1:
        yield (
            f"an MFU of {format_share(answer.mfu)} is impossible: the model, its batch or length, the number of GPUs "
            "or the GPU must be another than given"
        )


def _several(run: RunLog) -> list[str]:
    few = [f"only {run.measured.num_steps} steady steps"] if run.measured.num_steps < 3 else []
    if run.num_runs == 1:
        return [*few, *run.notes]
    return [*few, *run.notes, f"the log holds {run.num_runs} runs; this is number {run.index + 1} (--run chooses)"]
