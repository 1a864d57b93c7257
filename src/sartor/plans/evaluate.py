"""Seconds and bytes of rows of plans: memory of all of them, step time of those that fit; and if none fits, why, and
the smallest changes with which one does, each of which was tried.

If whole layers must be recomputed to fit, the fewest such layers are found by trying many numbers at once, between too
few and enough: with every further layer memory never grows and time never falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.hardware.cluster import Cluster
from sartor.model.plan import AXES, SEARCHED
from sartor.model.training import Recompute, TrainingJob, TrainingPlan
from sartor.plans.result import PricedPlan, Relaxation, Tightest
from sartor.plans.space import (
    chunks,
    plan_at,
    plan_space,
    size_of,
    stage_layers,
    structures,
    take,
    to_plan,
    with_switches,
)
from sartor.step.footprint import host_bytes, in_doubt, likely_text, usable_bytes
from sartor.step.mechanisms.mechanism import Rows
from sartor.step.results import Footprint, StepEstimate
from sartor.units import Array, Floats, format_bytes, room_text, round_up

HOPE = 1.1
"""A plan over memory by at most this factor with even stages is also tried with uneven ones."""

WEIGHED = 1 << 14
"""Plans whose memory is computed at once in search of the fewest recomputed layers: they fit in a core's cache."""

TIMED = 1 << 19
"""Plans whose steps are computed at once: the more, the fewer times blocks, traffic and pipelines are priced."""

Footprints = Callable[[TrainingJob, TrainingPlan, Cluster], Footprint]


class Steps(Protocol):
    """``training.step.step``, or a replacement in tests."""

    def __call__(
        self, job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Calibration | None = None
    ) -> StepEstimate: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricer:
    """A job on a cluster, and the two functions that price a plan."""

    job: TrainingJob
    cluster: Cluster
    steps: Steps
    footprints: Footprints
    calibration: Calibration | None = None
    headroom: float = 0.0
    """Share of usable memory to leave free."""

    @property
    def limit_bytes(self) -> float:
        """Bytes that a plan may use on one device."""
        return (1 - self.headroom) * usable_bytes(self.cluster)

    def step(self, plan: TrainingPlan) -> StepEstimate:
        return self.steps(self.job, plan, self.cluster, self.calibration)

    def footprint(self, plan: TrainingPlan) -> Footprint:
        return self.footprints(self.job, plan, self.cluster)

    def memory(self, rows: Rows) -> tuple[Array, Array]:
        """Bytes of the fullest device (infinite where hosts lack room for theirs), and its stage, for every row."""
        plan, room = to_plan(self.job, rows), self.cluster.host_memory_bytes
        footprint = self.footprint(plan)
        over = room and np.any(rows["optimizer_offload"]) and np.greater(host_bytes(self.job, plan, self.cluster), room)
        return _full(np.where(over, np.inf, footprint.device_bytes), rows), _full(footprint.stage, rows)

    def seconds(self, rows: Rows) -> tuple[Array, Array]:
        """Step time of every row, and a lower bound for it with layers unevenly placed on its stages."""
        step = self.step(to_plan(self.job, rows))
        step_s = _full(step.step_s, rows)
        return step_s, step_s - _full(step.imbalance_s, rows)


