"""``estimate`` of many runs at once: lists and arrays as values of a run's fields span a grid, priced as arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sartor.answers.estimate import Question
from sartor.answers.grid import EstimateGrid
from sartor.api.models import Model
from sartor.api.questions import asked_run, checked_words, inference, model_asked
from sartor.api.shapes import priced_pass
from sartor.api.words import GpuLike, Values, arrays_of, device_counts
from sartor.ask.alternatives import spreads
from sartor.ask.complete import as_option, settled_job, stated_axes
from sartor.cost.correction.calibration import Calibration
from sartor.cost.cost import interval_80
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import usual_cluster
from sartor.hardware.gpu import Gpu
from sartor.model.lower import lower
from sartor.model.lower.setting import undivided_words
from sartor.model.plan import AXES, SEARCHED
from sartor.model.shape import TransformerShape
from sartor.model.training import TrainingJob
from sartor.model.workload import ModelReading, ParallelDims, Phase, settled_seq_len
from sartor.plans.fixed import named_values, searched_settings, with_recompute
from sartor.plans.grid import grid_plans
from sartor.plans.search import room_bytes
from sartor.plans.space import take
from sartor.run.fields import Origin, Run, check_names
from sartor.step.question import as_trained
from sartor.step.serving.served import padded
from sartor.units import Array, BoolArray

OF_JOBS = ("num_devices", "global_batch_size", "seq_len")
"""Fields of a training job: its values are priced one after the other, each with all plans at once."""
OF_PASSES = ("microbatch_size", "seq_len", "context_len", "tp")
"""Fields of prefill and decode that can be arrays."""
NO_PLAN = "no plan has these values: estimate of this point alone says why"
BESIDE = "must be stated beside several values of another field"


def estimate_grid(model: Model | None, gpu: GpuLike | None, options: Mapping[str, Any]) -> EstimateGrid:
    """`sartor.estimate` at every point of the grid that the options with several values span. Raises ``InputError``
    for a field that has one value in all of a grid, and for what a grid leaves open of its jobs."""
    arrays = arrays_of(options)
    check_names(options)
    for name in arrays.keys() & {"set", "cluster", "phase"}:
        raise InputError(name, arrays[name], "has one value in a grid: call estimate for each")
    for name in ("launch", "price"):
        if options.get(name) is not None:
            raise InputError(name, options[name], "is of one run, and a grid asks for many: call estimate for each")
    reading = model_asked(model, options)
    single = {name: value for name, value in options.items() if name not in arrays}
    run, device, cluster, own = asked_run(reading, gpu, single)
    trains = run.get("phase") == Phase.TRAIN.value
    for name, values in arrays.items():
        _check_values(name, values, (*OF_JOBS, *SEARCHED) if trains else OF_PASSES, run.get("phase"))
    if not trains:
        return _passes(reading, run, arrays, device, own)
    return _steps(reading, run, arrays, cluster or usual_cluster(device), own)


def _check_values(name: str, values: Sequence[object], allowed: Sequence[str], phase: str) -> None:
    """Raise ``InputError`` for a field or values that no grid of a phase has."""
    if name not in allowed:
        must = f"has one value in a {phase} grid: call estimate for each; several may have {', '.join(allowed)}"
        raise InputError(name, values, must)
    if not values or len(set(map(str, values))) < len(values):
        raise InputError(name, values, "must be different values, at least one", "[1, 2, 4]")
    for value in values:
        checked_words({name: value})


# -- training ------------------------------------------------------------------------------------------------------


def _steps(reading: ModelReading, run: Run, arrays: Values, cluster: Cluster, own: Calibration | None) -> EstimateGrid:
    """Training: job by job, the plans of each as one array."""
    for name, usual in (("global_batch_size", "512"), ("num_devices", "64")):
        if name not in {*run, *arrays} and not (name == "num_devices" and cluster.total_devices):
            raise InputError(name, "not given", f"{BESIDE}: what is usual depends on the plan", usual)
    if "recompute" in arrays and "recompute_layers" in run:
        must = "means recompute=full, of which a grid over recompute holds other values"
        raise InputError("recompute_layers", run.get("recompute_layers"), must, "recompute='full'")
    jobs = {name: arrays[name] for name in arrays if name in OF_JOBS}
    plans = {name: arrays[name] for name in arrays if name not in OF_JOBS}
    parts = [
        _of_job(
            reading,
            run.with_(Origin.STATED, "option", **dict(zip(jobs, sizes, strict=True))),
            plans,
            cluster,
            own,
            explained=number == 0,
        )
        for number, sizes in enumerate(itertools.product(*jobs.values()))
    ]
    order = [[*jobs, *plans].index(name) for name in arrays]
    lengths = [len(values) for values in (*jobs.values(), *plans.values())]

    def whole(columns: Sequence[Array]) -> Array:
        return np.concatenate(columns).reshape(lengths).transpose(order)

    return EstimateGrid(
        reading=reading,
        gpu=cluster.gpu,
        assumptions=(*reading.assumptions, *reading.notes, *parts[0].assumptions),
        axes={name: tuple(values) for name, values in arrays.items()},
        plan={name: whole([part.plan[name] for part in parts]) for name in parts[0].plan if name not in arrays},
        cannot_run=whole([part.cannot_run for part in parts]),
        fits=whole([part.fits for part in parts]),
        **{name: whole([getattr(part, name) for part in parts]) for name in EstimateGrid.FIGURES},
    )


def _of_job(
    reading: ModelReading, run: Run, plans: Values, cluster: Cluster, own: Calibration | None, *, explained: bool
) -> EstimateGrid:
    """The plans of one job, on an axis of points, each with the fastest of the settings that an estimate tries."""
    job, settled, _ = settled_job(run, reading, cluster)
    tried = searched_settings(job, settled, {*stated_axes(run), *plans})
    runs = [run.with_(Origin.STATED, "tried", **{name: word}) for name, words in tried.items() for word in words]
    found = _fastest([_of_setting(reading, r, plans, cluster, own, explained=explained) for r in runs or [run]])
    words = tuple(f"{name}: the faster of {' and '.join(either)} at every point" for name, either in tried.items())
    return replace(found, assumptions=(*found.assumptions, *words))


def _fastest(grids: Sequence[EstimateGrid]) -> EstimateGrid:
    """Of grids of the same points, the fastest that fits of every point; else the first that is possible."""
    if len(grids) == 1:
        return grids[0]
    fits, time_s = np.stack([grid.fits for grid in grids]), np.stack([grid.time_s for grid in grids])
    first = np.argmax(np.isfinite(time_s), axis=0)
    best = np.where(fits.any(axis=0), np.argmin(np.where(fits, time_s, np.inf), axis=0), first)[None]

    def of_best(columns: Sequence[Array]) -> Any:
        return np.take_along_axis(np.stack(columns), best, 0)[0]

    plan = {name: of_best([grid.plan[name] for grid in grids]) for name in grids[0].plan}
    figures: dict[str, Any] = {name: of_best([getattr(grid, name) for grid in grids]) for name in _OF_POINTS}
    return replace(grids[0], plan=plan, **figures)


_OF_POINTS = (
    "time_s", "low_s", "high_s", "tokens_per_s", "tokens_per_s_per_device", "mfu", "peak_bytes", "usable_bytes",
    "fits", "cannot_run",
)  # fmt: skip


def _of_setting(
    reading: ModelReading, run: Run, plans: Values, cluster: Cluster, own: Calibration | None, *, explained: bool
) -> EstimateGrid:
    """`_of_job` with the switches of ``run``; ``explained``: with what stays open of the fastest that fits."""
    (count,) = device_counts(run.get("num_devices"), cluster)
    job, run, notes = settled_job(run, reading, cluster)
    try:
        stated = with_recompute(job, named_values(stated_axes(run)))
        values = {name: np.array([value]) for name, value in stated.items()}
        values |= {name: np.array([named_values({name: _word(v)})[name] for v in plans[name]]) for name in plans}
    except InputError as error:
        raise as_option(error, AXES) from None
    grid = grid_plans(job, cluster, count, values, headroom=run.get("headroom"), calibration=own)
    step_s, mfu = grid.figures["step_s"], grid.figures["mfu"]
    low_s, _ = interval_80(step_s, grid.figures["log_sigma"], step_s * mfu)
    _, high_s = interval_80(step_s, grid.figures["log_sigma"])
    run = run.with_(Origin.STATED, "option", **{name: options[0] for name, options in plans.items()})
    possible, shortest, longest = np.isfinite(step_s), np.ones_like(step_s), np.ones_like(step_s)
    rows, layers = take(grid.rows, possible), (grid.splits, grid.split[possible])
    of_plans = (reading.shape, job, rows, cluster.reached(count), own, layers)
    run, shortest[possible], longest[possible] = spreads(run, *of_plans)
    fitting = np.where(grid.figures["device_bytes"] <= grid.limit_bytes, step_s, np.inf)
    fastest = int(np.argmin(fitting))
    if explained and np.isfinite(fitting[fastest]):
        notes = (*notes, *_open_words(run, shortest[fastest], longest[fastest]))
    return EstimateGrid(
        reading=reading,
        gpu=cluster.gpu,
        assumptions=notes,
        axes={},
        plan={name: _as_words(name, grid.rows[name]) for name in SEARCHED},
        time_s=step_s,
        low_s=np.minimum(low_s, shortest * step_s),
        high_s=np.maximum(high_s, longest * step_s),
        tokens_per_s=job.tokens_per_step / step_s,
        tokens_per_s_per_device=grid.figures["tokens_per_s_per_device"],
        mfu=mfu,
        peak_bytes=grid.figures["device_bytes"],
        usable_bytes=np.full(step_s.size, room_bytes(cluster, grid.headroom)),
        fits=grid.figures["device_bytes"] <= grid.limit_bytes,
        cannot_run=_why_not(job, values, possible),
    )


def _why_not(job: TrainingJob, values: Mapping[str, Array], possible: BoolArray) -> Array:
    """Why points of a job have no plan, in words; empty for those that have one."""
    points = dict(zip(values, np.meshgrid(*values.values(), indexing="ij"), strict=True))
    words = np.vectorize(lambda tp, ep: _undivided(job, int(tp), int(ep)), otypes=[object])(
        *(np.ravel(points.get(name, np.ones(possible.size))) for name in ("tp", "ep"))
    )
    return np.where(possible, "", np.where(words == "", NO_PLAN, words))


def _undivided(job: TrainingJob, tp: int, ep: int) -> str:
    dims = ParallelDims(tp=tp, ep=ep)
    return undivided_words(as_trained(job, dims), dims)


def _open_words(run: Run, low: float, high: float) -> Iterator[str]:
    """What stays open of a grid's plans, and what the other values change at one of them."""
    words = [
        f"{name}={value.value} (or {', '.join(map(str, value.alternatives))})"
        for name, value in run.facts.items()
        if value.alternatives
    ]
    if words:
        yield (
            f"not stated, within the intervals: {'; '.join(words)}. The other values take {low:.2f} to {high:.2f} "
            "times as long at the fastest point that fits"
        )


