"""Timeline of one plan's step: what every pipeline rank does and how much memory it holds at each time.

The pipeline is simulated by `simulation`, which shares no code with the closed forms of `step`; parameter gathers
before it and gradient reduction and optimizer after it are timed as in `step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.model.training import PipelineSchedule, TrainingJob, TrainingPlan
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.footprint import every_stage, flatten, usable_bytes
from sartor.step.mixed import exchange_of, pools_of_stages, stage_seconds
from sartor.step.orders import Work
from sartor.step.simulation import Event, PipelineTimes, simulate
from sartor.step.stage_bytes import stage_bytes
from sartor.step.stage_exchange import PlanExchange, Worked
from sartor.step.stage_seconds import StageSeconds
from sartor.step.stages import each_device, plan_counts
from sartor.step.step import check_plan, tables_of
from sartor.step.tables import PlanTables, plan_columns
from sartor.units import FloatArray, IntArray

MOST_TASKS = 400_000
"""Most tasks in a timeline: takes a few seconds and a few hundred megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrack:
    """Bytes one pipeline rank holds: ``bytes_held[i]`` from ``times_s[i]`` to the next."""

    device: int
    times_s: FloatArray
    bytes_held: FloatArray
    states_bytes: float
    """The constant part: weights, gradients, optimizer states and buffers."""
    limit_bytes: float
    """Memory of the device that a process can use."""

    @property
    def peak_bytes(self) -> float:
        return float(self.bytes_held.max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Every forward, backward, weight gradient, transfer and phase of every pipeline rank in one step."""

    events: tuple[Event, ...]
    memory: tuple[MemoryTrack, ...]
    step_s: float
    pipeline_s: float
    """From the start of the first task to the end of the last."""

    def of(self, device: int) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.device == device)


def timeline(
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    coefficients: TrainingCoefficients | None = None,
) -> Timeline:
    """The timeline of a single plan.

    Raises ``InputError`` for arrays of plans, for a plan that `step` rejects, and for more than ``MOST_TASKS`` tasks.
    """
    check_plan(job, plan, cluster)
    columns, shape = plan_columns(plan)
    if shape != ():
        raise InputError("plan", f"{columns['tp'].size} plans", "a timeline is of one plan", "1")
    pp, virtual, m = (int(columns[name][0]) for name in ("pp", "virtual", "microbatches"))
    if 2 * pp * virtual * m > MOST_TASKS:
        must = f"pp x virtual_stages x microbatches must not exceed {MOST_TASKS // 2} for a timeline"
        raise InputError("num_microbatches", m, must, str(max(MOST_TASKS // 2 // pp // virtual, 1)))
    if columns["zero"][0] > 1:
        job = replace(job, trainer=job.trainer.sharding_gradients)
    counts = plan_counts(job.shape, plan)
    tables = tables_of(job, columns, cluster, calibration, coefficients)
    pools = [table.cluster for table in tables]
    size = int(np.prod([columns[name][0] for name in ("tp", "cp", "dp")]))
    where = pools_of_stages(pools, pp, size)
    stages = _stages(tables, columns, counts.sum(axis=1), virtual, where)
    times = _pipeline_times(tables, columns, counts, where)
    schedule = PipelineSchedule(int(columns["schedule"][0]))
    exchange = _exchange(tables, stages, columns)
    ready = exchange.gathered_s()[:, 0]
    tasks = simulate(schedule, times, m, ready.tolist())
    before = [_phase(d, "parameters", 0.0, float(ready[d])) for d in range(pp)]
    after, step_s = _phases_after(exchange, columns, tasks)
    events = sorted([*before, *tasks, *after], key=lambda e: (e.device, e.start_s, e.end_s))
    return Timeline(
        events=tuple(e for e in events if e.end_s > e.start_s),
        memory=_memory(job, plan, [pools[i] for i in where], counts, tasks, schedule),
        step_s=step_s,
        pipeline_s=max(e.end_s for e in tasks) - min(e.start_s for e in tasks),
    )


def _phase(device: int, kind: str, start_s: float, end_s: float) -> Event:
    return Event(device=device, kind=kind, chunk=0, microbatch=0, start_s=start_s, end_s=end_s)


def _stages(
    tables: Sequence[PlanTables], columns: dict[str, IntArray], counts: IntArray, virtual: int, pools: IntArray
) -> StageSeconds:
    """Seconds of every single device (or chunk), equal or not."""
    return stage_seconds(tables, each_device(counts, virtual, pools), {**columns, "structure": np.zeros(1, np.int64)})


def _exchange(tables: Sequence[PlanTables], stages: StageSeconds, columns: dict[str, IntArray]) -> PlanExchange:
    t, none = tables[0], np.zeros((stages.rows.pp, 1))
    work = Worked(
        forward_s=stages.forward_s,
        rear_s=stages.backward_s + stages.wgrad_s,
        gather_s=stages.gather_s,
        scatter_s=stages.scatter_s,
        hides_gather_s=none,
        hides_reduce_s=none,
        parts=none,
    )
    only = np.zeros(1, dtype=np.int64)
    x, of_plan = exchange_of(tables, stages.rows, only), {name: columns[name] for name in ("zero", "pp", "virtual")}
    return PlanExchange(c=t.c, trainer=t.job.trainer, work=work, of=only, x=x, at=only, **of_plan)


def _pipeline_times(
    tables: Sequence[PlanTables], columns: dict[str, IntArray], counts: IntArray, pools: IntArray
) -> PipelineTimes:
    """Seconds of every chunk; the layers to recompute are divided among a device's chunks by their layers."""
    pp, virtual, _ = counts.shape
    layers = counts @ tables[0].is_layer
    some = columns["recompute_layers"] * layers / np.maximum(layers.sum(axis=1, keepdims=True), 1)
    wanted = np.where(columns["recompute_layers"] < 0, -1.0, some).reshape(-1, 1)
    every = counts.reshape(pp * virtual, -1)
    chunks = _stages(tables, {**columns, "recompute_layers": wanted}, every, 1, np.repeat(pools, virtual))
    return PipelineTimes(
        forward_s=chunks.forward_s.reshape(pp, virtual),
        dgrad_s=chunks.backward_s.reshape(pp, virtual),
        wgrad_s=chunks.wgrad_s.reshape(pp, virtual),
        transfer_s=max(float(t.transfer_s[t.transfer_index[0]]) for t in tables),
        blocking=not (tables[0].job.trainer.p2p_overlap and virtual > 1),
    )


def _phases_after(
    exchange: PlanExchange, columns: dict[str, IntArray], tasks: list[Event]
) -> tuple[list[Event], float]:
    """Gradient reduction on every rank, then the optimizer and the step's other costs on all at once."""
    pp, c = len(exchange.work.rear_s), exchange.c
    ends = [max(e.end_s for e in tasks if e.device == d) for d in range(pp)]
    reduced = exchange.reduced_s()[:, 0] + exchange.earlier_s(columns["microbatches"])
    tied = float(exchange.x.tied_s[0])
    done = [end + float(reduced[d]) + (tied if d in (0, pp - 1) else 0.0) for d, end in enumerate(ends)]
    barrier = max(done)
    stepped = barrier + float(exchange.x.optimizer_s()[int(columns["offload"][0] > 0), 0])
    devices = float(np.prod([columns[name][0] for name in ("tp", "pp", "dp", "cp")]))
    waited = c.fixed_step_s + c.jitter * np.sqrt(2 * np.log(devices)) * (max(ends) + stepped - barrier)
    phases = [_phase(d, "gradients", ends[d], done[d]) for d in range(pp)]
    phases += [_phase(d, "optimizer", barrier, stepped) for d in range(pp)]
    phases += [_phase(d, "overhead", stepped, stepped + waited) for d in range(pp)]
    return phases, float(stepped + waited)


# -------------------------------------------------------------------------------------------------- memory


def _memory(
    job: TrainingJob,
    plan: TrainingPlan,
    clusters: Sequence[Cluster],
    counts: IntArray,
    tasks: list[Event],
    schedule: PipelineSchedule,
) -> tuple[MemoryTrack, ...]:
    """A microbatch's activations are held from the start of its forward to the end of its backward (of its weight
    gradient, if split off; logits to the end of backward)."""
    layers, head = _kept_bytes(job, plan, clusters[0], counts)
    whole = every_stage(job, plan, clusters[0])
    states = (whole.held.states + whole.buffers)[:, 0]
    until = Work.WGRAD if schedule.splits else Work.BACKWARD
    tracks = []
    for d in range(len(counts)):
        mine = [e for e in tasks if e.device == d]
        changes = [(0.0, 0.0)]
        changes += [(e.start_s, layers[d, e.chunk] + head[d, e.chunk]) for e in mine if e.kind == Work.FORWARD]
        changes += [(e.end_s, -head[d, e.chunk]) for e in mine if e.kind == Work.BACKWARD]
        changes += [(e.end_s, -layers[d, e.chunk]) for e in mine if e.kind == until]
        changes.sort()
        held = states[d] + np.cumsum([change for _, change in changes])
        times = np.array([at for at, _ in changes])
        limit = usable_bytes(clusters[d])
        stays = float(states[d])
        tracks.append(MemoryTrack(device=d, times_s=times, bytes_held=held, states_bytes=stays, limit_bytes=limit))
    return tuple(tracks)


def _kept_bytes(
    job: TrainingJob, plan: TrainingPlan, cluster: Cluster, counts: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Activations of one microbatch in every chunk [devices, chunks], of layers and of the head, computed with a single
    microbatch in the pipeline."""
    pp, virtual, blocks = counts.shape
    one: Any = np.ones(1, dtype=np.int64)
    alone, _ = flatten(replace(plan, num_microbatches=1, virtual_stages=1, schedule=int(PipelineSchedule.ONE_F_ONE_B)))
    alone = replace(alone, num_microbatches=one)
    some = int(plan.recompute_layers)
    if some >= 0 and virtual > 1:  # divide the layers to recompute among the chunks
        alone = replace(alone, recompute_layers=np.array([some / virtual]))
    ranks = np.repeat(np.arange(pp), virtual)
    found = stage_bytes(job, alone, cluster, counts.reshape(pp * virtual, 1, blocks), ranks)
    return found.kept.layers_kept.reshape(pp, virtual), found.kept.head_kept.reshape(pp, virtual)
