"""Sections of the page that explain: how to read it, and where its numbers come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sartor.cost.correction.calibration import load_calibration
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.report.grid import GridColumn, grid_of, words_column
from sartor.report.html import Markup, element, grid_table, join
from sartor.units import format_share

if TYPE_CHECKING:
    from sartor.answers.advice import Advice

READING = (
    ("80% interval", "Eight of ten measurements should fall inside. Intervals of speedups are narrower than those of "
     "times, because errors that both shapes share cancel."),
    ("measured, calibrated, analytic", "A measured time; a model fitted to measurements; a model with datasheet "
     "rates and typical efficiencies of the generation."),
    ("time of a GEMM", "max(waves x time of a tile, bytes / bandwidth) + launch: tiles run on SMs (on an "
     "accelerator, tensor cores) in waves while data moves from memory."),
    ("tile efficiency", "m n / (ceil(m / tile_m) tile_m x ceil(n / tile_n) tile_n): the useful share when whole tiles "
     "cover the matrix."),
    ("wave efficiency", "blocks / (waves x SMs): the last wave may leave SMs idle. 109 blocks on 108 SMs take as long "
     "as 216."),
    ("alignment", "Operands whose contiguous length is not a multiple of 16 bytes leave the fast path; larger powers"
    " of "
     "two help up to a limit of the device."),
    ("roofline", "min(peak, intensity x bandwidth). Left of the ridge point a kernel is memory-bound, right of it "
     "compute-bound."),
    ("mfu", "Model FLOP utilization: FLOP/s in matrix multiplications over the dense peak."),
    ("same size", "Parameters within the tolerance."),
    ("gain", "Speedup at equal parameters and equal FLOPs: what is left of it without being a smaller model."),
    ("smallest edit", "The shape with the fewest changed fields that keeps at least 70% of the best gain."),
)  # fmt: skip


def how_to_read(terms: Iterable[tuple[str, str]] = READING) -> Markup:
    """The glossary at the end of a page."""
    items = [item for term, words in terms for item in (element("dt", term), element("dd", words))]
    return join([element("h2", "How to read this", id="reading"), element("dl", *items, class_="reading")])


def sources_section(advice: Advice) -> Markup:
    """Per device: its datasheet field by field, and which measurements its calibration is fitted to."""
    parts = [element("h2", "Sources", id="sources")]
    for gpu in advice.gpus:
        parts += [element("h3", gpu.name), _datasheet(gpu), _calibration(gpu)]
        parts += [element("p", line, class_="note") for line in _gpu_lines(gpu)]
    return join(parts)


def _datasheet(gpu: Gpu) -> Markup:
    fields: dict[str, list[str]] = {}
    for name, document in gpu.sources.items():
        fields.setdefault(str(document), []).append("everything else" if name == "all" else str(name))
    columns = [words_column("field"), words_column("document")]
    rows = [(", ".join(sorted(names)), document) for document, names in fields.items()]
    return grid_table(grid_of(f"Datasheet of {gpu.name}", columns, rows))


def _calibration(gpu: Gpu) -> Markup:
    """Fitted parts, one row per source: measurements, rows, and errors on held-out rows."""
    fits: dict[str, tuple[list[str], JsonMap]] = {}
    known, with_units = load_calibration(gpu), {f"gemm.{dtype.value}" for dtype in gpu.peak_flops_per_s}
    for section, entry in sorted(known.provenance.items()):
        if entry and (section in with_units | known.calibrated or not section.startswith("gemm.")):
            fits.setdefault(str(entry.get("source", section)), ([], entry))[0].append(section)
    if not fits:
        return Markup("")
    columns = [
        words_column("part"),
        GridColumn(head="mean error", explains="mean relative error on held-out rows"),
        GridColumn(head="median", explains="median relative error on held-out rows"),
        GridColumn(head="p90", explains="90th percentile of the relative error on held-out rows"),
        GridColumn(head="rows", explains="held-out rows"),
        GridColumn(head="date"),
        words_column("measurements"),
    ]
    rows = [_fit_row(", ".join(names), entry) for names, entry in fits.values()]
    return grid_table(grid_of(f"Calibration of {gpu.name}, with errors on rows the fit never saw", columns, rows))


def _fit_row(names: str, entry: JsonMap) -> tuple[str, ...]:
    nested = {key: value for key, value in entry.items() if isinstance(value, Mapping)}
    errors = nested.get("held_out", next(iter(nested.values()), {}))
    shares = (format_share(errors[key]) if key in errors else "" for key in ("mape", "median", "p90"))
    rows = f"{errors['rows']:,.0f}" if "rows" in errors else ""
    words = (str(entry[key]) for key in ("source", "lender", "note") if key in entry)
    return names, *shares, rows, str(entry.get("date", "")), "; ".join(words)


def _gpu_lines(gpu: Gpu) -> list[str]:
    """Where the calibration and the price come from."""
    lines, known = [], load_calibration(gpu)
    if any(entry.get("lender") == "joint" for name, entry in known.provenance.items() if name.startswith("gemm")):
        lines.append("GEMM calibration: joint fit of several generations, applied to this device's datasheet")
    elif known.relative:
        lines.append(f"GEMM calibration borrowed from {known.relative}")
    if not known.provenance:
        lines.append(f"not calibrated: typical efficiencies of the {gpu.generation} generation")
    if gpu.price_usd_per_hour is not None:
        lines.append(f"price {gpu.price_usd_per_hour} USD per hour: {gpu.price_source} ({gpu.price_date})")
    return lines
