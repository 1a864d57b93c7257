"""Sections of the page that explain: how to read it, and where its numbers come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sartor.cost.correction.calibration import load_calibration
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.report.html import Markup, element, join

if TYPE_CHECKING:
    from sartor.answers import Advice

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
    parts = [element("h2", "Sources", id="sources")]
    for gpu in advice.gpus:
        lines = _gpu_lines(gpu)
        parts += [element("h3", gpu.name), element("ul", *(element("li", line) for line in lines))]
    return join(parts)


def _gpu_lines(gpu: Gpu) -> list[str]:
    """Sources of one device's datasheet and calibration."""
    fields: dict[str, list[str]] = {}
    for name, document in gpu.sources.items():
        fields.setdefault(str(document), []).append(str(name))
    lines = [f"{', '.join(sorted(names))}: {document}" for document, names in fields.items()]
    known = load_calibration(gpu)
    for section, entry in sorted(known.provenance.items()):
        lines.append(f"calibration of {section}: {_fit_words(entry)}")
    if any(entry.get("lender") == "joint" for name, entry in known.provenance.items() if name.startswith("gemm")):
        lines.append("GEMM calibration: joint fit of several generations, applied to this device's datasheet")
    elif known.relative:
        lines.append(f"GEMM calibration borrowed from {known.relative}")
    if not known.provenance:
        lines.append(f"not calibrated: typical efficiencies of the {gpu.generation} generation")
    if gpu.price_usd_per_hour is not None:
        lines.append(f"price {gpu.price_usd_per_hour} USD per hour: {gpu.price_source} ({gpu.price_date})")
    return lines


FIT_KEYS = ("rows", "mape", "median", "p90", "bias")
"""Error statistics of a fit: rows, mean, median, 90th percentile and bias."""


def _fit_words(entry: JsonMap) -> str:
    """A calibration's source, date and held-out errors."""
    plain = [f"{key} {value}" for key, value in entry.items() if not isinstance(value, Mapping)]
    fits = {key: value for key, value in entry.items() if isinstance(value, Mapping)}
    errors = fits.get("held_out", next(iter(fits.values()), {}))
    shown = [f"{key} {errors[key]:,.4g}" for key in FIT_KEYS if key in errors]
    return "; ".join([*plain, *([f"held-out errors: {', '.join(shown)}"] if shown else [])])
