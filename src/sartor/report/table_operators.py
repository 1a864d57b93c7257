"""``sartor gemm`` and ``sartor collective`` for the terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from sartor.answers.estimate import bus_bytes_per_s
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.operators import Gemm, Layout
from sartor.report.table_estimate import notes, plain_table
from sartor.report.words import (
    count_text,
    interval_text,
    misaligned_text,
    owner_words,
    printable,
    signed_share,
    size_text,
    tile_text,
)
from sartor.units import format_bytes, format_rate, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers.estimate import CollectiveAnswer, GemmAnswer


def gemm_view(answer: GemmAnswer) -> RenderableType:
    """``sartor gemm``: time, reason, and the tiles considered."""
    gemm, cost = answer.gemm, answer.cost
    achieved = float(gemm.flops) / float(cost.time_s)
    batch, each = int(gemm.batch), size_text(replace(gemm, batch=1))
    head = Text(f"{each} " if batch == 1 else f"Batch of {batch:,} GEMMs of {each} ", style="bold")
    head.append(f"({gemm.dtype.value}, {gemm.layout.value}) on {printable(answer.gpu.name)}", style="bold")
    line = Text(interval_text(float(cost.time_s), float(cost.low_s), float(cost.high_s)), style="bold")
    line.append(f"; {achieved / 1e12:,.4g} TFLOP/s; bound by {cost.bound_by.value}; {cost.stated_source.value}")
    too_large = [] if answer.fits else [Text(_too_large(answer), style="bold red")]
    rule = Rule(style="dim", characters="-")
    assumed = notes("Assumed", answer.assumptions)
    return Group(head, rule, *too_large, line, Text(_gemm_reason(answer)), Text(), _tiles_table(answer), *assumed)


def _too_large(answer: GemmAnswer) -> str:
    need, room = format_bytes(answer.peak_bytes), format_bytes(answer.usable_bytes)
    return f"Does not fit: operands and result need {need}, but {printable(answer.gpu.name)} has {room} to fill."


def _guilty(gemm: Gemm) -> str:
    """The misaligned operands, and the pass that reads them that way."""
    passes = {Layout.TN: "a forward pass", Layout.NN: "an input gradient", Layout.NT: "a weight gradient"}
    passes[Layout.TILED] = passes[Layout.TN]
    found = misaligned_text(gemm)
    return f": as {passes[gemm.layout]} ({gemm.layout.value}), {found}" if found else ""


def _gemm_reason(answer: GemmAnswer) -> str:
    """Tiles, waves, alignment and the terms of the time, in words."""
    gemm, cost, gpu = answer.gemm, answer.cost, answer.gpu
    d = cost.details
    terms = ", ".join(
        f"{word} {format_seconds(float(term))}"
        for word, term in (("compute", cost.compute_s), ("memory", cost.memory_s), ("overhead", cost.overhead_s))
    )
    intensity = float(gemm.flops) / float(gemm.bytes_moved)
    ends = f"Terms: {terms}. Intensity: {intensity:,.0f} FLOP/byte (ridge point {_ridge(answer):,.0f})."
    if gpu.accelerator is not None:
        return f"{_on_arrays(answer)} {ends} Calibration: none; times follow from the chip's description."
    return (
        f"Tiles of {tile_text(cost)} on {gpu.num_sms} SMs run in {count_text(float(d.get('waves', 0)), 'wave')}; "
        f"{format_share(float(d.get('tile_efficiency', 1)))} of the tiles and "
        f"{format_share(float(d.get('wave_efficiency', 1)))} of the waves do useful work. Operand alignment allows "
        f"{format_share(float(d.get('alignment', 1)))} of the main loop's speed{_guilty(gemm)}. {ends}"
        f"{_residual(answer)} Calibration: {owner_words(answer.calibration)}{_but(answer)}."
    )


def _but(answer: GemmAnswer) -> str:
    """That a calibration holds no shapes like this one, where an assumption dominates."""
    return ", but not shapes like this one" if answer.cost.details.get("assumed") else ""


def _on_arrays(answer: GemmAnswer) -> str:
    d, cores, waves = answer.cost.details, answer.gpu.num_sms, answer.cost.details["waves"]
    tile, wave, busy = (format_share(float(d[key])) for key in ("tile_efficiency", "wave_efficiency", "utilization"))
    return (
        f"Tiles of {tile_text(answer.cost)} on {count_text(cores, 'tensor core')} run in {count_text(waves, 'wave')};"
        f" {tile} of the array cycles and {wave} of the waves do useful work. The multiply-accumulators are busy"
        f" {busy} of"
        " the time."
    )


def _residual(answer: GemmAnswer) -> str:
    """How much measurements, the package's and the user's own, changed the analytic time."""
    learned, own = (answer.cost.details.get(name) for name in ("residual", "own_rows"))
    if learned is None and own is None:
        return ""
    factor = float(learned or 1.0)
    before = format_seconds(float(answer.cost.time_s) / factor / float(own or 1.0))
    parts = [f"calibration {signed_share(factor - 1)}"] if learned is not None else []
    parts += [f"your own measurements {signed_share(float(own) - 1)}"] if own is not None else []
    return f" Changes to the analytic {before}: {', '.join(parts)} (tiles are the analytic ones)."


def _ridge(answer: GemmAnswer) -> float:
    return peak_flops_per_s(answer.gpu, answer.gemm.dtype) / answer.gpu.hbm_bytes_per_s


def _tiles_table(answer: GemmAnswer, *, limit: int = 12) -> Table:
    """The alternatives, fastest first, with tile and wave efficiency."""
    table = plain_table("tile", "split k", "waves", "tile eff", "wave eff", "compute", "memory", "time", "slower by")
    best = float(_get(answer.alternatives[0], "time_s")) if answer.alternatives else 1.0
    for each in list(answer.alternatives)[:limit]:
        time_s = float(_get(each, "time_s"))
        table.add_row(
            f"{int(_get(each, 'tile_m'))}x{int(_get(each, 'tile_n'))}",
            str(int(_get(each, "split_k"))),
            f"{float(_get(each, 'waves')):.0f}",
            format_share(float(_get(each, "tile_efficiency"))),
            format_share(float(_get(each, "wave_efficiency"))),
            format_seconds(float(_get(each, "compute_s"))),
            format_seconds(float(_get(each, "memory_s"))),
            format_seconds(time_s),
            "chosen" if each is answer.alternatives[0] else signed_share(time_s / best - 1),
        )
    return table


def _get(record: object, name: str) -> Any:
    return record[name] if isinstance(record, dict) else getattr(record, name)


def collective_view(answer: CollectiveAnswer) -> RenderableType:
    """One collective: interval, bus bandwidth, and the group's members at each tier."""
    op, cost = answer.collective, answer.cost
    devices = "device" if int(op.group_size) == 1 else "devices"
    where = f"{op.kind.value} of {size_text(op)} {devices} on {printable(answer.cluster.name)}"
    apart = f", {op.stride} apart" if int(op.stride) > 1 else ""
    line = Text(interval_text(float(cost.time_s), float(cost.low_s), float(cost.high_s)), style="bold")
    line.append(f"; {format_rate(float(bus_bytes_per_s(op, cost)))} bus bandwidth; {cost.source.value}")
    parts = (
        f"transfer {format_seconds(float(cost.network_s))}, launch and latency {format_seconds(float(cost.overhead_s))}"
    )
    return Group(
        Text(where + apart, style="bold"),
        Rule(style="dim", characters="-"),
        line,
        Text(parts),
        *_tiers(answer),
        *notes("Assumed", answer.assumptions),
    )


def _tiers(answer: CollectiveAnswer) -> list[Text]:
    inner, lines = 1, []
    for tier, here in zip(answer.cluster.tiers, answer.members, strict=True):
        if here > inner:
            rate = f"{format_rate(tier.bytes_per_s)} per device"
            lines.append(Text(f"over {printable(tier.name)} ({rate}): {here} devices"))
        inner = here
    return lines
