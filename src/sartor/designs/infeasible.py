"""Why no point of a space has a plan: which model fits nowhere, what the nearest point would need, and the least energy
per token of any chip and plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf, log10

import numpy as np

from sartor.cost.chip.ownership import energy_floor_j
from sartor.designs.bounds import (
    LoweredModel,
    bare_problem,
    dynamic_j,
    joules_per_token,
    least_joules,
    plan_rates,
    splits,
    work_rates,
)
from sartor.designs.candidates import Candidates
from sartor.designs.equal_chunks import least_bytes
from sartor.designs.parts import CopySplit, design_job
from sartor.designs.point import Option, Point, ScheduleStore, evaluate_option
from sartor.designs.question import EQUAL, LIMITS, DesignModel, DesignQuestion
from sartor.designs.tasks import lowered
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator
from sartor.model.lower.setting import contexts_divide
from sartor.model.training import Recompute
from sartor.placement.place import find_tightest
from sartor.placement.problem import copies_together
from sartor.step.block_times import block_graphs
from sartor.units import Array, format_bytes


def tightest_constraint(
    question: DesignQuestion,
    models: Sequence[LoweredModel],
    hbm_bytes: float,
    quickest_s: Callable[[DesignModel], tuple[float, bool]],
    energy: Callable[[], LeastEnergy],
) -> str:
    """One sentence on the constraint that leaves no plan; ``hbm_bytes`` is the largest memory tried, ``quickest_s``
    gives the least seconds of a model's pass on any chip, and whether they are proved, ``energy`` the least energy."""
    sentence = memory_constraint(question, models, hbm_bytes)
    if sentence:
        return sentence
    limited = [model for model in question.models if model.served and model.latency_s]
    for model in limited:
        least_s, proved = quickest_s(model)
        if least_s == inf:
            return f"{_limit(model)}: no pass of {model.name} is known to be as fast"
        if least_s > (model.latency_s or inf):
            words = "the quickest pass" if proved else "the quickest pass found in the time"
            near = f"{LIMITS[model.phase]}={_rounded_up(1e3 * least_s)} is reached"
            return f"{_limit(model)}: {words} of {model.name} on any chip takes {1e3 * least_s:.4g} ms; {near}"
    limit = question.budgets.energy_j_per_token
    if limit is not None and (words := _energy(limit, energy())):
        return words
    if limited:
        return (
            f"{', '.join(map(_limit, limited))}: each can be reached, but no single chip within the budgets reaches all"
        )
    if limit is not None:
        return f"energy_j_per_token={limit:.6g}: every plan that fits takes more"
    return f"num_devices={question.num_devices}: no chip has enough memory for every model"


def _energy(limit: float, energy: LeastEnergy) -> str:
    """A sentence if the least energy found is above the limit."""
    if not limit < energy.reached_j < inf:
        return ""
    proved = energy.bound_j >= energy.reached_j
    words = "the least of any plan is" if proved else f"no plan takes less than {energy.bound_j:.3g} J, the least found"
    near = f"energy_j_per_token={_rounded_up(energy.reached_j)} is reached"
    return f"energy_j_per_token={limit:.6g}: {words} {energy.reached_j:.4g} J; {near}"


def _limit(model: DesignModel) -> str:
    return f"{LIMITS[model.phase]}={1e3 * (model.latency_s or inf):g}"


def _rounded_up(value: float) -> str:
    """The value rounded up to three digits."""
    step = 10.0 ** (floor(log10(value)) - 2)
    return f"{ceil(value / step * (1 - EQUAL)) * step:.3g}"


def memory_constraint(question: DesignQuestion, models: Sequence[LoweredModel], hbm_bytes: float) -> str:
    """A sentence if some model has no plan on devices with this memory, or cannot be split; else empty."""
    for lowered_model in models:
        model = lowered_model.model
        if not lowered_model.parts:
            if refused := _contexts(question, model):
                return refused
            widths, devices = ", ".join(map(str, model.widths)), question.num_devices
            return f"widths: none of {widths} splits {model.name} on {devices} devices{_why_not(question, model)}"
        needed_bytes = _least_memory(question, lowered_model, hbm_bytes)
        if needed_bytes > hbm_bytes:
            would = (
                f"at least {needed_bytes:.4g} bytes ({format_bytes(needed_bytes)}) per device would"
                if needed_bytes < inf
                else "none would"
            )
            memory = f"hbm_bytes={hbm_bytes:.12g} ({format_bytes(hbm_bytes)})"
            return f"{memory}: {model.name} fits no plan on {question.num_devices} devices; {would}"
    return ""


def _contexts(question: DesignQuestion, model: DesignModel) -> str:
    """A sentence if no number of contexts has devices and divides the model's sequences."""
    widths, fewest = question.context_widths, min(model.widths)
    if model.served or any(cp * fewest <= question.num_devices and contexts_divide(model.seq_len, cp) for cp in widths):
        return ""
    split = f"splits the {model.seq_len:,} tokens of {model.name} into two equal pieces per device"
    return f"cp={','.join(map(str, widths))}: none {split} on {question.num_devices} devices; nearest: 1"


def _why_not(question: DesignQuestion, model: DesignModel) -> str:
    """The error of lowering at the smallest refused split: a width, or a traced graph's type or sizes."""
    job = design_job(model, question.global_batch_size)
    for split in splits(question, model):
        try:
            block_graphs(job, split.dims, split.microbatch_size)
        except InputError as error:
            return f" ({error})"
    return ""


