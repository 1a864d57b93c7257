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
from sartor.cost.correction.carrying import Rates, attention_on, borrowed, per_sm, with_calls
from sartor.cost.correction.coefficients import (
    AttentionCoefficients,
    CollectiveCoefficients,
    GemmCoefficients,
    GroupedCoefficients,
    MemoryBoundCoefficients,
    PowerCoefficients,
    StreamLaw,
    TorchStreams,
    coefficients,
    generation,
    table_of,
)
from sartor.cost.correction.relatives import (
    OTHER_UNITS,
    Found,
    borrowed_from,
    collective_coefficients,
    data_file,
    further,
    grouped_families,
    kin_entry,
    known_gpu,
    relative_of,
    sdpa_measured,
    section_coefficients,
)
from sartor.hardware.gpu import Gpu, flops_per_sm_cycle
from sartor.json_types import JsonDict, JsonMap
from sartor.operators import DType
from sartor.units import GIGA, FloatArray, Floats, remembered

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
    sections["memory_bound"] = _streaming_coefficients(gpu, base["memory_bound"])
    sections["torch_streams"] = _torch_streams(gpu)
    sections["collective"] = collective_coefficients(gpu, base["collective"])
    parts |= sections | {f"few_rows.{dtype.value}": part for dtype, part in few.items() if part.record}
    return Calibration(
        gpu=gpu.name,
        gemm=gemm,
        tiled=tiled,
        few_rows={dtype: part.coefficients for dtype, part in few.items()},
        misaligned=_misaligned(gpu),
        **{name: part.coefficients for name, part in sections.items()},
        attention_families=_attention_families(gpu),
        grouped_families=grouped_families(gpu),
        power=base["power"],
        network=network_coefficients((table_of("training.toml") or {}).get("network", {})),
        relative=relative.name,
        same_die=relative.same_die,
        calibrated=frozenset(name for name, part in parts.items() if part.own),
        provenance={name: part.record for name, part in parts.items()},
    )


def _torch_streams(gpu: Gpu) -> Found:
    """PyTorch's memory-bound kernels (``torch_streams.toml``): a law of the datasheet, for GPUs of a measured
    generation; None for others. One that was not measured has as wide an interval as other borrowed kernels."""
    entry = data_file("torch_streams.toml").get(gpu.generation)
    if entry is None:
        return Found(coefficients=None, record={})
    law, measured = coefficients(TorchStreams, entry["law"]), gpu.name in entry["gpus"]
    widen = 1.0 if measured else relative_of(gpu).widen
    law = replace(law, kinds=tuple((*row[:-1], row[-1] * widen) for row in law.kinds))
    return Found(coefficients=law, own=measured, record=entry["provenance"])


def _streaming_coefficients(gpu: Gpu, assumed: MemoryBoundCoefficients) -> Found:
    """Memory-bound kernels: the device's own; those of its die, timed alone or so chosen (``streams``); else the law of
    all measured devices of its vendor (``streams.toml``); else a relative's, adjusted by the datasheet.

    Kernels timed alone and kernels that the host waits for are two tables; a device may have only one. Missing kernels
    timed alone are the device's host-timed shares without the host's time, missing host-timed ones the vendor's
    ``host_kernels``.
    """
    relative = relative_of(gpu)
    owners = [name for name in (gpu.name, relative.name, further(relative)) if _streams(name)]
    owner = owners[0] if owners else ""
    alike = relative.same_die and ("kinds" in _streams(owner) or kin_entry(gpu).get("streams") == "die")
    unlike = owner != gpu.name and not alike and (owner or kin_entry(gpu).get("gemm") == "joint")
    if unlike and gpu.vendor in data_file("streams.toml"):
        return _by_law(gpu, assumed)
    fit, record = assumed, JsonDict()
    if owner:
        fit = _streams_on(gpu, owner, relative.widen)
        record = dict(data_file(f"{owner}.toml")["provenance"]["memory_bound"])
        record |= borrowed_from(owner) if owner != gpu.name else {}
    called = bool(fit.host_kinds)
    if called and not fit.kinds:
        further_owners = [name for name in owners[1:] if "kinds" in _streams(name)]
        fit = replace(fit, kinds=_streams_on(gpu, further_owners[0], relative.widen).kinds if further_owners else ())
    vendors = data_file("kin.toml").get("host_kernels", {}).get(gpu.vendor, "")
    if not called and vendors:
        fit = replace(fit, host_kinds=_streams_on(gpu, vendors, OTHER_UNITS).host_kinds)
    fit = with_calls(fit, calls_are_own=called)
    if _torch_streams(gpu).coefficients:  # the device's time is that law's, so a call says the host's alone
        law = _by_law(gpu, assumed).coefficients
        fit = replace(fit, host_kinds=(), called=law.called, eager_launch_s=law.eager_launch_s)
    return Found(coefficients=fit, own=owner == gpu.name, record=record)


