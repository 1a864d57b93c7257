"""Text for an accelerator, its plans and their proof, the same in the terminal and on the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from sartor.answers.design import DesignAnswer, rate
from sartor.cost.chip.ownership import faults, fits_reticle, too_dense
from sartor.designs.bounds import evaluated_joules
from sartor.designs.candidates import DesignStatus, Ranked
from sartor.designs.detail import ModelDetail, plan_fields
from sartor.designs.question import AreaModel, DesignQuestion, Mean, Objective
from sartor.hardware.accelerator import Accelerator
from sartor.model.workload import Phase
from sartor.report.plan_words import microbatches_text
from sartor.report.words import count_text, printable
from sartor.units import GIB, GIGA, MIB, format_share

AREA_WORDS = {
    "arrays_mm2": "multiply arrays",
    "lanes_mm2": "vector lanes",
    "private_buffers_mm2": "private buffers",
    "global_buffer_mm2": "global buffer",
    "memory_phys_mm2": "memory interfaces",
    "links_mm2": "links",
    "network_mm2": "on-chip network",
    "control_mm2": "control",
    "die_to_die_mm2": "links between dies",
    "uncore_mm2": "host interface, clock, unused",
}
POWER_WORDS = {
    "static_w": "idle",
    "arrays_w": "multiply arrays",
    "lanes_w": "vector lanes",
    "private_buffers_w": "private buffers",
    "global_buffer_w": "global buffer",
    "memory_w": "memory",
    "links_w": "links",
    "die_to_die_w": "links between dies",
}
PHASE_UNITS = {Phase.TRAIN: "sequences/s", Phase.PREFILL: "prompts/s", Phase.DECODE: "tokens/s"}
UNITS = {
    Objective.THROUGHPUT: "sequences/s",
    Objective.PER_MM2: "sequences/s per mm2",
    Objective.PER_WATT: "sequences/s per W",
    Objective.PER_DOLLAR: "sequences/s per USD of die and memory",
    Objective.PER_OWNERSHIP_DOLLAR: "sequences/s per USD of ownership",
}


def job_text(name: str, phase: Phase, seq_len: int, context_len: int) -> str:
    """``GPT-3 175B (sequence length 2,048)``; served, the phase and the tokens that its passes are priced with."""
    lengths = {
        Phase.TRAIN: f"sequence length {seq_len:,}",
        Phase.PREFILL: f"prefill, prompts of {count_text(seq_len, 'token')}",
        Phase.DECODE: f"decode, {count_text(context_len, 'token')} of context",
    }
    return f"{printable(name.removesuffix(f', {phase.value}'))} ({lengths[phase]})"


def chip_text(a: Accelerator, hbm_bytes: float | None = None) -> str:
    """``4 tensor cores of 256 x 256, 64 vector cores of 256 lanes, 32 MiB, 64 GB of hbm2``."""
    text = (
        f"{_count(a.num_tensor_cores, 'tensor core')} of {a.array_rows} x {a.array_cols}"
        f"{f' packing {a.packed_dtype.value}' if a.packed_dtype else ''}, "
        f"{_count(a.num_vector_cores, 'vector core')} of {a.vector_lanes} lanes, "
        f"{float(a.global_buffer_bytes) / MIB:g} MiB buffer{package_text(a)}"
    )
    return text if hbm_bytes is None else f"{text}, {memory_text(hbm_bytes)} of {a.memory.value}"


def package_text(a: Accelerator) -> str:
    """`` on 2 dies joined by 5,000 GB/s``, `` on 8 dies over 4 I/O dies, ...``; empty for one die."""
    if a.num_dies == 1 and not a.num_io_dies:
        return ""
    over = f" over {_count(a.num_io_dies, 'I/O die')}" if a.num_io_dies else ""
    return f" on {_count(a.num_dies, 'die')}{over} joined by {float(a.die_to_die_bytes_per_s) / GIGA:,.0f} GB/s each"


def short_chip(a: Accelerator) -> str:
    """``4x256x256 + 64x256, 32 MiB``: tensor cores, vector cores, buffer."""
    tensor = f"{a.num_tensor_cores}x{a.array_rows}x{a.array_cols}"
    tensor += f" {a.packed_dtype.value}" if a.packed_dtype else ""
    return f"{tensor} + {a.num_vector_cores}x{a.vector_lanes}, {float(a.global_buffer_bytes) / MIB:g} MiB"


def short_chips(chips: Sequence[Accelerator]) -> list[str]:
    """`short_chip` of each, with whatever else is not the same for all: ``..., 1.5 GHz``."""
    extra = [say for say in MORE_WORDS if len({say(a) for a in chips}) > 1]
    return [", ".join([short_chip(a), *(say(a) for say in extra)]) for a in chips]


MORE_WORDS: tuple[Callable[[Accelerator], str], ...] = (
    lambda a: f"{float(a.clock_hz) / GIGA:g} GHz",
    lambda a: f"{a.num_stacks} x {a.memory.value}",
    lambda a: f"{a.num_links} links of {float(a.link_bytes_per_s) / GIGA:g} GB/s",
    lambda a: f"{a.node_nm} nm",
    lambda a: a.dataflow.value.replace("_", " "),
    lambda a: package_text(a).removeprefix(" on ") or "one die",
)


def _count(number: object, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def memory_text(size_bytes: float) -> str:
    """``64 GB`` if that is a round number, else ``32 GiB``."""
    whole = abs(size_bytes / GIGA - round(size_bytes / GIGA, 2)) < 1e-9
    return f"{size_bytes / GIGA:g} GB" if whole else f"{size_bytes / GIB:.4g} GiB"


def _objective_text(question: DesignQuestion, value: float) -> str:
    """``1.91k sequences/s``, and over how many models it is a mean with which weights."""
    if len(question.models) == 1:
        return f"{rate(value)} {unit_of(question)}"
    weights = f"weights {' and '.join(f'{weight:.2g}' for weight in question.weights)}"
    if len(units_in(question)) > 1:
        return f"{rate(value)}, the {unit_of(question)} ({len(question.models)} jobs, {weights})"
    return f"{rate(value)} {unit_of(question)} ({question.mean.value} mean of {len(question.models)} models, {weights})"


def units_in(question: DesignQuestion) -> list[str]:
    """The units of the models' throughputs, each once."""
    return list(dict.fromkeys(PHASE_UNITS[model.phase] for model in question.models))


