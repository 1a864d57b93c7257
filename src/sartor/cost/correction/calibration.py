"""Calibration: what was learned about a device from measurements, as data, with a user's own rows.

Coefficients are dimensionless (shares of a datasheet rate) or seconds, so that they carry over to a relative with
other rates. One TOML per GPU and dtype in ``calibration/`` holds what was fitted; ``generations.toml`` holds what is
assumed where nothing was: a generation's tile menu and typical shares.

A Gaussian process over (ln rows, ln n, ln k): ``ln factor = mean + sum of weight x closeness``, where closeness falls
from 1 at a measured GEMM to 0 far from all of them (Matern 5/2; Rasmussen and Williams 2006, eq. 4.17), so that far
away only the mean is left. Written by ``sartor calibrate``, applied by ``sartor.cost.correction.gemm``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from sartor.cost.collective.links import NetworkCoefficients, network_coefficients
from sartor.cost.correction.borrowing_gemm import fewest_m, gemm_coefficients
from sartor.cost.correction.coefficients import (
    AttentionCoefficients,
    CollectiveCoefficients,
    GemmCoefficients,
    GroupedCoefficients,
    MemoryBoundCoefficients,
    PowerCoefficients,
    TorchStreams,
    coefficients,
    generation,
    table_of,
)
from sartor.cost.correction.relatives import (
    attention_families,
    collective_coefficients,
    grouped_families,
    relative_of,
    section_coefficients,
    streaming_coefficients,
    torch_streams,
)
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.operators import DType
from sartor.units import FloatArray, Floats, remembered

FARTHEST = 2.0
"""Greatest ``|ln factor|``."""

SHORTEST = 2.5
"""Length in ln(size) over which the rows tell of GEMMs beyond their range: the shortest that a fit can choose. Further
on a GEMM may run another kernel, or be bound by another part of the device, to which the factor need not apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRows:
    """The factor of one dtype on one device, and its error on unseen GEMMs."""

    mean: float
    length: float
    """Correlation length of GEMM times in ln(size)."""
    points: tuple[tuple[float, float, float], ...]
    """(ln of batch x m, ln n, ln k) of the measured GEMMs."""
    weights: tuple[float, ...]
    log_sigma: float
    """Standard deviation of ln(measured / predicted) on regions held out; ``small`` of short GEMMs."""
    log_sigma_small: float
    residual: str = ""
    """Fingerprint of the coefficients with the residual used when these rows were fitted; empty: none."""

    def log_factor(self, rows: FloatArray, n: FloatArray, k: FloatArray) -> tuple[FloatArray, FloatArray]:
        """ln of the factor for flat arrays of GEMMs, and the part of it guessed beyond the rows' range: an entry equals
        the call with that entry alone."""
        places = np.log(np.stack([rows, n, k], axis=1))
        points, weights = np.asarray(self.points), np.asarray(self.weights)
        log_factors = np.empty(len(places))
        for start in range(0, len(places), _BLOCK):
            part = slice(start, start + _BLOCK)
            log_factors[part] = (closeness(places[part], points, self.length) * weights).sum(axis=1)
        factor = np.clip(self.mean + log_factors, -FARTHEST, FARTHEST)
        beyond = places - np.clip(places, points.min(axis=0), points.max(axis=0))
        return factor, np.abs(factor) * (1 - _falling(np.sqrt((beyond**2).sum(axis=1)), SHORTEST))


_BLOCK = 2048
"""GEMMs evaluated together: with 400 points 6 MB a matrix."""


def closeness(a: FloatArray, b: FloatArray, length: float) -> FloatArray:
    """Matern 5/2 kernel between every point of ``a`` and every point of ``b``."""
    squared: Floats = sum((a[:, None, i] - b[None, :, i]) ** 2 for i in range(a.shape[1]))
    return _falling(np.sqrt(squared), length)


