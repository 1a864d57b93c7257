"""A plan, its step and its cost in words, alike in the terminal and on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sartor.model.training import PipelineSchedule, Recompute, TrainingPlan
from sartor.report.words import interval_text, printable
from sartor.step.footprint import usable_bytes
from sartor.step.mixed import devices_of_pools
from sartor.units import format_bytes, format_count, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers import PlanAnswer
    from sartor.hardware.cluster import Cluster
    from sartor.plans.result import PricedPlan

PART_WORDS = {
    "compute_s": "compute",
    "tp_s": "tensor-parallel traffic",
    "pp_bubble_s": "pipeline bubble",
    "pp_transfer_s": "pipeline transfers",
    "dp_exposed_s": "data-parallel traffic not hidden",
    "ep_s": "expert-parallel exchange",
    "cp_s": "context-parallel exchange",
    "optimizer_s": "optimizer step",
    "overhead_s": "launches, jitter, fixed costs",
}
SMALL = 0.001
"""Share of the step under which a part is not shown."""


def heading_text(answer: PlanAnswer) -> str:
    """``Llama 3.1 8B on 64 h100_sxm (dgx-h100): 512 x 8,192 tokens a step, bf16``."""
    job, cluster = answer.job, answer.cluster
    model = printable(answer.reading.shape.name or "model")
    return (
        f"{model} on {devices_text(cluster, answer.search.num_devices)} ({printable(cluster.name)}): "
        f"{job.global_batch_size:,} x {job.seq_len:,} tokens a step, {job.recipe.value}"
    )


def devices_text(cluster: Cluster, num_devices: int) -> str:
    """``64 h100_sxm``; of a mixed cluster every pool's devices."""
    counts = devices_of_pools(cluster.pools, num_devices)
    pools = [f"{n:,} {printable(pool.gpu.name)}" for pool, n in zip(cluster.pools, counts, strict=True) if n]
    return " and ".join(pools)


def headline(answer: PlanAnswer) -> str:
    """The best plan, its step, throughput and memory, and what bounds it: one paragraph."""
    found, best = answer.search, answer.search.best
    assert best is not None
    rate, limit = float(best.step.tokens_per_s_per_device), usable_bytes(answer.cluster)
    return (
        f"Best of {found.evaluated:,} plans priced: {plan_words(best.plan)}. A step takes "
        f"{interval_text(best.step_s, best.low_s, best.high_s)}: {format_count(rate)} tokens/s per device, "
        f"{format_share(float(best.step.mfu))} of dense peak (mfu). The fullest device holds "
        f"{format_bytes(best.peak_bytes)} of {format_bytes(limit)}. {bound_text(best)}"
    )


def plan_words(plan: TrainingPlan, *, short: bool = False) -> str:
    """``tp 4, pp 8 in 12 chunks each, dp 16, 48 x 2 sequences, ZeRO 1, nothing recomputed``; degrees of 1 left out."""
    dims = plan.dims
    words = [f"{name} {int(value)}" for name, value in (("tp", dims.tp), ("pp", dims.pp)) if int(value) > 1]
    if int(plan.virtual_stages) > 1:
        words[-1] += f" in {int(plan.virtual_stages)} chunks each"
    if plan.schedule != PipelineSchedule.ONE_F_ONE_B:
        words.append(PipelineSchedule(int(plan.schedule)).word.replace("_", " "))
    words += [f"{n} {int(v)}" for n, v in (("cp", dims.cp), ("dp", dims.dp), ("ep", dims.ep)) if int(v) > 1]
    words.append(f"{int(plan.num_microbatches)} x {int(plan.microbatch_size)} sequences")
    if int(plan.zero_stage):
        words.append(f"ZeRO {int(plan.zero_stage)}")
    if short:
        return ", ".join(words)
    if dims.sequence_parallel and int(dims.tp) > 1:
        words.append("sequence parallel")
    if plan.optimizer_offload:
        words.append("optimizer in host memory")
    words.append(_recompute_words(plan))
    if plan.stage_layers is not None:
        words.append(f"layers by chunk {layers_text(plan.stage_layers)}")
    return ", ".join(words)


