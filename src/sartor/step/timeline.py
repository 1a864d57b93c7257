"""Timeline of one plan's step: what every pipeline rank does and how much memory it holds at each time.

The pipeline is simulated by `simulation`, which shares no code with the closed forms of `step`, and fitted to the
priced makespan. What happens before and after it is what the step's mechanisms add, in their order: a timeline ends
when the step does, and its parts are the step's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.model.training import PipelineSchedule, TrainingJob, TrainingPlan
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.footprint import every_stage, stage_bytes, usable_bytes
from sartor.step.mechanisms.mechanism import Mechanism
from sartor.step.orders import Event, PipelineTimes, Work, simulate
from sartor.step.pipeline import chunk_by_chunk, exchange_of, lockstep_load, pools_of_stages, stage_seconds
from sartor.step.results import check_sum
from sartor.step.stage_seconds import StageSeconds, StepWork, Worked
from sartor.step.stages import StageRows, each_device, flat_columns, plan_counts, plans_of
from sartor.step.step import check_plan, once_a_step, one_step, tables_of
from sartor.step.tables import PlanTables
from sartor.units import FloatArray, IntArray

MOST_TASKS = 400_000
"""Most tasks in a timeline: takes a few seconds and a few hundred megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryTrack:
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
    memory: tuple[_MemoryTrack, ...]
    step_s: float
    pipeline_s: float
    """From the start of the first task to the end of the last."""
    parts: Mapping[str, float]
    """Of the step, by key (``StepEstimate.parts``)."""
    simulated_s: float
    """The step with its pipeline as simulated, before it is fitted to the priced one."""

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
    columns, shape = flat_columns(plan)
    if shape != ():
        raise InputError("plan", f"{columns['tp'].size} plans", "a timeline is of one plan", "1")
    pp, virtual, m = (int(columns[name][0]) for name in ("pp", "virtual_stages", "num_microbatches"))
    if 2 * pp * virtual * m > MOST_TASKS:
        must = f"pp x virtual_stages x microbatches must not exceed {MOST_TASKS // 2} for a timeline"
        raise InputError("num_microbatches", m, must, str(max(MOST_TASKS // 2 // pp // virtual, 1)))
    if columns["zero_stage"][0] > 1:
        job = replace(job, trainer=job.trainer.sharding_gradients)
    counts = plan_counts(job.shape, plan)
    tables = tables_of(job, columns, cluster, calibration, coefficients)
    pools = [table.cluster for table in tables]
    where = pools_of_stages(pools, pp, int(np.prod([columns[name][0] for name in ("tp", "cp", "dp")])))
    work, parts = one_step(job, plan, tables)
    once = [(mechanism, float(seconds[0])) for mechanism, seconds in once_a_step(work, parts)]
    ranks = _on_ranks(tables, work, each_device(counts.sum(axis=1), virtual, where))
    schedule = PipelineSchedule(int(columns["schedule"][0]))
    ready = sum((_rank_seconds(mechanism, ranks) for mechanism, _ in once if mechanism.before), np.zeros(pp))
    tasks = simulate(schedule, _pipeline_times(tables, columns, counts, where), m, ready.tolist())
    simulated_s = max(e.end_s for e in tasks)
    until_s = float(work.pipeline_s[0]) + sum(seconds for mechanism, seconds in once if mechanism.before)
    tasks = _fitted(tasks, until_s / simulated_s)
    before = _before(once, ranks, until_s / simulated_s)
    after, step_s = _after(once, ranks, tasks, until_s)
    check_sum("a timeline", [seconds[0] for seconds in parts.values()], step_s)
    events = sorted([*before, *tasks, *after], key=lambda e: (e.device, e.start_s, e.end_s))
    return Timeline(
        events=tuple(e for e in events if e.end_s > e.start_s),
        memory=_memory(job, plan, [pools[i] for i in where], counts, tasks, schedule),
        step_s=step_s,
        pipeline_s=max(e.end_s for e in tasks) - min(e.start_s for e in tasks),
        parts={name: float(seconds[0]) for name, seconds in parts.items()},
        simulated_s=simulated_s + step_s - until_s,
    )


def _on_ranks(tables: Sequence[PlanTables], work: StepWork, rows: StageRows) -> StepWork:
    """What happens once a step, with every pipeline rank on its own, equal or not."""
    only = np.zeros(1, dtype=np.int64)
    s = stage_seconds(tables, rows, {**work.columns, "structure": only})
    none = np.zeros((rows.pp, 1))
    seconds = Worked(
        forward_s=s.forward_s,
        rear_s=s.backward_s + s.wgrad_s,
        first_s=s.first_s,
        last_s=s.last_s,
        hides_gather_s=none,
        hides_reduce_s=none,
        parts=none,
    )
    return replace(work, work=seconds, of=only, x=exchange_of(tables, rows, only), at=only)


def _rank_seconds(mechanism: Mechanism, ranks: StepWork) -> FloatArray:
    """Seconds of a mechanism on every pipeline rank; none where its ranks don't differ."""
    if mechanism.on_ranks is None:
        return np.zeros(len(ranks.work.forward_s))
    return np.asarray(mechanism.on_ranks(ranks)[:, 0])


def _fitted(tasks: list[Event], factor: float) -> list[Event]:
    """Tasks as simulated, ``factor`` times as long: the step's closed forms are up to 2% (in a V 6%) beside the
    simulation, and a timeline is as long as the step is priced."""
    return [replace(e, start_s=e.start_s * factor, end_s=e.end_s * factor) for e in tasks]


def _before(once: Sequence[tuple[Mechanism, float]], ranks: StepWork, factor: float) -> list[Event]:
    """What mechanisms do before the first task of every rank, one after the other."""
    phases, starts = list[Event](), [0.0] * len(ranks.work.forward_s)
    for mechanism, _ in once:
        if mechanism.before:
            ends = [a + factor * seconds for a, seconds in zip(starts, _rank_seconds(mechanism, ranks), strict=True)]
            phases += [_phase(d, mechanism, *span) for d, span in enumerate(zip(starts, ends, strict=True))]
            starts = ends
    return phases


def _after(
    once: Sequence[tuple[Mechanism, float]], ranks: StepWork, tasks: list[Event], until_s: float
) -> tuple[list[Event], float]:
    """What mechanisms do after the last task, in order, and when all are done.

    The step waits for each of them; ranks that finish early begin with their own share at once.
    """
    pp = len(ranks.work.forward_s)
    phases, ends = list[Event](), [max(e.end_s for e in tasks if e.device == d) for d in range(pp)]
    for mechanism, seconds in once:
        if mechanism.before:
            continue
        done = until_s + seconds
        if mechanism.on_ranks is None:
            starts, ends = [until_s] * pp, [done] * pp
        else:
            starts, alone = ends, _rank_seconds(mechanism, ranks).tolist()
            ends = [min(start + rank_s, done) for start, rank_s in zip(starts, alone, strict=True)]
        phases += [_phase(d, mechanism, *span) for d, span in enumerate(zip(starts, ends, strict=True))]
        until_s = done
    return phases, until_s


def _phase(device: int, mechanism: Mechanism, start_s: float, end_s: float) -> Event:
    return Event(device=device, kind=mechanism.name, chunk=0, microbatch=0, start_s=start_s, end_s=end_s)


def _pipeline_times(
    tables: Sequence[PlanTables], columns: dict[str, IntArray], counts: IntArray, pools: IntArray
) -> PipelineTimes:
    """Seconds of every chunk; the layers to recompute are divided among a device's chunks by their layers."""
    pp, virtual, _ = counts.shape
    layers = counts @ tables[0].is_layer
    share = columns["recompute_layers"] * layers / np.maximum(layers.sum(axis=1, keepdims=True), 1)
    again = np.where(columns["recompute_layers"] < 0, -1.0, share.T).reshape(-1, 1)
    work = {**columns, "recompute_layers": again, "structure": np.zeros(1, np.int64)}
    chunks = stage_seconds(tables, each_device(chunk_by_chunk(counts), 1, np.tile(pools, virtual)), work)
    transfer_s = max(float(t.transfer_s[t.transfer_index[0]]) for t in tables)
    trainer = tables[0].job.trainer
    if trainer.lockstep:
        return _lockstep_times(chunks, work, transfer_s, pp)

    def by_device(seconds: FloatArray) -> FloatArray:
        return seconds.reshape(virtual, pp).T

    return PipelineTimes(
        forward_s=by_device(chunks.forward_s),
        dgrad_s=by_device(chunks.backward_s),
        wgrad_s=by_device(chunks.wgrad_s),
        transfer_s=transfer_s,
        blocking=not (trainer.p2p_overlap and virtual > 1),
    )


def _lockstep_times(chunks: StageSeconds, work: dict[str, IntArray], transfer_s: float, pp: int) -> PipelineTimes:
    """In lockstep every task takes its slot: as long as the slowest device needs for the same chunk."""
    slots = lockstep_load(chunks, work, np.array([transfer_s])).slot_s.reshape(-1, pp).max(axis=1)
    forward_share = (chunks.forward_s / chunks.busy_s).reshape(-1, pp).mean(axis=1)
    forward_s = np.tile(forward_share * slots, (pp, 1))
    return PipelineTimes(forward_s=forward_s, dgrad_s=slots - forward_s, wgrad_s=np.zeros_like(forward_s))


# -------------------------------------------------------------------------------------------------- memory


def _memory(
    job: TrainingJob,
    plan: TrainingPlan,
    clusters: Sequence[Cluster],
    counts: IntArray,
    tasks: list[Event],
    schedule: PipelineSchedule,
) -> tuple[_MemoryTrack, ...]:
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
        level = states[d] + np.cumsum([change for _, change in changes])
        times = np.array([times_s for times_s, _ in changes])
        limit = usable_bytes(clusters[d])
        stays = float(states[d])
        tracks.append(_MemoryTrack(device=d, times_s=times, bytes_held=level, states_bytes=stays, limit_bytes=limit))
    return tuple(tracks)


def _kept_bytes(
    job: TrainingJob, plan: TrainingPlan, cluster: Cluster, counts: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Activations of one microbatch in every chunk [devices, chunks], of layers and of the head, computed with a single
    microbatch in the pipeline."""
    pp, virtual, blocks = counts.shape
    ones: Any = np.ones(1, dtype=np.int64)
    alone = replace(plan, num_microbatches=1, virtual_stages=1, schedule=int(PipelineSchedule.ONE_F_ONE_B))
    alone = plans_of(flat_columns(alone)[0])
    alone = replace(alone, num_microbatches=ones)
    layers = int(plan.recompute_layers)
    if layers >= 0 and virtual > 1:  # divide the layers to recompute among the chunks
        alone = replace(alone, recompute_layers=np.array([layers / virtual]))
    ranks = np.repeat(np.arange(pp), virtual)
    memory = stage_bytes(job, alone, cluster, counts.reshape(pp * virtual, 1, blocks), ranks)
    return memory.kept.layers_kept.reshape(pp, virtual), memory.kept.head_kept.reshape(pp, virtual)