def _falling(distance: FloatArray, length: float) -> FloatArray:
    d = np.sqrt(5.0) * distance / length
    similarity: FloatArray = (1 + d + d * d / 3) * np.exp(-d)
    return similarity


def own_rows_of(values: JsonMap) -> OwnRows:
    """The record from a file's tables. Raises ``TypeError`` or ``ValueError`` if they are not valid."""
    points = tuple((float(a), float(b), float(c)) for a, b, c in values["points"])
    weights = tuple(float(weight) for weight in values["weights"])
    numbers = {name: float(values[name]) for name in ("mean", "length", "log_sigma", "log_sigma_small")}
    everything = np.concatenate([np.ravel(points), weights, list(numbers.values())])
    if len(points) != len(weights) or not points or not np.isfinite(everything).all():
        raise ValueError("points and weights must be as many numbers")
    if min(numbers["length"], numbers["log_sigma"], numbers["log_sigma_small"]) <= 0:
        raise ValueError("length and standard deviations must be above 0")
    return OwnRows(points=points, weights=weights, residual=str(values.get("residual", "")), **numbers)


ANY = "any"
"""An unknown framework: the median of all, with an interval that covers 80% of each one's kernels."""


class Clock(Enum):
    """``BOOST``: short runs, as the measured tables. ``SUSTAINED``: long compute-bound work under a power limit."""

    BOOST = "boost"
    SUSTAINED = "sustained"


TORCH = "torch"
"""PyTorch's ``scaled_dot_product_attention``, named as a framework."""

BACKWARD = ".backward"
"""Ending of a framework's backward kernel in ``Calibration.attention_families``."""

UNALIGNED = ".unaligned"
"""What comes before it in the key of a kernel for heads that fill no 16 bytes."""

