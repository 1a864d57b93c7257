"""Cautions about the best chip of a space: whether it can be built, and whether it is at the end of an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sartor.cost.chip.buildable import excess, faults, too_hot
from sartor.designs.question import AreaModel, DesignQuestion
from sartor.designs.result import JointResult, Ranked
from sartor.designs.space import AcceleratorSpace
from sartor.schedules.makespan import timing_fields
from sartor.units import GIGA, MEGA, MIB

AXES: dict[str, tuple[str, float]] = {
    "num_tensor_cores": ("num_tensor_cores", 1),
    "num_vector_cores": ("num_vector_cores", 1),
    "array_rows": ("array_rows", 1),
    "array_cols": ("array_cols", 1),
    "vector_lanes": ("vector_lanes", 1),
    "global_buffer_mib": ("global_buffer_bytes", MIB),
    "clock_mhz": ("clock_hz", MEGA),
    "num_stacks": ("num_stacks", 1),
    "num_links": ("num_links", 1),
    "link_gb_per_s": ("link_bytes_per_s", GIGA),
    "scale_up_devices": ("scale_up_devices", 1),
    "scale_out_gb_per_s": ("scale_out_bytes_per_s", GIGA),
}
"""Axis of a space file -> field and unit."""


AS_PUBLISHED = (
    "; the published area formula counts only cores and buffers, so such chips are searched too "
    '(--area-model die, or area_model = "die" in a space file, leaves them out)'
)
"""Why a chip that cannot be built may win."""
PLATEAU = 0.01
"""Share within which chips count as equal: less than the errors of the model of chips."""


def cautions(question: DesignQuestion, space: AcceleratorSpace, result: JointResult) -> tuple[str, ...]:
    """A sentence for each reason to doubt the best chip or to widen its space."""
    if result.best is None:
        return ()
    chip = result.best.evaluation.point.accelerator
    exempt = AS_PUBLISHED if question.budgets.plausible else ""
    told = [f"this chip cannot be built: {fault}{exempt}" for fault in faults(chip)]
    ends = [*_at_ends(space, chip), *_at_plan_ends(question, result.best)]
    return tuple(filter(None, [*told, too_hot(chip), *ends, _plateau(result.best, result.ranked)]))


def _plateau(best: Ranked, ranked: Sequence[Ranked]) -> str:
    """A note if other evaluated chips are within ``PLATEAU`` of the best."""
    least = best.objective * (1 - PLATEAU)
    near = {timing_fields(each.evaluation.point.accelerator) for each in ranked if each.objective >= least}
    others = len(near - {timing_fields(best.evaluation.point.accelerator)})
    if not others:
        return ""
    come = "another chip comes" if others == 1 else f"{others} other chips come"
    return f"the best is on a plateau: at least {come} within {PLATEAU:.0%} of it (--sensitivity says along which axes)"


def left_out(question: DesignQuestion, space: AcceleratorSpace) -> Iterator[str]:
    """How many chips of the space are left out because they cannot be built."""
    if not refuses(question):
        return
    total = sum(int(np.sum(excess(group) > 1)) for group in space.groups)
    if total:
        kept = f"{total:,} of {space.num_kept:,} chips"
        yield f"{kept} are left out because they cannot be built (--no-plausibility prices them too)"


def refuses(question: DesignQuestion) -> bool:
    """Whether chips that cannot be built are left out. The published closed form counts no memory interfaces, links or
    control, so its space is searched as published and its best chip is only marked."""
    return question.budgets.plausible and question.costs.area is AreaModel.DIE


def _at_ends(space: AcceleratorSpace, chip: object) -> Iterator[str]:
    for axis, (field, unit) in AXES.items():
        values = np.unique(np.concatenate([np.ravel(getattr(group, field)) for group in space.groups])) / unit
        here, low, high = float(getattr(chip, field)) / unit, float(values[0]), float(values[-1])
        if low == high or (axis == "vector_lanes" and tied(space)):
            continue
        if here == high or (here == low and low > 1):
            end = "largest" if here == high else "smallest"
            yield f"{axis}={here:g} is the {end} of its axis ({low:g} to {high:g}): the best may lie beyond it"


def _at_plan_ends(question: DesignQuestion, best: Ranked) -> Iterator[str]:
    """The largest values tried of a training plan's sizes that a model's best plan takes."""
    trained = zip(question.models, best.evaluation.outcomes, strict=True)
    for model, outcome in ((m, o) for m, o in trained if o is not None and not m.served):
        split, plan = outcome.option.split, outcome.plan
        for name, here, tried, most in (
            ("microbatch-size", split.microbatch_size, question.whole_microbatches, question.global_batch_size),
            ("tp", split.width, model.widths, question.num_devices),
            ("cp", split.context_parallel, question.context_widths, question.num_devices),
            ("virtual-stages", plan.virtual_stages, question.virtual_stages, len(plan.stages) > 1 and np.inf),
        ):
            if 1 < here == max(tried) < most:
                whose = f"{model.name}: " if len(question.models) > 1 else ""
                yield f"{whose}{here} is the largest --{name} that was tried: a larger one may be better"


def tied(space: AcceleratorSpace) -> bool:
    """Whether lanes equal columns everywhere, as published."""
    return all(np.array_equal(group.vector_lanes, group.array_cols) for group in space.groups)