def unit_of(question: DesignQuestion) -> str:
    """The unit of the objective: ``tokens/s per W``; ``geometric mean of sequences/s and tokens/s`` in several."""
    return unit_text(question.objective, question.mean, units_in(question))


def unit_text(objective: Objective, mean: Mean, units: Sequence[str]) -> str:
    """The unit of an objective, from those of the models' throughputs."""
    plain = units[0] if len(units) == 1 else f"{mean.value} mean of {' and '.join(units)}"
    return UNITS[objective].replace("sequences/s", plain)


def headlines(answer: DesignAnswer) -> tuple[str, ...]:
    """The best point and its objective, what it takes, and the proof; or why there is no best point."""
    best, question = answer.best, answer.question
    if best is None:
        return (nothing_text(answer),)
    point = best.evaluation.point
    published = question.costs.area is AreaModel.PUBLISHED
    joules = " and ".join(
        f"{rate:.3g}" for m in range(len(question.models)) if (rate := evaluated_joules(question, best.evaluation, m))
    )
    where = "at 22 nm (published model)" if published else f"at {point.accelerator.node_nm} nm"
    fits = "" if published else f" ({fits_reticle(point.accelerator):.0%} sure to fit the reticle)"
    return (
        f"{not_buildable_text(question, point.accelerator)}"
        f"{chip_text(point.accelerator, point.hbm_bytes)}: {_objective_text(question, best.objective)}"
        f"{', ' + dense if (dense := too_dense(point.accelerator)) and not published else ''}.",
        f"{best.area_mm2:,.1f} mm2 {where}{fits}, {best.power_w:,.0f} W peak, {joules} J per token.",
        *_verdicts(answer, best),
        _proof_text(answer),
    )


def _verdicts(answer: DesignAnswer, best: Ranked) -> Iterator[str]:
    """How many times a GPU's throughput the best chip has on one network and on the GPU's own; and a rival chip's."""
    plain = answer.question.objective is Objective.THROUGHPUT
    for entry in answer.against:
        equal, own = (_range([getattr(m, name) for m in entry.models]) for name in ("equal_ratio", "ratio"))
        like = drawn_like(answer, entry.gpu.name)
        drawn = f", {against_text(best, like)} with that GPU drawn as a chip too" if like and plain else ""
        if equal and own:
            gpu = entry.gpu.name
            yield (
                f"{equal} the throughput of {gpu} as measured{drawn}, device for device, both on the chip's network "
                f"({entry.network}); {own} with {gpu} on its own ({entry.cluster})."
            )
    for line in answer.result.baselines:
        name, searched, _ = line.name.rpartition(", searched placement")
        if searched and name in answer.rivals and line.ranked is not None:
            yield f"{against_text(best, line.ranked)} the {unit_of(answer.question)} of {name}, on its own network."


def _range(ratios: Sequence[float | None]) -> str:
    """``1.2x``, or ``1.2x to 1.5x`` over several models; empty where one has no plan."""
    known = [ratio for ratio in ratios if ratio]
    if len(known) < len(ratios) or not known:
        return ""
    return " to ".join(dict.fromkeys(f"{ratio:.3g}x" for ratio in (min(known), max(known))))


def drawn_like(answer: DesignAnswer, gpu: str) -> Ranked | None:
    """A catalogue GPU drawn as a chip among the alternatives, with its best placements."""
    name = f"{gpu.removesuffix('_sxm').upper()}-like, searched placement"
    return next((line.ranked for line in answer.result.baselines if line.name == name), None)