def _recompute_words(plan: TrainingPlan) -> str:
    kind, layers = Recompute(int(plan.recompute)), int(plan.recompute_layers)
    if kind is Recompute.FULL:
        some = f"{layers} layer{'s' if layers > 1 else ''} a stage recomputed"
        return "every layer recomputed" if layers < 0 else some
    return "attention recomputed" if kind is Recompute.SELECTIVE else "nothing recomputed"


def recompute_text(plan: TrainingPlan) -> str:
    """``none``, ``selective``, ``full`` or the layers a stage recomputes."""
    kind, layers = Recompute(int(plan.recompute)), int(plan.recompute_layers)
    return f"{layers} layer{'s' if layers > 1 else ''}" if kind is Recompute.FULL and layers >= 0 else kind.word


def layers_text(layers: tuple[int, ...]) -> str:
    """``4, 6 x 5, 3`` for (4, 5, 5, 5, 5, 5, 5, 3)."""
    out: list[list[int]] = []
    for n in layers:
        if out and out[-1][1] == n:
            out[-1][0] += 1
        else:
            out.append([1, n])
    return ", ".join(f"{count} x {n}" if count > 1 else str(n) for count, n in out)


def step_parts(best: PricedPlan) -> list[tuple[str, float]]:
    """Parts of the step in words, longest first; those under a thousandth left out."""
    parts = [(words, float(getattr(best.step, name))) for name, words in PART_WORDS.items()]
    shown = [(words, seconds) for words, seconds in parts if seconds >= SMALL * best.step_s]
    return sorted(shown, key=lambda part: -part[1])


def bound_text(best: PricedPlan) -> str:
    """What bounds the step: compute and the largest loss."""
    parts = step_parts(best)
    losses = [part for part in parts if part[0] != "compute"]
    compute = next((seconds for words, seconds in parts if words == "compute"), 0.0)
    text = f"It is busy computing {format_share(compute / best.step_s)} of the time"
    if not losses:
        return text + "."
    words, seconds = losses[0]
    return f"{text}; the largest loss is {words}, {format_share(seconds / best.step_s)}."


def cost_text(answer: PlanAnswer) -> str:
    """Hours, device-hours, money and energy of the token budget, each with what it rests on."""
    cost = answer.cost
    assert cost is not None
    days = cost.hours / 24
    text = (
        f"{format_count(cost.tokens)} tokens take {days:,.1f} days (80%: {cost.low_hours / 24:,.1f} to "
        f"{cost.high_hours / 24:,.1f}), {cost.device_hours:,.0f} device-hours"
    )
    if cost.usd is not None and cost.usd_per_device_hour is not None:
        source = printable(f"{cost.price_source}, {cost.price_date}".strip(", "))
        text += f"; {cost.usd:,.0f} USD at {cost.usd_per_device_hour:.2f} per device-hour ({source})"
    else:
        text += "; no price is known for these devices"
    return (
        f"{text}; {cost.energy_j / 3.6e9:,.0f} MWh at {format_share(cost.power_share)} of TDP, devices alone. "
        "Restarts, evaluation and idle time not counted."
    )


def next_lines(answer: PlanAnswer) -> list[str]:
    """What is worth trying, each priced."""
    best = answer.search.best
    assert best is not None
    lines = []
    room = answer.roomier
    if room is not None:
        full, share = best.peak_bytes / usable_bytes(answer.cluster), room.step_s / best.step_s - 1
        lines.append(
            f"the best plan fills {format_share(full)} of the memory; {plan_words(room.plan)} "
            f"takes {format_bytes(room.peak_bytes)} and {format_seconds(room.step_s)} (+{format_share(share)})"
        )
    lines += [f"{each.change}: {each.speedup:.2f}x tokens per second" for each in answer.next_steps]
    return lines
