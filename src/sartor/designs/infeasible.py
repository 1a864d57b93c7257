"""Why no point of a space has a plan: which model fits nowhere, and what the nearest point would need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, floor, inf, log10

from sartor.designs.bounds import LoweredModel, bare_problem, splits
from sartor.designs.equal_chunks import least_bytes
from sartor.designs.least_energy import LeastEnergy
from sartor.designs.parts import ModelParts, design_job
from sartor.designs.question import EQUAL, LIMITS, DesignModel, DesignQuestion
from sartor.errors import InputError
from sartor.model.lower.split import contexts_divide
from sartor.model.training import Recompute
from sartor.placement.infeasible import find_tightest
from sartor.placement.problem import Edge, PlacedLayer, Width, copies_together
from sartor.step.chip_blocks import block_graphs
from sartor.units import format_bytes


def tightest_constraint(
    question: DesignQuestion,
    models: Sequence[LoweredModel],
    hbm_bytes: float,
    quickest_s: Callable[[DesignModel], tuple[float, bool]],
    least: Callable[[], LeastEnergy],
) -> str:
    """One sentence on the constraint that leaves no plan; ``hbm_bytes`` is the largest memory tried, ``quickest_s``
    gives the least seconds of a model's pass on any chip, and whether they are proved, ``least`` the least energy."""
    found = memory_constraint(question, models, hbm_bytes)
    if found:
        return found
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
    if limit is not None and (words := _energy(limit, least())):
        return words
    if limited:
        return (
            f"{', '.join(map(_limit, limited))}: each can be reached, but no single chip within the budgets reaches all"
        )
    if limit is not None:
        return f"energy_j_per_token={limit:.6g}: every plan that fits takes more"
    return f"num_devices={question.num_devices}: no chip has enough memory for every model"


def _energy(limit: float, least: LeastEnergy) -> str:
    """A sentence if the least energy found is above the limit."""
    if not limit < least.reached_j < inf:
        return ""
    proved = least.bound_j >= least.reached_j
    words = "the least of any plan is" if proved else f"no plan takes less than {least.bound_j:.3g} J, the least found"
    near = f"energy_j_per_token={_rounded_up(least.reached_j)} is reached"
    return f"energy_j_per_token={limit:.6g}: {words} {least.reached_j:.4g} J; {near}"


def _limit(model: DesignModel) -> str:
    return f"{LIMITS[model.phase]}={1e3 * (model.latency_s or inf):g}"


def _rounded_up(value: float) -> str:
    """The value rounded up to three digits."""
    step = 10.0 ** (floor(log10(value)) - 2)
    return f"{ceil(value / step * (1 - EQUAL)) * step:.3g}"


def memory_constraint(question: DesignQuestion, models: Sequence[LoweredModel], hbm_bytes: float) -> str:
    """A sentence if some model has no plan on devices with this memory, or cannot be split; else empty."""
    for lowered in models:
        model = lowered.model
        if not lowered.parts:
            if refused := _contexts(question, model):
                return refused
            widths, devices = ", ".join(map(str, model.widths)), question.num_devices
            return f"widths: none of {widths} splits {model.name} on {devices} devices{_why_not(question, model)}"
        least = _least_memory(question, lowered, hbm_bytes)
        if least > hbm_bytes:
            would = (
                f"at least {least:.4g} bytes ({format_bytes(least)}) per device would" if least < inf else "none would"
            )
            memory = f"hbm_bytes={hbm_bytes:.12g} ({format_bytes(hbm_bytes)})"
            return f"{memory}: {model.name} fits no plan on {question.num_devices} devices; {would}"
    return ""


def _contexts(question: DesignQuestion, model: DesignModel) -> str:
    """A sentence if no number of contexts has devices and divides the model's sequences."""
    every, fewest = question.context_widths, min(model.widths)
    if model.served or any(cp * fewest <= question.num_devices and contexts_divide(model.seq_len, cp) for cp in every):
        return ""
    split = f"splits the {model.seq_len:,} tokens of {model.name} into two equal pieces per device"
    return f"cp={','.join(map(str, every))}: none {split} on {question.num_devices} devices; nearest: 1"


def _why_not(question: DesignQuestion, model: DesignModel) -> str:
    """The error of lowering at the smallest refused split: a width, or a traced graph's type or sizes."""
    job = design_job(model, question.global_batch_size)
    for split in splits(question, model):
        try:
            block_graphs(job, split.dims, split.microbatch_size)
        except InputError as error:
            return f" ({error})"
    return ""


def _least_memory(question: DesignQuestion, lowered: LoweredModel, hbm_bytes: float) -> float:
    """Least bytes per device over microbatches, widths and recomputation; inf if there are too few devices."""
    least = inf
    for parts in lowered.parts.values():
        if parts.served:
            least = min(least, parts.served.device_bytes)
            continue
        for recompute in question.recomputes:
            bare = bare_problem(question, parts.split.microbatch_size, hbm_bytes, Recompute(recompute))
            together = copies_together(parts.split.expert_parallel, parts.split.context_parallel)
            room = question.num_devices // (1 if bare.zero_stage else together)
            problem = replace(bare, widths=(bare_width(parts),), num_devices=room)
            needs = find_tightest(problem).least_memory_bytes
            least = min(least, needs if needs is not None else inf, least_bytes(question, parts, bare))
    return least


def bare_width(parts: ModelParts) -> Width:
    """The layers with their bytes and zero time."""
    split = parts.split
    kinds = (0, *parts.order, len(parts.parts) - 1)
    layers = tuple(
        PlacedLayer(
            id=i,
            param_bytes=parts.parts[k].param_bytes,
            expert_param_bytes=parts.parts[k].expert_param_bytes,
            activation_bytes=parts.parts[k].activation_bytes,
            forward_s=0.0,
            backward_s=0.0,
            is_split=split.devices > 1,
        )
        for i, k in enumerate(kinds)
    )
    edges = tuple(Edge(source=i, dest=i + 1, size_bytes=parts.boundary_bytes) for i in range(len(kinds) - 1))
    return Width(
        tensor_parallel=split.width,
        context_parallel=split.context_parallel,
        expert_parallel=split.expert_parallel,
        layers=layers,
        edges=edges,
        tied_bytes=parts.tied_bytes,
    )