def _full(value: Floats, rows: Rows) -> Array:
    return np.array(np.broadcast_to(value, (size_of(rows),)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Rows with their bytes and, if they fit, seconds (otherwise infinite)."""

    rows: Rows
    step_s: Array
    bound_s: Array
    """Lower bound of the step time with layers unevenly placed on stages; infinite if memory is too far over."""
    device_bytes: Array
    stage: Array

    @property
    def fits(self) -> Array:
        return np.isfinite(self.step_s)


def evaluate(pricer: Pricer, rows: Rows) -> Evaluated:
    """Memory of every row, and step time of those that fit."""
    return timed(pricer, weighed(pricer, rows))


def weighed(pricer: Pricer, rows: Rows) -> Evaluated:
    """Memory of every row; no row has a time yet."""
    device_bytes, stage = pricer.memory(rows)
    untimed = np.full(size_of(rows), np.inf)
    return Evaluated(rows=rows, step_s=untimed, bound_s=untimed, device_bytes=device_bytes, stage=stage)


def hopeful(pricer: Pricer, evaluated: Evaluated) -> Array:
    """Rows that fit, or might with uneven stages."""
    limit = np.where(evaluated.rows["pp"] > 1, HOPE, 1.0) * pricer.limit_bytes
    return np.asarray(evaluated.device_bytes <= limit)


def timed(pricer: Pricer, evaluated: Evaluated) -> Evaluated:
    """The rows with the step time of those that fit, and a bound of those that might with uneven stages."""
    index = np.flatnonzero(hopeful(pricer, evaluated))
    step_s, bound_s = np.full(size_of(evaluated.rows), np.inf), np.full(size_of(evaluated.rows), np.inf)
    for start in range(0, index.size, TIMED):
        chunk = index[start : start + TIMED]
        step_s[chunk], bound_s[chunk] = pricer.seconds(take(evaluated.rows, chunk))
    step_s[evaluated.device_bytes > pricer.limit_bytes] = np.inf
    return replace(evaluated, step_s=step_s, bound_s=bound_s)


def fewest_recomputed(pricer: Pricer, evaluated: Evaluated, worst_s: float = np.inf) -> Rows | None:
    """For rows that fit only if layers are recomputed: the same rows with the fewest recomputed layers that fit.

    Rows that could not be faster than ``worst_s`` even without recomputation are left out.
    """
    fully = (evaluated.rows["recompute"] == Recompute.FULL) & (evaluated.rows["recompute_layers"] < 0)
    rows = take(evaluated.rows, fully & evaluated.fits & (evaluated.step_s * LEAST_SHARE < worst_s))
    if not size_of(rows):
        return None
    low, high = np.zeros(size_of(rows), dtype=np.int64), stage_layers(pricer.job, rows).astype(np.int64)
    at_none, _ = pricer.memory({**rows, "recompute": np.full(size_of(rows), int(Recompute.NONE))})
    needed = at_none > pricer.limit_bytes
    rows, low, high = take(rows, needed), low[needed], high[needed]
    top, count, which = high, size_of(rows), np.arange(size_of(rows))
    while count and (widest := int((high - low).max())) > 1:
        parts = min(widest, max(2, WEIGHED // count))
        tried = np.maximum(low + (high - low) * np.arange(1, parts)[:, None] // parts, 1)
        many = {name: np.tile(column, parts - 1) for name, column in rows.items()} | {"recompute_layers": tried.ravel()}
        too_few = (pricer.memory(many)[0].reshape(tried.shape) > pricer.limit_bytes).sum(axis=0)
        around = np.stack([low, *tried, high])
        low, high = around[too_few, which], around[too_few + 1, which]
    if pricer.job.trainer.recomputes_by_chunk:
        high = np.asarray(round_up(high, rows["virtual_stages"]))
    fewer = high < top
    return {**take(rows, fewer), "recompute_layers": high[fewer]} if fewer.any() else None


def distinct_but_recompute(rows: Rows) -> Rows:
    """One row of each group that differs only in recomputation."""
    if not size_of(rows):
        return rows
    same = np.stack([rows[axis] for axis in SEARCHED if axis != "recompute"])
    _, first = np.unique(same, axis=1, return_index=True)
    return take(rows, np.sort(first))


def partly_recomputed(job: TrainingJob, rows: Rows) -> Rows:
    """The rows with every number of fully recomputed layers between none and all."""
    largest = np.maximum(stage_layers(job, rows) - 1, 0)
    index = np.repeat(np.arange(size_of(rows)), largest)
    layers = np.arange(index.size) - np.repeat(np.cumsum(largest) - largest, largest) + 1
    if job.trainer.recomputes_by_chunk:
        whole = layers % rows["virtual_stages"][index] == 0
        index, layers = index[whole], layers[whole]
    return {
        **take(rows, index),
        "recompute": np.full(index.size, int(Recompute.FULL)),
        "recompute_layers": layers.astype(np.int64),
    }


LEAST_SHARE = 0.6
"""A step without recomputation takes at least this share of a fully recomputed one: (F + B) / (2 F + B) for forward F
and backward B, as long as F <= 2 B."""


def priced(pricer: Pricer, rows: Rows) -> list[PricedPlan]:
    """Rows as scalar plans with all parts of their step and memory."""
    if not size_of(rows):
        return []
    plans = to_plan(pricer.job, rows)
    steps, footprints = pricer.step(plans), pricer.footprint(plans)
    return [
        PricedPlan(plan=plan_at(pricer.job, rows, i), step=_at(steps, i), footprint=_at(footprints, i))
        for i in range(size_of(rows))
    ]


Record = TypeVar("Record", StepEstimate, Footprint)


def _at(record: Record, index: int) -> Record:
    """One entry of a record of arrays, as scalars."""
    return replace(record, **{f.name: _entry(getattr(record, f.name), index) for f in fields(record)})


def _entry(values: Any, index: int) -> Any:
    if isinstance(values, Mapping):
        return {name: _entry(column, index) for name, column in values.items()}
    return values if np.ndim(values) == 0 else values[index].item()


DOUBLINGS = 7
"""How often to double the devices, and to halve the sequence, in search of a plan that fits."""
LEAST_SEQ_LEN = 128


def tightest(
    pricer: Pricer, num_devices: int, fixed: Mapping[str, int], leanest: PricedPlan | None, struck: Mapping[str, int]
) -> Tightest:
    """The constraint that rules out every plan, as a sentence, and changes that would allow some."""
    relaxations = tuple(_relaxations(pricer, num_devices, fixed, leanest))
    if leanest is None:
        stated = ", ".join(f"{name}={AXES[name].word(value)}" for name, value in fixed.items())
        reason = reason_against(pricer.job, num_devices, fixed, struck) or "they contradict each other"
        together = " together" if len(fixed) > 1 else ""
        return Tightest(message=f"no plan has {stated}{together}: {reason}", relaxations=relaxations)
    over = leanest.peak_bytes - pricer.limit_bytes
    stage = int(leanest.footprint.stage)
    small = min(pricer.cluster.gpus, key=lambda gpu: gpu.hbm_bytes)
    where = f"stage {stage} of {int(leanest.plan.dims.pp)}" if int(leanest.plan.dims.pp) > 1 else "every device"
    doubt = in_doubt(leanest.peak_bytes, pricer.cluster)
    in_host, room = float(host_bytes(pricer.job, leanest.plan, pricer.cluster)), pricer.cluster.host_memory_bytes
    if 0 < room < in_host:
        has = f"{format_bytes(in_host)} of optimizer states into a node's host memory, which has {format_bytes(room)}"
        return Tightest(message=f"does not fit: the plan puts {has}", leanest=leanest, relaxations=relaxations)
    message = (
        f"{'may' if doubt else 'does'} not fit: the leanest plan puts {format_bytes(leanest.peak_bytes)} on {where}, "
        f"{format_bytes(over)} more than {small.name} {_has(pricer)}"
    )
    if doubt:
        message += f"; {likely_text(leanest.peak_bytes, pricer.cluster)}"
    return Tightest(message=message, stage=stage, over_bytes=over, leanest=leanest, relaxations=relaxations)


def reason_against(job: TrainingJob, num_devices: int, axes: Mapping[str, int], struck: Mapping[str, int]) -> str:
    """Why no plan has these values: the last condition that strikes those that are plain in everything else, which
    needs no value that was not asked for; else the last that struck any plan (``struck``)."""
    plain = {name: AXES[name].plain[0] for name in ("cp", "ep", "virtual_stages", "schedule", "recompute")}
    space = plan_space(job, num_devices, {**plain, **axes})
    possible = structures(job, space)
    reasons = dict(possible.rejected)
    with_switches(job, space, possible.rows, reasons)
    return list(reasons or struck or [""])[-1]


def one_change(job: TrainingJob, num_devices: int, axes: Mapping[str, int]) -> str:
    """For an impossible plan, the one or two nearest values that make it possible (with dp adjusted): ``pp=1 or
    zero_stage=1``; empty if no single change helps."""
    changes = []
    for name in (axis for axis in SEARCHED if axis in axes and axis != "dp"):
        rest = {other: value for other, value in axes.items() if other not in (name, "dp")}
        space = plan_space(job, num_devices, rest)
        for value in sorted(set(with_switches(job, space, structures(job, space).rows, {})[name].tolist())):
            changes.append((abs(math.log((value + 1) / (axes[name] + 1))), f"{name}={AXES[name].word(value)}"))
    return " or ".join(words for _, words in sorted(changes)[:2])


def _has(pricer: Pricer) -> str:
    verb = "may fill" if pricer.headroom else "has"
    return f"{verb}: {room_text(pricer.limit_bytes, pricer.headroom)}"


def _relaxations(
    pricer: Pricer, num_devices: int, fixed: Mapping[str, int], leanest: PricedPlan | None
) -> Iterator[Relaxation]:
    """Least intrusive first: free a fixed value, offload, add devices, shorten the sequence, larger devices."""
    for name in fixed:
        rest = {axis: value for axis, value in fixed.items() if axis != name}
        if _something_fits(pricer, num_devices, rest):
            yield Relaxation(change=f"leave {name} free", field=name, value="free")
    if leanest is None:
        return
    if "optimizer_offload" not in fixed and _something_fits(pricer, num_devices, {**fixed, "optimizer_offload": 1}):
        yield Relaxation(
            change="keep the optimizer's states in host memory (--fix optimizer_offload=1)",
            field="optimizer_offload",
            value="1",
        )
    if larger := _more_devices(pricer, num_devices, fixed):
        yield Relaxation(change=f"use {larger} devices", field="num_devices", value=str(larger))
    if shorter := _shorter(pricer, num_devices, fixed):
        yield Relaxation(change=f"train on sequences of {shorter} tokens", field="seq_len", value=str(shorter))
    usable_share = pricer.limit_bytes / min(gpu.hbm_bytes for gpu in pricer.cluster.gpus)
    roomy = replace(pricer.cluster, gpu=replace(pricer.cluster.gpu, hbm_bytes=2 * leanest.peak_bytes / usable_share))
    loose = max(leanest.peak_bytes, float(pricer.footprints(pricer.job, leanest.plan, roomy).device_bytes))
    need = int(round_up(int(loose / usable_share), 2**30))  # with the gaps that an allocator leaves where it has room
    yield Relaxation(change=f"devices of {format_bytes(need)} or more", field="hbm_bytes", value=str(need))


def _more_devices(pricer: Pricer, num_devices: int, fixed: Mapping[str, int]) -> int | None:
    counts = [num_devices * 2**k for k in range(1, DOUBLINGS + 1)]
    cap = pricer.cluster.total_devices
    return next((n for n in counts if not (cap and n > cap) and _something_fits(pricer, n, fixed)), None)


def _shorter(pricer: Pricer, num_devices: int, fixed: Mapping[str, int]) -> int | None:
    lengths = [pricer.job.seq_len // 2**k for k in range(1, DOUBLINGS + 1)]
    jobs = (replace(pricer.job, seq_len=s) for s in lengths if s >= LEAST_SEQ_LEN)
    return next((j.seq_len for j in jobs if _something_fits(replace(pricer, job=j), num_devices, fixed)), None)


def _something_fits(pricer: Pricer, num_devices: int, fixed: Mapping[str, int]) -> bool:
    """Whether any legal plan fits in memory; times are not computed."""
    space = plan_space(pricer.job, num_devices, fixed)
    for chunk in chunks(structures(pricer.job, space).rows):
        rows = with_switches(pricer.job, space, chunk, {})
        if size_of(rows) and (pricer.memory(rows)[0] <= pricer.limit_bytes).any():
            return True
    return False