BUILT = {"_trtllm": ("sglang_trtllm", "vllm_trtllm", "trtllm"), "_cutlass": ("trtllm",)}
"""Suffixes of kernel families, and families of the same library, nearest first: kernels that frameworks call as built,
such as FlashInfer's from TensorRT-LLM. Triton's depend on tiles that each framework ships (docs/concepts/moe.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All that is known of one device beyond its datasheet."""

    gpu: str
    gemm: Mapping[DType, GemmCoefficients]
    tiled: Mapping[DType, GemmCoefficients] = field(default_factory=dict)
    """Of layout TILED, where tables have both; elsewhere its GEMMs are those of TN."""
    few_rows: Mapping[DType, GemmCoefficients] = field(default_factory=dict)
    """Of types whose fit is of GEMMs with many rows alone (``fewest_m``): for those with fewer, by the next rule."""
    misaligned: tuple[GemmCoefficients, ...] = ()
    """Of 16-bit GEMMs with a contiguous length that is a multiple of 4 or 8 bytes, of 2, and of 2 in the result alone,
    where those run kernels of their own (``misaligned.toml``); empty elsewhere."""
    grouped: GroupedCoefficients = field(default_factory=GroupedCoefficients)
    """For the median of frameworks, or the named one's."""
    grouped_median: GroupedCoefficients | None = None
    """For the median, where a framework is named."""
    grouped_families: Mapping[str, GroupedCoefficients] = field(default_factory=dict)
    """By kernel family."""
    kernels: str = ""
    """The framework whose kernels run, or its family of grouped ones: ``vllm``, ``sglang_triton``; the library whose
    GEMMs run: ``aiter_asm``; ``ANY``; empty for the median of frameworks and whichever library, as in comparisons of
    shapes."""
    host_launches: bool = False
    """fp32's GEMMs take as long as their tables', which the host launched one by one; else they wait in a queue or a
    graph (``eager.queued``)."""
    clock: Clock | None = None
    """The clock of every price with this calibration; None: the clock asked for."""
    hidden_launches: float = 0.0
    """Share of the launch of small kernels, attention and experts that hides behind the kernel before."""
    gemms_alone: bool = True
    """Whether a framework's GEMMs quantize their inputs as when timed alone, not as in a model."""
    attention: AttentionCoefficients = field(default_factory=AttentionCoefficients)
    attention_families: Mapping[str, AttentionCoefficients] = field(default_factory=dict)
    """By framework that has coefficients of its own: ``torch``, and ``torch.backward`` for its backward kernel."""
    memory_bound: MemoryBoundCoefficients = field(default_factory=MemoryBoundCoefficients)
    """For the framework that was timed, for kernels that the host waits for, and for all where there is no law."""
    torch_streams: TorchStreams | None = None
    """The law of memory-bound kernels, where PyTorch's own were measured on the device's generation."""
    collective: CollectiveCoefficients = field(default_factory=CollectiveCoefficients)
    power: PowerCoefficients = field(default_factory=PowerCoefficients)
    """Coefficients of the generation."""
    network: NetworkCoefficients = field(default_factory=NetworkCoefficients)
    """Coefficients of links between nodes, for any device."""
    calibrated: frozenset[str] = frozenset()
    """Sections fitted on this very device: ``gemm.bf16``, ``attention``, ..."""
    relative: str = ""
    """Measured device that this one borrows from where it has no fit of its own; empty when there is none."""
    same_die: bool = False
    """Whether that is the same die with other memory or another power limit."""
    own_rows: Mapping[DType, OwnRows] = field(default_factory=dict)
    """A factor from the user's own measured GEMMs, on top of the coefficients."""
    provenance: Mapping[str, JsonMap] = field(default_factory=dict)
    """Per section: source, rows, date, fit and held-out errors."""

    def owner(self, section: str) -> str:
        """The source of a section's coefficients: ``own``, ``own (another dtype)``, ``joint``, ``borrowed from NAME``;
        ``generation`` if nothing was fitted."""
        record = self.provenance.get(section)
        if section in self.calibrated:
            return str((record or {}).get("lender") or "own")
        if not record:
            return "generation"
        stands_in = f"borrowed from {self.relative}" if self.relative else "own (another dtype)"
        return str(record.get("lender") or stands_in)

    def with_kernels(self, family: str = "") -> Calibration:
        """The same with the kernels of a framework (``vllm``), of one of its families (``sglang_triton``) or of a
        library of GEMMs (``aiter_asm``).

        Grouped kernels are the family's, or the framework's if it has one family; else those of the same library
        (``BUILT``); else the median of families. From another die the library's come first, since a framework's
        additions to them may not apply. Attention kernels and GEMMs of few bits are the framework's.
        """
        if not family:
            return self
        alike = next((names for end, names in BUILT.items() if family.endswith(end)), ())
        near = "grouped" in self.calibrated or self.same_die
        named = [name for name in self.grouped_families if name.startswith(f"{family}_")]
        names = ((family, *alike) if near else (*alike, family)) + tuple(named if len(named) == 1 else ())
        median = self.grouped_median or self.grouped
        grouped = next((self.grouped_families[name] for name in names if name in self.grouped_families), median)
        return replace(self, grouped=grouped, grouped_median=median, kernels=family)

    def in_a_model(self) -> Calibration:
        """The same for GEMMs in a model: other GEMMs' weights have passed through the caches since, and frameworks
        need not find the scales of inputs first (``quantizing.py``)."""
        return replace(self.with_cold_weights(), gemms_alone=False)

    def with_cold_weights(self) -> Calibration:
        """The same with no weights in caches, because other GEMMs' weights have passed through them since."""
        if not any(c.weight_copies or c.copies for c in (*self.gemm.values(), *self.tiled.values())):
            return self
        gemm, tiled, few = (
            {dtype: replace(c, weight_copies=0.0, copies=0.0) for dtype, c in fits.items()}
            for fits in (self.gemm, self.tiled, self.few_rows)
        )
        return replace(self, gemm=gemm, tiled=tiled, few_rows=few)


