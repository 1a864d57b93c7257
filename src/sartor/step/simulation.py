"""Exact event simulation of one plan's pipeline: tasks, transfers and idle times of every device.

It shares no code with the closed forms of ``pipeline``, which are tested against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sartor.model.training import PipelineSchedule
from sartor.step.orders import Task, Work, device_order, part_of
from sartor.units import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something a device does from ``start_s`` to ``end_s``; ``kind`` is F, B, W, ``send_forward``, ``send_backward``,
    or the name of a mechanism that acts once a step."""

    device: int
    """Pipeline rank."""
    kind: str
    chunk: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """Seconds of one microbatch through every chunk [devices, chunks per device], and of a transfer between chunks.

    ``wgrad_s`` is not part of ``dgrad_s``; schedules that do not split backward run both in one task.
    """

    forward_s: FloatArray
    dgrad_s: FloatArray
    wgrad_s: FloatArray
    transfer_s: float = 0.0
    blocking: bool = True
    """Whether a transfer blocks its sender's next task; if not, it runs in parallel and only the receiver waits."""


def simulate(
    schedule: PipelineSchedule, times: PipelineTimes, num_microbatches: int, start_s: Sequence[float] = ()
) -> list[Event]:
    """Every task and transfer of one step's pipeline, by device and start. Raises ``InputError`` as `device_order`.

    ``start_s`` is when each device is ready for its first task (empty: at 0).
    """
    pp, virtual = times.forward_s.shape
    orders = [device_order(schedule, d, pp, virtual, num_microbatches) for d in range(pp)]
    ready: dict[tuple[Work, int, int], float] = {}
    free, position, events = list(start_s) or [0.0] * pp, [0] * pp, list[Event]()
    waiting = True
    while waiting:
        waiting = False
        for d in range(pp):
            while position[d] < len(orders[d]):
                task = orders[d][position[d]]
                part = part_of(schedule, d, task.chunk, pp)
                arrived = _arrival(task, part, pp * virtual - 1, ready)
                if arrived is None:
                    waiting = True
                    break
                start = max(free[d], arrived)
                end = start + _duration(schedule, task, d, times)
                events.append(
                    Event(
                        device=d, kind=task.work, chunk=task.chunk, microbatch=task.microbatch, start_s=start, end_s=end
                    )
                )
                free[d] = end
                for sent in _transfer(schedule, task, d, end, times):
                    events.append(sent)
                    end, free[d] = sent.end_s, (sent.end_s if times.blocking else end)
                ready[(task.work, part, task.microbatch)] = end
                position[d] += 1
    return sorted(events, key=lambda e: (e.device, e.start_s, e.end_s))


def _arrival(task: Task, part: int, last: int, ready: dict[tuple[Work, int, int], float]) -> float | None:
    """When a task's input has arrived; None if the task that produces it has not been simulated yet."""
    if task.work is Work.FORWARD:
        return ready.get((Work.FORWARD, part - 1, task.microbatch)) if part else 0.0
    local = ready.get((Work.FORWARD if task.work is Work.BACKWARD else Work.BACKWARD, part, task.microbatch))
    if local is None or task.work is Work.WGRAD:
        return local if local is None else 0.0
    return ready.get((Work.BACKWARD, part + 1, task.microbatch)) if part < last else 0.0


def _duration(schedule: PipelineSchedule, task: Task, device: int, times: PipelineTimes) -> float:
    chunk = (device, task.chunk)
    if task.work is Work.FORWARD:
        return float(times.forward_s[chunk])
    if task.work is Work.WGRAD:
        return float(times.wgrad_s[chunk])
    return float(times.dgrad_s[chunk] + (0.0 if schedule.splits else times.wgrad_s[chunk]))


def _transfer(schedule: PipelineSchedule, task: Task, device: int, end: float, times: PipelineTimes) -> Iterator[Event]:
    pp, virtual = times.forward_s.shape
    part = part_of(schedule, device, task.chunk, pp)
    onward = task.work is Work.FORWARD and part < virtual * pp - 1
    back = task.work is Work.BACKWARD and part > 0
    stays = schedule.is_v and (part, task.work) in ((pp - 1, Work.FORWARD), (pp, Work.BACKWARD))  # the V's bottom
    if (onward or back) and not stays and times.transfer_s > 0 and pp > 1:
        yield Event(
            device=device,
            kind="send_forward" if onward else "send_backward",
            chunk=task.chunk,
            microbatch=task.microbatch,
            start_s=end,
            end_s=end + times.transfer_s,
        )