def _by_law(gpu: Gpu, assumed: MemoryBoundCoefficients) -> Found:
    """The vendor's law, with the interval of devices left out of it. A kernel timed only from the host runs alone with
    the start of the plainest, one timed only alone has that one's call, and none is faster from the host."""
    table = data_file("streams.toml")[gpu.vendor]
    alone, called = (
        borrowed(coefficients(StreamLaw, table[part]), "memory_bound", 1.0, "joint") for part in ("alone", "called")
    )
    lone, waited = ({row[0]: row for row in law.kinds} for law in (alone, called))
    start_s, call_s = lone["residual"][2], waited["residual"][2]
    lone |= {name: (name, row[1], start_s, *row[3:]) for name, row in waited.items() if name not in lone}
    waited |= {name: (name, row[1], call_s, *row[3:]) for name, row in lone.items() if name not in waited}
    raised = tuple((name, max(row[1], lone[name][1]), *row[2:]) for name, row in waited.items())
    fit = replace(
        assumed,
        hbm_share=alone.gddr_share if gpu.has_gddr else alone.hbm_share,
        launch_s=start_s * GIGA / gpu.highest_clock_hz,
        eager_launch_s=call_s,
        alone=replace(alone, kinds=tuple(lone.values())),
        called=replace(called, kinds=raised),
    )
    return Found(coefficients=fit, record=table["provenance"] | {"lender": "joint"})


def _streams(owner: str) -> JsonMap:
    """The memory-bound section of a device's own file; empty if there is none."""
    section: JsonMap = data_file(f"{owner}.toml").get("memory_bound", {}) if owner else {}
    return section


def _streams_on(gpu: Gpu, owner: str, widen: float) -> MemoryBoundCoefficients:
    fit = coefficients(MemoryBoundCoefficients, _streams(owner))
    return fit if owner == gpu.name else per_sm(borrowed(fit, "memory_bound", widen), known_gpu(owner), gpu)


def _attention_families(gpu: Gpu) -> dict[str, AttentionCoefficients]:
    """PyTorch's attention (``sdpa.toml``): by generation, since PyTorch and cuDNN choose kernels by it. Devices of that
    generation that were not measured borrow it as they do the rest of attention; others have none."""
    entry = data_file("sdpa.toml").get(gpu.generation, {})
    families = {name: coefficients(AttentionCoefficients, values) for name, values in entry.get("kernels", {}).items()}
    measured, after = sdpa_measured(gpu), Rates.of(gpu)
    if gpu.name in measured or not families:
        return families
    before, widen = Rates.of(known_gpu(measured[0])), relative_of(gpu).widen
    if before is None or after is None:
        return {}
    return {name: attention_on(borrowed(c, "attention", widen), before, after) for name, c in families.items()}


MISALIGNED = ("narrow", "odd", "odd_result")
"""Levels of misalignment, from 1 on (``cost.gpu.gemm``)."""


def _misaligned(gpu: Gpu) -> tuple[GemmCoefficients, ...]:
    """Kernels whose loads are narrower than the 16 bytes that bulk copies want (``misaligned.toml``). Their loads pass
    through registers, so they do as much per SM and cycle whatever the tensor cores could. Where nobody measured them,
    their cost is assumed."""
    file = table_of("misaligned.toml") or {}
    if not {gpu.generation, f"{gpu.generation}/{gpu.compute_capability}"} & set(file.get("runs_on", ())):
        return ()
    share = file["flops_per_sm_cycle"] / flops_per_sm_cycle(gpu)[DType.BF16]
    assumed = () if gpu.generation in file["measured"] else ("penalty_log_sigma",)
    tables = [{key: value for key, value in file[name].items() if key not in assumed} for name in MISALIGNED]
    fits = (coefficients(GemmCoefficients, table) for table in tables)
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