def _word(value: object) -> str:
    return str(value).lower()


def _as_words(name: str, column: Array) -> Array:
    """An axis as the caller writes it; -1, where there is no plan, stays."""
    words = {int(kind): kind.word for kind in AXES[name].kinds or ()} if name in AXES else {}
    return np.array([words.get(code, code) for code in column.tolist()], dtype=object) if words else column


# -- inference -----------------------------------------------------------------------------------------------------


def _passes(reading: ModelReading, run: Run, arrays: Values, gpu: Gpu, own: Calibration | None) -> EstimateGrid:
    """Prefill and decode: one graph of operators whose sizes are arrays."""
    first = {name: values[0] for name, values in arrays.items()}
    question = inference(run.with_(Origin.STATED, "option", **first), reading, gpu, own)
    for length in arrays.get("seq_len", ()):
        settled_seq_len(length, reading.shape)
    columns: dict[str, Any] = dict(zip(arrays, np.ix_(*arrays.values()), strict=True))
    sizes = {name: column for name, column in columns.items() if name != "tp"}
    if question.workload.phase is Phase.DECODE and "seq_len" in columns and "context_len" not in {*columns, *run}:
        sizes["context_len"] = columns["seq_len"]
    workload = replace(question.workload, **sizes)
    dims = replace(question.dims, tp=columns.get("tp", question.dims.tp))
    if not {"tp", "ep", "pp"} & {*run, *arrays}:
        dims = ParallelDims()
        if not np.all(question.room.memory(workload, dims).fits):
            raise InputError("tp", "not given", f"{BESIDE}: not every point fits on one device", "8")
    if np.ndim(dims.tp):
        vocab_size = np.vectorize(lambda tp: int(_split_shape(question, int(tp)).vocab_size))(dims.tp)
        workload = replace(workload, shape=replace(reading.shape, vocab_size=vocab_size))
    graph = lower(workload, dims, question.kernels)
    question, found = priced_pass(replace(question, workload=workload, dims=dims), graph)
    memory = question.room.memory(workload, dims, graph)
    figures = {name: getattr(found, name) for name in ("time_s", "low_s", "high_s", "tokens_per_s", "mfu")}
    figures |= {"tokens_per_s_per_device": found.tokens_per_s / (dims.tp * dims.pp)}
    figures |= {"peak_bytes": memory.peak_bytes, "usable_bytes": memory.usable_bytes}
    words = np.vectorize(
        lambda tp: undivided_words(_split_shape(question, int(tp)), replace(dims, tp=int(tp))), otypes=[object]
    )(dims.tp)
    splits = words == ""
    shape = tuple(len(values) for values in arrays.values())
    return EstimateGrid(
        reading=reading,
        gpu=gpu,
        assumptions=question.assumptions,
        axes={name: tuple(values) for name, values in arrays.items()},
        plan={},
        cannot_run=np.broadcast_to(words, shape),
        fits=np.broadcast_to(splits & np.asarray(memory.fits), shape),
        **{name: np.broadcast_to(np.where(splits, figure, np.nan), shape) for name, figure in figures.items()},
    )


def _split_shape(question: Question, tp: int) -> TransformerShape:
    """The question's shape with the vocabulary that its engine, if any, pads for a split."""
    return question.reading.shape if question.engine is None else padded(question.reading.shape, tp)
