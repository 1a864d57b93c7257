"""Closed-form pipeline time for arrays of plans: 1F1B, interleaved 1F1B, ZB-H1, GPipe, and V-shaped schedules.

A schedule's makespan is the longest path through its tasks. Every path goes down to some stage, stays there, may visit
the last stage and come back for the first and for the last microbatch, and returns; the time is the longest of these
few paths. With equal stages it is the published formula, ``(m + p - 1) (f + b)`` for 1F1B (Narayanan et al. 2021, arXiv
2104.04473, sec. 2.2); with unequal ones it is exact for nearly all stage times and never above the simulation of
`timeline`. docs/concepts/training-step.md derives the terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.model.training import PipelineSchedule
from sartor.step.stages import StageRows, summed
from sartor.units import FloatArray, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineWork:
    """Seconds of one microbatch on every distinct device [R, plans], all its chunks together.

    ``dgrad_s`` is backward without ``wgrad_s``. ``transfer_s`` [plans] is one activation (or its gradient) to the next
    device; with interleaved chunks, ``hidden_share`` of a chunk's forward can hide it; None: the sender waits for it.
    """

    rows: StageRows
    forward_s: FloatArray
    dgrad_s: FloatArray
    wgrad_s: FloatArray
    transfer_s: Floats = 0.0
    hidden_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTime:
    """``time_s`` of all microbatches through all stages; the slowest device is busy for ``busy_s`` of it."""

    time_s: FloatArray
    slowest: npt.NDArray[np.intp]
    busy_s: FloatArray
    """Busy time of the slowest row: forward and backward of all microbatches, without transfers."""
    transfer_s: FloatArray
    """Seconds added by transfers."""

    @property
    def bubble_s(self) -> FloatArray:
        return self.time_s - self.busy_s - self.transfer_s


def pipeline_time(work: PipelineWork, num_microbatches: Ints, schedule: Ints) -> PipelineTime:
    """Makespan of one step's pipeline for arrays of plans that share (pp, virtual_stages)."""
    m = np.asarray(num_microbatches)
    without = _makespan(work.rows, work.forward_s, work.dgrad_s, work.wgrad_s, m, schedule)
    busy = work.forward_s + work.dgrad_s + work.wgrad_s
    slowest = np.argmax(busy, axis=0)
    busy_s = m * np.take_along_axis(busy, slowest[None], axis=0)[0]
    moved = np.zeros_like(without)
    if work.rows.pp > 1 and np.any(np.asarray(work.transfer_s) > 0):
        moved = _transfers(work, m, schedule, without)
    return PipelineTime(time_s=without + moved, slowest=slowest, busy_s=busy_s, transfer_s=moved)


def _transfers(work: PipelineWork, m: Ints, schedule: Ints, without: FloatArray) -> FloatArray:
    """Seconds added by transfers: each blocks its sender, or runs beside the next chunk and delays its receiver."""
    rows, c = work.rows, np.asarray(work.transfer_s)
    v, pp = rows.virtual_stages, rows.pp
    if work.hidden_share is not None and v > 1:
        chunk = work.forward_s.min(axis=0) / v
        seen = np.maximum(c - work.hidden_share * chunk, 0.0)
        delayed: FloatArray = 2 * (pp * v - 1) * c + m * v * seen
        return delayed
    sends = np.full(len(rows.counts), v)
    forward = work.forward_s + np.where(rows.last == pp - 1, sends - 1, sends)[:, None] * c
    dgrad = work.dgrad_s + np.where(rows.first == 0, sends - 1, sends)[:, None] * c
    waited: FloatArray = _makespan(rows, forward, dgrad, work.wgrad_s, m, schedule) - without
    return waited


def _makespan(rows: StageRows, f: FloatArray, b: FloatArray, w: FloatArray, m: Ints, schedule: Ints) -> FloatArray:
    if rows.pp == 1:
        single: FloatArray = m * (f + b + w)[0]
        return single
    if rows.virtual_stages > 1:
        return _chunked_s(rows, f, b, w, m, np.asarray(schedule))
    splits = np.asarray(schedule) == PipelineSchedule.ZERO_BUBBLE
    gpipe = np.asarray(schedule) == PipelineSchedule.GPIPE
    whole = _one_f_one_b_s(rows, _b_and_w(b, w, splits), f, m)
    return np.where(gpipe, _gpipe_s(rows, f, b + w, m), whole) if gpipe.any() else whole


def _chunked_s(rows: StageRows, f: FloatArray, b: FloatArray, w: FloatArray, m: Ints, kind: Ints) -> FloatArray:
    """Makespan with several chunks per device, by the schedule of each plan."""
    whole = interleaved_s(rows, f + b + w, m)
    for schedule, seconds in (
        (PipelineSchedule.ZERO_BUBBLE, _interleaved_zero_bubble_s),
        (PipelineSchedule.ZERO_BUBBLE_V, _zero_bubble_v_s),
        (PipelineSchedule.DUAL_PIPE_V, _dual_pipe_v_s),
    ):
        if np.any(np.equal(kind, schedule)):
            whole = np.where(np.equal(kind, schedule), seconds(rows, f, b, w, m), whole)
    return whole


def _b_and_w(b: FloatArray, w: FloatArray, splits: Floats) -> tuple[FloatArray, FloatArray | None]:
    """Backward that the previous stage waits for, and delayed weight gradients (None if no plan splits them off)."""
    if not np.any(splits):
        return b + w, None
    return np.where(splits, b, b + w), np.where(splits, w, 0.0)


