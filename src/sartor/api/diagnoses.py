"""Diagnosis of a real run from its profiler traces or log: where its time went, compared with the prediction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from sartor.answers.diagnosis import LogDiagnosis, LogFacts, TraceDiagnosis
from sartor.api.logged_plan import AskedPlan, LoggedOptions, LoggedPlan
from sartor.api.logged_plan import best_plan as searched_best
from sartor.api.logs import diagnose_log, first_and_last, measured_on
from sartor.api.models import read
from sartor.api.words import own_calibration_of
from sartor.cost.cost import Source
from sartor.errors import InputError
from sartor.hardware.catalog import GPUS
from sartor.hardware.cluster import Cluster
from sartor.interrupts import report
from sartor.operators import Gemm
from sartor.options import with_options
from sartor.run.fields import FIELDS, Run, check_names
from sartor.step.results import step_source
from sartor.step.run_cost import run_cost
from sartor.units import format_seconds

if TYPE_CHECKING:
    from sartor.cost.correction.calibration import Calibration
    from sartor.plans.explain import OpenPlan
    from sartor.plans.result import PricedPlan
    from sartor.step.measured_run import JobKind, PricedKernels
    from sartor.traces.attribute import Attributed
    from sartor.traces.kernel_trace import KernelTrace
    from sartor.traces.logs.run_log import RunLog

USUAL_TRAINER = "torchtitan"
"""Trainer whose kernels a traced training run is assumed to use by default: PyTorch's own."""

SKEW_S = 1e-3
"""Collectives end together within some tens of microseconds; a larger clock difference than this is reported."""


@with_options(LoggedOptions, FIELDS)
def diagnose(
    run: str | Path | Sequence[str | Path],
    *,
    number: int | None = None,
    steps: str | None = None,
    **options: Unpack[LoggedOptions],
) -> LogDiagnosis | LogFacts | TraceDiagnosis:
    """Compare a real run with the prediction: where its time went, and what of it the plan explains.

    Parameters
    ----------
    run
        A training log, a profiler trace, several traces of different ranks, or a folder of them.
    number
        Which of several runs in a log, from 1; without it the last.
    steps
        Only these steps, by their numbers in the log or trace: ``"20:40"``, both included.
    model
        As in `sartor.estimate`. With it and the plan's sizes, a trace's step is predicted too.
    fix
        Axes of the plan, as the options of their names state them.
    best_plan
        False skips the search for the best plan.
    **options
        The fields of a run that the log or trace does not say.

    Returns
    -------
    LogDiagnosis
        Of a log: ``measured`` [s, bytes], ``predicted``, and the changes of the plan that come nearest.
    LogFacts
        Of a log that does not say what a prediction needs: ``measured`` alone, and what is ``missing``.
    TraceDiagnosis
        Of a trace: ``parts`` that add up to ``step_s``, its mean steady step [s], and the largest losses.

    Raises
    ------
    InputError
        For what cannot be read, or contradicts the log, in one sentence that names the field.

    Examples
    --------
    >>> sizes = {"seq_len": 8192, "global_batch_size": 8}
    >>> answer = diagnose("examples/llama-3-8b/train.log", model="llama-3-8b", gpu="h100", best_plan=False, **sizes)
    >>> round(answer.measured.step_s, 1)
    1.3
    """
    from sartor.traces.read import is_trace

    check_names(options, LoggedOptions)
    paths = _paths(run)
    if not all(is_trace(path) for path in paths):
        if len(paths) > 1:
            other = next(path for path in paths if not is_trace(path))
            raise InputError("RUN", str(other), "several files must all be traces; a log is diagnosed alone")
        return diagnose_log(paths[0], run=number, steps=steps, **options)
    traces = _traces(paths)
    if steps is not None:
        traces = [trace.between(*first_and_last(steps)) for trace in traces]
    where, warnings = _device(traces[0], options)
    found = None
    if where is not None and (options.get("model") is not None or options.get("launch") is not None):
        asked = AskedPlan.of(_as_run(traces[0]), paths[0], where, options)
        warnings = [*warnings, *asked.contradictions]
        found = asked.launched() if asked.launch is not None else asked.assembled()
    return _divided(traces, where, found, warnings, options)


def _paths(run: str | Path | Sequence[str | Path]) -> list[Path]:
    given = [Path(each) for each in ([run] if isinstance(run, str | Path) else run)]
    found = [file for each in given for file in (_inside(each) if each.is_dir() else [each])]
    for each in found:
        if not each.is_file():
            raise InputError("RUN", str(each), "no such file; must be a training log or a profiler trace")
    return found


def _inside(folder: Path) -> list[Path]:
    from sartor.traces.read import ENDINGS

    found = sorted(each for each in folder.iterdir() if each.name.endswith(ENDINGS))
    if not found:
        raise InputError("RUN", str(folder), "is a folder without traces; must hold .json, .json.gz or .sqlite files")
    return found