def _least_memory(question: DesignQuestion, model: LoweredModel, hbm_bytes: float) -> float:
    """Least bytes per device over microbatches, widths and recomputation; inf if there are too few devices."""
    needed_bytes = inf
    for parts in model.parts.values():
        if parts.served:
            needed_bytes = min(needed_bytes, parts.served.device_bytes)
            continue
        for recompute in question.recomputes:
            bare = bare_problem(question, parts.split.microbatch_size, hbm_bytes, Recompute(recompute))
            together = copies_together(parts.split.expert_parallel, parts.split.context_parallel)
            room = question.num_devices // (1 if bare.zero_stage else together)
            problem = replace(bare, widths=(parts.width(),), num_devices=room)
            needs = find_tightest(problem).least_memory_bytes
            needed_bytes = min(needed_bytes, needs if needs is not None else inf, least_bytes(question, parts, bare))
    return needed_bytes


SHARPENED, SPLITS = 256, 4
"""Chips with the least first bounds, and splits of each model, that get their second bound."""
MOST_CHIPS = 8
"""Most chips that are tried, those with the least bounds first."""

Bounds = tuple[Mapping[CopySplit, Array], ...]
"""Of each model, joules per token [candidates] that no plan of a split falls below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastEnergy:
    """Joules per token that a plan takes (inf: none was found), and that none falls below."""

    reached_j: float
    bound_j: float


def least_energy(question: DesignQuestion, candidates: Candidates, check: Callable[[], None]) -> LeastEnergy:
    """The chips with the least bounds tried in turn, in whatever time ``check`` leaves before it raises."""
    free = replace(question, budgets=replace(question.budgets, energy_j_per_token=None))
    memory, reached = candidates.hbm_bytes.max(axis=0), inf
    bounds = _bounds(free, candidates, float(memory.max()))
    few = np.argsort(_together(bounds), kind="stable")[:SHARPENED]
    sharp = tuple(_sharpened(free, candidates, m, per_split, few, check) for m, per_split in enumerate(bounds))
    expected = _together(sharp)
    for i in few[np.argsort(expected[few], kind="stable")][:MOST_CHIPS].tolist():
        if expected[i] >= reached:
            break
        chip_bounds = tuple({split: float(column[i]) for split, column in per_split.items()} for per_split in sharp)
        reached = min(reached, _of_chip(free, candidates.accelerator(i), float(memory[i]), chip_bounds, check))
    return LeastEnergy(reached_j=reached, bound_j=min(float(_together(bounds).min()), reached))


def _bounds(question: DesignQuestion, candidates: Candidates, memory: float) -> Bounds:
    indices = np.arange(len(candidates))
    groups = tuple(candidates.of_groups(indices))
    bounds: Bounds = ()
    for m, model in enumerate(lowered(question)):
        per_split = {split: np.full(len(indices), inf) for split in model.parts}
        for split, parts in model.parts.items():
            for where, a in groups:
                if a.multiplies(split.dtype):
                    rates = work_rates(question, parts, a, memory)
                    per_split[split][where] = least_joules(question, m, parts, a, rates, energy_floor_j)
        bounds += (per_split,)
    return bounds


def _sharpened(
    question: DesignQuestion,
    candidates: Candidates,
    m: int,
    bounds: Mapping[CopySplit, Array],
    few: Array,
    check: Callable[[], None],
) -> Mapping[CopySplit, Array]:
    """The splits that take least on a ``few`` chips, with their bounds there raised by tiles, schedules and plans."""
    best = sorted(bounds, key=lambda split: float(bounds[split][few].min()))[:SPLITS]
    for split in best:
        check()
        parts = lowered(question)[m].parts[split]
        for where, a in candidates.of_groups(few):
            if a.multiplies(split.dtype):
                indices = few[where]
                rates = plan_rates(question, parts, a, candidates.hbm_bytes[:, indices]).max(axis=(0, 1))
                joules = least_joules(question, m, parts, a, rates, dynamic_j)
                bounds[split][indices] = np.maximum(bounds[split][indices], joules)
    return {split: bounds[split] for split in best}


def _together(bounds: Bounds) -> Array:
    """Joules per token [candidates] of the model that takes most."""
    return np.asarray(np.max([np.min([*per_split.values()], axis=0) for per_split in bounds], axis=0))


def _of_chip(
    question: DesignQuestion,
    a: Accelerator,
    memory: float,
    bounds: tuple[Mapping[CopySplit, float], ...],
    check: Callable[[], None],
) -> float:
    """Joules per token on one chip of the model that takes most; inf if a model has no plan."""
    point, store = Point(index=0, accelerator=a, hbm_bytes=memory, options=()), ScheduleStore(check=check)
    joules = [inf] * len(bounds)
    for m, per_split in enumerate(bounds):
        for split in sorted(per_split, key=lambda split: per_split[split]):
            if per_split[split] >= joules[m]:
                break
            joules[m] = min([joules[m], *_of_split(question, point, m, split, store)])
    return max(joules)


def _of_split(
    question: DesignQuestion, point: Point, m: int, split: CopySplit, store: ScheduleStore
) -> Iterator[float]:
    for recompute in question.recomputes:
        store.check()
        option = Option(model=m, split=split, recompute=Recompute(recompute))
        outcome, _ = evaluate_option(question, point, option, store)
        if outcome:
            run = replace(option, recompute=outcome.recompute)
            yield joules_per_token(question, point.accelerator, run, outcome.step_s)