def _one_f_one_b_s(
    rows: StageRows, backward: tuple[FloatArray, FloatArray | None], f: FloatArray, m: Ints
) -> FloatArray:
    """Seconds of 1F1B, or of ZB-H1 (Qi et al. 2023, arXiv 2401.10241) if weight gradients are split off.

    With equal stages: ``m (f + b) + (p - 1) (f + b)``, and ``m (f + b + w) + (p - 1) max(f + b - w, f, b)`` for
    ``m >= p``.
    """
    b, w = backward
    all_f, all_b = summed(rows.times, f), summed(rows.times, b)
    best = np.zeros(np.broadcast_shapes(f.shape[1:], np.shape(m)))
    for r, s in enumerate(rows.last.tolist()):
        late = np.maximum(m - (rows.pp - s), 0)  # forwards after the warm-up
        head_f, head_b = summed(rows.before[r], f), summed(rows.before[r], b)
        down = all_f - head_f - f[r]
        back = all_b - head_b - b[r]
        steady = late * (f[r] + b[r])
        # Paths: stay at the device throughout; detour to the end for the first microbatch; for the last; for both.
        first = down + back + m * b[r] + (1 + late) * f[r]
        final = down + back + m * f[r] + (1 + late) * b[r]
        both = np.where(late > 0, 2 * (down + back) + f[r] + b[r] + steady, 0.0)
        ends = head_f + head_b
        if w is None:
            longest = np.maximum(np.maximum(m * (f[r] + b[r]), first), np.maximum(final, both))
            best = np.maximum(best, ends + longest)
            continue
        after = ends + (w[0] if s else 0.0)  # the first stage's last weight gradient
        done = np.maximum(m - 1 - s, 0) + (s == 0)  # weight gradients before the last backward
        paths = (
            head_f + m * (f[r] + b[r] + w[r]),
            head_f + first + m * w[r],
            after + m * (f[r] + b[r]) + done * w[r],
            after + first + done * w[r],
            after + final + np.maximum(late - s, 0) * w[r],
            after + both + np.where(late > 0, np.maximum(late - s, 0) * w[r], 0.0),
        )
        for path in paths:
            best = np.maximum(best, path)
    return best


def interleaved_s(rows: StageRows, busy: FloatArray, m: Ints) -> FloatArray:
    """Interleaved 1F1B: the slowest device's work, plus one chunk of every other (Narayanan et al. 2021, sec. 2.2).

    Exact if the chunks of a device are equal except for the head; else within a few percent of the simulation.
    """
    slowest = busy.max(axis=0)
    total: FloatArray = m * slowest + (summed(rows.times, busy) - slowest) / rows.virtual_stages
    return total


def _interleaved_zero_bubble_s(rows: StageRows, f: FloatArray, b: FloatArray, w: FloatArray, m: Ints) -> FloatArray:
    """Interleaved 1F1B with its bubble filled as in ZB-H1: every other device adds one chunk's f + b - w, but at least
    the longer of f and b (Qi et al. 2023, table 1, by chunks)."""
    busy = f + b + w
    slowest = np.argmax(busy, axis=0)[None]
    waits = np.maximum(f + b - w, np.maximum(f, b))
    others = summed(rows.times, waits) - np.take_along_axis(waits, slowest, axis=0)[0]
    total: FloatArray = m * busy.max(axis=0) + others / rows.virtual_stages
    return total


def _zero_bubble_v_s(rows: StageRows, f: FloatArray, b: FloatArray, w: FloatArray, m: Ints) -> FloatArray:
    """ZB-V: the slowest device's work, plus the longest path at the ends of the V. Exact for equal chunks and m >= 2p:
    the paths are those of the simulation's makespan (tests/step/test_pipeline.py); with unequal devices every chunk is
    taken to be the mean one."""
    f1, b1, w1, q = _mean_chunk(rows, f, b, w)
    paths = (
        q * b1,
        2 * q * (b1 - w1),
        (2 * q - 1) * f1 - (q - 1) * b1,
        (2 * q - 1) * f1 + b1 - 2 * q * w1,
        2 * q * f1 - (2 * q + 1) * w1,
        np.maximum(f1, b1) + (q - 1) * w1,
    )
    total: FloatArray = m * (f + b + w).max(axis=0) + np.maximum.reduce(paths)
    return total


def _dual_pipe_v_s(rows: StageRows, f: FloatArray, b: FloatArray, w: FloatArray, m: Ints) -> FloatArray:
    """DualPipeV, computed like ZB-V."""
    f1, b1, w1, q = _mean_chunk(rows, f, b, w)
    paths = (
        q * f1,
        q * (f1 + b1 - w1),
        2 * q * b1 - f1 - q * w1,
        (2 * q - 1) * (f1 - w1) + b1,
    )
    total: FloatArray = m * (f + b + w).max(axis=0) + np.maximum.reduce(paths)
    return total


def _mean_chunk(
    rows: StageRows, f: FloatArray, b: FloatArray, w: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, int]:
    """Seconds of the mean chunk (f, b, w), and pp - 1."""
    parts = rows.pp * rows.virtual_stages
    of_chunk = [np.asarray(summed(rows.times, block_s)) / parts for block_s in (f, b, w)]
    return of_chunk[0], of_chunk[1], of_chunk[2], rows.pp - 1


def _gpipe_s(rows: StageRows, f: FloatArray, b: FloatArray, m: Ints) -> FloatArray:
    """GPipe (Huang et al. 2019): two flow shops of equal jobs, one after the other; exact for any stages."""
    once = summed(rows.times, f) + summed(rows.times, b)
    total: FloatArray = once + (m - 1) * (f.max(axis=0) + b.max(axis=0))
    return total