def _traces(paths: Sequence[Path]) -> list[KernelTrace]:
    """One trace per rank, lowest rank first. Raises ``InputError`` for ranks of different jobs."""
    from sartor.traces.read import read_traces

    traces = sorted((each for path in paths for each in read_traces(path, "RUN")), key=lambda each: each.rank or 0)
    if len(traces) == 1:
        return traces
    ranks = [each.rank for each in traces]
    twice = next((rank for rank in ranks if ranks.count(rank) > 1), None)
    if twice is not None or None in ranks:
        must = f"rank {twice} is there twice" if twice is not None else "some traces do not say their rank"
        raise InputError("RUN", str(paths[0].parent), f"{must}; must be one trace of each rank of one job")
    sizes = sorted({each.world_size for each in traces if each.world_size})
    if len(sizes) > 1:
        raise InputError(
            "RUN", str(paths[0].parent), f"holds ranks of jobs of {sizes[0]} and {sizes[1]} devices; must be one job"
        )
    return traces


def _device(trace: KernelTrace, options: LoggedOptions) -> tuple[Cluster | None, list[str]]:
    from sartor.traces.logs.read import gpu_named

    named = gpu_named(trace.gpu)
    if options.get("cluster") or options.get("gpu") or named in GPUS.names():
        where = measured_on(named, "the trace", options)
        return where, _other_device(trace, named, where)
    if not trace.gpu:
        return None, ["the trace does not name its device: nothing is priced (--gpu names it)"]
    said = f"the trace is of {trace.gpu}, which is not in the catalogue"
    return None, [f"{said}: nothing is priced (--gpu names a device)"]


VENDORS = {
    "AMD": re.compile(r"\bAMD\b|Instinct|Radeon|^Cijk_|\bck::|_gfx\d|\brccl", re.IGNORECASE),
    "NVIDIA": re.compile(r"NVIDIA|GeForce|Tesla|^nvjet_|^cutlass|sm\d\d_xmma|^ampere_|^volta_|cudnn::", re.IGNORECASE),
}
"""Words in the names of devices and kernels that only one vendor has."""


def _other_device(trace: KernelTrace, named: str | None, where: Cluster) -> list[str]:
    """A warning if the device given is not that of the trace. Raises ``InputError`` if it is another vendor's."""
    if named in GPUS.names():
        return []  # already compared
    names = [trace.gpu] if trace.gpu else trace.names
    vendors = {vendor for vendor, words in VENDORS.items() if any(words.search(name) for name in names)}
    gpu = where.gpu
    if len(vendors) == 1 and gpu.vendor in VENDORS and gpu.vendor not in vendors:
        (vendor,) = vendors
        device = trace.gpu or f"a GPU of {vendor}"
        raise InputError("gpu", gpu.name, f"the trace is of {device}; must be the device of the trace")
    if not trace.gpu:
        return []
    return [f"the trace is of {trace.gpu}, priced as {gpu.name}: its peak, memory and links may differ"]


def _as_run(trace: KernelTrace) -> RunLog:
    """A trace as a run log that only knows the number of devices."""
    from sartor.traces.logs.run_log import COLUMNS, RunLog

    none: Any = np.array([np.nan])
    return RunLog(
        trainer=USUAL_TRAINER,
        title="trace",
        iteration=np.array([0]),
        **dict.fromkeys(COLUMNS, none),
        facts={} if trace.world_size is None else {"num_devices": trace.world_size},
    )


def _divided(
    traces: list[KernelTrace],
    where: Cluster | None,
    found: LoggedPlan | None,
    warnings: list[str],
    options: LoggedOptions,
) -> TraceDiagnosis:
    from sartor.traces.attribute import attribute, losses

    report("comparing kernels")
    trace = traces[0]
    devices = int(found.plan.num_devices) if found else trace.world_size or 1
    there = (
        None
        if where is None
        else where.reached(devices)
        if not where.total_devices or devices <= where.total_devices
        else where
    )
    own = None if there is None else own_calibration_of(options.get("calibration"), there)
    known = None if there is None else _in_run(trace, there, found, options.get("framework"), own)
    divided = attribute(trace, None if there is None else there.gpu, traces[1:], there, known)
    predicted, unstated = _predicted(found, there, divided.step_s, own)
    if options.get("price") is not None and not (found and there):
        warnings = [*warnings, "no cost: the trace does not say the tokens of a step (--model and sizes do)"]
    return TraceDiagnosis(
        path=trace.path,
        gpu=trace.gpu,
        rank=trace.rank,
        num_ranks=len(traces),
        world_size=trace.world_size,
        **{name: getattr(divided, name) for name in _DIVIDED},
        losses=losses(divided),
        device="" if there is None else there.gpu.name,
        predicted=predicted,
        open_plan=unstated,
        best=searched_best(found, there, own) if options.get("best_plan", True) and found and there else None,
        source=step_source(there, found.job.recipe.dtype, own) if found and there else Source.ANALYTIC,
        kind=divided.job,
        warnings=(
            *warnings,
            *_missing(trace, divided.num_steps, divided.priced_share),
            *_another_model(found, divided.priced),
            *_another_job(found, divided.job),
            *_slowed_host(trace, divided),
            *_skewed(traces),
        ),
        assumptions=found.assumptions if found else (),
        job=found.job if found else None,
        facts=found.run if found else Run(facts={}),
        cost=run_cost(found.job, there, devices, (divided.step_s,) * 3, found.job.tokens_per_step)
        if found and there
        else None,
    )


