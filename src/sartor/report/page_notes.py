"""Sections of the page that explain: how to read it, and where its numbers come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sartor.cost.correction.calibration import load_calibration
from sartor.hardware.gpu import Gpu
from sartor.report.html import Markup, element, join

if TYPE_CHECKING:
    from sartor.answers import Advice

READING = (
    ("80% interval", "Eight of ten measurements are expected inside. Speedups have narrower ones than times, because "
     "errors that both shapes share cancel."),
    ("measured, calibrated, analytic", "A time looked up; a formula fitted on this device; a formula with the "
     "datasheet's rates and the generation's typical shares."),
    ("time of a GEMM", "max(waves x time of a tile, bytes / bandwidth) + launch: tiles are dealt to SMs in waves, "
     "memory traffic runs beside them."),
    ("tile efficiency", "m n / (ceil(m / tile_m) tile_m x ceil(n / tile_n) tile_n): what is left when the matrix is "
     "covered with whole tiles."),
    ("wave efficiency", "blocks / (waves x SMs): the last wave may leave SMs idle. 109 blocks on 108 SMs take as long "
     "as 216."),
    ("alignment", "Operands whose contiguous length is no multiple of 16 bytes leave the fast path; longer powers of "
     "two help up to the device's preference."),
    ("roofline", "min(peak, intensity x bandwidth). Left of the ridge a kernel waits for memory, right of it for "
     "arithmetic."),
    ("mfu", "FLOPs of products per second over the dense peak."),
    ("same size", "Parameters within the tolerance; the change in FLOPs is shown beside the speedup."),
    ("smallest edit", "The candidate with the fewest changed fields that still gets most of the best one's gain."),
)  # fmt: skip


def how_to_read() -> Markup:
    items = [item for term, words in READING for item in (element("dt", term), element("dd", words))]
    return join([element("h2", "How to read this", id="reading"), element("dl", *items, class_="reading")])


def sources_section(advice: Advice) -> Markup:
    parts = [element("h2", "Sources", id="sources")]
    for gpu in advice.gpus:
        lines = _gpu_lines(gpu)
        parts += [element("h3", gpu.name), element("ul", *(element("li", line) for line in lines))]
    return join(parts)


def _gpu_lines(gpu: Gpu) -> list[str]:
    """Datasheet and calibration of one device, each with its source."""
    fields: dict[str, list[str]] = {}
    for name, document in gpu.sources.items():
        fields.setdefault(str(document), []).append(str(name))
    lines = [f"{', '.join(sorted(names))}: {document}" for document, names in fields.items()]
    known = load_calibration(gpu)
    for section, entry in sorted(known.provenance.items()):
        lines.append(f"calibration of {section}: {_fit_words(entry)}")
    if any(entry.get("lender") == "joint" for name, entry in known.provenance.items() if name.startswith("gemm")):
        lines.append("GEMM coefficients of all generations' joint fit, on this device's datasheet")
    elif known.kin:
        lines.append(f"GEMM coefficients borrowed from {known.kin}")
    if not known.provenance:
        lines.append(f"not calibrated on this device: typical shares of the {gpu.generation} generation")
    if gpu.price_usd_per_hour is not None:
        lines.append(f"price {gpu.price_usd_per_hour} USD per hour: {gpu.price_source} ({gpu.price_date})")
    return lines


FIT_KEYS = ("rows", "mape", "median", "p90", "bias")
"""What is shown of a fit's errors: rows they were taken over, mean, median and 90th percentile, and bias."""


def _fit_words(entry: Mapping[str, Any]) -> str:
    """A calibration's source, date and held-out errors in words."""
    plain = [f"{key} {value}" for key, value in entry.items() if not isinstance(value, Mapping)]
    fits = {key: value for key, value in entry.items() if isinstance(value, Mapping)}
    errors = fits.get("held_out", next(iter(fits.values()), {}))
    shown = [f"{key} {errors[key]:,.4g}" for key in FIT_KEYS if key in errors]
    return "; ".join([*plain, *([f"held-out errors: {', '.join(shown)}"] if shown else [])])
