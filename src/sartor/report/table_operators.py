"""Single operators for the terminal: ``sartor gemm``, ``collective``, ``operators`` (a file of shapes) and ``extract``
(a traced module); and the entries of ``sartor catalog``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sartor.answers.commands import ENTRIES, TRACED_LAYER, TRACED_OPERATOR
from sartor.answers.estimate import GROUP_TIER, TILE, bus_bytes_per_s
from sartor.answers.field import columns_of, text, through
from sartor.answers.measured import PRICED_ROW
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.json_types import JsonDict, JsonMap
from sartor.model.traced import TracedModel
from sartor.operators import Gemm, Layout
from sartor.report.document import PageBlock, bullets_block, document_text, grid_block, section
from sartor.report.grid import field_grid, grid_of, grid_view, words_column
from sartor.report.plan_words import turn_lines
from sartor.report.words import (
    count_text,
    flops_text,
    interval_text,
    misaligned_text,
    owner_words,
    printable,
    size_text,
    tile_text,
)
from sartor.units import (
    GIGA,
    TERA,
    format_bytes,
    format_change,
    format_count,
    format_rate,
    format_seconds,
    format_share,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sartor.answers.estimate import CollectiveAnswer, GemmAnswer

TILES = 12
"""Most tiles that are listed."""
SHOWN = 40
"""Most rows of a kind that are printed; a file may have a million."""
MOST_COLUMNS = 3
"""Most columns of a shape that fit beside its times; more are written into one."""


def gemm_view(answer: GemmAnswer) -> RenderableType:
    """``sartor gemm``: time, reason, and the tiles considered."""
    gemm, cost = answer.gemm, answer.cost
    batch, size = int(gemm.batch), size_text(replace(gemm, batch=1))
    problem = size if batch == 1 else f"Batch of {batch:,} GEMMs of {size}"
    time = interval_text(float(cost.time_s), float(cost.low_s), float(cost.high_s))
    rate = f"{float(gemm.flops) / float(cost.time_s) / 1e12:,.4g} TFLOP/s"
    blocks = [
        PageBlock(words="" if answer.fits else _too_large(answer), style="bold red"),
        PageBlock(words=f"{time}; {rate}; bound by {cost.bound_by.value}; {cost.stated_source.value}", style="bold"),
        *(PageBlock(words=line) for line in turn_lines(answer.depends_on)),
        PageBlock(words=_gemm_reason(answer)),
        section("Tiles considered, the chosen one first"),
        grid_block(field_grid("Tiles", columns_of(TILE), answer.alternatives[:TILES])),
        bullets_block("Assumed", answer.assumptions),
    ]
    return document_text(blocks, f"{problem} ({gemm.dtype.value}, {gemm.layout.value}) on {answer.gpu.name}")


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
    parts = [f"calibration {format_change(factor - 1)}"] if learned is not None else []
    parts += [f"your own measurements {format_change(float(own) - 1)}"] if own is not None else []
    return f" Changes to the analytic {before}: {', '.join(parts)} (tiles are the analytic ones)."


def _ridge(answer: GemmAnswer) -> float:
    return peak_flops_per_s(answer.gpu, answer.gemm.dtype) / answer.gpu.hbm_bytes_per_s


def collective_view(answer: CollectiveAnswer) -> RenderableType:
    """One collective: interval, bus bandwidth, and the group's members at each tier."""
    op, cost = answer.collective, answer.cost
    devices = "device" if int(op.group_size) == 1 else "devices"
    apart = f", {op.stride} apart" if int(op.stride) > 1 else ""
    time = interval_text(float(cost.time_s), float(cost.low_s), float(cost.high_s))
    rate = format_rate(float(bus_bytes_per_s(op, cost)))
    transfer, latency = format_seconds(float(cost.network_s)), format_seconds(float(cost.overhead_s))
    tiers = list(zip(answer.cluster.tiers, answer.members, strict=True))
    blocks = [
        PageBlock(words=f"{time}; {rate} bus bandwidth; {cost.source.value}", style="bold"),
        PageBlock(words=f"transfer {transfer}, launch and latency {latency}"),
        section("Links"),
        grid_block(field_grid("Links", columns_of(GROUP_TIER), tiers)),
        bullets_block("Assumed", answer.assumptions),
    ]
    heading = f"{op.kind.value} of {size_text(op)} {devices} on {answer.cluster.name}{apart}"
    return document_text(blocks, heading)


# ---------------------------------------------------------------------------------------------------- a file of shapes


def shapes_view(body: JsonMap, kinds: Sequence[JsonMap]) -> RenderableType:
    """Times by kind of operator, of the first rows at least, and the rows without one. ``kinds`` are those of all rows
    (``kinds_of``); columns that hold the same in all are said once."""
    priced = f"{body['expressed']:,} of {count_text(body['num_rows'], 'operator')} priced ({body['file']})"
    refused = [f"{_named(refusal)}: {refusal['reason']}" for refusal in body["refused"]]
    blocks = [
        *(
            block
            for kind in kinds
            for block in _of_kind(kind, [row for row in body["operators"] if row["table"] == kind["table"]])
        ),
        bullets_block("Not priced", refused),
        bullets_block("Assumed", body["assumptions"]),
    ]
    return document_text(blocks, priced if body["file"] else "")


