"""Why the best point beats the published baseline: the gain of placement, of the chip, and of the chip's parts.

The value of a part is what is lost if it is replaced: the best chip under its own plan's split, with one part at a time
taken from the TPUv4-like point, priced by the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from sartor.designs.point import ModelOutcome, ScheduleStore, evaluate_option
from sartor.designs.question import DesignQuestion
from sartor.designs.result import Baseline, Keep, Ranked, afresh
from sartor.hardware.accelerator import Accelerator

AGAINST = "TPUv4-like"
PARTS: dict[str, tuple[str, ...]] = {
    "arrays": ("num_tensor_cores", "array_rows", "array_cols", "tensor_core_sram_bytes"),
    "lanes": ("num_vector_cores", "vector_lanes", "vector_core_sram_bytes"),
    "buffer": ("global_buffer_bytes", "bank_bytes_per_cycle"),
    "memory": ("memory", "num_stacks", "stack_bytes_per_s"),
    "links": ("num_links", "link_bytes_per_s", "link_latency_s", "scale_up_devices", "scale_out_bytes_per_s"),
    "clock": ("clock_hz",),
}
"""Parts of a chip and their fields; for memory only the rate, the capacity stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """For one model: sequences/s of the best over those of the baseline with the expert's placement (``factor``) and
    with a searched one (``chip``), and the gain of the placement search (``placement``); None if it does not fit.

    ``left``: by part, the share of the best's throughput left with the baseline's part; the most valuable part first.
    """

    model: str
    factor: float | None
    placement: float | None
    chip: float | None
    left: tuple[tuple[str, float], ...]


def reasons(
    question: DesignQuestion, best: Ranked, ways: Sequence[Baseline], keep: Keep = afresh
) -> tuple[Reason, ...]:
    """One reason per model; empty if the baseline was not priced."""
    by_name = {way.name: way.ranked for way in ways}
    expert, searched = (by_name.get(f"{AGAINST}, {how} placement") for how in ("expert", "searched"))
    baseline = searched or expert
    if baseline is None:
        return ()
    chip = baseline.evaluation.point.accelerator
    return tuple(_reason(question, m, best, expert, searched, chip, keep) for m in range(len(question.models)))


def _reason(
    question: DesignQuestion,
    m: int,
    best: Ranked,
    expert: Ranked | None,
    searched: Ranked | None,
    chip: Accelerator,
    keep: Keep,
) -> Reason:
    outcome = best.evaluation.outcomes[m]
    left = _left(question, best, outcome, chip, keep) if outcome else {}
    mine = best.evaluation.rates[m]
    base, with_search = (entry.evaluation.rates[m] if entry else 0.0 for entry in (expert, searched))
    return Reason(
        model=question.models[m].name,
        factor=mine / base if base else None,
        placement=with_search / base if base and with_search else None,
        chip=mine / with_search if with_search else None,
        left=tuple(sorted(left.items(), key=lambda entry: entry[1])),
    )


def _left(
    question: DesignQuestion, best: Ranked, outcome: ModelOutcome, chip: Accelerator, keep: Keep
) -> dict[str, float]:
    point, store = best.evaluation.point, ScheduleStore()

    def share(changed: Accelerator) -> float:
        variant = replace(point, accelerator=changed, options=(), floor=())
        reached, _ = evaluate_option(question, variant, outcome.option, store)
        return reached.sequences_per_s / outcome.sequences_per_s if reached else 0.0

    shares = {}
    for part, names in PARTS.items():
        swapped = replace(point.accelerator, **{name: getattr(chip, name) for name in names})
        if swapped != point.accelerator:
            key = f"why, candidate {point.index}, {point.hbm_bytes:.0f} bytes, model {outcome.option.model}, {part}"
            shares[part] = keep(key, partial(share, swapped))
    return shares