_DIVIDED = ("step_s", "num_steps", "span_s", "parts", "mfu", "priced", "priced_share", "median_ratio", "stretches")
"""What a diagnosis has as the division of its step has it."""


def _in_run(
    trace: KernelTrace, where: Cluster, found: LoggedPlan | None, framework: str | None, own: Calibration | None
) -> Calibration:
    """The kernels' calibration: as in a training step if the trace has a backward pass, else as measured alone."""
    from sartor.cost.correction.calibration import load_calibration
    from sartor.step.coefficients import coefficients_for, in_a_run
    from sartor.step.question import training_job

    known = own or load_calibration(where.gpu)
    if found is None and not any("backward" in each.name.lower() for each in trace.operators):
        return known
    job = (
        found.job
        if found
        else training_job(
            read("gpt2").shape, where.gpus, global_batch_size=1, seq_len=1024, framework=framework or USUAL_TRAINER
        )[0]
    )  # any model will do: the constants depend on trainer and device
    return in_a_run(known, coefficients_for(job, where.gpu))


def _predicted(
    found: LoggedPlan | None, where: Cluster | None, step_s: float, own: Calibration | None
) -> tuple[PricedPlan | None, OpenPlan]:
    """The plan's price, and what nothing states of it."""
    from sartor.plans.explain import OpenPlan, explanations, likeliest, open_plan
    from sartor.step.measured_run import MeasuredRun

    if found is None or where is None:
        return None, OpenPlan()
    run = MeasuredRun(step_s=step_s)
    unstated = open_plan(found.job, found.plan, where, run, stated=found.stated, calibration=own)
    whole = likeliest(unstated, run) or explanations(found.job, found.plan, where, run, calibration=own, alone=True)
    return whole[0].priced, unstated


def _missing(trace: KernelTrace, steps: int, priced: float) -> list[str]:
    """What the trace lacks, in sentences."""
    from sartor.traces.read import REPEATED

    said = []
    if not trace.steps:
        said.append("no step is marked (profiler.step()): the whole trace is taken as one, from its first kernel on")
    elif trace.steps[0][0] == REPEATED:
        said.append("no step is marked (profiler.step()): steps are taken from the optimizer's runs")
    elif steps < 2:
        said.append("one marked step: it may include start-up, and says nothing about noise")
    if not any(each.dims for each in trace.operators):
        how = "record_shapes=True; under nsys emit_nvtx as well"
        said.append(f"operators have no sizes ({how}): matrix multiplications cannot be priced")
    elif priced < 0.5:
        said.append(f"{100 * priced:.0f}% of the time of matrix multiplications has sizes that could be priced")
    return said


def _another_model(found: LoggedPlan | None, priced: Sequence[PricedKernels]) -> list[str]:
    """A warning if the trace seems to be of another model: no matrix multiplication has the model's hidden size."""
    if found is None or not priced:
        return []
    width = int(found.job.shape.hidden_size)
    lengths = {int(size) for each in priced if isinstance(each.operator, Gemm) for size in _sizes(each.operator)}
    if not lengths or width in lengths:
        return []
    return [f"no matrix multiplication has hidden_size={width}: the trace looks like one of another model"]


def _another_job(found: LoggedPlan | None, kind: JobKind) -> list[str]:
    """A warning if the trace does other work than the job whose step is predicted."""
    if found is None:
        return []
    if kind.work == "inference":
        return ["the trace has no backward pass: it is no training step, as the prediction is"]
    if kind.trained in ("adapters", "none") and found.job.trains_weights:
        return [f"the trace is of {kind.words}, but the prediction trains all weights (--fix train_weights=off)"]
    return []


STACK = re.compile(r"\.py\(\d+\): ")
"""A Python function as PyTorch's profiler records it."""


def _slowed_host(trace: KernelTrace, divided: Attributed) -> list[str]:
    """A warning if gaps of the host are large and the profiler recorded the Python stack, which slows the host."""
    from sartor.traces.timeline import HOST_KINDS

    idle_s = sum(part.seconds for part in divided.parts if part.kind in HOST_KINDS)
    if idle_s < HOST_SHARE * divided.step_s or not any(STACK.search(name) for name in trace.frames.names):
        return []
    return ["the profiler recorded Python's stack (with_stack=True), which slows the host: gaps are shorter without it"]


HOST_SHARE = 0.1
"""Share of the step from which on the profiler's own cost in gaps is worth a word."""


def _skewed(traces: Sequence[KernelTrace]) -> list[str]:
    """A warning if the ranks' clocks disagree, so that only durations can be compared across ranks."""
    from sartor.traces.attribute import clock_skew_s

    apart = clock_skew_s(traces[0], traces[1:])
    if apart < SKEW_S:
        return []
    return [f"the ranks' clocks are up to {format_seconds(apart)} apart: only durations are compared across ranks"]


def _sizes(gemm: Gemm) -> tuple[int, int, int]:
    return int(gemm.m), int(gemm.n), int(gemm.k)
