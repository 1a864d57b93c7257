"""Why no plan fits, and the smallest changes with which one does; each proposal was tried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from sartor.model.training import PipelineSchedule, Recompute, TrainingJob
from sartor.plans.evaluate import Pricer
from sartor.plans.result import PricedPlan, Relaxation, Tightest
from sartor.plans.space import AXES, chunks, plan_space, size_of, structures, with_switches
from sartor.step.results import MAY_FIT, near_limit
from sartor.units import format_bytes, room_text, round_up

DOUBLINGS = 7
"""How often to double the devices, and to halve the sequence, in search of a plan that fits."""
LEAST_SEQ_LEN = 128


def tightest(
    pricer: Pricer, num_devices: int, fixed: Mapping[str, int], leanest: PricedPlan | None, struck: Mapping[str, int]
) -> Tightest:
    """The constraint that rules out every plan, as a sentence, and changes that would allow some."""
    relaxations = tuple(_relaxations(pricer, num_devices, fixed, leanest))
    if leanest is None:
        stated = ", ".join(f"{name}={word_of(name, value)}" for name, value in fixed.items())
        reason = list(struck)[-1] if struck else "they contradict each other"  # why the last plans were rejected
        together = " together" if len(fixed) > 1 else ""
        return Tightest(message=f"no plan has {stated}{together}: {reason}", relaxations=relaxations)
    over = leanest.peak_bytes - pricer.limit_bytes
    stage = int(leanest.footprint.stage)
    small = min(pricer.cluster.gpus, key=lambda gpu: gpu.hbm_bytes)
    where = f"stage {stage} of {int(leanest.plan.dims.pp)}" if int(leanest.plan.dims.pp) > 1 else "every device"
    message = (
        f"does not fit: the leanest plan puts {format_bytes(leanest.peak_bytes)} on {where}, "
        f"{format_bytes(over)} more than {small.name} {_has(pricer)}"
    )
    if near_limit(leanest.peak_bytes, pricer.limit_bytes):
        message += f"; {MAY_FIT}"
    return Tightest(message=message, stage=stage, over_bytes=over, leanest=leanest, relaxations=relaxations)


def one_change(job: TrainingJob, num_devices: int, axes: Mapping[str, int]) -> str:
    """For an impossible plan, the one or two nearest values that make it possible (with dp adjusted): ``pp=1 or
    zero_stage=1``; empty if no single change helps."""
    changes = []
    for name in (axis for axis in AXES if axis in axes and axis != "dp"):
        rest = {other: value for other, value in axes.items() if other not in (name, "dp")}
        space = plan_space(job, num_devices, rest)
        for value in np.unique(with_switches(job, space, structures(job, space).rows, {})[name]).tolist():
            changes.append((abs(math.log((value + 1) / (axes[name] + 1))), f"{name}={word_of(name, value)}"))
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
    need = int(round_up(int(leanest.peak_bytes / usable_share), 2**30))
    yield Relaxation(change=f"devices of {format_bytes(need)} or more", field="hbm_bytes", value=str(need))


def word_of(axis: str, value: int) -> str:
    """The word for a fixed value: ``full`` for recompute 2."""
    if axis == "recompute":
        return Recompute(value).word
    return PipelineSchedule(value).word if axis == "schedule" else str(value)


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