@remembered
def load_calibration(gpu: Gpu) -> Calibration:
    """What is known of ``gpu``: its own fits, what it borrows (``borrowing``), what is assumed of its generation. GEMMs
    have coefficients in every type, also in those that the device converts to others."""
    if gpu.accelerator is not None:
        return _of_a_chip(gpu)
    relative, base = relative_of(gpu), generation(gpu.generation)
    names = {dtype: f"gemm_{dtype.value}" for dtype in DType}
    assumed = {dtype: base[name if name in base else "gemm"] for dtype, name in names.items()}
    parts = {f"gemm.{dtype.value}": gemm_coefficients(gpu, dtype, assumed[dtype]) for dtype in DType}
    gemm = {DType(name.removeprefix("gemm.")): part.coefficients for name, part in parts.items()}
    wide = [dtype for dtype in DType if fewest_m(parts[f"gemm.{dtype.value}"].record) > 1]
    few = {dtype: gemm_coefficients(gpu, dtype, assumed[dtype], few=True) for dtype in wide}
    files = {dtype: table_of(f"{gpu.name}.{dtype.value}.toml") or {} for dtype in gemm}
    tiled = {dtype: coefficients(GemmCoefficients, file["tiled"]) for dtype, file in files.items() if "tiled" in file}
    sections = {name: section_coefficients(gpu, name, base[name]) for name in ("grouped", "attention")}
    sections["memory_bound"] = streaming_coefficients(gpu, base["memory_bound"])
    sections["torch_streams"] = torch_streams(gpu)
    sections["collective"] = collective_coefficients(gpu, base["collective"])
    parts |= sections | {f"few_rows.{dtype.value}": part for dtype, part in few.items() if part.record}
    return Calibration(
        gpu=gpu.name,
        gemm=gemm,
        tiled=tiled,
        few_rows={dtype: part.coefficients for dtype, part in few.items()},
        misaligned=_misaligned(gpu),
        **{name: part.coefficients for name, part in sections.items()},
        attention_families=attention_families(gpu),
        grouped_families=grouped_families(gpu),
        power=base["power"],
        network=network_coefficients((table_of("training.toml") or {}).get("network", {})),
        relative=relative.name,
        same_die=relative.same_die,
        calibrated=frozenset(name for name, part in parts.items() if part.own),
        provenance={name: part.record for name, part in parts.items()},
    )


MISALIGNED = ("narrow", "odd", "odd_result")
"""Levels of misalignment, from 1 on (``cost.gpu.gemm``)."""


def _misaligned(gpu: Gpu) -> tuple[GemmCoefficients, ...]:
    """Kernels whose loads are narrower than the 16 bytes that bulk copies want (``misaligned.toml``). Where nobody
    measured them, their cost is assumed."""
    file = table_of("misaligned.toml") or {}
    share = file.get("share", {}).get(gpu.generation, 0.0)
    if not share:
        return ()
    assumed = () if gpu.generation in file["measured"] else ("penalty_log_sigma",)
    tables = [{key: value for key, value in file[name].items() if key not in assumed} for name in MISALIGNED]
    fits = (coefficients(GemmCoefficients, table) for table in tables)
    share /= gpu.tensor_core_rate  # where these are slowed (H20), loads that wait for memory and registers are not
    return tuple(replace(c, tiles=tuple((m, n, min(1.0, share * s)) for m, n, s in c.tiles)) for c in fits)


def _of_a_chip(gpu: Gpu) -> Calibration:
    """A template chip has no measurements: its links deliver what it says, and a hop takes their latency."""
    share = 1.0 if gpu.accelerator is None else gpu.accelerator.sustained_link_share
    links = CollectiveCoefficients(
        link_share=share,
        all_reduce_share=share,
        small_group_loss=0.0,
        hop_s=gpu.link_latency_s,
        launch_s=0.0,
        pipeline=0.0,
        whole_tree=True,
    )
    return Calibration(gpu=gpu.name, gemm={}, collective=links)