def _of_kind(kind: JsonMap, rows: Sequence[JsonMap]) -> list[PageBlock]:
    shared = {name: value for name, value in kind["columns"].items() if value is not None}
    words = [_cell(v) if name in ("gpu", "dtype") else f"{name} {_cell(v)}" for name, v in shared.items()]
    varied = [name for name in kind["columns"] if name not in shared]
    sizes = [text(name, name, path=lambda row, name=name: _size(row, name)) for name in varied]
    if len(varied) > MOST_COLUMNS:
        sizes = [text("shape", "shape", path=lambda row: _sizes(row, varied))]
    number, *others = columns_of(PRICED_ROW)
    rest = kind["count"] - SHOWN
    return [
        section(f"{kind['table']}: {', '.join(words)}" if words else kind["table"]),
        grid_block(field_grid(kind["table"], (number, *sizes, *others), rows[:SHOWN])),
        PageBlock(words=f"and {rest:,} more (--json and --write have all)" if rest > 0 else "", style="dim"),
    ]


def _size(row: JsonMap, name: str) -> str:
    return _cell({**row["shape"], "gpu": row["gpu"]}.get(name, ""))


def _sizes(row: JsonMap, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {size}" for name in names if (size := _size(row, name)))


def _cell(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _named(refused: JsonMap) -> str:
    """``row 3``, ``rows 3, 7 and 12 more``."""
    rows, rest = refused["rows"], refused["count"] - len(refused["rows"])
    if refused["count"] == 1:
        return f"row {rows[0]}"
    *first, last = rows
    more = f", {last} and {rest:,} more" if rest else f" and {last}"
    return f"rows {', '.join(map(str, first))}{more}"


# ---------------------------------------------------------------------------------------------------- a traced module


def extract_view(model: TracedModel, body: JsonMap) -> RenderableType:
    """The trace, its kinds of layers, operators in execution order, and totals; ``body`` is its JSON."""
    graph = model.graph
    name, *others = through(lambda pair: pair[0], columns_of(TRACED_OPERATOR))
    size = text("size", "size", path=lambda pair: size_text(pair[1]))
    operators = zip(body["operators"], graph.operators, strict=True)
    sequences = f"{model.microbatch_size} x {model.seq_len} tokens, {format_count(model.num_params)} parameters"
    flops = f"{flops_text(float(graph.matmul_flops))} in matrix multiplications"
    blocks = [
        PageBlock(words=f"{model.module_class}, {model.phase}, {model.dtype.value}, {sequences}", style="dim"),
        grid_block(field_grid("Kinds of layers", columns_of(TRACED_LAYER), body["layers"])),
        section("Operators"),
        grid_block(field_grid("Operators", (name, size, *others), operators)),
        PageBlock(words=f"{flops}; {len(graph.operators)} operators, {len(graph.edges)} edges", style="bold"),
        bullets_block("Notes", model.notes),
    ]
    return document_text(blocks, model.name)


def catalog_view(what: str, entries: Sequence[JsonDict], *, whole: bool) -> RenderableType:
    """A table of a catalogue (``gpus``, ``models``, ...), or all fields of its only entry (``whole``)."""
    if not whole:
        return grid_view(field_grid(what, ENTRIES[what], entries))
    entry = entries[0]
    if what == "rules":
        from rich.markdown import Markdown

        return Markdown(f"# {entry['code']} {entry['name']}\n\n{entry['page']}")
    rows = [pair for field, value in entry.items() for pair in _flat(field, value)]
    return grid_view(grid_of(what, ("field", words_column("value")), ((name, _words(v, name)) for name, v in rows)))


def _flat(field: str, value: object) -> Iterator[tuple[str, object]]:
    """A field as rows: tables by key, lists of tables by position and key."""
    if isinstance(value, dict):
        yield from ((f"{field}.{key}", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)) and any(isinstance(item, dict) for item in value):
        for position, table in enumerate(value):
            yield from ((f"{field}.{position}.{key}", item) for key, item in table.items())
    else:
        yield field, value


_UNITS: Mapping[str, Callable[[float], str]] = {
    "flops_per_s": lambda rate: f"{rate / TERA:,.4g} TFLOP/s",
    "bytes_per_s": format_rate,
    "bytes": format_bytes,
    "hz": lambda rate: f"{rate / GIGA:.4g} GHz",
    "latency_s": format_seconds,
}


def _words(value: object, field: str) -> str:
    """A value in the unit that its field's name ends with, where that is easier to read than the bare number."""
    names = [f"_{part}" for part in field.split(".")]
    written = next((form for unit, form in _UNITS.items() if any(name.endswith(f"_{unit}") for name in names)), None)
    if written and isinstance(value, (int, float)) and (value >= 1e4 or 0 < value < 1e-3):
        return written(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:,}"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