def not_buildable_text(question: DesignQuestion, chip: Accelerator) -> str:
    """That the best chip could not be built, why, and how to search those that could; empty if it could."""
    fault_list = list(faults(chip))
    buildable = "--space modern" if question.costs.area is AreaModel.PUBLISHED else "--plausibility"
    reasons = "; ".join([*fault_list, f"{buildable} searches chips that can"])
    return f"A chip that cannot be built ({reasons}). " if fault_list else ""


def nothing_text(answer: DesignAnswer) -> str:
    """Why there is no best point."""
    result = answer.result
    if result.status is DesignStatus.INFEASIBLE:
        return f"No point of the space fits. Tightest constraint: {printable(result.tightest)}."
    if result.interrupted:
        return f"Interrupted before a point was found. {_again(answer)}."
    spent = f"{result.seconds:.3g} s went into bounds of {result.space_size:,} combinations"
    return f"Out of time before a point was found ({spent}): increase --time-limit, or leave it out."


def _proof_text(answer: DesignAnswer) -> str:
    """The proof about all other points."""
    result = answer.result
    single, many = ("pair", "pairs") if answer.joint else ("chip", "chips")
    rest = " of a shape and a chip with a memory" if answer.joint else " with a memory"
    how = f"of {count_text(result.num_points, single, many)}{rest} {result.evaluated:,} evaluated"
    how += f", {result.pruned:,} ruled out by their upper bounds"
    how += f", {result.left_out:,} left out by budgets or limits" if result.left_out else ""
    how += f", {result.waiting:,} not looked at" if result.waiting else ""
    size = f"{result.space_size:,} combinations"
    if result.status is DesignStatus.OPTIMAL:
        under = " under the published area model" if answer.question.costs.area is AreaModel.PUBLISHED else ""
        return f"Proved optimal{under}: none of {size} is better ({how})."
    if not (result.waiting or result.interrupted):
        return f"Proved to within {format_share(result.gap)}: none of {size} is better by more ({how})."
    why = "interrupted" if result.interrupted else "out of time"
    left = f"none of {size} is more than {format_share(result.gap)} better ({how})"
    if answer.joint and len(answer.joint.shapes) > 1:  # the study does not record their shapes
        return f"Not proved optimal ({why}): {left}. A longer --time-limit or a larger --tolerance proves more."
    return f"Not proved optimal ({why}): {left}. {_again(answer)}."


def _again(answer: DesignAnswer) -> str:
    """How to go on with a search that ended early."""
    if answer.studied:
        return "Run the same command again to go on from here"
    return "A command with --study FILE goes on where it ended"


def plan_text(detail: ModelDetail) -> str:
    """``tp 4, pp 2, dp 128, 16 microbatches of 2 sequences, no recomputation``."""
    plan = plan_fields(detail)
    words = [f"{name} {plan[name]}" for name in ("tp", "pp", "dp", "cp", "ep") if plan[name] > 1]
    words += [f"{plan['virtual_stages']} chunks per device"] if plan["virtual_stages"] > 1 else []
    words += [f"ZeRO {plan['zero_stage']}"] if plan["zero_stage"] else []
    words += [plan["dtype"]] if plan["dtype"] != "bf16" else []
    if detail.served:
        return ", ".join([*words, f"batches of {plan['microbatch_size']:,}"])
    words.append(microbatches_text(plan["num_microbatches"], plan["microbatch_size"]))
    words.append("every layer but the last stage's recomputed" if plan["recompute"] == "full" else "no recomputation")
    return ", ".join(words)


def against_text(best: Ranked, reference: Ranked) -> str:
    """How many times better: ``1.42x``."""
    return f"{best.objective / reference.objective:.2f}x" if reference.objective else ""


def notes_of(answer: DesignAnswer) -> list[str]:
    """Notes on the alternatives, each once with all alternatives it applies to."""
    ways: dict[str, list[str]] = {}
    limit = answer.space.area_limit_mm2
    for baseline in answer.result.baselines:
        notes = [part.strip() for part in baseline.note.split(";") if part.strip()]
        if limit and baseline.ranked is not None and baseline.ranked.area_mm2 > limit * 1.000001:
            notes.append(f"larger than the space's {limit:,.0f} mm2")
        for part in notes:
            ways.setdefault(part, []).append(baseline.name)
    plain = {part: names for part, names in ways.items() if not PLAN.match(part)}
    return [f"{_together(names)}: {part}" for part, names in plain.items()]


PLAN = re.compile(r"^t\d+ p\d+ d\d+|^placement alone$")
"""Notes that the table shows already."""


def _together(names: list[str]) -> str:
    """Chip names without placement, each once: ``A100-like``."""
    return printable(", ".join(dict.fromkeys(PLACEMENT.sub("", name) for name in names)))


PLACEMENT = re.compile(r", (expert|searched) placement$")
