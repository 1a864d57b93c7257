"""The order in which every device of a pipeline takes up its microbatches, schedule by schedule.

A task is forward (F), backward (B) or weight gradient (W, where the schedule splits it off) of one microbatch through
one chunk of layers. Device ``d`` of ``pp`` holds chunks ``0 .. v - 1``; chunk ``c`` is the model's part ``c * pp + d``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from sartor.errors import InputError
from sartor.model.training import PipelineSchedule


class Work(StrEnum):
    FORWARD = "F"
    BACKWARD = "B"
    """With ``WGRAD`` split off: what the stage before waits for."""
    WGRAD = "W"


class Task(NamedTuple):
    work: Work
    chunk: int
    microbatch: int


def device_order(schedule: PipelineSchedule, device: int, pp: int, virtual: int, microbatches: int) -> list[Task]:
    """Tasks of one device, first to last. ``InputError`` where the schedule has no order for these numbers."""
    check_schedule(schedule, pp, virtual, microbatches)
    if schedule is PipelineSchedule.GPIPE:
        return _interleaved(pp, virtual, microbatches, microbatches * virtual)
    if schedule is PipelineSchedule.ZERO_BUBBLE:
        return _zero_bubble(device, pp, microbatches)
    if virtual == 1:
        return _alternate(_forward(microbatches), _backward(microbatches), min(pp - 1 - device, microbatches))
    return _interleaved(pp, virtual, microbatches, warmup_chunks(device, pp, virtual, microbatches))


def check_schedule(schedule: PipelineSchedule, pp: int, virtual: int, microbatches: int) -> None:
    if virtual > 1 and schedule is PipelineSchedule.ZERO_BUBBLE:
        must = f"the {schedule.word} schedule has one chunk of layers per device"
        raise InputError("virtual_stages", virtual, must, "1")
    if virtual > 1 and microbatches % pp:
        below = microbatches // pp * pp
        nearest = f"{below} and {below + pp}" if below else str(pp)
        raise InputError("num_microbatches", microbatches, f"must be a multiple of pp={pp} to interleave", nearest)


def warmup_chunks(device: int, pp: int, virtual: int, microbatches: int) -> int:
    """Forward tasks of a device before its first backward in interleaved 1F1B (Megatron-LM,
    ``forward_backward_pipelining_with_interleaving``): two more for every device behind it, and all other chunks."""
    return min((pp - 1 - device) * 2 + (virtual - 1) * pp, microbatches * virtual)


def _interleaved(pp: int, virtual: int, microbatches: int, warmup: int) -> list[Task]:
    forward = [_slot(k, pp, virtual) for k in range(microbatches * virtual)]
    return _alternate(
        [Task(Work.FORWARD, chunk, i) for chunk, i in forward],
        [Task(Work.BACKWARD, virtual - 1 - chunk, i) for chunk, i in forward],
        warmup,
    )


def _slot(k: int, pp: int, virtual: int) -> tuple[int, int]:
    """Chunk and microbatch of the k-th forward: pp microbatches through a chunk, then through the next."""
    group, within = divmod(k, pp * virtual)
    return within // pp, group * pp + within % pp


def _alternate(forward: list[Task], backward: list[Task], warmup: int) -> list[Task]:
    pairs = zip(forward[warmup:], backward, strict=False)
    steady = [task for pair in pairs for task in pair]
    return [*forward[:warmup], *steady, *backward[len(forward) - warmup :]]


def _zero_bubble(device: int, pp: int, microbatches: int) -> list[Task]:
    """ZB-H1 (Qi et al. 2023, fig. 2): device d keeps d weight gradients back, which fill its wait at the end."""
    tasks = _alternate(_forward(microbatches), _backward(microbatches), min(pp - 1 - device, microbatches))
    out: list[Task] = []
    for task in tasks:
        out.append(task)
        if task.work is Work.BACKWARD and task.microbatch >= device:
            out.append(Task(Work.WGRAD, 0, task.microbatch - device))
    left = range(max(microbatches - device, 0), microbatches)
    return [*out, *(Task(Work.WGRAD, 0, i) for i in left)]


def _forward(microbatches: int) -> list[Task]:
    return [Task(Work.FORWARD, 0, i) for i in range(microbatches)]


def _backward(microbatches: int) -> list[Task]:
    return [Task(Work.BACKWARD, 0, i) for i in range(microbatches)]
