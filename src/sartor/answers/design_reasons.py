"""Why the best chip of a design is faster than the TPUv4-like one, in words: texts of the JSON, terminal and page."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sartor.designs.against import AGAINST, Reason
from sartor.errors import visible
from sartor.hardware.accelerator import Accelerator
from sartor.units import GIGA, MIB, format_share

if TYPE_CHECKING:
    from sartor.answers.design import DesignAnswer


def why_texts(answer: DesignAnswer) -> list[str]:
    """Per model: the speedup of the best chip over the TPUv4-like one, and its causes."""
    chips = {line.name: line.ranked for line in answer.result.baselines}
    reference = next((ranked for name, ranked in chips.items() if ranked and name.startswith(f"{AGAINST},")), None)
    if answer.best is None or reference is None:
        return []
    best, base = (ranked.evaluation.point.accelerator for ranked in (answer.best, reference))
    return [f"{visible(reason.model)}: {_why(reason, best, base)}" for reason in answer.result.reasons]


def _why(reason: Reason, best: Accelerator, base: Accelerator) -> str:
    if reason.factor is not None:
        split = (
            f" ({reason.placement:.2f}x from searched placement, {reason.chip:.2f}x from the chip)"
            if reason.chip
            else ""
        )
        text = f"{reason.factor:.2f}x as fast as {AGAINST} with expert placement{split}"
    elif reason.chip is not None:
        text = f"{reason.chip:.2f}x as fast as {AGAINST} with searched placement (expert placement does not fit)"
    else:
        text = f"no placement fits on {AGAINST}"
    lost = [f"{_swap(part, best, base)} {_falls_to(share)}" for part, share in reason.left if share < 1 - SAME]
    gains = [f"{_swap(part, best, base)} {share:.2f}x" for part, share in reason.left if share > 1 + SAME]
    same = [SWAP_WORDS[part] for part, share in reason.left if abs(share - 1) <= SAME]
    words = [f"with a single part replaced, throughput falls: {', '.join(lost)}" if lost else ""]
    words += [f"or rises, without the area limit: {', '.join(gains)}" if gains else ""]
    words += [f"no effect: {' and '.join(same)}" if same else ""]
    return "; ".join([text, *filter(None, words)])


SAME = 0.005
"""Shares of throughput that count as equal."""
SWAP_WORDS = {
    "arrays": "multiply arrays",
    "lanes": "vector lanes",
    "buffer": "buffer",
    "memory": "memory bandwidth",
    "links": "links",
    "clock": "clock",
}


def _falls_to(share: float) -> str:
    return f"to {format_share(share)}" if share else "to 0%"


def _swap(part: str, best: Accelerator, base: Accelerator) -> str:
    """``256 vector lanes instead of 16,384``."""
    say, unit = SWAPPED[part]
    return f"{say(base)}{unit} instead of {say(best)}"


SWAPPED: dict[str, tuple[Callable[[Accelerator], str], str]] = {
    "arrays": (lambda a: f"{_macs(a):,.0f} ({a.num_tensor_cores} of {a.array_rows} x {a.array_cols})", " multipliers"),
    "lanes": (lambda a: f"{a.num_vector_cores * a.vector_lanes:,.0f}", " vector lanes"),
    "buffer": (lambda a: f"{float(a.global_buffer_bytes) / MIB:g} MiB", " of buffer"),
    "memory": (lambda a: f"{float(a.hbm_bytes_per_s) / GIGA:,.0f} GB/s", " of memory"),
    "links": (lambda a: f"{float(a.network_bytes_per_s) / GIGA:,.0f} GB/s", " of links"),
    "clock": (lambda a: f"{float(a.clock_hz) / GIGA:g} GHz", ""),
}
"""The text of each part, and its unit."""


def _macs(a: Accelerator) -> float:
    return float(a.num_tensor_cores * a.array_rows * a.array_cols)
